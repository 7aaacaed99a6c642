"""What has to be done one after the other in a place, and beside one another in different places."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Lanes(Generic[_Item]):
    """Does *work* with each item, in the order of its place: ``work(place, item)``, which handles its own errors.

    What *work* was cancelled at is the next of its place again when the lanes are opened anew.
    """

    def __init__(self, work: Callable[[str, _Item], Awaitable[None]]) -> None:
        self._work = work
        self._lanes: dict[str, deque[_Item]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def put(self, place: str, item: _Item) -> None:
        """*item* is the last of *place* for now. Never waits."""
        lane = self._lanes.get(place)
        if lane is not None:
            lane.append(item)
            return
        self._lanes[place] = deque([item])
        self._start(place)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[asyncio.TaskGroup]:
        """Work goes on inside, and is cancelled at the end; work of other kinds may be added to the group."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for place in self._lanes:
                self._start(place)
            try:
                yield tasks
            finally:
                self._tasks = None

    def _start(self, place: str) -> None:
        if self._tasks is not None:
            self._tasks.create_task(self._walk(place), name=f"lane {place}")

    async def _walk(self, place: str) -> None:
        lane = self._lanes[place]
        while lane:
            await self._work(place, lane[0])
            lane.popleft()
        del self._lanes[place]
