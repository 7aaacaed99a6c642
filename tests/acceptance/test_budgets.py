"""What people see of budgets: on Telegram, over HTTP, and what becomes of the work behind the replies."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Scope, StoreUnavailable
from runtime.billing import BudgetTerm
from runtime.billing.budgets import Cost
from runtime.coordination import Job
from runtime.turns.manifest import Manifests
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import documents
from tests.emulators.bot import Bot, bot_on
from tests.emulators.openai import Reply
from tests.emulators.telegram import Person, TelegramEmulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

A_DAY, A_MONTH = BudgetTerm("workspace", "tokens", "day"), BudgetTerm("workspace", "tokens", "month")
HERS_A_DAY, DOLLARS_A_DAY = BudgetTerm("user", "tokens", "day"), BudgetTerm("workspace", "usd", "day")
CREWS = 30
_numbers = itertools.count(1)


def crew(number: int) -> tuple[Person, Person]:
    return Person(id=1100 + number, name="Lena"), Person(id=1200 + number, name="Bo")


@dataclass
class Chat:
    """A bot on Telegram in a workspace of the test's own, where Lena is an admin and Bo a member."""

    bot: Bot
    telegram: TelegramEmulator
    lena: Person
    bo: Person

    async def hears(self, text: str = "", by: Person | None = None, **message: Any) -> str:
        """What the bot says next when *by*, or else Bo, sends a message."""
        by = by or self.bo
        before = len(self.telegram.said(by))
        await self.telegram.say(text, by=by, **message)
        await self.telegram.until(lambda telegram: len(telegram.said(by)) > before)
        await self.bot.settle()
        return self.telegram.said(by)[-1].text

    def voice(self) -> dict[str, Any]:
        """A recording of three seconds, which cost 0.0003 dollars to hear."""
        return self.telegram.keep(documents.OGG, "voice/file_1.oga") | {"duration": 3, "mime_type": "audio/ogg"}

    @property
    def scope(self) -> Scope:
        return Scope(self.bot.workspace)

    async def spent(self, term: BudgetTerm, by: Person | None = None) -> int:
        state = await self.bot.runtime.budgets.state(self.scope, f"telegram:{(by or self.bo).id}")
        return state.spent[term]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[Bot, TelegramEmulator]]:
    crews = {number: crew(number) for number in range(CREWS)}
    fields: dict[str, Any] = {
        "access_admins": tuple(f"telegram:{lena.id}" for lena, _ in crews.values()),
        "routes": {f"telegram:{one.id}": f"crew-{number}" for number, both in crews.items() for one in both},
        "stream_replies": False,
        "transcription_model": "openai/whisper-1",
        "budget_workspace_tokens_per_day": 100_000,
        "budget_user_tokens_per_day": 50_000,
        "llm_grounding_memory_summary_refresh_turns": 1,
    }
    async with TelegramEmulator() as telegram, bot_on(telegram_connector(telegram), **fields) as bot:
        yield bot, telegram


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: tuple[Bot, TelegramEmulator]) -> AsyncIterator[Chat]:
    (bot, telegram), number = shared, next(_numbers)
    await bot.runtime.workspaces.create(f"crew-{number}")
    yield Chat(replace(bot.from_now(), workspace=f"crew-{number}"), telegram, *crew(number))
    bot.model.forget_orders()
    bot.model.heard = "What do the tyres cost?"
    await bot.settle()


async def test_a_person_whose_budget_is_used_up_is_told_once_in_full_then_shortly_and_no_model_is_asked(
    chat: Chat,
) -> None:
    assert "You said" in await chat.hears("is the sky blue?")
    await chat.bot.runtime.budgets.settle(chat.scope, "elsewhere", Cost(50_000), f"telegram:{chat.bo.id}")
    asked = len(chat.bot.model.requests)

    first, second = await chat.hears("and the sea?"), await chat.hears("hello?")

    assert first.startswith(
        "Too little is left of your budget here for today, so I cannot answer now. It is renewed at 00:00 UTC"
    )
    assert second == "Too little is left of your budget here for today."
    assert len(chat.bot.model.requests) == asked
    assert "You said" in await chat.hears("is the sky blue?", by=chat.lena)
    told = chat.bot.told("budget.exceeded")
    assert {(one["scope"], one["what"], one["period"], one["limit"]) for one in told} == {
        ("user", "tokens", "day", 50_000)
    }


async def test_when_the_workspace_has_spent_its_budget_summaries_are_extracted_and_not_asked_for(chat: Chat) -> None:
    await chat.hears("our boat is called Petrel")
    await chat.bot.runtime.budgets.settle(chat.scope, "elsewhere", Cost(100_000))
    asked = len(chat.bot.model.requests)

    told = await chat.hears("our harbour is Cowes")
    assert "Too little is left of the budget of this workspace for today" in told

    key = ConversationKey(chat.bot.workspace, "telegram", str(chat.bo.id))
    await chat.bot.runtime.jobs.enqueue(Job("summary.refresh", key, "later"))
    await chat.bot.settle()

    assert len(chat.bot.model.requests) == asked
    document = await chat.bot.runtime.contexts.latest(key)
    assert document is not None
    assert document.made_by == "extraction"
    assert "Cowes" in document.text
    assert {one["purpose"] for one in chat.bot.told("budget.exceeded")} == {"reply", "summary"}


async def test_the_replys_and_the_summarys_tokens_are_counted_as_the_provider_did(chat: Chat) -> None:
    await chat.hears("is the sky blue?")

    used = await chat.bot.runtime.usage.totals(chat.scope)
    counted = sum(one.prompt + one.completion for one in used)
    state = await chat.bot.runtime.budgets.state(chat.scope, f"telegram:{chat.bo.id}")
    assert sum(one.calls for one in used) == 2
    assert state.spent[A_DAY] == state.spent[A_MONTH] == counted > 0
    reply = chat.bot.told("turn.answered")[-1]
    assert state.spent[HERS_A_DAY] == reply["tokens_prompt"] + reply["tokens_completion"] < counted


async def test_a_model_that_fails_costs_nothing(chat: Chat) -> None:
    chat.bot.model.will("unauthorized", "unauthorized")

    await chat.hears("is the sky blue?")

    state = await chat.bot.runtime.budgets.state(chat.scope, f"telegram:{chat.bo.id}")
    assert state.spent[HERS_A_DAY] == 0


async def test_usage_tells_admins_what_is_left_and_everybody_their_own(chat: Chat) -> None:
    await chat.bot.runtime.budgets.settle(chat.scope, "elsewhere", Cost(1_000), f"telegram:{chat.bo.id}")

    for_members, for_admins = await chat.hears("/usage"), await chat.hears("/usage", by=chat.lena)

    assert "49,000 tokens of 50,000 tokens today" in for_members
    assert "this workspace's budget" not in for_members
    assert "99,000 tokens of 100,000 tokens today" in for_admins
    assert "50,000 tokens of 50,000 tokens today" in for_admins


async def test_a_stopped_answer_costs_what_was_reserved_for_it(chat: Chat) -> None:
    chat.bot.model.will("hang")
    await chat.telegram.say("tell me everything", by=chat.bo)
    async with asyncio.timeout(10):
        while not chat.bot.replies_asked:
            await asyncio.sleep(0.01)
    await chat.hears("/stop", by=chat.bo)
    await chat.telegram.until(lambda _: any(one["kind"] == "reply" for one in chat.bot.told("reply.delivered")))
    await chat.bot.settle()

    state = await chat.bot.runtime.budgets.state(chat.scope, f"telegram:{chat.bo.id}")
    [used] = await chat.bot.runtime.usage.totals(chat.scope)
    assert (used.replies, used.estimated) == (1, 1)
    assert used.prompt > 100
    reserved = state.spent[HERS_A_DAY] - chat.bot.runtime.settings.llm_max_output_tokens
    assert 100 < reserved < used.prompt


async def test_an_answer_whose_stream_does_not_end_is_counted_by_our_own_tokens_and_one_that_breaks_as_reserved() -> (
    None
):
    streamed = {"Accept": "text/event-stream"}
    async with bot_on(llm_timeout_seconds=5.0, llm_max_attempts=1) as bot:
        bot.model.will(Reply(text="It is as blue as the sea.", trouble="no_end"))
        whole = await bot.post("is the sky blue?", headers=streamed)
        bot.model.release.set()
        await bot.settle()
        [of_whole] = await bot.runtime.usage.totals(Scope("acme"))

        bot.model.will(Reply(text="It is as blue as the sea.", trouble="break_off"))
        await bot.post("is the sea blue?", headers=streamed)
        await bot.settle()
        [of_both] = await bot.runtime.usage.totals(Scope("acme"))
        most = bot.runtime.settings.llm_max_output_tokens

    usage = json.loads(whole.text.partition("event: done\ndata: ")[2].partition("\n")[0])["usage"]
    assert usage["estimated"] is True
    assert usage["prompt"] > 100
    assert 5 <= usage["completion"] <= 12
    assert of_whole.estimated == 1
    assert of_whole.prompt >= usage["prompt"]
    assert of_both.estimated == 2
    assert of_both.completion == of_whole.completion + most


async def test_over_http_a_used_up_budget_is_402_and_nothing_is_asked(chat: Chat) -> None:
    bot = chat.bot
    await bot.runtime.budgets.set(chat.scope, {"workspace_tokens_per_month": 10})
    refused = await bot.post("is the sky blue?")
    streamed = await bot.post("is the sky blue?", headers={"Accept": "text/event-stream"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
    assert "for this month" in refused.json()["error"]["message"]
    assert "event: error" in streamed.text
    assert json.loads(streamed.text.partition("data: ")[2].partition("\n")[0])["error"]["code"] == "budget_exceeded"
    assert bot.replies_asked == []
    await bot.runtime.budgets.set(chat.scope, {"workspace_tokens_per_month": 1_000_000})
    assert (await bot.say("is the sky blue?"))["text"]


async def test_many_at_once_never_spend_more_than_the_budget_and_one_calls_error(chat: Chat) -> None:
    await chat.bot.runtime.budgets.set(chat.scope, {"workspace_tokens_per_day": 5_000})
    answers = await asyncio.gather(*(chat.bot.post("whatever they ask", context=f"c{number}") for number in range(20)))
    await chat.bot.settle()

    assert {answer.status_code for answer in answers} == {200, 402}
    assert 0 < await chat.spent(A_DAY) <= 5_000


async def test_a_voice_message_is_not_listened_to_when_nothing_is_left(chat: Chat) -> None:
    await chat.bot.runtime.budgets.set(chat.scope, {"workspace_usd_per_day": 0.01})
    await chat.hears(voice=chat.voice())
    assert await chat.spent(DOLLARS_A_DAY) == 300_000  # three seconds at 0.006 dollars a minute
    await chat.bot.runtime.budgets.settle(chat.scope, "elsewhere", Cost(usd=0.01))
    heard = len(chat.bot.model.transcription_requests)

    assert "Too little is left of the budget of this workspace" in await chat.hears(voice=chat.voice())

    assert len(chat.bot.model.transcription_requests) == heard
    assert chat.bot.told("budget.exceeded")[-1]["purpose"] == "transcription"


async def heard_and_paid(chat: Chat) -> tuple[int, float]:
    """How many recordings were listened to, as the workspace's record has it, and for how many dollars."""
    (used,) = [one for one in await chat.bot.runtime.usage.totals(chat.scope) if one.model == "openai/whisper-1"]
    assert await chat.spent(DOLLARS_A_DAY) == round(used.cost_usd * 1_000_000_000)
    return used.calls, used.cost_usd


async def test_listening_is_paid_for_where_the_answer_is_begun_again_because_more_was_said(chat: Chat) -> None:
    await chat.hears("/queue interrupt", by=chat.lena)
    before = len(chat.bot.model.transcription_requests)
    chat.bot.model.heard = "How long?"
    chat.bot.model.will("hang", "A day.")
    await chat.telegram.say("", by=chat.lena, voice=chat.voice())
    await chat.telegram.until(lambda _: bool(chat.bot.replies_asked))
    assert await chat.hears("and how far?", by=chat.lena) == "A day."
    assert len(chat.bot.model.transcription_requests) == before + 1
    assert await heard_and_paid(chat) == (1, 0.0003)


async def test_listening_is_paid_for_once_where_the_turn_is_taken_up_again(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, lost, before = Manifests.keep, 1, len(chat.bot.model.transcription_requests)

    async def interrupted(manifests: Manifests, *args: Any, **named: Any) -> None:
        nonlocal lost
        if lost:
            lost -= 1
            raise StoreUnavailable("Redis: gone")
        await keep(manifests, *args, **named)

    monkeypatch.setattr(Manifests, "keep", interrupted)
    await chat.hears(voice=chat.voice())
    assert (lost, len(chat.bot.model.transcription_requests)) == (0, before + 1)
    assert await heard_and_paid(chat) == (1, 0.0003)


async def test_listening_to_silence_is_paid_for_and_said(chat: Chat) -> None:
    chat.bot.model.heard = ""
    assert await chat.hears(voice=chat.voice()) == "I could not hear any words in your voice message."
    assert await heard_and_paid(chat) == (1, 0.0003)


async def test_a_call_that_is_broken_off_because_more_was_said_is_paid_for_too(chat: Chat) -> None:
    await chat.hears("/queue interrupt", by=chat.lena)
    chat.bot.model.will("hang", "Both of them.")
    await chat.telegram.say("tell me everything", by=chat.lena)
    async with asyncio.timeout(10):
        while not chat.bot.replies_asked:
            await asyncio.sleep(0.01)
    assert await chat.hears("and all the rest", by=chat.lena) == "Both of them."

    state = await chat.bot.runtime.budgets.state(chat.scope, f"telegram:{chat.lena.id}")
    answered, settings = chat.bot.told("turn.answered")[-1], chat.bot.runtime.settings
    of_answer = answered["tokens_prompt"] + answered["tokens_completion"]
    assert state.spent[HERS_A_DAY] > of_answer + settings.llm_max_output_tokens
