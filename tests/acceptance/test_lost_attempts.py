"""What is paid for calls of the model that brought no answer, because a stream broke off or we broke it off: each is
counted once, and told with its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable
from runtime.budget_terms import Term
from runtime.budgets import Budgets
from runtime.journal import Journal
from runtime.mailbox import Mailbox
from runtime.outbox import Outbox
from runtime.spending import Spending
from runtime.usage import ModelUsage
from tests.acceptance.test_commands_chat import BO, LENA, Chat
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import CHARACTERS_PER_TOKEN, FakeOpenAI, Reply
from tests.emulators.telegram import TelegramEmulator

ACME = Scope("acme")
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
A_DAY = Term("workspace", "tokens", "day")
WHOLE = "It is as blue as the sea on a day in June, when nobody has a boat to sail on it."
HALF = Reply(text=WHOLE, trouble="break_off")
ANSWERED = "turn.answered"
IN_VAIN = "model.paid_in_vain"


@pytest.fixture
def streaming(model_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Makes settings of a bot whose replies grow; nothing but replies is asked for."""
    monkeypatch.setattr("grounding.memory.refresh.is_due", lambda *_: False)
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
    assert state.held[A_DAY] == 0
    return {one.model: one for one in found}


async def begun(bot: Bot, count: int) -> None:
    """Until the model was asked so often for a reply, and has sent some of the last one."""
    async with asyncio.timeout(20):
        while len(bot.replies_asked) < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)


async def test_a_stream_that_breaks_off_is_paid_for_beside_the_one_that_answers(chat: Chat) -> None:
    chat.bot.model.will(HALF, WHOLE)
    assert await chat.hears("what is it like?") == WHOLE

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    [vain], [turn] = chat.bot.told(IN_VAIN), chat.bot.told(ANSWERED)
    assert (vain["model"], vain["turn_id"], vain["tokens_estimated"]) == ("openai/fake", turn["turn_id"], True)
    assert 1 <= vain["tokens_completion"] <= 5
    assert (turn["tokens_prompt"], turn["tokens_completion"]) == (found.prompt, found.completion)
    assert turn["tokens_estimated"]
    assert turn["attempts"] == 2


async def test_what_a_fallback_answers_for_is_paid_for_at_both_models(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = streaming(llm_fallback_models="openai/deep", llm_max_attempts=1)
    async with (
        TelegramEmulator() as telegram,
        running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot,
    ):
        chat = Chat(bot, telegram)
        await bot.runtime.model.warm()
        bot.model.will(HALF, WHOLE)
        assert await chat.hears("what is it like?") == WHOLE
        found = await used(bot)

    assert (found["openai/fake"].calls, found["openai/fake"].replies, found["openai/fake"].estimated) == (1, 0, 1)
    assert (found["openai/deep"].calls, found["openai/deep"].replies, found["openai/deep"].estimated) == (1, 1, 0)
    assert bot.told(ANSWERED)[-1]["tokens_prompt"] == sum(one.prompt for one in found.values())


async def test_an_empty_answer_costs_what_its_provider_says_and_is_no_estimate(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Over HTTP, whose answer tells what the whole turn took."""
    async with running_bot(streaming(), openai_server) as bot:
        bot.model.will("empty", WHOLE)
        answer = await bot.say("what is it like?")
        found = (await used(bot))["openai/fake"]

    prompts = [sum(len(str(one["content"])) for one in body["messages"]) for body in bot.replies_asked]
    assert len(prompts) == 2
    assert found.prompt >= sum(prompts) // CHARACTERS_PER_TOKEN
    assert (found.calls, found.replies, found.estimated) == (2, 1, 0)
    assert answer["usage"]["prompt"] == found.prompt
    assert answer["usage"]["completion"] == found.completion
    assert "estimated" not in answer["usage"]


async def test_an_apology_tells_what_all_the_attempts_took_that_brought_nothing(chat: Chat) -> None:
    chat.bot.model.will(HALF, HALF, HALF, HALF, HALF)
    assert "could not get an answer" in await chat.hears("what is it like?")

    found = (await used(chat.bot))["openai/fake"]
    assert found.calls == found.estimated == len(chat.bot.replies_asked) == len(chat.bot.told(IN_VAIN)) > 1
    assert found.replies == 0
    [key] = [turn["turn_id"] for turn in chat.bot.told("turn.failed")]
    told = await chat.bot.runtime.manifests.get(ACME, key)
    assert told.outcome is not None
    assert told.outcome["usage"]["prompt"] == found.prompt


@pytest.mark.parametrize("trouble", ["rate_limited", "server_error"])
async def test_what_a_provider_refuses_costs_nothing(chat: Chat, trouble: Any) -> None:
    chat.bot.model.will(trouble, WHOLE)
    assert await chat.hears("what is it like?") == WHOLE

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (1, 1, 0)
    assert chat.bot.told(IN_VAIN) == []


async def test_a_stream_that_people_stop_is_counted_once_as_is_the_one_that_broke_before_it(chat: Chat) -> None:
    chat.bot.model.will(HALF, Reply(text=WHOLE, trouble="stall"))
    await chat.telegram.say("what is it like?", by=BO)
    await begun(chat.bot, 2)
    await chat.telegram.say("/stop", by=BO)
    await chat.telegram.until(lambda _: bool(chat.bot.told(ANSWERED)))

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (2, 1, 2)
    [turn] = chat.bot.told(ANSWERED)
    assert (turn["tokens_prompt"], turn["tokens_completion"]) == (found.prompt, found.completion)


async def test_who_stops_between_two_attempts_pays_for_the_first_alone(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing = asyncio.Event()

    async def pause(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("runtime.llm.client._pause", pause)
    chat.bot.model.will(HALF)
    await chat.telegram.say("what is it like?", by=BO)
    async with asyncio.timeout(20):
        await pausing.wait()
    await chat.telegram.say("/stop", by=BO)
    await chat.telegram.until(lambda _: bool(chat.bot.told(ANSWERED)))

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (1, 0, 1)
    assert chat.bot.told(ANSWERED)[-1]["tokens_prompt"] == found.prompt


async def test_a_stream_that_more_words_interrupt_is_counted_once_and_told_with_the_turn(chat: Chat) -> None:
    await chat.hears("/queue interrupt", by=LENA)
    chat.bot.model.will(Reply(text=WHOLE, trouble="stall"), WHOLE)
    await chat.telegram.say("what is it like?", by=LENA)
    await begun(chat.bot, 1)
    await chat.telegram.say("and where?", by=LENA)
    await chat.telegram.until(lambda _: bool(chat.bot.told(ANSWERED)))

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    assert chat.bot.told(ANSWERED)[-1]["tokens_prompt"] == found.prompt


async def test_a_stream_that_the_end_of_the_process_cuts_is_counted_once_and_told_with_the_turn(
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
        assert len(first.told(IN_VAIN)) == 1

        openai_server.will(WHOLE)
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as second:
            await telegram.until(lambda _: bool(second.told(ANSWERED)), seconds=40)
            found = (await used(second))["openai/fake"]

    assert (found.calls, found.replies, found.estimated) == (2, 1, 1)
    assert second.told(ANSWERED)[-1]["tokens_prompt"] == found.prompt
    assert second.told(IN_VAIN) == []


async def test_what_is_asked_in_the_background_is_paid_for_with_all_its_attempts(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", llm_grounding_memory_summary_refresh_turns=1)
    told = iter(["", "# Not a document"])
    openai_server.answer = lambda body: next(told) if "You keep one short document" in str(body) else "You said so."
    async with running_bot(settings, openai_server) as bot:
        await bot.say("what is it like?")
        found = await used(bot)

    assert (found["openai/fake"].calls, found["openai/fake"].replies) == (3, 1)
    assert [one["purpose"] for one in bot.told(IN_VAIN)] == ["summary"]


async def test_what_is_asked_in_the_background_in_vain_leaves_nothing_held(
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
        for kind, name in ((Spending, "settle_lost"), (Mailbox, "release")):
            monkeypatch.setattr(kind, name, self._dead(getattr(kind, name)))

    def _dead(self, alive: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def dead(*given: Any) -> Any:
            if not self.is_over:
                raise StoreUnavailable("killed")
            return await alive(*given)

        return dead


async def test_what_was_asked_by_a_process_that_was_killed_is_counted_once_as_an_estimate_and_told_with_the_turn(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the prompt alone: nobody knows what the model wrote. Twice over: each of the calls is counted."""
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
            found = (await used(last))["openai/fake"]
            [turn] = last.told(ANSWERED)
            [vain] = last.told(IN_VAIN)

    assert (found.calls, found.replies, found.estimated) == (3, 1, 2)
    assert (vain["tokens_completion"], vain["tokens_estimated"], vain["turn_id"]) == (0, True, turn["turn_id"])
    assert vain["tokens_prompt"] > 0
    assert (turn["tokens_prompt"], turn["tokens_completion"]) == (found.prompt, found.completion)


async def test_a_turn_that_is_given_up_has_cost_what_was_asked_for_it(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = Killed(monkeypatch)
    settings = streaming(shutdown_grace_seconds=0.1, turn_max_crashes=1)
    async with TelegramEmulator() as telegram:
        openai_server.will(Reply(text=WHOLE, trouble="stall"))
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as dying:
            await dying.runtime.model.warm()
            await telegram.say("what is it like?", by=BO)
            await begun(dying, 1)
            killed.is_over = False
        killed.is_over = True
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as last:
            await telegram.until(lambda _: bool(last.told("turn.failed")), seconds=40)
            found = (await used(last))["openai/fake"]

    assert (found.calls, found.replies, found.estimated, found.completion) == (1, 0, 1, 0)


class Pausing:
    """Whoever waits before another attempt waits for ever, as long as that is wished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._go_on = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr("runtime.llm.client._pause", self._pause)

    async def _pause(self, _: float) -> None:
        self.begun.set()
        await self._go_on.wait()

    def is_over(self) -> None:
        self._go_on.set()


async def test_a_request_that_was_refused_costs_nothing_though_more_words_come_before_the_next_one(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing = Pausing(monkeypatch)
    await chat.hears("/queue interrupt", by=LENA)
    chat.bot.model.will("rate_limited", WHOLE)
    await chat.telegram.say("what is it like?", by=LENA)
    async with asyncio.timeout(20):
        await pausing.begun.wait()
    await chat.telegram.say("and where?", by=LENA)
    await chat.telegram.until(lambda _: bool(chat.bot.told(ANSWERED)))

    found = (await used(chat.bot))["openai/fake"]
    assert (found.calls, found.replies, found.estimated) == (1, 1, 0)
    assert chat.bot.told(IN_VAIN) == []


async def test_a_request_that_was_refused_costs_nothing_though_the_process_ends_before_the_next_one(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing = Pausing(monkeypatch)
    settings = streaming(shutdown_grace_seconds=0.1)
    async with TelegramEmulator() as telegram:
        openai_server.will("rate_limited")
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as first:
            await first.runtime.model.warm()
            await telegram.say("what is it like?", by=BO)
            async with asyncio.timeout(20):
                await pausing.begun.wait()

        pausing.is_over()
        openai_server.will(WHOLE)
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as second:
            await telegram.until(lambda _: bool(second.told(ANSWERED)), seconds=40)
            found = (await used(second))["openai/fake"]

    assert (found.calls, found.replies, found.estimated) == (1, 1, 0)
    assert second.told(IN_VAIN) == []


async def test_an_answer_that_was_counted_and_not_kept_when_its_process_ended_is_counted_once(
    streaming: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation's part of a cluster was away, and that of its workspace was there."""
    is_away = True

    def while_there(step: Callable[..., Any]) -> Callable[..., Any]:
        async def kept(*given: Any) -> Any:
            if is_away:
                raise StoreUnavailable("away")
            return await step(*given)

        return kept

    for kind, step in ((Journal, "completed"), (Outbox, "put")):
        monkeypatch.setattr(kind, step, while_there(getattr(kind, step)))
    settings = streaming(shutdown_grace_seconds=0.1)
    async with TelegramEmulator() as telegram:
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as ending:
            await ending.runtime.model.warm()
            openai_server.will(WHOLE)
            await telegram.say("what is it like?", by=BO)
            async with asyncio.timeout(20):
                while not await ending.runtime.usage.totals(ACME):
                    await asyncio.sleep(0.01)

        is_away = False
        openai_server.will(WHOLE)
        async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as last:
            await telegram.until(lambda _: bool(last.told(ANSWERED)), seconds=40)
            found = (await used(last))["openai/fake"]

    assert (found.calls, found.replies, found.estimated) == (2, 1, 0)
