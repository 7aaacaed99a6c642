"""Passes on what two programs tell each other, and breaks the connections between them as real networks do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_PIECE_BYTES = 65_536
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Connect = Callable[[], Awaitable[_Streams]]


class _Link:
    """One connection of a program, and the one that was opened for it."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self._ends = ends
        self.asks_nothing = self.answers_nothing = self.ends_with_an_answer = False

    def break_off(self) -> None:
        for end in self._ends:
            end.transport.abort()


class Relay:
    """Stands before one server for one program; made by `relaying`."""

    def __init__(self, connect: _Connect) -> None:
        self._connect = connect
        self._links: set[_Link] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._refuses = False

    # What can happen to it

    async def hold(self, seconds: float) -> None:
        """Nothing gets through, and all of it afterwards."""
        self._flows.clear()
        await asyncio.sleep(seconds)
        self._flows.set()

    async def cut(self, seconds: float) -> None:
        """All connections break, and none can be opened for a while."""
        self._refuses = True
        self._break_off()
        await asyncio.sleep(seconds)
        self._refuses = False

    async def swallow(self, seconds: float) -> None:
        """What is asked on the open connections never arrives; after a while they break."""
        await self._spoil(seconds, "asks_nothing")

    async def lose(self, seconds: float) -> None:
        """What is asked on the open connections is done, and no answer comes; after a while they break."""
        await self._spoil(seconds, "answers_nothing")

    async def reset(self, seconds: float) -> None:
        """Each of the open connections breaks as soon as it has an answer."""
        for link in self._links:
            link.ends_with_an_answer = True
        await asyncio.sleep(seconds)

    async def any_of_these(self, chance: random.Random, seconds: float) -> None:
        """One of all that can happen."""
        happens = chance.choice([self.hold, self.cut, self.swallow, self.lose, self.reset])
        await happens(seconds)

    # How it works

    async def _spoil(self, seconds: float, how: str) -> None:
        links = list(self._links)
        for link in links:
            setattr(link, how, True)
        await asyncio.sleep(seconds)
        for link in links:
            link.break_off()

    def _break_off(self) -> None:
        for link in list(self._links):
            link.break_off()

    async def _serve(self, asked: asyncio.StreamReader, answered: asyncio.StreamWriter) -> None:
        try:
            if self._refuses:
                raise ConnectionRefusedError
            theirs, ours = await self._connect()
        except OSError:
            answered.transport.abort()
            return
        link = _Link(answered, ours)
        self._links.add(link)
        ways = [
            asyncio.create_task(self._ask(link, asked, ours)),
            asyncio.create_task(self._answer(link, theirs, answered)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            link.break_off()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self, link: _Link, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await self._next(source):
            if not link.asks_nothing:
                to.write(data)
                await to.drain()

    async def _answer(self, link: _Link, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await self._next(source):
            if link.ends_with_an_answer:
                return
            if not link.answers_nothing:
                to.write(data)
                await to.drain()

    async def _next(self, source: asyncio.StreamReader) -> bytes:
        try:
            data = await source.read(_PIECE_BYTES)
        except OSError:
            return b""
        await self._flows.wait()
        return data


@asynccontextmanager
async def relaying(url: str, folder: Path, name: str) -> AsyncIterator[tuple[Relay, str]]:
    """A relay before the server at *url* (``http``, ``ws`` or ``unix``), and the address at which it is that server; a
    socket's is *name* in *folder*."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        relay = Relay(lambda: asyncio.open_unix_connection(parts.path))
        path = folder / name
        server = await asyncio.start_unix_server(relay._serve, path)
        address = f"unix://{path}"
    else:
        relay = Relay(lambda: asyncio.open_connection(parts.hostname, parts.port))
        server = await asyncio.start_server(relay._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = urlunsplit(parts._replace(netloc=f"127.0.0.1:{port}"))
    try:
        yield relay, address
    finally:
        server.close()
        relay._break_off()
