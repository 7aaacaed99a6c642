"""The governor on a real event loop: who waits, who does not, and what is left when they give up."""

import asyncio
from collections.abc import Sequence

from connectors.connector import Accept, Capabilities, Health, SendFailed, State
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt
from runtime.governor import Governor, Governors
from runtime.schedule import CHAT_BURST, Urgency

HALL = ConversationKey("acme", "board", "hall")
THREAD = ConversationKey("acme", "board", "hall/7")
YARD = ConversationKey("acme", "board", "yard")


class Board:
    """A platform whose threads share the pace of their place."""

    name = "board"
    capabilities = Capabilities(
        max_part_units=80, sends_per_second=0.01, edits_per_second=0.01, sends_per_second_overall=1000.0
    )
    health = Health(State.CONNECTED)

    async def run(self, accept: Accept) -> None: ...

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return ()

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        return Receipt("1")

    async def close(self) -> None: ...

    def paced_as(self, key: ConversationKey) -> str:
        return key.external_id.partition("/")[0]


async def waits(governor: Governor, key: ConversationKey, urgency: Urgency) -> bool:
    """Whether a call is not allowed at once."""
    turn = asyncio.create_task(governor.turn(key, urgency))
    for _ in range(5):
        await asyncio.sleep(0)
    done = turn.done()
    turn.cancel()
    await asyncio.wait([turn])
    return not done


async def test_threads_share_the_pace_of_their_place_and_other_places_are_free() -> None:
    governor = Governor(Board())
    for key in (HALL, THREAD, HALL)[:CHAT_BURST]:
        assert not await waits(governor, key, Urgency.FINAL)

    assert await waits(governor, THREAD, Urgency.FINAL)
    assert not await waits(governor, YARD, Urgency.FINAL)


async def test_a_sign_and_a_preview_leave_a_final_part_its_way() -> None:
    governor = Governor(Board())
    assert not await waits(governor, HALL, Urgency.SIGN)
    assert await waits(governor, HALL, Urgency.PREVIEW)
    assert not await waits(governor, HALL, Urgency.FINAL)


async def test_a_wait_that_any_call_was_asked_for_holds_for_all_of_them_in_that_place() -> None:
    governor = Governor(Board())
    governor.told(HALL, SendFailed("slow down", retryable=True, retry_after_seconds=60.0))

    assert all([await waits(governor, THREAD, urgency) for urgency in Urgency])
    assert not await waits(governor, YARD, Urgency.SIGN)


async def test_a_wait_for_all_places_holds_everywhere_and_ends() -> None:
    governor = Governor(Board())
    governor.told(HALL, SendFailed("slow down", retryable=True, retry_after_seconds=0.05, everywhere=True))

    assert await waits(governor, YARD, Urgency.FINAL)
    async with asyncio.timeout(5):
        await governor.turn(YARD, Urgency.FINAL)


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    governor = Governor(Board())
    await governor.turn(HALL, Urgency.SIGN)
    for _ in range(3):
        assert await waits(governor, HALL, Urgency.PREVIEW)

    assert not governor._waiting
    assert governor._schedule.next_at() is None


async def test_a_connector_has_one_governor() -> None:
    governors, board = Governors(), Board()
    assert governors.of(board) is governors.of(board)
