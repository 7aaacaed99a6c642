"""What is paid for calls of the model of which nobody saw the end: as much as was reserved, once, and nothing for calls
that the provider refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import Author, ConversationKey, InboundMessage, Scope, StoreUnavailable
from runtime.billing import Budgets, BudgetTerm, ModelUsage, Spending
from runtime.turns import Mailbox
from runtime.workspaces import PlaceSettings
from tests.conftest import MakeSettings
from tests.emulators import openai
from tests.emulators.board import Board
from tests.emulators.bot import Bot, bot_on, running_bot
from tests.emulators.openai import Reply, in_background

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
A_DAY = BudgetTerm("workspace", "tokens", "day")
WHOLE = "It is as blue as the sea on a day in June, when nobody has a boat to sail on it."
MOST = 1024
"""Tokens that are reserved for an answer."""
ANSWERED = "turn.answered"


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No day ends while a test runs."""
    monkeypatch.setattr(Budgets, "_now", lambda _: NOON)


def refused_in_background(body: dict[str, Any]) -> Reply | str:
    """Answers nothing but replies. What is asked in the background and refused costs nothing in any of the tests."""
    return Reply(trouble="unauthorized") if in_background(body) else WHOLE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Bot]:
    async with bot_on(budget_workspace_tokens_per_day=1_000_000) as bot:
        bot.model.answer = refused_in_background
        yield bot


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def bot(shared: Bot) -> Bot:
    """The shared bot in a workspace of the test's own."""
    return await shared.in_workspace(f"crew-{next(_numbers)}")


async def used(bot: Bot) -> ModelUsage:
    """What the workspace's usage shows, which is what its budget was charged with."""
    await bot.settle()
    [found] = await bot.runtime.usage.totals(Scope(bot.workspace))
    assert await spent(bot) == found.prompt + found.completion
    return found


async def spent(bot: Bot) -> int:
    return (await bot.runtime.budgets.state(Scope(bot.workspace))).spent[A_DAY]


async def begun(bot: Bot, count: int = 1) -> None:
    """Wait until the model was asked so often for a reply, and has sent some of the last one."""
    async with asyncio.timeout(20):
        while len(bot.replies_asked) < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("trouble", ["rate_limited", "server_error"])
async def test_what_a_provider_refuses_costs_nothing(bot: Bot, trouble: Any) -> None:
    bot.model.will(trouble, WHOLE)
    asked = len(bot.model.requests)
    assert (await bot.say("what is it like?"))["text"] == WHOLE

    found = await used(bot)
    assert (found.calls, found.replies, found.estimated) == (1, 1, 0)
    assert any(in_background(body) for body in bot.model.requests[asked:])


async def test_a_stream_that_more_words_interrupt_is_charged_once_as_reserved(bot: Bot) -> None:
    key = ConversationKey(bot.workspace, "http", "default")
    await bot.runtime.places.put(key.scope, key.context_id, PlaceSettings(queue="interrupt"))
    bot.model.will(Reply(text=WHOLE, trouble="stall"), WHOLE)
    first = asyncio.create_task(bot.post("what is it like?", headers={"Accept": "text/event-stream"}))
    await begun(bot)
    await bot.say("and where?")
    assert "superseded" in (await first).text

    found = await used(bot)
    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    assert found.completion == bot.told(ANSWERED)[-1]["tokens_completion"] + MOST


class Killed:
    """Nothing of what a process does at its end reaches the store, as with ``kill -9``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = True
        for kind, name in ((Spending, "settle_unknown"), (Mailbox, "release")):
            monkeypatch.setattr(kind, name, self._dead(getattr(kind, name)))

    def _dead(self, alive: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def dead(*given: Any) -> Any:
            if not self.is_over:
                raise StoreUnavailable("killed")
            return await alive(*given)

        return dead


async def test_a_stream_that_the_end_of_its_process_cuts_is_charged_once_as_reserved(
    settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process is killed, the second one's grace period is over, the third one answers. Usage shows calls of
    which the runtime saw the end: there the first one's is missing."""
    killed = Killed(monkeypatch)
    message = InboundMessage("board", "hall", "m1", Author("7", "Ann"), "what is it like?", direct=True)
    async with openai.serving() as model:
        made = settings(
            access_policy="open",
            default_workspace="acme",
            llm_model="openai/fake",
            llm_api_base=model.base_url,
            llm_api_key="key",
            records_extraction=False,
            budget_workspace_tokens_per_day=1_000_000,
            shutdown_grace_seconds=0.1,
        )
        model.answer = refused_in_background
        model.will(*[Reply(text=WHOLE, trouble="stall")] * 2)
        for end in ("killed", "stopped"):
            async with running_bot(made, model, [Board()]) as ending:
                if end == "killed":
                    await ending.runtime.accept(message)
                await begun(ending, 1 if end == "killed" else 2)
                killed.is_over = end != "killed"
            killed.is_over = True
        async with running_bot(made, model, [Board()]) as last:
            async with asyncio.timeout(40):
                while not last.told(ANSWERED):
                    await asyncio.sleep(0.01)
            await last.settle()
            [found] = await last.runtime.usage.totals(Scope("acme"))
            charged = await spent(last)

    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    assert found.completion == last.told(ANSWERED)[-1]["tokens_completion"] + MOST
    assert charged > found.prompt + found.completion + MOST
