"""Fetches a file from a platform, protected against requests to other servers (SSRF).

The URL comes partly from strangers. Therefore: only https (http if the operator named the host); only the hosts of the
`Location`; the same rules for redirects; a name is resolved once, and the connection goes to the address that was
checked; no private address; limits on size and time hold while the file streams. No proxy, cookie or credential of the
environment is used, and no error text contains an address or a header.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from connectors.connector import AttachmentUnavailable, Location
from runtime.attachments.network import Fetched, Network, check_type, size_in_words, too_large
from runtime.conversion import UNDECLARED, as_words, is_among, plain_type

MAX_REDIRECTS = 3
PIECE_BYTES = 65_536
MAX_URL_CHARACTERS = 4096
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_DEFAULT_PORTS = {"https": 443, "http": 80}


async def fetch(
    location: Location,
    max_bytes: int,
    allowed_types: frozenset[str],
    timeout: float,
    network: Network | None = None,
) -> Fetched:
    """Return the file at *location*.

    *max_bytes* limits the file; *allowed_types* are media types, ``family/*`` for a family; *timeout* in seconds is for
    everything together. Raises `AttachmentUnavailable`, whose text is for the person who sent the file.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _follow(location, max_bytes, allowed_types, network or Network())
    except TimeoutError as error:
        raise AttachmentUnavailable(f"fetching it took longer than {timeout:g} seconds") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # "from None": the text of *error* may quote the address, which may contain a token.
        raise AttachmentUnavailable(f"it could not be fetched ({type(error).__name__})") from None


async def _follow(location: Location, max_bytes: int, allowed: frozenset[str], network: Network) -> Fetched:
    url = first = _parsed(location.url)
    for _ in range(MAX_REDIRECTS + 1):
        _check(url, first, location, network.port)
        addresses = await _addresses(url, location, network)
        connector = aiohttp.TCPConnector(
            resolver=_Pinned(url.raw_host or "", addresses),
            use_dns_cache=False,
            force_close=True,
            ssl=network.tls if network.tls is not None else True,
        )
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=None),  # the caller limits everything together
            ) as session,
            session.get(
                url,
                headers={"User-Agent": "agent-runtime", **location.headers, "Accept-Encoding": "identity"},
                allow_redirects=False,
            ) as response,
        ):
            if response.status not in _REDIRECTS:
                return await _receive(response, max_bytes, allowed)
            url = _target(url, response.headers.get("Location", ""))
    raise AttachmentUnavailable("it was redirected too often")


def _parsed(text: str) -> URL:
    """Return *text* as a URL, byte for byte: escaping it again would break a signature in it."""
    if len(text) > MAX_URL_CHARACTERS or not all("!" <= character <= "~" for character in text):
        raise AttachmentUnavailable("its address is not a valid one")
    return URL(text, encoded=True)


def _target(url: URL, to: str) -> URL:
    if not to:
        raise AttachmentUnavailable("it was redirected to nowhere")
    return url.join(_parsed(to))


def _check(url: URL, first: URL, location: Location, public_port: int) -> None:
    """Raise `AttachmentUnavailable` if *url* may not be requested."""
    trusted = location.trusts_private
    if url.scheme != "https" and not (trusted and url.scheme == "http"):
        raise AttachmentUnavailable("it is not offered over an encrypted connection")
    if first.scheme == "https" and url.scheme != "https":  # the headers' secrets are meant for the encrypted one
        raise AttachmentUnavailable("it was redirected to an unencrypted connection")
    if url.raw_user is not None or url.raw_password is not None or "@" in url.raw_authority:
        raise AttachmentUnavailable("its address contains a user name")
    if not _is_listed(url.raw_host or "", location.hosts):
        raise AttachmentUnavailable("it does not lie on the platform's own servers")
    ports = {_DEFAULT_PORTS[url.scheme], first.port} if trusted else {public_port}
    if url.port not in ports:
        raise AttachmentUnavailable("it lies at an unusual port")


def _is_listed(host: str, hosts: Sequence[str]) -> bool:
    host = host.lower().rstrip(".")
    return any(
        (host.endswith(entry) and len(host) > len(entry)) if entry.startswith(".") else host == entry
        for entry in (listed.lower().strip("[]").rstrip(".") for listed in hosts)
        if entry.strip(".")
    )


async def _addresses(url: URL, location: Location, network: Network) -> list[str]:
    """Return the addresses that *url* may be requested from. Raises `AttachmentUnavailable` and `OSError`."""
    host, port = url.raw_host or "", url.port or 0
    try:
        ipaddress.ip_address(host)
        found: Sequence[str] = [host]
    except ValueError:
        found = await network.resolve(host, port)
    allowed = [text for text in found if location.trusts_private or _permitted(text, network)]
    if not allowed:
        raise AttachmentUnavailable("it does not lie at a public address")
    return allowed


def _permitted(text: str, network: Network) -> bool:
    try:
        return network.permits(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False


class _Pinned(AbstractResolver):
    """Returns the addresses that were checked, even if the name resolves to others by now."""

    def __init__(self, host: str, addresses: Sequence[str]) -> None:
        self._host = host
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host != self._host:
            raise OSError("another host was asked for than the one that was checked")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


async def _receive(response: aiohttp.ClientResponse, max_bytes: int, allowed: frozenset[str]) -> Fetched:
    if response.status != 200:
        raise AttachmentUnavailable(_refusal(response.status))
    declared = plain_type(response.headers.get("Content-Type", ""))
    if declared not in UNDECLARED and not is_among(declared, allowed):
        raise AttachmentUnavailable(f"it is {as_words(declared)}, which I cannot read")
    if (response.content_length or 0) > max_bytes:
        raise too_large(response.content_length or 0, max_bytes)
    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise AttachmentUnavailable("it was sent in an encoding that was not asked for")
    received = bytearray()
    async for piece in response.content.iter_chunked(PIECE_BYTES):
        received += piece
        if len(received) > max_bytes:
            raise AttachmentUnavailable(f"too large (the limit is {size_in_words(max_bytes)})")
    data = bytes(received)
    return Fetched(data, check_type(data, declared, allowed))


def _refusal(status: int) -> str:
    if status in (401, 403):
        return "the platform does not let me have it"
    if status in (404, 410):
        return "the platform does not have it any more"
    return f"the platform did not hand it out (HTTP {status})"
