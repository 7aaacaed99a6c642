"""People go on talking while the bot answers, on Telegram: the real SDK against an emulated Bot API."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import ConversationKey
from runtime.turns.checkpoint import Checkpoints
from runtime.turns.prompt import PromptBuilder
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import Bot, bot_on
from tests.emulators.telegram import Person, Room, TelegramEmulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN = Person(id=501, name="Lena")
TEAM = Room(id=-100200)
LONG = "Boats float because they push water away. " * 40


@dataclass
class Chat:
    """A bot on Telegram, to which Bo, a member, talks in private."""

    bot: Bot
    telegram: TelegramEmulator
    bo: Person

    async def say(self, text: str) -> None:
        """Bo says *text*, and the bot has it."""
        before = len(self.bot.told("message.accepted"))
        await self.telegram.say(text, by=self.bo)
        await self.telegram.until(lambda _: len(self.bot.told("message.accepted")) > before)

    async def until(self, *texts: str) -> None:
        """Wait until what the bot said reads as *texts*."""
        try:
            await self.telegram.until(lambda _: self.reads() == list(texts))
        except TimeoutError:
            assert self.reads() == list(texts)
            raise

    def reads(self) -> list[str]:
        return [message.text.strip() for message in self.telegram.shown(self.bo)]

    async def asked(self, times: int) -> None:
        """Wait until the model was asked so often."""
        await self.telegram.until(lambda _: len(self.bot.replies_asked) >= times)

    def answers(self, answers: dict[str, str]) -> None:
        """Have the model say what stands for words of a person's messages; summaries are asked for, too."""

        def answer(body: dict[str, Any]) -> str:
            asked = body["messages"][-1]["content"].split(">")[-1]
            return next((text for words, text in answers.items() if words in asked), "Nothing of note.")

        self.bot.model.answer = answer

    async def settles(self, mode: str) -> None:
        shown = len(self.telegram.said(self.bo))
        await self.telegram.say(f"/queue {mode}", by=self.bo)
        await self.telegram.until(lambda telegram: len(telegram.said(self.bo)) > shown)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[Bot, TelegramEmulator]]:
    async with (
        TelegramEmulator() as telegram,
        bot_on(telegram_connector(telegram), access_admins=("telegram:501",)) as bot,
    ):
        yield bot, telegram


_numbers = itertools.count(601)


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: tuple[Bot, TelegramEmulator]) -> AsyncIterator[Chat]:
    """The shared bot, with a Bo of the test's own."""
    bot, telegram = shared
    yield Chat(bot.from_now(), telegram, Person(id=next(_numbers), name="Bo"))
    bot.model.forget_orders()
    await bot.settle()


async def test_what_is_said_during_an_answer_is_answered_together_afterwards(chat: Chat) -> None:
    chat.bot.model.chunk_delay_seconds = 0.05
    chat.answers({"boats float": "They float on water, by what they push away.", "rafts": "Both of these float, too."})
    await chat.say("why do boats float?")
    await chat.asked(1)
    await chat.say("and ships?")
    await chat.say("and rafts?")

    await chat.until("They float on water, by what they push away.", "Both of these float, too.")
    assert "and ships?" in chat.bot.sent["user"]
    assert "and rafts?" in chat.bot.sent["user"]


async def test_an_interruption_begins_the_answer_again_in_the_same_message(chat: Chat) -> None:
    """People have seen the first words; they are replaced, and nothing is left of them."""
    await chat.settles("interrupt")
    (settled,) = chat.reads()
    chat.bot.model.chunk_delay_seconds = 0.1
    chat.bot.model.will(LONG)
    await chat.say("why do boats float?")
    await chat.telegram.until(lambda telegram: any("Boats float" in one.text for one in telegram.shown(chat.bo)))
    growing = chat.telegram.shown(chat.bo)[-1]
    chat.bot.model.chunk_delay_seconds = 0.0
    chat.bot.model.will("Ships: because steel is hollow there.")
    await chat.say("I meant ships")

    await chat.until(settled, "Ships: because steel is hollow there.")
    await chat.bot.settle()
    assert chat.telegram.shown(chat.bo)[-1].message_id == growing.message_id
    assert all(text in chat.bot.sent["user"] for text in ("why do boats float?", "I meant ships"))
    entries = await chat.bot.runtime.transcript.newest(ConversationKey("acme", "telegram", str(chat.bo.id)), 9)
    assert [one.text for one in entries] == [
        "why do boats float?",
        "I meant ships",
        "Ships: because steel is hollow there.",
    ]


async def test_each_message_has_an_answer_of_its_own_where_that_is_wished(chat: Chat) -> None:
    await chat.settles("followup")
    (settled,) = chat.reads()
    chat.bot.model.chunk_delay_seconds = 0.05
    chat.answers({"of boats?": "Of boats, a lot.", "of ships?": "Of ships, too.", "of rafts?": "Of rafts, nothing."})
    await chat.say("what is known of boats?")
    await chat.asked(1)
    await chat.say("of ships?")
    await chat.say("of rafts?")

    await chat.until(settled, "Of boats, a lot.", "Of ships, too.", "Of rafts, nothing.")


async def test_a_stop_ends_an_answer_at_once_whatever_holds(chat: Chat) -> None:
    await chat.settles("interrupt")
    chat.bot.model.will("hang", "hang")
    await chat.say("why do boats float?")
    await chat.asked(1)
    await chat.say("I meant ships")
    await chat.asked(2)
    await chat.telegram.say("/stop", by=chat.bo)

    await chat.telegram.until(lambda _: any(one["kind"] == "reply" for one in chat.bot.told("reply.delivered")))
    assert chat.reads().count("Stopped.") == 1


async def test_a_place_has_its_mode_and_who_may_not_choose_is_told(chat: Chat) -> None:
    async def hears(text: str, by: Person, to: Room | None = None) -> str:
        place = to or by
        before = len(chat.telegram.said(place))
        await chat.telegram.say(text, by=by, to=to)
        await chat.telegram.until(lambda telegram: len(telegram.said(place)) > before)
        return chat.telegram.said(place)[-1].text

    at_bot = f"@{chat.telegram.me.username}"
    assert "all together" in await hears(f"/queue{at_bot}", chat.bo, TEAM)
    assert "only admins" in await hears(f"/queue{at_bot} followup", chat.bo, TEAM)
    assert "one after the other" in await hears(f"/queue{at_bot} followup", ADMIN, TEAM)
    assert "one after the other" in await hears(f"/queue{at_bot}", chat.bo, TEAM)
    assert "/queue collect" in await hears("/queue sometimes", chat.bo)
    assert "begin my answer again" in await hears("/queue interrupt", chat.bo)
    assert "all together" in await hears("/queue default", chat.bo)


@pytest.fixture
def preparing(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the first answer is being prepared, which never ends by itself."""
    begun = asyncio.Event()
    build = PromptBuilder.build

    async def hang_once(self: PromptBuilder, *args: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return await build(self, *args, **options)

    monkeypatch.setattr(PromptBuilder, "build", hang_once)
    return begun


async def test_a_stop_ends_an_answer_that_is_still_being_prepared(chat: Chat, preparing: asyncio.Event) -> None:
    await chat.say("why do boats float?")
    await preparing.wait()
    await chat.telegram.say("/stop", by=chat.bo)

    def is_settled(telegram: TelegramEmulator) -> bool:
        kinds = {one["kind"] for one in chat.bot.told("reply.delivered")}
        return "reply" in kinds and "Stopped." in chat.reads()

    await chat.telegram.until(is_settled)
    await chat.bot.settle()
    assert chat.reads().count("Stopped.") == 1
    assert chat.bot.replies_asked == []


async def test_what_is_said_while_an_answer_is_prepared_is_made_part_of_it_at_once(
    chat: Chat, preparing: asyncio.Event
) -> None:
    await chat.settles("interrupt")
    (settled,) = chat.reads()
    preparing.clear()
    chat.bot.model.will("Ships: because steel is hollow there.")
    await chat.say("why do boats float?")
    await preparing.wait()
    await chat.say("I meant ships")

    await chat.until(settled, "Ships: because steel is hollow there.")
    assert all(text in chat.bot.sent["user"] for text in ("why do boats float?", "I meant ships"))


async def test_what_is_said_while_an_answer_begins_again_is_made_part_of_it_too(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its news comes while nobody listens for it yet."""
    load, loading, said = Checkpoints.load, asyncio.Event(), asyncio.Event()

    async def slow(self: Checkpoints, batch: Any) -> Any:
        loading.set()
        await said.wait()
        return await load(self, batch)

    await chat.settles("interrupt")
    chat.bot.model.will("hang")
    await chat.say("why do boats float?")
    await chat.asked(1)
    monkeypatch.setattr(Checkpoints, "load", slow)
    chat.bot.model.answer = lambda _: "An answer."
    await chat.say("I meant ships")
    await loading.wait()
    await chat.say("and rafts")
    said.set()
    await chat.bot.settle()

    assert chat.reads().count("An answer.") == 1
    assert all(text in chat.bot.sent["user"] for text in ("why do boats float?", "I meant ships", "and rafts"))


async def test_who_writes_too_fast_is_told_once_which_message_was_refused() -> None:
    """At once, where it was said; not again for those that follow."""
    async with (
        TelegramEmulator() as telegram,
        bot_on(telegram_connector(telegram), rate_limit_messages=1) as bot,
    ):
        bot.model.answer = lambda _: "By what they push away."
        chat = Chat(bot, telegram, Person(id=601, name="Bo"))
        await chat.say("why do boats float?")
        for text in ("and *ships*?", "and rafts?", "and `corks`?"):
            await telegram.say(text, by=chat.bo)
        await telegram.until(lambda _: any(text.endswith("and *ships*?") for text in chat.reads()))
        await bot.settle()
        notices = [text for text in chat.reads() if "could not accept" in text]

    assert len(notices) == 1
    assert notices[0].startswith("You are writing faster than I can answer. I could not accept this message.")
