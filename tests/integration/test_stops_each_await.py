"""A turn is stopped, loses its question or is taken over at each place where it waits: what was asked of the model is
counted once, what was said before stands, and nothing stays held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest

from config.settings import Settings
from connectors.message import ConversationKey, Scope
from grounding.transcript import EntryRole
from runtime.billing import BudgetTerm
from runtime.turns.cancel import TurnSignals
from tests.emulators.bot import Bot, running_bot
from tests.emulators.jobs import until_idle
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper, say, until_over, written
from tests.emulators.toolbox import Desk, desk
from tests.integration.test_each_await import MOST, Halt, another_worker, bounded, halt, nothing_is_held
from tests.integration.test_tools_each_await import with_tools, writes_down

pytestmark = pytest.mark.timeout(360)

__all__ = ["desk", "halt"]

ACME = Scope("acme")
A_DAY = BudgetTerm("workspace", "tokens", "day")
NOTHING, BEGUN, WHOLE = "_Stopped._", "A moment.\n\n_Stopped._", "A moment.\n\nIt is written down."


async def counted(bot: Bot) -> int:
    """Calls of the model, as usage has them; the budget has the tokens of all of them."""
    totals = await bot.runtime.usage.totals(ACME)
    state = await bot.runtime.budgets.state(ACME)
    assert state.spent[A_DAY] == sum(one.prompt + one.completion for one in totals)
    return sum(one.calls for one in totals)


async def disturbed(bot: Bot, paper: Paper, halt: Halt, number: int) -> list[str]:
    """What the conversation has of a turn that was disturbed as it waited for the *number*-th time."""
    place = f"place{number}x"
    halt.place, halt.at, halt.waits = place, number, 0
    unsent = await counted(bot) - len(bot.model.requests)
    await say(bot, written(place))
    await until_over(bot)
    await until_idle(bot.runtime.jobs)
    await nothing_is_held(bot, number)
    entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
    assert [one.role for one in entries][:1] == [EntryRole.INBOUND], f"wait {number}"
    # A call that LiteLLM was still preparing counts as sent: an upper bound is charged.
    assert unsent <= await counted(bot) - len(bot.model.requests) <= unsent + 1, f"wait {number}"
    return [one.text for one in entries[1:]]


@pytest.mark.parametrize("wish", ["stop", "drop"])
async def test_what_was_asked_is_counted_once_wherever_an_answer_is_stopped(
    wish: Literal["stop", "drop"],
    halt: Halt,
    desk: Desk,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    """By people, or because the message that it answers was deleted."""
    paper = Paper()
    async with running_bot(with_tools(bounded(model_settings, 60)), openai_server, [paper]) as bot:
        stops = bot.runtime.stops

        def wished(_serving: asyncio.Task[Any]) -> None:
            for turn_id in list(stops._writing):
                stops._receive({"turn": turn_id}, "stop" if wish == "stop" else "dropped")

        bot.model.answer = writes_down
        halt.befalls = wished
        said: list[list[str]] = []
        while len(said) <= MOST and halt.waits >= len(said) - 1:  # the first without trouble
            number = len(said)
            said.append(await disturbed(bot, paper, halt, number))
            shown = [text for text in said[number] if text != NOTHING]
            assert paper.texts(f"place{number}x") == shown, f"wait {number}"

    assert len(said) > 40
    assert said[0] == said[-1] == [WHOLE]
    expected: list[list[str]] = [[NOTHING], [BEGUN], [WHOLE]] if wish == "stop" else [[], [WHOLE]]
    assert next(one for one in said[1:] if one != [WHOLE]) == expected[0]  # before that the turn is being taken
    assert [one for one in expected if one in said] == expected
    assert all(one in expected for one in said)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_what_was_asked_is_counted_once_wherever_a_worker_stands_still_while_another_takes_over(
    is_stopped: bool,
    halt: Halt,
    desk: Desk,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    """Also where the first hears of a stop before it learns that it has lost its hold."""
    paper = Paper()
    settings = with_tools(bounded(model_settings, 60))
    async with running_bot(settings, openai_server, [paper]) as bot:
        runtime = bot.runtime
        take_over = another_worker(bot)

        async def apart(heard: list[TurnSignals]) -> None:
            await take_over()
            for wishes in heard:
                wishes.stop = is_stopped
                wishes.changed.set()

        bot.model.answer = writes_down
        halt.befalls = lambda _serving: apart(list(runtime.stops._writing.values()))
        number = 0
        while number <= MOST and halt.waits >= number - 1:  # the first without trouble
            assert await disturbed(bot, paper, halt, number) == [WHOLE], f"wait {number}"
            assert paper.texts(f"place{number}x") == [WHOLE], f"wait {number}"
            number += 1
    assert number > 40
