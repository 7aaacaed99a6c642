"""LiteLLM alone, in a process of its own (see `bench.children`): what its calls cost without a bot around them.

It is set up as the runtime does, and called in two ways: as the runtime calls it, through `runtime.llm.Model`; and by
itself, with the very arguments that the runtime gives it: these are caught from one call through the model.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.bots import PREFIX, TOKEN
from bench.children import obey
from config.load import load
from runtime.llm import Model, load_litellm

PORTIONS = 5


class _Alone:
    def __init__(self) -> None:
        self._litellm: Any = None
        self._call: Any = None
        self._model: Model | None = None

    async def start(self, base_url: str) -> None:
        given = {
            "LLM_MODEL": "openai/bench",
            "LLM_API_BASE": base_url,
            "LLM_API_KEY": "bench-key",
            "ADMIN_TOKEN": TOKEN,
        }
        settings = load({PREFIX + name: value for name, value in given.items()}).settings
        self._litellm = await load_litellm()
        self._call, self._model = self._litellm.acompletion, Model(settings)
        await self._model.warm()  # as a bot is when it is measured: its garbage is looked for as seldom

    async def cost(self, messages: list[dict[str, Any]], stream: bool, calls: int) -> dict[str, float]:
        """CPU milliseconds of a call, over so many: ``called`` as the runtime calls it, and ``itself``."""
        asked = await self._arguments(messages, stream)

        async def called() -> None:
            await self._complete(messages, stream)

        async def itself() -> None:
            await self._one(asked)

        spent: dict[str, list[float]] = {"called": [], "itself": []}
        for _ in range(PORTIONS):  # in turn: what is measured second finds warm caches, and another machine
            spent["called"].append(await _cpu_ms(called, max(1, calls // PORTIONS)))
            spent["itself"].append(await _cpu_ms(itself, max(1, calls // PORTIONS)))
        return {way: statistics.median(times) for way, times in spent.items()}

    async def spans(self, messages: list[dict[str, Any]], stream: bool, calls: int) -> list[tuple[float, float]]:
        """Of so many calls, one after the other: when each was made and when its answer was there, by the monotonic
        clock."""
        asked, found = await self._arguments(messages, stream), []
        for _ in range(calls):
            started = time.monotonic()
            await self._one(asked)
            found.append((started, time.monotonic()))
        return found

    async def _arguments(self, messages: list[dict[str, Any]], stream: bool) -> dict[str, Any]:
        caught: dict[str, Any] = {}

        async def catch(**asked: Any) -> Any:
            caught.update(asked)
            return await self._call(**asked)

        self._litellm.acompletion = catch
        try:
            await self._complete(messages, stream)
        finally:
            self._litellm.acompletion = self._call
        return caught

    async def _complete(self, messages: list[dict[str, Any]], stream: bool) -> None:
        async def ignore(_: str) -> None:
            return

        assert self._model is not None
        await self._model.complete(messages, on_delta=ignore if stream else None)

    async def _one(self, asked: dict[str, Any]) -> None:
        answer = await self._call(**{**asked, "messages": [dict(one) for one in asked["messages"]]})
        if asked.get("stream"):
            async for _ in answer:
                pass


async def _cpu_ms(call: Callable[[], Awaitable[None]], calls: int) -> float:
    for _ in range(2):
        await call()
    computed = time.process_time()
    for _ in range(calls):
        await call()
    await asyncio.sleep(0.1)  # what it logs in the background belongs to its calls
    return (time.process_time() - computed) * 1000 / calls


if __name__ == "__main__":
    alone = _Alone()
    sys.exit(asyncio.run(obey({"start": alone.start, "cost": alone.cost, "spans": alone.spans})))
