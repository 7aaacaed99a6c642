"""What is paid for calls of the model of which nobody saw the end: as much as was reserved, once, and nothing for calls
that the provider refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable
from runtime.billing import Budgets, BudgetTerm, ModelUsage, Spending
from runtime.turns.mailbox import Mailbox
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI, Reply
from tests.emulators.telegram import Person, TelegramEmulator

ACME = Scope("acme")
LENA, BO = Person(id=501, name="Lena"), Person(id=502, name="Bo")
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
A_DAY = BudgetTerm("workspace", "tokens", "day")
WHOLE = "It is as blue as the sea on a day in June, when nobody has a boat to sail on it."
MOST = 1024
"""Tokens that are reserved for an answer."""
ANSWERED = "turn.answered"


@dataclass
class Chat:
    """A bot on Telegram, where Lena is an admin and Bo a member."""

    bot: Bot
    telegram: TelegramEmulator

    async def hears(self, text: str, by: Person = BO) -> str:
        """What the bot says next to *by*, when *by* says *text*."""
        before = len(self.telegram.said(by))
        await self.telegram.say(text, by=by)
        await self.telegram.until(lambda telegram: len(telegram.said(by)) > before)
        await self.bot.settle()
        return self.telegram.said(by)[-1].text


@pytest.fixture
def streaming(model_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Makes settings of a bot whose replies grow; nothing but replies is asked for."""
    monkeypatch.setattr("grounding.memory.context_document.summarise.is_due", lambda *_: False)
    monkeypatch.setattr(Budgets, "_now", lambda _: NOON)  # no day ends while a test runs

    def make(**more: Any) -> Settings:
        return model_settings(
            access_policy="open",
            access_admins=("telegram:501",),
            default_workspace="acme",
            budget_workspace_tokens_per_day=1_000_000,
            **more,
        )

    return make


@pytest_asyncio.fixture
async def chat(streaming: Callable[..., Settings], openai_server: FakeOpenAI) -> AsyncIterator[Chat]:
    async with (
        TelegramEmulator() as telegram,
        running_bot(streaming(), openai_server, [telegram_connector(telegram)]) as bot,
    ):
        await bot.runtime.model.warm()
        yield Chat(bot, telegram)


async def used(bot: Bot) -> dict[str, ModelUsage]:
    """What the workspace's budget was charged with is what its usage shows; that, by model."""
    await bot.settle()
    found = await bot.runtime.usage.totals(ACME)
    state = await bot.runtime.budgets.state(ACME)
    assert state.spent[A_DAY] == sum(one.prompt + one.completion for one in found)
    return {one.model: one for one in found}


async def begun(bot: Bot, count: int) -> None:
    """Until the model was asked so often for a reply, and has sent some of the last one."""
    async with asyncio.timeout(20):
        while len(bot.replies_asked) < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


@pytest.mark.parametrize("trouble", ["rate_limited", "server_error"])
async def test_what_a_provider_refuses_costs_nothing(chat: Chat, trouble: Any) -> None:
    chat.bot.model.will(trouble, WHOLE)
    assert await chat.hears("what is it like?") == WHOLE

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (1, 1, 0)


async def test_a_stream_that_more_words_interrupt_is_charged_once_as_reserved(chat: Chat) -> None:
    await chat.hears("/queue interrupt", by=LENA)
    chat.bot.model.will(Reply(text=WHOLE, trouble="stall"), WHOLE)
    await chat.telegram.say("what is it like?", by=LENA)
    await begun(chat.bot, 1)
    await chat.telegram.say("and where?", by=LENA)
    await chat.telegram.until(lambda _: bool(chat.bot.told(ANSWERED)))

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    assert found.completion == chat.bot.told(ANSWERED)[-1]["tokens_completion"] + MOST


async def test_a_stream_that_the_end_of_the_process_cuts_is_charged_once_as_reserved(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """The grace period is over; the next process answers."""
    settings = streaming(shutdown_grace_seconds=0.1)
    async with TelegramEmulator() as telegram:
        openai_server.will(Reply(text=WHOLE, trouble="stall"))
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as first:
            await first.runtime.model.warm()
            await telegram.say("what is it like?", by=BO)
            await begun(first, 1)

        openai_server.will(WHOLE)
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as second:
            await telegram.until(lambda _: bool(second.told(ANSWERED)), seconds=40)
            found = (await used(second))["openai/fake"]

    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    assert found.completion == second.told(ANSWERED)[-1]["tokens_completion"] + MOST


async def test_what_is_asked_in_the_background_and_refused_costs_nothing(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(
        access_policy="open", llm_grounding_memory_summary_refresh_turns=1, budget_workspace_tokens_per_day=1_000_000
    )
    in_vain = Reply(trouble="unauthorized")
    openai_server.answer = lambda body: in_vain if "You keep one short document" in str(body) else "You said so."
    async with running_bot(settings, openai_server) as bot:
        await bot.say("what is it like?")
        found = await used(bot)

    assert (found["openai/fake"].calls, found["openai/fake"].replies) == (1, 1)
    assert len(bot.model.requests) > 1


class Killed:
    """Nothing of what the first processes do at their ends reaches the store, as with ``kill -9``."""

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


async def test_what_was_asked_by_a_process_that_was_killed_is_charged_as_reserved(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice over. Usage shows calls of which the runtime saw the end: there they are missing."""
    killed = Killed(monkeypatch)
    settings = streaming(shutdown_grace_seconds=0.1)
    async with TelegramEmulator() as telegram:
        for number in range(2):
            openai_server.will(Reply(text=WHOLE, trouble="stall"))
            async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as dying:
                await dying.runtime.model.warm()
                if not number:
                    await telegram.say("what is it like?", by=BO)
                await begun(dying, number + 1)
                killed.is_over = False
            killed.is_over = True

        openai_server.will(WHOLE)
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as last:
            await telegram.until(lambda _: bool(last.told(ANSWERED)), seconds=40)
            await last.settle()
            [found] = await last.runtime.usage.totals(ACME)
            spent = (await last.runtime.budgets.state(ACME)).spent[A_DAY]

    assert (found.calls, found.replies, found.estimated) == (1, 1, 0)
    assert spent > found.prompt + found.completion + 2 * MOST
