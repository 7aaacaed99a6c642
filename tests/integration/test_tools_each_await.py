"""A turn in which a tool writes something down is disturbed at each place where it waits, and at each of its calls to
Redis: it is answered once, the tool is begun at most once, and no answer of the model is paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from config.settings import Settings
from connectors.message import ConversationKey
from grounding.transcript import EntryRole
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI, Reply
from tests.emulators.paper import Paper, say, until_over, written
from tests.emulators.toolbox import Desk, desk
from tests.integration.test_each_await import MOST, Halt, another_worker, bounded, halt, nothing_is_held
from tests.integration.test_each_call_fails import Wire, wire

pytestmark = pytest.mark.timeout(360)

__all__ = ["desk", "halt", "wire"]


def writes_down(body: dict[str, Any]) -> Reply | str:
    """What the model does: it has a tool write down and looks something up, then says so."""
    if "tools" not in body:  # a summary
        return "Nothing of note."
    if any(message["role"] == "tool" for message in body["messages"]):
        return "It is written down."
    looks = ("search_documents", {"query": "harbour plan"})
    return Reply(text="A moment.", tool_calls=(("note", {"words": "x"}), looks))


def with_tools(settings: Settings) -> Settings:
    return settings.model_copy(update={"llm_tools": "always"})


async def told_once(bot: Bot, paper: Paper, desk: Desk, place: str, asked: int, which: str) -> None:
    entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
    calls = [call for call in desk.calls if call.key.external_id == place]

    assert paper.texts(place) == ["A moment.\n\nIt is written down."], which
    assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND], which
    assert paper.texts(place) == [entries[-1].text], which
    assert len(calls) <= 1, which
    assert 2 <= len([body for body in bot.replies_asked if "tools" in body]) - asked <= 3, which


async def disturbed_at_each_wait(bot: Bot, paper: Paper, halt: Halt, desk: Desk) -> int:
    bot.model.answer = writes_down
    for number in range(MOST):  # the first without trouble
        place = f"place{number}x"
        halt.place, halt.at, halt.waits = place, number, 0
        asked = len([body for body in bot.replies_asked if "tools" in body])
        await say(bot, written(place))
        await until_over(bot)
        await nothing_is_held(bot, number)
        await told_once(bot, paper, desk, place, asked, f"wait {number}")
        if number > halt.waits:
            return number
    raise AssertionError("the waits of one message never end")


async def test_a_worker_may_be_stopped_wherever_it_waits(
    halt: Halt, desk: Desk, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    def stop(serving: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_soon(serving.cancel)

    halt.befalls = stop
    paper = Paper()
    settings = with_tools(bounded(model_settings, 2))
    async with running_bot(settings, openai_server, [paper]) as bot, asyncio.timeout(300):
        assert await disturbed_at_each_wait(bot, paper, halt, desk) > 30
    assert len(desk.noted) > 30


async def test_a_worker_may_stand_still_wherever_it_waits_while_another_takes_over(
    halt: Halt, desk: Desk, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    paper = Paper()
    settings = with_tools(bounded(model_settings, 60))
    async with running_bot(settings, openai_server, [paper]) as bot, asyncio.timeout(300):
        take_over = another_worker(bot)
        halt.befalls = lambda _serving: take_over()
        assert await disturbed_at_each_wait(bot, paper, halt, desk) > 30
    assert len(desk.noted) > 30


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_each_call_to_redis_may_fail_once(
    lost: Literal["request", "answer"],
    wire: Wire,
    desk: Desk,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    paper = Paper()
    settings = with_tools(model_settings(access_policy="open", default_workspace="acme", turn_lease_seconds=1))
    async with running_bot(settings, openai_server, [paper]) as bot, asyncio.timeout(300):
        bot.model.answer = writes_down
        for number in range(MOST):  # the first without trouble
            place = f"place{number}x"
            wire.place, wire.fails_at, wire.lost, wire.seen = place, number, lost, 0
            asked = len([body for body in bot.replies_asked if "tools" in body])
            await say(bot, written(place))
            await until_over(bot)
            wire.place = ""
            await told_once(bot, paper, desk, place, asked, f"call {number}")
            if number > wire.seen:
                break
        else:
            raise AssertionError("the calls of one message never end")
    assert number > 12
