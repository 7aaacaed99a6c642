"""What came at once from one chat is taken in its order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.telegram.webhook import InOrder, OvertookAnother


class Door:
    """Takes numbers, one place's at a time as it is told to go on; remembers which and whether two met."""

    def __init__(self, order: InOrder) -> None:
        self._order = order
        self.taken: list[int] = []
        self.met = False
        self.go_on = asyncio.Event()
        self._inside: set[str] = set()

    async def take(self, place: str, number: int, outcome: bool | type[Exception] = True) -> bool:
        async def do() -> bool:
            self.met = self.met or place in self._inside
            self._inside.add(place)
            await self.go_on.wait()
            self._inside.discard(place)
            self.taken.append(number)
            if isinstance(outcome, bool):
                return outcome
            raise outcome

        return await self._order.take_turn(place, number, do)


async def settled() -> None:
    """Everything has gone as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True))
@settings(deadline=None, max_examples=40)
def test_whatever_the_order_of_arrival_the_smallest_in_hand_is_next(numbers: list[int]) -> None:
    """The first to come is taken at once, the rest in their order; no two of a place meet."""

    async def scene() -> Door:
        door = Door(InOrder())
        tasks = [asyncio.create_task(door.take("a", number)) for number in numbers]
        await settled()
        door.go_on.set()
        await asyncio.gather(*tasks)
        return door

    door = asyncio.run(scene())
    assert door.taken == [numbers[0], *sorted(numbers[1:])]
    assert not door.met


async def test_places_do_not_wait_for_each_other() -> None:
    """One chat whose message takes long holds up no other."""
    order = InOrder()
    slow, quick = Door(order), Door(order)
    waiting = asyncio.create_task(slow.take("a", 1))
    await settled()
    quick.go_on.set()
    assert await quick.take("b", 2)
    slow.go_on.set()
    assert await waiting


@pytest.mark.parametrize("outcome", [False, RuntimeError])
async def test_nothing_overtakes_what_was_not_accepted(outcome: bool | type[Exception]) -> None:
    """What waits behind it is turned away; what stands before it, and what comes later, is not."""
    door = Door(InOrder())
    tasks = [
        asyncio.create_task(door.take("a", 5)),
        asyncio.create_task(door.take("a", 7, outcome)),
        asyncio.create_task(door.take("a", 8)),
        asyncio.create_task(door.take("a", 6)),
    ]
    await settled()
    door.go_on.set()
    first, failed, behind, before = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, before) == (True, True)
    assert failed is False or isinstance(failed, RuntimeError)
    assert isinstance(behind, OvertookAnother)
    assert door.taken == [5, 6, 7]
    assert await door.take("a", 7)


async def test_one_that_is_called_off_holds_up_nobody() -> None:
    """Whether it was waiting, or had its turn."""
    door = Door(InOrder())
    first, second, third = (asyncio.create_task(door.take("a", number)) for number in (1, 2, 3))
    await settled()
    second.cancel()
    await settled()
    door.go_on.set()
    assert await first
    assert await third
    with contextlib.suppress(asyncio.CancelledError):
        await second
    door.go_on.clear()
    fourth = asyncio.create_task(door.take("a", 4))
    await settled()
    fourth.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await fourth
    door.go_on.set()
    assert await door.take("a", 5)
    assert door.taken == [1, 3, 5]
