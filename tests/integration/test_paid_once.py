"""Each write of a turn is done and its answer is lost, or it is not done at all: what the provider bills is what is
counted, and no call of the model is made again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from config.settings import Settings
from connectors.message import ConversationKey, Scope
from grounding.transcript import EntryRole
from runtime import stores
from runtime.billing import Budgets, BudgetTerm
from runtime.coordination import jobs
from tests.emulators.bot import Bot, running_bot
from tests.emulators.jobs import until_idle
from tests.emulators.openai import FakeOpenAI, in_background
from tests.emulators.paper import Paper, say, until_over, written
from tests.emulators.toolbox import Desk, desk
from tests.integration.test_each_call_fails import Lost, Wire, wire
from tests.integration.test_tools_each_await import with_tools, writes_down

pytestmark = pytest.mark.timeout(360)

__all__ = ["desk", "wire"]

ACME = Scope("acme")
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
A_DAY = BudgetTerm("workspace", "tokens", "day")
MOST = 300
"""More calls than one message could cause."""
ASKING_AGAIN = ("ar:contexts:", "ar:jobs:")
"""Stores of work in the background, which is done again as a whole where one of them is away."""


@pytest.fixture
def broken(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of *wire* are those that name the place or its workspace; this is told of each that broke."""
    told: list[str] = []

    def breaks(args: Sequence[Any]) -> bool:
        words = [str(arg) for arg in args]
        if not wire.place or not any(wire.place in word or "{w.acme}" in word for word in words):
            return False
        wire.seen += 1
        if wire.seen == wire.fails_at:
            told.append(" ".join(word for word in words if word.startswith("ar:")))
        return wire.seen == wire.fails_at

    monkeypatch.setattr(wire, "breaks", breaks)
    monkeypatch.setattr(Budgets, "_now", lambda _: NOON)  # no day ends while it runs
    monkeypatch.setattr(jobs, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(stores, "RETRY_SECONDS", (0.01, 0.02))
    return told


async def counted(bot: Bot) -> tuple[int, int]:
    """Calls of the model and their tokens, as usage has them; the budget has the same."""
    totals = await bot.runtime.usage.totals(ACME)
    state = await bot.runtime.budgets.state(ACME)
    tokens = sum(one.prompt + one.completion for one in totals)
    assert state.spent[A_DAY] == tokens
    return sum(one.calls for one in totals), tokens


def billed(bot: Bot) -> tuple[int, int]:
    """The same as the provider has it."""
    return len(bot.model.requests), sum(bot.model.billed)


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_what_is_billed_is_counted_once_whichever_call_to_the_store_fails(
    lost: Lost,
    wire: Wire,
    broken: list[str],
    desk: Desk,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    """Of a turn in which a tool writes something down, with the summary that follows its reply."""
    paper = Paper()
    settings = model_settings(
        access_policy="open",
        default_workspace="acme",
        turn_lease_seconds=1,
        llm_grounding_memory_summary_refresh_turns=1,
        budget_workspace_tokens_per_day=100_000_000,
    )
    async with running_bot(with_tools(settings), openai_server, [paper]) as bot:
        await bot.runtime.model.warm()
        bot.model.answer = writes_down
        for number in range(MOST):  # the first without trouble
            place, before = f"place{number}x", len(bot.model.requests)
            noted = len(desk.noted)
            wire.place, wire.fails_at, wire.lost, wire.seen = place, number, lost, 0
            async with asyncio.timeout(60):
                await say(bot, written(place))
                await until_over(bot)
                await until_idle(bot.runtime.jobs)
            wire.place, which = "", f"call {number}: {broken[-1:]}"

            asked = bot.model.requests[before:]
            entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
            assert len(paper.texts(place)) == 1, which
            assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND], which
            assert len([one for one in asked if not in_background(one)]) == 2, which
            assert len(desk.noted) == noted + 1, which
            done_again = broken and broken[-1].startswith(ASKING_AGAIN)
            assert 1 <= len([one for one in asked if in_background(one)]) <= 1 + bool(done_again), which
            assert await counted(bot) == billed(bot), which
            if number > wire.seen:
                break
        else:
            raise AssertionError("the calls of one message never end")
    assert number > 40
