"""People give the bot commands, on Telegram: the real SDK against an emulated Bot API."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Role, Scope
from grounding.prompt import build_prompt
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import Bot, bot_on
from tests.emulators.telegram import Person, Room, TelegramEmulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMINS, MEMBERS = range(1100, 1200), range(1200, 1300)
"""The ids of the people of all tests."""


@dataclass
class Chat:
    """A bot on Telegram, where Lena is an admin and Bo a member."""

    bot: Bot
    telegram: TelegramEmulator
    lena: Person
    bo: Person
    team: Room

    async def hears(self, text: str, by: Person | None = None, to: Room | None = None) -> str:
        """What the bot says next to *by* (or in the room), when *by* says *text*. Bo says it where nobody is named."""
        by = by or self.bo
        place = to or by
        before = len(self.telegram.said(place))
        await self.telegram.say(text, by=by, to=to)
        await self.telegram.until(lambda telegram: len(telegram.said(place)) > before)
        await self.bot.settle()
        return self.telegram.said(place)[-1].text

    @property
    def at_bot(self) -> str:
        return f"@{self.telegram.me.username}"

    @property
    def prompt(self) -> str:
        """What the model was asked last, without its instructions."""
        return self.bot.sent["user"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[Bot, TelegramEmulator]]:
    fields: dict[str, Any] = {
        "access_policy": "pairing",
        "access_admins": tuple(f"telegram:{number}" for number in ADMINS),
        "access_allowlist": tuple(f"telegram:{number}" for number in MEMBERS),
        "llm_fallback_models": "openai/deep",
        "stream_replies": False,
        "llm_grounding_memory_summary_refresh_turns": 1,
    }
    async with TelegramEmulator() as telegram, bot_on(telegram_connector(telegram), **fields) as bot:
        yield bot, telegram


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: tuple[Bot, TelegramEmulator]) -> AsyncIterator[Chat]:
    """The shared bot, with people and a group of the test's own."""
    (bot, telegram), n = shared, next(_numbers)
    lena, bo = Person(id=ADMINS[n], name="Lena"), Person(id=MEMBERS[n], name="Bo")
    yield Chat(bot.from_now(), telegram, lena, bo, Room(id=-100_300 - n))
    bot.model.forget_orders()
    await bot.settle()


async def test_help_lists_what_the_person_may_do_and_tells_more_of_one_command(chat: Chat) -> None:
    for_members = await chat.hears("/help")
    for_admins = await chat.hears("/help", by=chat.lena)

    assert "/new" in for_members
    assert "/prompt" not in for_members
    assert "/prompt" in for_admins
    assert "/start" in await chat.hears("/start")

    assert "This cannot be undone" in await chat.hears("/help forget")
    assert "Did you mean /forget" in await chat.hears("/help forgte")
    assert await chat.hears("/help prompt") == await chat.hears("/prompt show")
    assert "Only admins can use /pair. Your role here is member." in await chat.hears("/help pair")
    spent = await chat.hears("/usage", by=chat.lena)
    assert spent.startswith("I have not answered anything here yet.")
    assert await chat.hears("!usage", by=chat.lena) == spent
    assert chat.bot.replies_asked == []


async def test_a_misspelt_command_gets_a_hint_and_an_exclamation_is_a_message(chat: Chat) -> None:
    assert "Did you mean /status" in await chat.hears("/statsu")
    assert "/help" in await chat.hears("/frobnicate the widget")
    assert chat.bot.replies_asked == []

    chat.bot.model.will("Noted.")
    assert await chat.hears("!important read the docs") == "Noted."


async def test_plain_words_are_never_commands(chat: Chat) -> None:
    for words in ("help", "new", "stop", "forget all", "status?", "/etc/hosts is where?"):
        chat.bot.model.will(f"You said {words}")
        assert await chat.hears(words) == f"You said {words}"


async def test_a_new_session_looks_at_nothing_that_was_said_before(chat: Chat) -> None:
    await chat.hears("the boat is called Petrel")
    before = chat.bot.told("turn.answered")[-1]["turn_id"]
    assert "new session" in await chat.hears("/new")
    await chat.hears("is the sky blue?")
    assert "Lena: the boat" not in chat.prompt
    assert "<recent_conversation>" not in chat.prompt

    await chat.hears("is the sea blue?")
    assert "is the sky blue?" in chat.prompt
    turn = chat.bot.told("turn.answered")[-1]["turn_id"]
    manifest = await chat.bot.runtime.manifests.get(Scope("acme"), turn)
    assert build_prompt(manifest.context, chat.bot.runtime.tokens).sha256 == manifest.prompt_sha256
    assert manifest.context.tail
    assert before not in {entry.turn_id for entry in manifest.context.tail}
    assert manifest.context.summary is not None


async def test_why_the_bot_said_that_is_told_with_sources(chat: Chat) -> None:
    assert "not answered anything" in await chat.hears("/explain")
    await chat.hears("which file holds the pricing policy?")

    told = await chat.hears("/explain last")

    assert "the workspace's documents" in told
    assert "the message asks for" in told
    assert "pricing.md › Pricing policy › Plans" in told
    assert "query" in told
    assert "harbour plan" not in told


async def test_nobody_is_told_of_another_persons_direct_messages_admins_neither(chat: Chat) -> None:
    await chat.hears("which file holds the pricing policy?", by=chat.lena)
    turn = chat.bot.told("turn.answered")[-1]["turn_id"]

    assert "do not know this turn" in await chat.hears(f"/explain {turn}")
    assert "do not know this turn" in await chat.hears("/explain nonsense")
    await chat.hears("is the sky blue?")
    mine = chat.bot.told("turn.answered")[-1]["turn_id"]
    assert mine in await chat.hears(f"/explain {mine}")
    assert "do not know this turn" in await chat.hears(f"/explain {mine}", by=chat.lena)


async def test_what_a_reply_cost_is_told_and_to_admins_what_everything_did(chat: Chat) -> None:
    await chat.hears("is the sky blue?")

    assert "prompt tokens" in await chat.hears("/usage")
    assert "This workspace so far" not in await chat.hears("/usage")
    assert "This workspace so far" in await chat.hears("/usage", by=chat.lena)


async def test_the_state_of_everything_is_a_line_each(chat: Chat) -> None:
    told = await chat.hears("/status")

    for line in ("openai/fake", "redis: connected", "qdrant: connected", "telegram: connected", "documents: 3"):
        assert line in told
    assert told.endswith(f"You are telegram:{chat.bo.id} (Bo), a member here.")
    assert (await chat.hears("/status", by=chat.lena)).endswith(
        f"You are telegram:{chat.lena.id} (Lena), an admin here."
    )


async def test_what_was_noted_is_shown_by_section(chat: Chat) -> None:
    assert "not noted anything" in await chat.hears("/memory")
    await chat.hears("my favourite colour is teal and I live in Oslo")

    noted = await chat.hears("/memory")

    assert "teal" in noted
    assert "The sections are" in await chat.hears("/memory nonsense")
    assert "Timeline" in await chat.hears("/memory time")


async def test_the_last_turn_can_be_forgotten(chat: Chat) -> None:
    await chat.hears("the boat is called Gannet")
    await chat.hears("the codename is Osprey")
    assert "cannot be undone" in await chat.hears("/forget")
    assert "Osprey" in (await chat.hears("/memory"))

    assert "forgotten the last question" in await chat.hears("/forget last")

    await chat.hears("as we discussed, what did I tell you about the boat and the codename?")
    assert "Gannet" in chat.prompt
    assert "Osprey" not in chat.prompt
    assert "Osprey" not in await chat.hears("/memory")
    logs = "".join(path.read_text() for path in chat.bot.chat_logs.rglob("logs/**/*.md"))
    assert "Gannet" in logs
    assert "Osprey" not in logs


async def test_everything_can_be_forgotten_by_the_person_themselves(chat: Chat) -> None:
    await chat.hears("the boat is called Fulmar")
    assert "forgotten everything" in await chat.hears("/forget all")

    await chat.hears("as we discussed, what is the boat called?")
    assert "Fulmar" not in chat.prompt
    assert "Fulmar" not in await chat.hears("/memory")
    assert "Fulmar" not in "".join(path.read_text() for path in chat.bot.chat_logs.rglob("*.md"))


async def test_an_answer_that_is_being_written_can_be_stopped(chat: Chat) -> None:
    assert "not writing anything" in await chat.hears("/stop")
    chat.bot.model.will("hang")
    await chat.telegram.say("tell me everything about boats", by=chat.bo)
    await chat.telegram.until(lambda _: bool(chat.bot.replies_asked))

    await chat.telegram.say("/stop", by=chat.bo)
    await chat.telegram.until(lambda _: len(chat.bot.told("reply.delivered")) == 3)
    assert [message.text for message in chat.telegram.said(chat.bo)[1:]] == ["Stopped."]


async def test_an_answer_that_is_being_written_is_forgotten_with_everything(chat: Chat) -> None:
    chat.bot.model.will("hang")
    await chat.telegram.say("tell me everything about Kittiwake", by=chat.bo)
    await chat.telegram.until(lambda _: bool(chat.bot.replies_asked))

    await chat.telegram.say("/forget all", by=chat.bo)
    await chat.telegram.until(
        lambda telegram: any("forgotten everything" in one.text for one in telegram.said(chat.bo))
    )
    await chat.bot.settle()

    assert await chat.bot.runtime.transcript.newest(key(chat.bo), 9) == []
    assert "Kittiwake" not in "".join(path.read_text() for path in chat.bot.chat_logs.rglob("*.md"))


async def test_in_a_group_only_an_admin_has_the_bot_forget(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} the boat is called Petrel", to=chat.team)
    assert "only admins" in await chat.hears(f"/forget@{chat.telegram.me.username} all", to=chat.team)
    assert await chat.bot.runtime.transcript.newest(key(chat.team), 9)

    assert "forgotten everything" in await chat.hears(
        f"/forget@{chat.telegram.me.username} all", by=chat.lena, to=chat.team
    )
    assert await chat.bot.runtime.transcript.newest(key(chat.team), 9) == []


async def test_a_command_that_is_delivered_twice_does_no_harm(chat: Chat) -> None:
    await chat.hears("the boat is called Petrel")
    await chat.hears("the codename is Falcon")
    await chat.hears("/forget last")
    before = len(chat.telegram.said(chat.bo))

    await chat.telegram.deliver_again()
    await chat.hears("as we discussed, what did I say?")

    assert len(chat.telegram.said(chat.bo)) == before + 1
    assert "Petrel" in chat.prompt


async def test_an_admin_chooses_the_model_of_a_place(chat: Chat) -> None:
    assert "openai/fake (asked first)" in await chat.hears("/model")
    assert "Only admins" in await chat.hears("/model deep")
    assert "openai/deep (asked first)" in await chat.hears("/model deep", by=chat.lena)
    assert "matches no model" in await chat.hears("/model gpt-9", by=chat.lena)

    await chat.hears("is the sky blue?", by=chat.lena)
    assert chat.bot.replies_asked[-1]["model"] == "deep"
    await chat.hears("is the sky blue?", by=chat.bo)
    assert chat.bot.replies_asked[-1]["model"] == "fake"

    await chat.hears("/model default", by=chat.lena)
    await chat.hears("is the sky blue?", by=chat.lena)
    assert chat.bot.replies_asked[-1]["model"] == "fake"


async def test_what_waits_is_answered_by_the_model_that_was_chosen_because_the_first_hangs() -> None:
    async with bot_on(llm_fallback_models="openai/deep") as bot, asyncio.TaskGroup() as said:
        bot.model.will("hang")
        said.create_task(bot.say("what are boats?"))
        async with asyncio.timeout(60):
            while not bot.replies_asked:
                await asyncio.sleep(0.01)
            said.create_task(bot.say("are you there?"))
            while len(bot.told("message.accepted")) < 2:
                await asyncio.sleep(0.01)
        await bot.say("/model deep", author=None)
        await bot.say("/stop", author=None)
    assert bot.replies_asked[-1]["model"] == "deep"
    assert "are you there?" in bot.sent["user"]


@pytest.mark.parametrize("said_before", [("the boat is called Petrel",), ()])
async def test_a_new_session_begins_although_an_answer_is_being_written(said_before: tuple[str, ...]) -> None:
    async with bot_on() as bot:
        for text in said_before:
            await bot.say(text)
        bot.model.will("hang")
        async with asyncio.TaskGroup() as said:
            said.create_task(bot.say("what are boats?"))
            async with asyncio.timeout(60):
                while len(bot.replies_asked) == len(said_before):
                    await asyncio.sleep(0.01)
            assert "new session" in (await bot.say("/new"))["text"]
            bot.model.forget_orders()
        for turns in (0, 1):
            answer = await bot.say("is the sky blue?")
            manifest = await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])
            assert manifest.context.session is not None
            assert manifest.context.session.turns == turns


async def test_an_admin_says_when_the_bot_answers_in_a_group(chat: Chat) -> None:
    at = f"@{chat.telegram.me.username}"
    assert "Only admins can use" in await chat.hears(f"/answer{at} all", to=chat.team)
    assert "mentions me" in await chat.hears(f"/answer{at}", by=chat.lena, to=chat.team)
    assert "every message" in await chat.hears(f"/answer{at} all", by=chat.lena, to=chat.team)
    chat.bot.model.will("Aye.")
    assert await chat.hears("is anybody there?", to=chat.team) == "Aye."

    assert "nothing here" in await chat.hears(f"/answer{at} never", by=chat.lena, to=chat.team)
    before = len(chat.telegram.said(chat.team))
    await chat.telegram.say(f"{at} are you there?", by=chat.bo, to=chat.team)
    assert "mentions me" in await chat.hears(f"/answer{at} addressed", by=chat.lena, to=chat.team)
    assert len(chat.telegram.said(chat.team)) == before + 1
    assert "always answer" in await chat.hears("/answer never", by=chat.lena)


async def test_an_admin_changes_how_the_bot_behaves_and_takes_it_back(chat: Chat) -> None:
    assert "Only admins can use" in await chat.hears("/prompt set soul Obey Bo.")
    assert "version 1" in await chat.hears("/prompt set soul Be kind.\n\nAlways  twice.", by=chat.lena)
    await chat.hears("is the sky blue?")
    assert "Be kind.\n\nAlways  twice." in chat.bot.sent["system"]

    assert "version 2" in await chat.hears("/prompt set soul Be brief.", by=chat.lena)
    assert "Be brief." in await chat.hears("/prompt show soul", by=chat.lena)
    assert f"telegram:{chat.lena.id}" in await chat.hears("/prompt history soul", by=chat.lena)
    assert "-Be kind." in await chat.hears("/prompt diff soul 1 2", by=chat.lena)
    restored = await chat.hears("/prompt rollback soul 1", by=chat.lena)
    assert "version 3" in restored
    assert "The text of version 1 is in force" in restored
    await chat.hears("is the sea blue?")
    assert "Be kind." in chat.bot.sent["system"]
    await chat.hears("/prompt set system Answer in English.", by=chat.lena)
    for words in ("/prompt", "/prompt show", "/prompt list"):
        listed = await chat.hears(words, by=chat.lena)
        assert "soul (workspace): version 3" in listed
        assert f"system (workspace): version 1, by telegram:{chat.lena.id}: Answer in English." in listed
    assert "is removed" in await chat.hears("/prompt clear soul", by=chat.lena)


async def test_instructions_for_one_conversation_hold_there_alone(chat: Chat) -> None:
    await chat.hears("/prompt set context skill rhymes Speak in rhymes.", by=chat.lena)

    await chat.hears("is the sky blue?", by=chat.lena)
    assert "Speak in rhymes." in chat.bot.sent["system"]
    await chat.hears("is the sky blue?", by=chat.bo)
    assert "Speak in rhymes." not in chat.bot.sent["system"]


async def test_what_cannot_be_done_is_said_with_how_it_can(chat: Chat) -> None:
    """One bot is told all of it, for nothing of it may change anything."""
    for said, told in (
        ("/prompt set", "Give the kind"),
        ("/prompt set soul", "The text is missing"),
        ("/prompt set skill ../x Hello", "no skill name"),
        ("/prompt set skill", "Give the name of the skill"),
        ("/prompt set global soul Rule the world.", "agent-runtime prompt"),
        ("/prompt dance", "Write it like this"),
        ("/prompt diff 1", "two versions"),
        ("/prompt rollback soul ٣", "whole number"),
        ("/prompt rollback 99", "no version 99"),
        ("/prompt rollback 999999999999999999999999", "whole number"),
        ("/model 0", "matches no model"),
        ("/pair approve", "/pair list"),
        ("/pair approve NONSENSE", "not valid"),
        ("/role Bo", "The roles are"),
        ("/role telegram:token:x admin", "not a person"),
        ("/role 1202 emperor", "The roles are"),
        ("/memory *_[x](y)", "The sections are"),
        ("/explain `" + "x" * 300, "do not know this turn"),
        ("/forget everything now", "cannot be undone"),
    ):
        assert told in await chat.hears(said, by=chat.lena), said
    assert chat.bot.told("command.broke") == []


async def test_an_admin_lets_a_stranger_in(chat: Chat) -> None:
    stranger = Person(id=503, name="Kai *the* _great_")
    notice = await chat.hears("hello?", by=stranger)
    code = notice.partition("pairing code is ")[2][:8]
    assert "/help" not in await chat.hears("/help", by=stranger)

    assert "Kai *the* _great_" in await chat.hears("/pair list", by=chat.lena)
    waiting = (await chat.bot.runtime.access.pending())[0]
    assert waiting.workspace_id == "acme"
    assert code in await chat.hears("please?", by=stranger)
    await chat.telegram.until(lambda seen: any(one.buttons for one in seen.said(chat.lena)))
    assert "may now talk to me" in await chat.hears(f"/pair approve {code}", by=chat.lena)
    await chat.telegram.until(lambda seen: any("/new" in one.text for one in seen.said(stranger)))
    assert "Nobody is waiting" in await chat.hears("/pair list", by=chat.lena)

    assert "is admin" in await chat.hears("/role 503 admin", by=chat.lena)
    assert await chat.bot.runtime.access.role_of("telegram:503", "acme") is Role.ADMIN
    assert "the settings" in await chat.hears(f"/role telegram:{chat.lena.id} viewer", by=chat.lena)


async def test_a_new_session_and_a_chosen_model_survive_a_restart(data_dir: Path) -> None:
    async with bot_on(data_dir=data_dir, llm_fallback_models="openai/deep") as bot:
        await bot.say("the boat is called Petrel")
        await bot.say("/new")
        assert "(asked first)" in (await bot.say("/model deep", author=None))["text"]

    async with bot_on(data_dir=data_dir, llm_fallback_models="openai/deep") as bot:
        await bot.say("is the sky blue?")
        assert "<recent_conversation>" not in bot.sent["user"]
        assert bot.replies_asked[-1]["model"] == "deep"


async def test_each_command_is_one_event_without_its_text(chat: Chat) -> None:
    await chat.hears("/prompt set context soul A secret instruction.", by=chat.lena)
    await chat.hears("/prompt show")
    await chat.hears("/sekret word")

    told = [(one["word"], one["role"], one["ok"]) for one in chat.bot.told("command.run")]
    assert told == [("prompt", "admin", True), ("prompt", "member", False), ("unknown", "member", False)]
    assert "secret" not in str(chat.bot.events)
    assert "sekret" not in str(chat.bot.events)


def key(place: Person | Room) -> ConversationKey:
    """The conversation in *place*."""
    return ConversationKey("acme", "telegram", str(place.id))
