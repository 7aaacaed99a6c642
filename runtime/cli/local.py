"""The runtime opened in a command's own process, with its HTTP face on a unix socket.

A socket of its own, not an in-memory transport: httpx's buffers whole responses, and so would hold back streams.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from config.settings import Settings
from connectors.connector import Connector
from runtime import events
from runtime.api.app import create_app
from runtime.api.server import listen_unix, serving, unlink_if_ours
from runtime.bootstrap import Part, Runtime, open_runtime
from runtime.embedded.sockets import socket_path
from runtime.event_stream import EventStream
from runtime.redaction import Redaction

STOP_SECONDS = 3.0
"""What requests that are still open have to end when the command does."""


@asynccontextmanager
async def open_local(
    settings: Settings,
    parts: frozenset[Part],
    *,
    platforms: Sequence[Connector] = (),
    socket_name: str = "",
) -> AsyncIterator[tuple[Runtime, Path]]:
    """The runtime and the path of the socket on which it answers, as long as the block lasts.

    Events go to the event stream, not to the screen. The socket is private to this process unless it is
    named. Raises what `runtime.bootstrap.open_runtime` raises.
    """
    stream, redaction = EventStream(), Redaction.of(settings)
    events.configure(redaction, keep=lambda _, line: stream.put(line), silent=True)
    name = socket_name or f"command-{os.getpid()}.sock"
    async with open_runtime(settings, stream, platforms=platforms, parts=parts) as runtime:
        redaction.add(runtime.admin_token)
        path = await asyncio.to_thread(socket_path, settings.data_dir, name)
        app = await asyncio.to_thread(create_app, runtime)
        async with _listening(path) as listener, serving(app, [listener], STOP_SECONDS):
            yield runtime, path


@asynccontextmanager
async def _listening(path: Path) -> AsyncIterator[socket.socket]:
    listener = await asyncio.to_thread(listen_unix, path)
    inode = (await asyncio.to_thread(path.lstat)).st_ino
    try:
        yield listener
    finally:
        listener.close()
        await asyncio.to_thread(unlink_if_ours, path, inode)
