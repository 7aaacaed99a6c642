"""Serves the application on TCP and on the unix socket of the data folder, and stops in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from connectors.message import AgentRuntimeError
from runtime.stores import check_unanswered

_PROBE_SECONDS = 1.0


class CannotListen(AgentRuntimeError):
    """An address cannot be listened on; the text names it, the setting, and who may hold it."""


HEAD_MAX_BYTES = 65_536
"""Of a request's first line and headers, and of its trailers."""


class _Server(uvicorn.Server):
    """Leaves signals to the process: `runtime.process.serve` decides what happens in which order."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answers.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """One server on *sockets*, which it closes. *grace_seconds* is what open requests have to end."""

    def __init__(self, app: Starlette, sockets: Sequence[socket.socket], grace_seconds: float) -> None:
        self._app = app
        self._sockets = list(sockets)
        self._server = _Server(
            uvicorn.Config(
                app,
                http="h11",
                h11_max_incomplete_event_size=HEAD_MAX_BYTES,
                log_config=None,
                log_level="error",  # it warns of each offer to go on by HTTP/2, which curl and Java make
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                # Whole seconds are all it takes; the one beyond is for those who are let go at the end of the others.
                timeout_graceful_shutdown=math.ceil(grace_seconds) + 1,
            )
        )

    async def run(self) -> None:
        """Serve until `stop`; then refuse new connections, let open requests end, and return."""
        await self._server.serve(self._sockets)

    async def started(self) -> None:
        """Wait until requests are answered."""
        await self._server.answers.wait()

    def stop(self) -> None:
        """Begin to stop. Streams that would last for ever are told at once."""
        self._app.state.stopping.set()
        self._server.should_exit = True


@asynccontextmanager
async def serving(app: Starlette, sockets: Sequence[socket.socket], grace_seconds: float) -> AsyncIterator[HttpServer]:
    """*app* served on *sockets* as long as the block lasts; what the block raises leaves unwrapped."""
    raised: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        server = HttpServer(app, sockets, grace_seconds)
        tasks.create_task(server.run(), name="http")
        try:
            await server.started()
            yield server
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            raised = error
        finally:
            server.stop()
    if raised is not None:
        raise raised


def listen_tcp(host: str, port: int) -> socket.socket:
    """A socket that listens on *host* and *port* (0: any free one). Blocking. Raises `CannotListen`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise CannotListen(
            f"AGENT_RUNTIME_HTTP_HOST={host}: no such address here ({error.strerror}); 127.0.0.1 is this machine alone"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)  # taken at once, so that nobody else gets it before the server starts
    except OSError as error:
        listener.close()
        raise CannotListen(_why_not(host, port, error)) from error
    listener.setblocking(False)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A socket at *path* that only this user can reach, in place of one that nobody answers on. Blocking.

    Raises `runtime.stores.DataDirInUse` where a process answers there, and `OSError`.
    """
    check_unanswered(path)
    # Made beside and moved into place, so that it is never open to others and never half there.
    partial = path.with_name(path.name + "~")
    partial.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(partial))
        os.chmod(partial, 0o600)
        listener.listen(1)
        os.replace(partial, path)
    except OSError:
        listener.close()
        partial.unlink(missing_ok=True)
        raise
    listener.setblocking(False)
    return listener


def unlink_if_ours(path: Path, listener_inode: int) -> None:
    """Remove the socket at *path* unless another process has put its own there meanwhile. Blocking."""
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_ino == listener_inode:
            path.unlink()


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"AGENT_RUNTIME_HTTP_PORT={port}: port {port} of {host} is in use by {_holder(host, port)}; "
            "stop it, or set AGENT_RUNTIME_HTTP_PORT to another port (0 takes any free one)"
        )
    if error.errno == errno.EACCES:
        return f"AGENT_RUNTIME_HTTP_PORT={port}: this user may not listen there; ports from 1024 on are free to all"
    return f"AGENT_RUNTIME_HTTP_HOST={host}, AGENT_RUNTIME_HTTP_PORT={port}: cannot listen there ({error.strerror})"


def _holder(host: str, port: int) -> str:
    """Who holds the port, as far as it lets itself be known."""
    connection = HTTPConnection("127.0.0.1" if host in ("", "0.0.0.0") else host, port, timeout=_PROBE_SECONDS)  # noqa: S104
    try:
        connection.request("GET", "/healthz", headers={"Host": "localhost"})
        ours = b'"agent-runtime"' in connection.getresponse().read(200)
    except (OSError, HTTPException):
        ours = False
    finally:
        connection.close()
    return "another Agent Runtime" if ours else "another program"
