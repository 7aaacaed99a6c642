"""What is said now does not overtake what was missed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from structlog.testing import capture_logs

from connectors.message import Accepted, Author, ConversationKey, InboundMessage
from runtime.process.connectors import BackfillOrder

KEY = ConversationKey("acme", "slack", "D1")
OTHER = ConversationKey("acme", "slack", "D2")


def said(place: str) -> InboundMessage:
    return InboundMessage("slack", place, "m4", Author("7", "Ann"), "now", direct=True)


class Door:
    """Remembers from where something passed."""

    def __init__(self) -> None:
        self.passed: list[str] = []

    async def accept(self, message: InboundMessage) -> Accepted:
        self.passed.append(message.external_id)
        return Accepted("stored")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_is_said_now_waits_for_what_was_missed_in_its_own_conversation_only() -> None:
    door = Door()
    order = BackfillOrder(door.accept)
    waiting = asyncio.create_task(order.accept(said("D1")))
    await asyncio.sleep(0)
    order.expect([KEY, OTHER])
    await order.accept(said("D3"))
    order.finish(OTHER)
    await order.accept(said("D2"))
    assert door.passed == ["D3", "D2"]

    order.finish(KEY)
    await waiting
    await order.accept(said("D1"))
    assert door.passed == ["D3", "D2", "D1", "D1"]


async def test_a_place_that_two_workspaces_know_is_waited_for_until_both_were_heard() -> None:
    door = Door()
    order, former = BackfillOrder(door.accept), ConversationKey("former", "slack", "D1")
    order.expect([KEY, former])
    waiting = asyncio.create_task(order.accept(said("D1")))
    order.finish(former)
    await settle()
    assert door.passed == []
    order.finish(KEY)
    await waiting
    assert door.passed == ["D1"]


async def test_what_waited_too_long_passes_and_says_so_once_and_nobody_waits_there_again() -> None:
    door = Door()
    order = BackfillOrder(door.accept, wait_seconds=0.01)
    order.expect([KEY])
    with capture_logs() as logs:
        await asyncio.gather(order.accept(said("D1")), order.accept(said("D1")))
        patient = asyncio.create_task(order.accept(said("D1")))
        await settle()
        assert patient.done()
    assert door.passed == ["D1"] * 3
    assert [(one["event"], one["external_id"]) for one in logs] == [("message.overtakes", "D1")]
    order.finish(KEY)


async def test_after_a_wait_in_vain_what_is_said_elsewhere_waits_less() -> None:
    """A platform that hands out nothing must not hold up one conversation after the other."""
    door = Door()
    order = BackfillOrder(door.accept, wait_seconds=0.02, later_wait_seconds=0.0)
    order.expect([KEY, OTHER])
    await order.accept(said("D1"))
    assert order._wait_seconds == 0.0
    await order.accept(said("D2"))
    assert door.passed == ["D1", "D2"]


async def test_where_somebody_waits_is_heard_before_all_other_places() -> None:
    """Of many conversations a few are asked for at a time."""
    order = BackfillOrder(Door().accept)
    keys = [ConversationKey("acme", "slack", f"D{number}") for number in range(10)]
    order.expect(keys)
    free, asked = asyncio.Event(), list[str]()

    async def read(key: ConversationKey) -> None:
        async with order.slot(key):
            asked.append(key.external_id)
            await free.wait()
        order.finish(key)

    async with asyncio.TaskGroup() as group:
        for key in keys[:9]:
            group.create_task(read(key))
        await settle()
        begun = len(asked)
        for place in ("D8", "D9"):
            group.create_task(order.accept(said(place)))
        await settle()
        group.create_task(read(keys[9]))
        await settle()
        free.set()
    assert 0 < begun < 8
    assert asked[begun : begun + 2] == ["D9", "D8"]
    assert sorted(asked) == [key.external_id for key in keys]


async def test_a_turn_that_is_given_up_goes_to_the_next() -> None:
    order = BackfillOrder(Door().accept)
    keys = [ConversationKey("acme", "slack", f"D{number}") for number in range(10)]
    order.expect(keys)
    free, asked = asyncio.Event(), list[str]()

    async def read(key: ConversationKey) -> None:
        async with order.slot(key):
            asked.append(key.external_id)
            await free.wait()

    tasks = [asyncio.create_task(read(key)) for key in keys]
    await settle()
    tasks[7].cancel()
    tasks[0].cancel()
    await settle()
    free.set()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    assert sorted(asked) == [key.external_id for key in keys if key.external_id != "D7"]
