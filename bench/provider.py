"""The model server of the benches, in a process of its own: it answers at once, and notes when.

As a child (see `bench.children`) it can ``start``, say a reply of so many ``chunks`` (five characters each), give the
``times`` of the requests for replies since the last time, show the ``last`` request, and say how many were ``asked``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from bench.children import Child, Command, child, obey
from tests.emulators import openai

CHUNK_CHARACTERS = 5
BACKGROUND = ("You keep one short document", "You decide what of a conversation is worth remembering")
"""Of these one stands in every request for a summary or for records; such requests are nobody's turn."""


@asynccontextmanager
async def provider() -> AsyncIterator[tuple[Child, str]]:
    """The process, and the base URL of what it serves."""
    async with child("bench.provider") as process:
        yield process, await process.ask("start")


class _Provider:
    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._chunks = 1
        self._times: list[tuple[float, float]] = []
        self._last: dict[str, Any] = {}
        self._asked = 0

    async def start(self) -> str:
        fake = await self._stack.enter_async_context(openai.serving())
        self._fake = fake
        fake.answer, fake.timed = self._answer, self._timed
        return fake.base_url

    def _answer(self, body: dict[str, Any]) -> str:
        self._fake.requests[:] = [body]  # nothing is looked through that grows with the run
        self._asked += 1
        words = f"{self._asked % 10**CHUNK_CHARACTERS:0{CHUNK_CHARACTERS}}"
        return words + " word" * (self._chunks - 1)

    def _timed(self, body: dict[str, Any], started: float) -> None:
        said = json.dumps(body["messages"])
        if not any(words in said for words in BACKGROUND):
            self._times.append((started, time.monotonic()))
            self._last = body

    async def chunks(self, count: int) -> None:
        self._chunks = count

    async def times(self) -> list[tuple[float, float]]:
        times, self._times = self._times, []
        return times

    async def asked(self) -> int:
        """How many requests there were, those of the background too."""
        return self._asked

    async def base_url(self) -> str:
        return self._fake.base_url

    async def last(self) -> dict[str, Any]:
        return self._last


async def _main() -> None:
    async with AsyncExitStack() as stack:
        it = _Provider(stack)
        can: dict[str, Command] = {"start": it.start, "base_url": it.base_url, "chunks": it.chunks, "times": it.times}
        await obey(can | {"last": it.last, "asked": it.asked})


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
