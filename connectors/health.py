"""How a connection fares: what troubles it now, and how long to wait before the next attempt."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from connectors.connector import Health, State


class Vitals:
    """`health` from what is known: connected once or not, and each trouble until it is over."""

    def __init__(self) -> None:
        self._state = State.CONNECTING
        self._why = ""
        self._connected = False
        self._troubles: dict[str, str] = {}

    @property
    def health(self) -> Health:
        if self._state in {State.STOPPED, State.FAILED}:
            return Health(self._state, self._why)
        why = next(iter(self._troubles.values()), "")
        if not self._connected:
            return Health(State.CONNECTING, why)
        return Health(State.DEGRADED if why else State.CONNECTED, why)

    def start(self) -> None:
        """Everything begins anew."""
        self._state, self._why = State.CONNECTING, ""
        self._connected = False
        self._troubles.clear()

    def connected(self) -> None:
        self._connected = True

    def trouble(self, what: str, why: str) -> None:
        """*what* is troubled, until `well` is told of it."""
        self._troubles[what] = why

    def well(self, what: str) -> None:
        self._troubles.pop(what, None)

    def failed(self, why: str) -> None:
        self._state, self._why = State.FAILED, why

    def stopped(self) -> None:
        """A failure stays a failure."""
        if self._state is not State.FAILED:
            self._state, self._why = State.STOPPED, ""


class Backoff:
    """Waits that grow after each failure, with jitter, so that many bots do not come back in the same instant."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self.first_seconds = first_seconds
        self.longest_seconds = longest_seconds
        self.failures = 0

    def fresh(self) -> Backoff:
        """Another one like it, without failures."""
        return Backoff(self.first_seconds, self.longest_seconds)

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        """How long to wait now: what was asked for, else exponentially more, with jitter."""
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return asked_seconds or longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


# ---- lanes ----
#
# What has to be done one after the other in a place, and beside one another in different places.


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
