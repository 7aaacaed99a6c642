"""What is kept of a turn that is interrupted, so that nothing is done twice, and how a turn hears what people wish."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Superseded
from grounding.prompt_input import Passage
from runtime.coordination import Hub
from runtime.delivery import Outbox, Previews, RateLimiters, notify_unanswered
from runtime.llm import Completion, ToolCall
from runtime.turns import Batch, Cancellations, Checkpoints, Envelope, Mailbox, notify_interrupted
from runtime.turns.batch import BatchGrown
from runtime.turns.rounds import Result
from tests.emulators.paper import Paper

KEY = ConversationKey("acme", "telegram", "-100")
CALLS = (ToolCall("a", "note", "{}"), ToolCall("b", "note", "{}"))
WANTS = Completion("", "m", tool_calls=CALLS)
PLANS = Passage(source="a.md", heading="Plans", text="The harbour plan costs 12.", score=0.5)
NOTED = Result("note", "noted", tokens=3, duration_ms=7, passages=(PLANS,))


@pytest.fixture
async def batch(redis: Redis) -> Batch:
    fence = Fence(f"ar:mailbox:{KEY.tag}:current:{KEY.encoded}", "mine")
    await redis.hset(fence.name, "token", fence.token)
    message = InboundMessage("telegram", "-100", "m1", Author("1"), "write that down")
    return Batch(KEY, "t1", 1, (Envelope(message, Role.MEMBER, 1000.0),), fence)


async def test_rounds_and_results_are_found_again_and_a_round_is_over_when_all_of_it_is(
    redis: Redis, batch: Batch
) -> None:
    journal = Checkpoints(redis)
    await journal.save_answer(batch, 0, WANTS)
    await journal.save_tool_result(batch, 0, 1, NOTED)
    [one] = (await journal.load(batch)).rounds
    assert (one.completion, one.is_over) == (WANTS, False)

    await journal.save_tool_result(batch, 0, 0, replace(NOTED, ok=False, why="timeout"))
    done = await journal.load(batch)
    [one] = done.rounds
    assert one.results == (replace(NOTED, ok=False, why="timeout"), NOTED)

    await journal.save_answer(batch, 1, Completion("Done.", "m"))  # as an earlier version stored last answers
    assert len((await journal.load(batch)).rounds) == 1


async def test_a_call_is_begun_once_and_by_nobody_who_was_taken_for_dead(redis: Redis, batch: Batch) -> None:
    journal = Checkpoints(redis)
    await journal.save_answer(batch, 0, WANTS)
    assert await journal.begin_tool(batch, 0, 0)
    assert not await journal.begin_tool(batch, 0, 0)
    assert (await journal.load(batch)).results == {(0, 0): None}

    silent = replace(batch, fence=replace(batch.fence, token="theirs"))
    with pytest.raises(Superseded):
        await journal.begin_tool(silent, 0, 1)
    with pytest.raises(Superseded):
        await journal.save_tool_result(silent, 0, 0, NOTED)
    await journal.save_tool_result(batch, 0, 0, NOTED)
    assert (await journal.load(batch)).results == {(0, 0): NOTED}


async def test_the_calls_of_a_smaller_question_are_no_calls_of_the_grown_one(redis: Redis, batch: Batch) -> None:
    journal = Checkpoints(redis)
    await journal.save_answer(batch, 0, WANTS)
    await journal.begin_tool(batch, 0, 0)
    await journal.save_tool_result(batch, 0, 1, NOTED)
    grown = replace(batch, envelopes=batch.envelopes * 2)

    assert (await journal.load(grown)).rounds == []
    assert (await journal.load(grown)).results == {}
    assert await journal.begin_tool(grown, 0, 0)


async def store(mailbox: Mailbox, number: int) -> None:
    message = InboundMessage(KEY.connector, KEY.external_id, f"m{number}", Author("1"), str(number))
    await mailbox.store(KEY, Envelope(message, Role.MEMBER, time.time(), queue="interrupt"))


async def take(mailbox: Mailbox) -> Batch:
    """The turn at hand, as the next worker has it, if need be after a dead one."""
    await mailbox.prepare()
    offers = await mailbox.offers([KEY.partition], 1) or await mailbox.abandoned(0.0, 1)
    lease = await mailbox.claim(offers[0])
    assert lease is not None
    batch = await mailbox.take(lease)
    assert batch is not None
    return batch


def ids(batch: Batch) -> list[str]:
    return [one.message.message_id for one in batch.envelopes]


async def test_the_answer_to_the_smaller_question_is_not_taken_up_again(redis: Redis) -> None:
    journal, mailbox = Checkpoints(redis), Mailbox(redis)
    await store(mailbox, 1)
    batch = await take(mailbox)
    await journal.save_words(batch, {0: "what was spoken"})
    await journal.save_answer(batch, 0, Completion(text="to the first alone", model="m"))
    await store(mailbox, 2)
    grown = await mailbox.extend(batch)

    again = await take(mailbox)
    assert ids(again) == ids(grown) == ["m1", "m2"]
    assert (await journal.load(again)).completions == ()
    await journal.save_words(again, {1: "and more of it"})
    assert (await journal.load(again)).words == {0: "what was spoken", 1: "and more of it"}

    await journal.save_answer(again, 0, Completion(text="to both", model="m"))
    assert [one.text for one in (await journal.load(again)).completions] == ["to both"]


async def test_what_is_said_of_a_turn_before_it_is_begun_is_stored_for_it(redis: Redis) -> None:
    """Between the taking of a turn and its answering lies the wait for the rest of a message."""
    mailbox = Mailbox(redis)
    stops = Cancellations(Hub(redis, shared=False), mailbox)
    await store(mailbox, 1)
    batch = await take(mailbox)

    assert await stops.stop(KEY)
    with stops.listen(batch.turn_id) as wishes:
        await stops.refresh(batch, wishes)
        assert wishes.stop


async def test_a_worker_in_another_process_hears_of_it(redis: Redis) -> None:
    gateway, worker = Hub(redis, shared=True), Hub(redis, shared=True)
    mailbox = Mailbox(redis)
    stops = Cancellations(worker, mailbox)
    listening = asyncio.create_task(worker.run())
    try:
        with stops.listen("t1") as wishes:
            async with asyncio.timeout(60):
                while not wishes.more:  # the first may be told before anybody listens
                    await notify_interrupted(gateway, "t1")
                    await asyncio.sleep(0.02)
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def test_a_call_for_more_of_which_there_is_none_changes_nothing(redis: Redis) -> None:
    """The news may come when the message was made part of the question already, or was taken out again."""
    mailbox = Mailbox(redis)
    stops = Cancellations(Hub(redis, shared=False), mailbox)
    await store(mailbox, 1)
    batch = await take(mailbox)
    with stops.listen(batch.turn_id) as wishes:
        wishes.more = True
        await stops.grow_batch(batch, wishes)
        assert not wishes.more

        await store(mailbox, 2)
        with pytest.raises(BatchGrown) as merged:
            await stops.grow_batch(batch, wishes)
    assert ids(merged.value.batch) == ["m1", "m2"]
    assert merged.value.batch.turn_id == batch.turn_id


async def test_who_waits_at_another_process_hears_that_a_newer_message_gets_the_answer(redis: Redis) -> None:
    let_go: list[tuple[ConversationKey, tuple[str, ...]]] = []

    class Door(Paper):
        def let_go(self, key: ConversationKey, messages: tuple[str, ...], *, gone: bool) -> None:
            assert not gone
            let_go.append((key, messages))

    gateway, worker = Hub(redis, shared=True), Hub(redis, shared=True)
    Previews({KEY.connector: Door()}, Outbox(redis, gateway), RateLimiters(), gateway)
    listening = asyncio.create_task(gateway.run())
    try:
        async with asyncio.timeout(60):
            while not let_go:  # the first may be told before anybody listens
                await notify_unanswered(worker, KEY, ("m1", "m2"))
                await asyncio.sleep(0.02)
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    assert let_go[0] == (KEY, ("m1", "m2"))
