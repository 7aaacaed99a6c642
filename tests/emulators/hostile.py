"""A file server on loopback that does to a fetcher what hostile and broken ones do. With TLS where told so."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

MEBIBYTE = b"\0" * 1_048_576


@dataclass
class HostileServer:
    """The running server. ``files`` are path → (content type, bytes); ``redirects`` path → where to; ``seen`` is
    each request's Host, path and Authorization. Beyond those: ``/endless``, ``/drip``, ``/bomb``, ``/liar``,
    ``/cut`` and ``/status/N``."""

    port: int = 0
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    trusting: ssl.SSLContext | None = None
    """What a client needs to believe the server's certificate."""
    sent_bytes: int = 0


@contextlib.asynccontextmanager
async def serving(*names: str) -> AsyncIterator[HostileServer]:
    """The server; over TLS under *names* where any are given."""
    server = HostileServer()
    app = web.Application()

    async def answer(request: web.Request) -> web.StreamResponse:
        server.seen.append((request.host, request.path, request.headers.get("Authorization", "")))
        server.headers.append(dict(request.headers))
        if to := server.redirects.get(request.path):
            return web.Response(status=302, headers={"Location": to})
        if request.path in server.files:
            kind, data = server.files[request.path]
            return web.Response(body=data, headers={"Content-Type": kind})
        return await _misbehave(server, request)

    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    theirs, server.trusting = _contexts(names) if names else (None, None)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=theirs)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


async def _misbehave(server: HostileServer, request: web.Request) -> web.StreamResponse:
    if request.path.startswith("/status/"):
        return web.Response(status=int(request.path.rpartition("/")[2]))
    headers = {"Content-Type": "text/plain"}
    if request.path == "/bomb":
        headers["Content-Encoding"] = "gzip"
    if request.path == "/liar":
        headers["Content-Length"] = "999999999"
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        if request.path == "/bomb":
            await response.write(gzip.compress(MEBIBYTE * 64, 9))
        while request.path in ("/endless", "/drip"):
            piece = b"x" if request.path == "/drip" else b"word " * 10_000
            await response.write(piece)
            server.sent_bytes += len(piece)
            await asyncio.sleep(0.05 if request.path == "/drip" else 0)
    return response


def _contexts(names: tuple[str, ...]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of its own for *names*, and a client's that believes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.pem"
        unlocked = serialization.NoEncryption()
        file.write_bytes(
            pem + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unlocked)
        )
        theirs.load_cert_chain(file)
    return theirs, ssl.create_default_context(cadata=pem.decode())
