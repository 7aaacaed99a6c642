"""Serves the application on TCP and on the unix socket of the data folder, and stops in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from connectors.message import AgentRuntimeError
from runtime.stores import check_unanswered

HEAD_MAX_BYTES = 65_536
"""The most bytes of a request's first line and headers, and of its trailers."""


class CannotListen(AgentRuntimeError):
    """The process cannot listen on an address; the text names it, the setting, and what may hold the port."""


@asynccontextmanager
async def serving(
    app: Starlette, sockets: Sequence[socket.socket], grace_seconds: float
) -> AsyncIterator[Callable[[], None]]:
    """Serve *app* on *sockets* as long as the block lasts, and close them; an error of the block is raised unwrapped.

    Yields a function that begins to stop earlier: no new connections, streams without an end of their own end at once,
    and open requests have *grace_seconds* to end.
    """
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            h11_max_incomplete_event_size=HEAD_MAX_BYTES,
            log_config=None,
            log_level="error",  # it warns of each offer of HTTP/2, which curl and Java make
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            # It takes whole seconds; one more is for the requests that are released at the end of the grace.
            timeout_graceful_shutdown=math.ceil(grace_seconds) + 1,
        )
    )

    def stop() -> None:
        app.state.stopping.set()
        server.should_exit = True

    raised: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(list(sockets)), name="http")
        try:
            await server.is_started.wait()
            yield stop
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
            raised = error
        finally:
            stop()
    if raised is not None:
        raise raised


class _Server(uvicorn.Server):
    """Leaves signals to `runtime.process.serve`, which decides the order of stopping."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on *host* and *port* (0: any free one). Blocking. Raises `CannotListen`."""
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
        listener.listen(1)  # now, so that no other program gets the port before the server starts
    except OSError as error:
        listener.close()
        raise CannotListen(_why_not(host, port, error)) from error
    listener.setblocking(False)
    return listener


def listen_unix(path: Path) -> socket.socket:
    """Return a listening socket at *path* that only this user can reach; it replaces one on which nobody answers.

    Blocking. Raises `runtime.stores.DataDirInUse` if a process answers there, and `OSError`.
    """
    check_unanswered(path)
    # Made under another name and moved, so that it is never open to other users.
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
    """Remove the socket at *path* unless another process has replaced it meanwhile. Blocking."""
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_ino == listener_inode:
            path.unlink()


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"AGENT_RUNTIME_HTTP_PORT={port}: port {port} of {host} is in use by another program, perhaps an Agent "
            "Runtime; stop it, or set AGENT_RUNTIME_HTTP_PORT to another port (0 takes any free one)"
        )
    if error.errno == errno.EACCES:
        return f"AGENT_RUNTIME_HTTP_PORT={port}: this user may not listen there; ports from 1024 on are free to all"
    return f"AGENT_RUNTIME_HTTP_HOST={host}, AGENT_RUNTIME_HTTP_PORT={port}: cannot listen there ({error.strerror})"
