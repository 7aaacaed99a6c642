"""What people see of budgets: on Telegram, over HTTP, and what becomes of the work behind the replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import ConversationKey, Scope, StoreUnavailable
from runtime.billing import BudgetTerm
from runtime.billing.budgets import Cost
from runtime.coordination import Job
from runtime.turns.manifest import Manifests
from tests.acceptance.test_commands_chat import BO, LENA, Chat
from tests.acceptance.test_files import Chat as Hearing
from tests.acceptance.test_files import chatting
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI, Reply
from tests.emulators.telegram import TelegramEmulator

ACME = Scope("acme")
A_DAY, A_MONTH = BudgetTerm("workspace", "tokens", "day"), BudgetTerm("workspace", "tokens", "month")


@pytest_asyncio.fixture
async def chat(model_settings: Callable[..., Settings], openai_server: FakeOpenAI) -> AsyncIterator[Chat]:
    settings = model_settings(
        access_policy="open",
        access_admins=("telegram:501",),
        default_workspace="acme",
        stream_replies=False,
        budget_workspace_tokens_per_day=100_000,
        budget_user_tokens_per_day=50_000,
        llm_grounding_memory_summary_refresh_turns=1,
    )
    async with (
        TelegramEmulator() as telegram,
        running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot,
    ):
        yield Chat(bot, telegram)


async def test_a_person_whose_budget_is_used_up_is_told_once_in_full_then_shortly_and_no_model_is_asked(
    chat: Chat,
) -> None:
    assert "You said" in await chat.hears("is the sky blue?", by=BO)
    await chat.bot.runtime.budgets.settle(ACME, "elsewhere", Cost(50_000), "telegram:502")
    asked = len(chat.bot.model.requests)

    first, second = await chat.hears("and the sea?", by=BO), await chat.hears("hello?", by=BO)

    assert first.startswith(
        "Too little is left of your budget here for today, so I cannot answer now. It is renewed at 00:00 UTC"
    )
    assert second == "Too little is left of your budget here for today."
    assert len(chat.bot.model.requests) == asked
    assert "You said" in await chat.hears("is the sky blue?", by=LENA)
    told = chat.bot.told("budget.exceeded")
    assert {(one["scope"], one["what"], one["period"], one["limit"]) for one in told} == {
        ("user", "tokens", "day", 50_000)
    }


async def test_when_the_workspace_has_spent_its_budget_summaries_are_extracted_and_not_asked_for(chat: Chat) -> None:
    await chat.hears("our boat is called Petrel", by=BO)
    await chat.bot.runtime.budgets.settle(ACME, "elsewhere", Cost(100_000))
    asked = len(chat.bot.model.requests)

    told = await chat.hears("our harbour is Cowes", by=BO)
    assert "Too little is left of the budget of this workspace for today" in told

    key = ConversationKey("acme", "telegram", "502")
    await chat.bot.runtime.jobs.enqueue(Job("summary.refresh", key, "later"))
    await chat.bot.settle()

    assert len(chat.bot.model.requests) == asked
    document = await chat.bot.runtime.contexts.latest(key)
    assert document is not None
    assert document.made_by == "extraction"
    assert "Cowes" in document.text
    assert {one["purpose"] for one in chat.bot.told("budget.exceeded")} == {"reply", "summary"}


async def test_the_replys_and_the_summarys_tokens_are_counted_as_the_provider_did(chat: Chat) -> None:
    await chat.hears("is the sky blue?", by=BO)

    used = await chat.bot.runtime.usage.totals(ACME)
    counted = sum(one.prompt + one.completion for one in used)
    state = await chat.bot.runtime.budgets.state(ACME, "telegram:502")
    assert sum(one.calls for one in used) == 2
    assert state.spent[A_DAY] == state.spent[A_MONTH] == counted > 0
    reply = chat.bot.told("turn.answered")[-1]
    assert (
        state.spent[BudgetTerm("user", "tokens", "day")]
        == reply["tokens_prompt"] + reply["tokens_completion"]
        < counted
    )


async def test_a_model_that_fails_costs_nothing(chat: Chat) -> None:
    chat.bot.model.will("unauthorized", "unauthorized")

    await chat.hears("is the sky blue?", by=BO)

    state = await chat.bot.runtime.budgets.state(ACME, "telegram:502")
    assert state.spent[BudgetTerm("user", "tokens", "day")] == 0


async def test_usage_tells_admins_what_is_left_and_everybody_their_own(chat: Chat) -> None:
    await chat.bot.runtime.budgets.settle(ACME, "elsewhere", Cost(1_000), "telegram:502")

    for_members, for_admins = await chat.hears("/usage", by=BO), await chat.hears("/usage", by=LENA)

    assert "49,000 tokens of 50,000 tokens today" in for_members
    assert "this workspace's budget" not in for_members
    assert "99,000 tokens of 100,000 tokens today" in for_admins
    assert "50,000 tokens of 50,000 tokens today" in for_admins


async def test_a_stopped_answer_costs_what_was_reserved_for_it(chat: Chat) -> None:
    chat.bot.model.will("hang")
    await chat.telegram.say("tell me everything", by=BO)
    async with asyncio.timeout(10):
        while not chat.bot.model.requests:
            await asyncio.sleep(0.01)
    await chat.hears("/stop", by=BO)
    await chat.telegram.until(lambda _: any(one["kind"] == "reply" for one in chat.bot.told("reply.delivered")))
    await chat.bot.settle()

    state = await chat.bot.runtime.budgets.state(ACME, "telegram:502")
    [used] = await chat.bot.runtime.usage.totals(ACME)
    assert (used.replies, used.estimated) == (1, 1)
    assert used.prompt > 100
    reserved = state.spent[BudgetTerm("user", "tokens", "day")] - chat.bot.runtime.settings.llm_max_output_tokens
    assert 100 < reserved < used.prompt


async def test_an_answer_whose_stream_does_not_end_is_counted_by_our_own_tokens_and_one_that_breaks_as_reserved(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", llm_timeout_seconds=5.0, llm_max_attempts=1)
    streamed = {"Accept": "text/event-stream"}
    async with running_bot(settings, openai_server) as bot:
        await bot.runtime.model.warm()
        bot.model.will(Reply(text="It is as blue as the sea.", trouble="no_end"))
        whole = await bot.post("is the sky blue?", headers=streamed)
        bot.model.release.set()
        await bot.settle()
        [of_whole] = await bot.runtime.usage.totals(ACME)

        bot.model.will(Reply(text="It is as blue as the sea.", trouble="break_off"))
        await bot.post("is the sea blue?", headers=streamed)
        await bot.settle()
        [of_both] = await bot.runtime.usage.totals(ACME)

    usage = json.loads(whole.text.partition("event: done\ndata: ")[2].partition("\n")[0])["usage"]
    assert usage["estimated"] is True
    assert usage["prompt"] > 100
    assert 5 <= usage["completion"] <= 12
    assert of_whole.estimated == 1
    assert of_whole.prompt >= usage["prompt"]
    assert of_both.estimated == 2
    assert of_both.completion == of_whole.completion + settings.llm_max_output_tokens


async def test_over_http_a_used_up_budget_is_402_and_nothing_is_asked(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", budget_workspace_tokens_per_month=10)
    async with running_bot(settings, openai_server) as bot:
        refused = await bot.post("is the sky blue?")
        streamed = await bot.post("is the sky blue?", headers={"Accept": "text/event-stream"})
        await bot.runtime.budgets.set(ACME, {"workspace_tokens_per_month": 1_000_000})

        assert refused.status_code == 402
        assert refused.json()["error"]["code"] == "budget_exceeded"
        assert "for this month" in refused.json()["error"]["message"]
        assert "event: error" in streamed.text
        assert json.loads(streamed.text.partition("data: ")[2].partition("\n")[0])["error"]["code"] == "budget_exceeded"
        assert bot.model.requests == []
        assert (await bot.say("is the sky blue?"))["text"]


async def test_many_at_once_never_spend_more_than_the_budget_and_one_calls_error(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(
        access_policy="open",
        budget_workspace_tokens_per_day=5_000,
        llm_max_output_tokens=200,
        rate_limit_messages=100,
        llm_grounding_memory_summary_refresh_turns=100,
    )
    async with running_bot(settings, openai_server) as bot:
        answers = await asyncio.gather(*(bot.post("whatever they ask", context=f"c{number}") for number in range(20)))
        await bot.settle()
        state = await bot.runtime.budgets.state(ACME)

    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 402}
    assert 0 < state.spent[A_DAY] <= 5_000


async def test_a_voice_message_is_not_listened_to_when_nothing_is_left(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(
        access_policy="open",
        default_workspace="acme",
        transcription_model="openai/whisper-1",
        budget_workspace_usd_per_day=0.01,
    )
    async with chatting(settings, openai_server) as chat:
        await chat.hears(voice=chat.voice())
        state = await chat.bot.runtime.budgets.state(ACME)
        assert state.spent[BudgetTerm("workspace", "usd", "day")] == 300_000  # three seconds at 0.006 dollars a minute
        await chat.bot.runtime.budgets.settle(ACME, "elsewhere", Cost(usd=0.01))

        assert "Too little is left of the budget of this workspace" in await chat.hears(voice=chat.voice())

        assert len(openai_server.transcription_requests) == 1
        assert chat.bot.told("budget.exceeded")[-1]["purpose"] == "transcription"


@pytest_asyncio.fixture
async def hearing(model_settings: Callable[..., Settings], openai_server: FakeOpenAI) -> AsyncIterator[Hearing]:
    """A bot that hears, three seconds of which cost 0.0003 dollars."""
    settings = model_settings(
        access_policy="open",
        access_admins=("telegram:501",),
        default_workspace="acme",
        transcription_model="openai/whisper-1",
    )
    async with chatting(settings, openai_server) as chat:
        yield chat


async def heard_and_paid(chat: Hearing) -> tuple[int, float]:
    """How many recordings were listened to, as the workspace's record has it, and for how many dollars."""
    (used,) = [one for one in await chat.bot.runtime.usage.totals(ACME) if one.model == "openai/whisper-1"]
    spent = (await chat.bot.runtime.budgets.state(ACME)).spent[BudgetTerm("workspace", "usd", "day")]
    assert spent == round(used.cost_usd * 1_000_000_000)
    return used.calls, used.cost_usd


async def test_listening_is_paid_for_where_the_answer_is_begun_again_because_more_was_said(hearing: Hearing) -> None:
    await hearing.hears(text="/queue interrupt")
    hearing.bot.model.heard = "How long?"
    hearing.bot.model.will("hang", "A day.")
    await hearing.telegram.say("", by=LENA, voice=hearing.voice())
    await hearing.telegram.until(lambda _: bool(hearing.bot.replies_asked))
    assert await hearing.hears(text="and how far?") == "A day."
    assert len(hearing.bot.model.transcription_requests) == 1
    assert await heard_and_paid(hearing) == (1, 0.0003)


async def test_listening_is_paid_for_once_where_the_turn_is_taken_up_again(
    hearing: Hearing, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, lost = Manifests.keep, 1

    async def interrupted(manifests: Manifests, *args: Any, **named: Any) -> None:
        nonlocal lost
        if lost:
            lost -= 1
            raise StoreUnavailable("Redis: gone")
        await keep(manifests, *args, **named)

    monkeypatch.setattr(Manifests, "keep", interrupted)
    await hearing.hears(voice=hearing.voice())
    assert (lost, len(hearing.bot.model.transcription_requests)) == (0, 1)
    assert await heard_and_paid(hearing) == (1, 0.0003)


async def test_listening_to_silence_is_paid_for_and_said(hearing: Hearing) -> None:
    hearing.bot.model.heard = ""
    assert await hearing.hears(voice=hearing.voice()) == "I could not hear any words in your voice message."
    assert await heard_and_paid(hearing) == (1, 0.0003)


async def test_a_call_that_is_broken_off_because_more_was_said_is_paid_for_too(chat: Chat) -> None:
    await chat.hears("/queue interrupt", by=LENA)
    chat.bot.model.will("hang", "Both of them.")
    await chat.telegram.say("tell me everything", by=LENA)
    async with asyncio.timeout(10):
        while not chat.bot.replies_asked:
            await asyncio.sleep(0.01)
    assert await chat.hears("and all the rest", by=LENA) == "Both of them."

    state = await chat.bot.runtime.budgets.state(ACME, "telegram:501")
    answered, settings = chat.bot.told("turn.answered")[-1], chat.bot.runtime.settings
    of_answer = answered["tokens_prompt"] + answered["tokens_completion"]
    assert state.spent[BudgetTerm("user", "tokens", "day")] > of_answer + settings.llm_max_output_tokens
