"""Keeps what came at once and belongs together in its order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable


class OvertookAnother(Exception):
    """What stood before it, and was in hand too, is not done: doing it now would be out of order."""


class InOrder:
    """One at a time of each place, the one with the smallest number in hand first."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, list[tuple[int, asyncio.Future[None]]]] = defaultdict(list)
        self._busy: set[Hashable] = set()

    async def take_turn(self, place: Hashable, number: int, do: Callable[[], Awaitable[bool]]) -> bool:
        """What *do* says, in the turn of *number* in *place*.

        Where that is False or it raises, what waits behind *number* does not get its turn: `OvertookAnother` is
        raised there.
        """
        if place in self._busy:
            await self._queue(place, number)
        self._busy.add(place)
        done = False
        try:
            done = await do()
        finally:
            if not done:
                self._refuse_later(place, number)
            self._next(place)
        return done

    async def _queue(self, place: Hashable, number: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (number, turn)
        self._waiting[place].append(entry)
        try:
            await turn
        except BaseException:
            if entry in self._waiting.get(place, ()):
                self._waiting[place].remove(entry)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._next(place)  # it was its turn just when it was called off
            raise

    def _refuse_later(self, place: Hashable, number: int) -> None:
        for entry in [entry for entry in self._waiting.get(place, ()) if entry[0] > number]:
            self._waiting[place].remove(entry)
            if not entry[1].done():
                entry[1].set_exception(OvertookAnother())

    def _next(self, place: Hashable) -> None:
        """Hands *place* on to who waits for it, else gives it free."""
        waiting = sorted(self._waiting.get(place, ()), key=lambda entry: entry[0])
        for entry in waiting:
            self._waiting[place].remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)
                return  # stays busy, in the other's hands
        self._waiting.pop(place, None)
        self._busy.discard(place)
