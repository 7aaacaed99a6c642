"""What is kept of tool calls, so that none is made twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, Fence, InboundMessage, Role, Superseded
from grounding.prompt_input import Passage
from runtime.llm import Completion, ToolCall
from runtime.turns.batch import Batch, Envelope
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.rounds import Result

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
