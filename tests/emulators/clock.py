"""A clock that stands still unless somebody sleeps by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Clock:
    """``now`` in seconds, and how long each sleep was."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.sleeping: Callable[[float], Awaitable[None]] | None = None
        """What is awaited in place of a sleep, if set."""

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.sleeping is not None:
            await self.sleeping(seconds)
        self.now += seconds
        await asyncio.sleep(0)
