"""The child process that runs the embedded search index and the second embedding model.

``python -m runtime.embedded.index_server SOCKET`` gets the number of an open socket. It answers the questions of
`runtime.embedded.index_client` until the socket is closed, or until SIGTERM. Then it closes its indexes.

Each message is a numbered pickle. A question is (target, method, arguments, keyword arguments); its answer has the same
number and is (whether the call succeeded, the value or the exception). Both processes are the same program of the same
user, so a pickle brings no risk. Number `LOGGED` stands for log events of the child; `DAMAGED` says that the files of
an index were damaged, and that it is empty now. An empty message says that the answer to its number is not wanted any
more.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib.util
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from connectors.message import AgentRuntimeError
from grounding.retrieval import IndexUnavailable, MiniLMEmbedder

SWITCH_SECONDS = 0.001
"""How long a thread may hold the interpreter while another one waits, as in ``serve``."""
NICENESS = 15
"""The priority of the thread that embeds documents, of 0 (highest) to 19."""
IDLE_SECONDS = 120.0
"""After so long without a text to embed the second embedding model is unloaded."""
FREE_SECONDS = 5.0
"""Between times when free memory is given back to the system. The allocator keeps 70 MB after the model was loaded, and
as much after the engine rewrote a segment."""
LOGGED, DAMAGED = 0, 1
LARGE_BYTES = 100_000
"""A larger message is unpickled in a thread: so much takes 2 ms."""
_HEAD = struct.Struct("<II")
"""The number of a message and its length."""


@dataclass(frozen=True, slots=True)
class IndexTarget:
    """The index that a question is for: the arguments of `grounding.retrieval.qdrant_edge.EmbeddedIndex`."""

    folder: Path
    model: str
    dimensions: int
    timeout_seconds: float
    version: int
    deep_dimensions: int | None


class Channel:
    """One end of the connection between parent and child."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        """Take over *end*."""
        return cls(*await asyncio.open_connection(sock=end))

    def write(self, number: int, message: Any) -> None:
        """Send *message*, or nothing if the other end is gone."""
        self._write(number, pickle.dumps(message, 5))

    def cancel(self, number: int) -> None:
        """Say that the answer to the message *number* is not wanted any more."""
        self._write(number, b"")

    async def send(self, number: int, message: Any, *, is_large: bool = False) -> None:
        """Send *message* and wait until little of it is left to be sent. Raises `OSError` if the other end is gone.

        A message that *is_large* is pickled in a thread, so that the event loop goes on.
        """
        self._write(number, await asyncio.to_thread(pickle.dumps, message, 5) if is_large else pickle.dumps(message, 5))
        await self._writer.drain()

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """All messages of the other end, each for `load`, until that is closed. An empty one cancels its number."""
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                number, size = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                yield number, await self._reader.readexactly(size)

    @staticmethod
    async def load(raw: bytes) -> Any:
        """A message of `messages`."""
        return await asyncio.to_thread(pickle.loads, raw) if len(raw) > LARGE_BYTES else pickle.loads(raw)  # noqa: S301

    def close(self) -> None:
        """Hang up. `messages` ends at both ends."""
        self._writer.close()

    def _write(self, number: int, raw: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(_HEAD.pack(number, len(raw)))
            self._writer.write(raw)


class Server:
    """Answers the questions of *channel*, each in a task of *group*."""

    def __init__(self, channel: Channel, group: asyncio.TaskGroup) -> None:
        self._channel = channel
        self._group = group
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._indexes: dict[IndexTarget, Any] = {}
        self._model = MiniLMEmbedder(only_english=True, niceness=NICENESS)

    async def run(self) -> None:
        """Answer until the channel is closed, then close the indexes."""
        freeing = self._group.create_task(self._free_memory())
        async for number, raw in self._channel.messages():
            if raw:
                self._tasks[number] = self._group.create_task(self._answer(number, raw))
            elif (cancelled := self._tasks.get(number)) is not None:
                cancelled.cancel()
        for task in [freeing, *self._tasks.values()]:
            task.cancel()
        for index in self._indexes.values():
            await index.close()

    async def _answer(self, number: int, raw: bytes) -> None:
        try:
            self._channel.write(number, (True, await self._call(*await Channel.load(raw))))
        except (AgentRuntimeError, ValueError) as error:
            self._channel.write(number, (False, error))
        except Exception as error:  # noqa: BLE001 - the parent is told, and the log has the traceback
            traceback.print_exc()
            self._channel.write(number, (False, IndexUnavailable(f"the search index failed ({error!r})")))
        finally:
            del self._tasks[number]

    async def _call(
        self, target: IndexTarget | None, method: str, arguments: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        if target is None:
            return await getattr(self._model, method)(*arguments) if method != "ping" else None
        index = self._index(target)
        if method in ("close", "drop"):
            del self._indexes[target]
        try:
            value = await getattr(index, method)(*arguments, **options)
        finally:
            was_damaged, index.was_damaged = index.was_damaged, False
            if was_damaged:
                self._channel.write(DAMAGED, (True, None))
        if was_damaged and method != "ensure":
            raise IndexUnavailable("the search index was damaged, and is filled again")
        return value

    async def _free_memory(self) -> None:
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # Linux with the GNU C library has it
        while trim is not None:
            await asyncio.sleep(FREE_SECONDS)
            self._model.unload_if_idle(IDLE_SECONDS)
            await asyncio.to_thread(trim, 0)

    def _index(self, target: IndexTarget) -> Any:
        from grounding.retrieval.qdrant_edge import EmbeddedIndex  # needs a package that may not be installed

        if target not in self._indexes:
            self._indexes[target] = EmbeddedIndex(
                target.folder,
                target.model,
                target.dimensions,
                timeout_seconds=target.timeout_seconds,
                version=target.version,
                deep_dimensions=target.deep_dimensions,
            )
        return self._indexes[target]

    def log(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        """Send a log event to the parent, which logs it."""
        self._channel.write(LOGGED, (method, {name: _plain(value) for name, value in event.items()}))
        raise structlog.DropEvent


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


async def serve(end: socket.socket) -> None:
    """Answer on *end* until it is closed, or until SIGTERM."""
    channel = await Channel.open(end)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, channel.close)
    async with asyncio.TaskGroup() as group:
        server = Server(channel, group)
        structlog.configure(processors=[server.log])
        await server.run()


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent, which stops this process
    if importlib.util.find_spec("qdrant_edge") is not None:  # while the parent still imports its own modules
        importlib.import_module("grounding.retrieval.qdrant_edge")
    gc.freeze()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.stderr.flush()
    os._exit(0)  # else it would wait for the threads of the engine


if __name__ == "__main__":
    main()
