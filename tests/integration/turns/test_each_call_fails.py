"""Each call to Redis that a turn causes is done and its answer is lost, or it is not done at all.

The message is answered once and recorded once, a tool is begun once, no call of the model is made again, and what the
provider bills is what is counted. A turn without tools calls nothing that this one does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Scope, StoreUnavailable
from grounding.transcript import EntryRole
from runtime import stores
from runtime.billing import Budgets, BudgetTerm
from tests.emulators.bot import QUICK, Bot, bot_on
from tests.emulators.jobs import until_idle
from tests.emulators.openai import in_background
from tests.emulators.paper import Paper, say, until_over, written
from tests.emulators.toolbox import Desk, desk_beside, writes_down

pytestmark = [pytest.mark.timeout(360), pytest.mark.asyncio(loop_scope="module")]

ACME = Scope("acme")
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
A_DAY = BudgetTerm("workspace", "tokens", "day")
MOST = 300
"""More calls than one message could cause."""
ASKING_AGAIN = ("ar:contexts:", "ar:jobs:")
"""Stores of work in the background, which is done again as a whole where one of them is away."""


class Wire:
    """Counts the calls that name a place or its workspace, and loses one of them."""

    def __init__(self) -> None:
        self.place, self.fails_at, self.lost = "", 0, "request"
        self.seen = 0
        self.broken = ""
        """The keys of the call that was lost last."""

    def breaks(self, args: Sequence[Any]) -> bool:
        words = [str(arg) for arg in args]
        if not self.place or not any(self.place in word or "{w.acme}" in word for word in words):
            return False
        self.seen += 1
        if self.seen == self.fails_at:
            self.broken = " ".join(word for word in words if word.startswith("ar:"))
        return self.seen == self.fails_at

    async def carry(self, breaks: bool, call: Callable[[], Any]) -> Any:
        if breaks and self.lost == "request":
            raise StoreUnavailable("Redis: lost on the way there")
        answer = await call()
        if breaks:
            raise StoreUnavailable("Redis: lost on the way back")
        return answer


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budgets, "_now", lambda _: NOON)  # no day ends while it runs
        yield patch


@pytest.fixture(scope="module")
def wire(patch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    command, pipeline = stores.Client.execute_command, stores._Pipeline.execute

    async def execute_command(self: Any, *args: Any, **options: Any) -> Any:
        return await made.carry(made.breaks(args), lambda: command(self, *args, **options))

    async def execute(self: Any, raise_on_error: bool = True) -> Any:
        said = [arg for one in self.command_stack for arg in one[0]]
        return await made.carry(made.breaks(said), lambda: pipeline(self, raise_on_error))

    patch.setattr(stores.Client, "execute_command", execute_command)
    patch.setattr(stores._Pipeline, "execute", execute)
    return made


@dataclass
class Scene:
    """A bot with a budget and tools, on a platform that can tell nothing."""

    bot: Bot
    paper: Paper
    desk: Desk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(patch: pytest.MonkeyPatch, wire: Wire) -> AsyncIterator[Scene]:
    desk, paper = desk_beside(patch), Paper()
    async with bot_on(
        paper,
        timings=QUICK,
        llm_tools="always",
        turn_lease_seconds=1,
        llm_grounding_memory_summary_refresh_turns=1,
        budget_workspace_tokens_per_day=100_000_000,
    ) as bot:
        bot.model.answer = writes_down
        yield Scene(bot, paper, desk)


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
async def test_each_call_to_the_store_may_fail_once(
    lost: Literal["request", "answer"], wire: Wire, scene: Scene
) -> None:
    """Of a turn in which a tool writes something down, with the summary that follows its reply."""
    bot, paper, desk = scene.bot, scene.paper, scene.desk
    for number in range(MOST):  # the first without trouble
        place, before = f"{lost}{number}x", len(bot.model.requests)
        noted = len(desk.noted)
        wire.place, wire.fails_at, wire.lost, wire.seen, wire.broken = place, number, lost, 0, ""
        async with asyncio.timeout(60):
            await say(bot, written(place))
            await until_over(bot)
            await until_idle(bot.runtime.jobs)
        wire.place, which = "", f"call {number}: {wire.broken}"

        asked = bot.model.requests[before:]
        entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
        assert paper.texts(place) == ["A moment.\n\nIt is written down."], which
        assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND], which
        assert paper.texts(place) == [entries[-1].text], which
        manifest = await bot.runtime.manifests.get(ACME, entries[-1].turn_id)
        assert manifest.outcome["kind"] == "reply", which
        assert len([one for one in asked if not in_background(one)]) == 2, which
        assert len(desk.noted) == noted + 1, which
        done_again = wire.broken.startswith(ASKING_AGAIN)
        assert 1 <= len([one for one in asked if in_background(one)]) <= 1 + done_again, which
        assert await counted(bot) == billed(bot), which
        if number > wire.seen:
            break
    else:
        raise AssertionError("the calls of one message never end")
    assert number > 40
