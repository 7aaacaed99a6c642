"""What the process and the child that embeds for it say to each other: numbered texts, and their vectors.

A text goes as its number and length, each of four bytes, and its UTF-8; its vector comes back as the number, how many
values it has, and those, each of four bytes. All numbers are little-endian. None at all stands for a text that cannot
be embedded.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import cast

from grounding.documents.embedding import Vector

HEAD = struct.Struct("<II")
READY = 0
"""The number of the first thing that a child says, which answers no text."""
MAX_CHARACTERS = 20_000
"""What is sent of a text; the model reads less."""


class VectorLane(asyncio.Protocol):
    """One connection to the child. Texts are answered in the order in which they were sent."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = loop.create_future()
        """True once the child has said that it is ready; False where it ended before."""
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Vector | None]] = {}
        self._numbers = itertools.count(READY + 1)
        self._read = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, text: str) -> asyncio.Future[Vector | None]:
        """The vector of *text*, some time: None where the child ends before, or cannot embed it. Sent at once."""
        future: asyncio.Future[Vector | None] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_result(None)
            return future
        number = next(self._numbers)
        self._waiting[number] = future
        raw = text[:MAX_CHARACTERS].encode("utf-8", "replace")
        self._transport.write(HEAD.pack(number, len(raw)) + raw)
        return future

    def close(self) -> None:
        """Hang up; what was asked is None."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= HEAD.size:
            number, values = HEAD.unpack_from(self._read)
            end = HEAD.size + 4 * values
            if len(self._read) < end:
                return
            vector = list(struct.unpack_from(f"<{values}f", self._read, HEAD.size))
            del self._read[:end]
            if number == READY:
                if not self.ready.done():
                    self.ready.set_result(True)
            elif (future := self._waiting.pop(number, None)) is not None and not future.done():
                future.set_result(vector or None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ready.done():
            self.ready.set_result(False)
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
