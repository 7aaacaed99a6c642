"""People talk to the bot on Discord: the real SDK against an emulated Discord."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Role, Scope
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators import documents
from tests.emulators.bot import Bot, bot_on
from tests.emulators.discord import DiscordEmulator, Person, Place, Room
from tests.emulators.discord_nouns import File
from tests.emulators.openai import Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENA = Person(id=501, name="Lena")
BO = Person(id=502, name="Bo")
BOSS = Person(id=500, name="Boss")
TEAM = Room(channel_id=910, name="general")
THREAD = Room(channel_id=911, name="refunds", parent=910, joined=True)


@dataclass
class Chat:
    """A bot on Discord and the people around it."""

    bot: Bot
    discord: DiscordEmulator
    lena: Person = LENA
    bo: Person = BO
    team: Room = TEAM
    thread: Room = THREAD

    async def hears(
        self, text: str, by: Person | None = None, to: Room | None = None, reply_to: int | None = None
    ) -> str:
        """What the bot says next to *by* (or in the channel), when *by* says *text*."""
        by = by or self.lena
        place: Place = to or by
        before = len(self.discord.shown(place))
        await self.discord.say(text, by=by, to=to, reply_to=reply_to)
        await self.discord.until(lambda discord: len(discord.shown(place)) > before)
        return self.discord.shown(place)[-1].text

    @property
    def at_bot(self) -> str:
        return self.discord.at_bot


@pytest_asyncio.fixture(loop_scope="module")
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM, THREAD)) as emulator:
        yield emulator


PLACES = range(1, 40)
"""Numbers of tests, each with a channel and a thread of its own, which Discord tells when a session begins."""


def channel(number: int) -> Room:
    return Room(channel_id=2000 + number, name=f"general-{number}")


def thread(number: int) -> Room:
    return Room(channel_id=3000 + number, name=f"refunds-{number}", parent=2000 + number, joined=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Chat]:
    """One bot for the tests that change nothing of it."""
    rooms = tuple(room(number) for number in PLACES for room in (channel, thread))
    async with (
        DiscordEmulator(rooms=rooms) as discord,
        bot_on(discord_connector(discord), access_admins=("discord:500",)) as bot,
    ):
        await discord.until(lambda discord: discord.identifies == 1)
        yield Chat(bot, discord)


_numbers = itertools.count(PLACES.start)


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: Chat) -> AsyncIterator[Chat]:
    """The shared bot, with people and places of the test's own."""
    n = next(_numbers)
    lena, bo = Person(id=600 + n, name="Lena"), Person(id=700 + n, name="Bo")
    yield Chat(shared.bot.from_now(), shared.discord, lena, bo, channel(n), thread(n))
    shared.bot.model.forget_orders()
    await shared.bot.settle()


async def test_a_direct_message_is_answered_and_remembered(chat: Chat) -> None:
    chat.bot.model.will("Ahoy, Lena!")
    assert await chat.hears("the boat is called Petrel") == "Ahoy, Lena!"
    await chat.bot.settle()
    chat.bot.model.will("Petrel, you said.")
    assert await chat.hears("what did I call the boat?") == "Petrel, you said."

    assert "Lena: the boat is called Petrel" in chat.bot.sent["user"]
    assert "assistant: Ahoy, Lena!" in chat.bot.sent["user"]


async def test_on_a_server_the_bot_answers_only_when_it_is_meant(chat: Chat) -> None:
    """By a mention, by a reply to it, or in a thread, which is a conversation of its own."""
    await chat.discord.say("nobody asks the bot", by=chat.bo, to=chat.team)
    await chat.hears(f"{chat.at_bot} the code is 1234", to=chat.team)
    assert len(chat.discord.shown(chat.team)) == 1
    assert chat.bot.sent["user"].endswith("the code is 1234")
    assert "nobody asks" not in chat.bot.sent["user"]

    answer = chat.discord.shown(chat.team)[-1]
    assert await chat.hears("what does that policy say?", to=chat.team, reply_to=answer.message_id)
    await chat.hears("as I said, what is the code?", to=chat.thread)
    assert "1234" not in chat.bot.sent["user"]


async def test_commands_are_offered_by_discord_itself_and_answered_to_their_giver_alone(chat: Chat) -> None:
    """Several at once, too. Discord shows "did not respond" after three seconds: the emulator refuses what is later."""
    await chat.discord.until(lambda discord: bool(discord.commands.registered))
    assert "help" in {command["name"] for command in chat.discord.commands.registered}

    given = await chat.discord.command("help", by=chat.lena, to=chat.team)
    more = [await chat.discord.command("status", by=chat.lena) for _ in range(3)]
    await chat.discord.until(lambda _: bool(given.shown) and all(one.shown for one in more))

    assert "help" in given.texts[0]
    assert all(given.ephemeral)
    assert all(one.is_answered for one in more)
    assert chat.discord.shown(chat.team) == []
    assert chat.bot.replies_asked == []


async def test_a_very_long_reply_arrives_whole_and_in_order_and_pings_nobody(chat: Chat) -> None:
    whole = "@everyone\n\n" + "\n\n".join(f"Paragraph {n}. " + "All of it has to arrive. " * 12 for n in range(30))
    chat.bot.model.will(Reply(text=whole))

    await chat.discord.say("tell me everything", by=chat.lena)
    await chat.discord.until(lambda discord: "Paragraph 29" in "".join(m.text for m in discord.shown(chat.lena)))

    parts = chat.discord.shown(chat.lena)
    assert len(parts) >= 4
    shown = "".join(part.text for part in parts).replace("\u200b", "")  # what keeps a name from being a mention
    assert "".join(shown.split()) == "".join(whole.split())
    assert not any(part.pings or part.has_preview for part in parts)


async def test_who_waits_sees_an_answer_grow_that_is_one_message_in_the_end(chat: Chat) -> None:
    words = "The harbour opens at seven and closes at nine. " * 8
    chat.bot.model.chunk_delay_seconds = 1.0
    chat.bot.model.will(Reply(text=words))
    await chat.discord.say("when does the harbour open?", by=chat.lena)
    await chat.discord.until(lambda discord: chat.lena.channel_id in discord.typing)
    chat.bot.model.chunk_delay_seconds = 0.02
    await chat.discord.until(lambda discord: bool(discord.shown(chat.lena)))
    assert chat.discord.shown(chat.lena)[0].text.startswith("The harbour")
    await chat.bot.settle()
    await chat.discord.until(lambda discord: discord.shown(chat.lena)[-1].text.split() == words.split())
    assert len(chat.discord.shown(chat.lena)) == 1


async def test_a_send_that_goes_wrong_is_made_good_once(discord: DiscordEmulator) -> None:
    """One that Discord holds back is repeated; so is one of which nobody knows: it is known again by its nonce.

    In a bot of its own: after a send that was held back, no reply grows for a minute.
    """
    async with bot_on(discord_connector(discord)) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        chat = Chat(bot, discord)
        chat.discord.fail_next("send", emulated.rate_limited(0.1))
        assert await chat.hears("are the docs up?")
        assert len(chat.bot.told("reply.retried")) == 1

        sent = chat.discord.calls.count("send")
        chat.discord.fail_next("send", emulated.LOST_ANSWER)
        await chat.hears("what do they say?")
        await chat.hears("and now, what do they say?")
        assert len(chat.discord.shown(chat.lena)) == 3
        assert chat.discord.calls.count("send") == sent + 3


async def test_a_message_that_is_delivered_twice_is_answered_once(chat: Chat) -> None:
    said = await chat.discord.say("only once, please", by=chat.lena)
    await chat.discord.until(lambda discord: len(discord.shown(chat.lena)) == 1)
    await chat.discord.deliver_again(said)
    await chat.hears("and another")

    assert len(chat.discord.shown(chat.lena)) == 2
    assert len(chat.bot.replies_asked) == 2


async def test_what_was_said_while_no_session_was_open_is_answered(chat: Chat) -> None:
    await chat.hears("hello there")
    before = chat.discord.identifies
    await chat.discord.drop_for_good()
    await chat.discord.say("did you hear that?", by=chat.lena)
    await chat.discord.until(lambda discord: len(discord.shown(chat.lena)) == 2)

    assert "did you hear that?" in chat.bot.sent["user"]
    assert chat.discord.identifies == before + 1


async def test_who_stops_an_answer_before_its_first_word_is_told_so_once(chat: Chat) -> None:
    chat.bot.model.will("hang")
    await chat.discord.say("tell me everything about boats", by=chat.bo)
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 1)
    await chat.discord.say("/stop", by=chat.bo)

    await chat.discord.until(lambda _: len(chat.bot.told("reply.delivered")) == 2)
    assert [message.text for message in chat.discord.shown(chat.bo)] == ["Stopped."]


async def test_a_mark_in_reply_to_an_answer_is_about_that_one(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} how do I moor the Petrel?", to=chat.team)
    first = chat.discord.shown(chat.team)[-1].message_id
    await chat.hears(f"{chat.at_bot} and how do I reef her sail?", to=chat.team)

    said = await chat.hears("!good", to=chat.team, reply_to=first)

    assert said.startswith("Marked as good")
    (mark,) = chat.bot.told("turn.marked")
    assert mark["turn_id"] == chat.bot.told("turn.answered")[0]["turn_id"]


async def test_a_message_that_is_deleted_before_anything_of_its_answer_is_seen_is_not_answered(chat: Chat) -> None:
    """What the call took is counted all the same, and what is said next is answered."""
    used = sum(one.calls for one in await chat.bot.runtime.usage.totals(Scope("acme")))
    chat.bot.model.will("hang")
    asked = await chat.discord.say("my number is 4711, where do I pay?", by=chat.lena)
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 1)
    await chat.discord.delete(asked)
    await chat.discord.until(lambda _: bool(chat.bot.told("turn.answered")))
    chat.bot.model.will("Ahoy!")

    assert await chat.hears("are you there?") == "Ahoy!"
    assert [one.text for one in chat.discord.shown(chat.lena)] == ["Ahoy!"]
    assert "4711" not in chat.bot.sent["user"]
    assert (await chat.bot.runtime.usage.totals(Scope("acme")))[0].calls == used + 2
    await chat.bot.settle()
    [key] = {ConversationKey("acme", *one["context_id"].split(":")) for one in chat.bot.told("message.accepted")}
    kept = await chat.bot.runtime.transcript.newest(key, 9)
    assert [one.text for one in kept] == ["are you there?", "Ahoy!"]


async def test_an_answer_that_people_see_already_is_finished_though_its_message_is_deleted(chat: Chat) -> None:
    """It would end in the middle of a sentence, for others to wonder about."""
    chat.bot.model.chunk_delay_seconds = 0.05
    answer = "Boats float because they push water away. " * 10
    chat.bot.model.will(answer)
    asked = await chat.discord.say("why do boats float?", by=chat.lena)
    await chat.discord.until(lambda discord: bool(discord.shown(chat.lena)))
    await chat.discord.delete(asked)
    await chat.discord.until(lambda _: bool(chat.bot.told("message.deleted")))
    await chat.discord.until(lambda discord: discord.shown(chat.lena)[-1].text == answer.strip())

    assert [one["state"] for one in chat.bot.told("message.deleted")] == ["answering"]


async def test_of_messages_that_are_answered_together_a_deleted_one_stops_nothing(chat: Chat) -> None:
    chat.bot.model.chunk_delay_seconds = 0.05
    chat.bot.model.will("One moment, please. " * 5)
    await chat.discord.say("why do boats float?", by=chat.lena)
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 1)
    first, _ = [await chat.discord.say(text, by=chat.lena) for text in ("and ships?", "and rafts?")]
    chat.bot.model.will("They all float.")
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == 2)
    await chat.discord.delete(first)
    await chat.discord.until(lambda discord: discord.shown(chat.lena)[-1].text == "They all float.")


async def test_the_rest_of_a_long_message_is_answered_though_its_beginning_is_deleted(chat: Chat) -> None:
    """Together they are one turn only when the rest is there; what is said after a deletion is somebody's question."""
    chat.bot.model.will("Boats float.")
    long = await chat.discord.say("boats " * 333 + "…", by=chat.lena)
    await chat.discord.until(lambda _: bool(chat.bot.told("message.accepted")))
    await chat.discord.say("now tell me why they float!", by=chat.lena)
    await chat.discord.until(lambda _: len(chat.bot.told("message.accepted")) == 2)
    await chat.discord.delete(long)
    await chat.discord.until(lambda discord: bool(discord.shown(chat.lena)))
    assert [one.text for one in chat.discord.shown(chat.lena)] == ["Boats float."]


async def test_a_file_is_read_and_kept_by_an_admin(chat: Chat) -> None:
    """Fetched with what Discord asks for."""
    prices = documents.docx(documents.paragraph("Winter tyres cost 40 euros."))
    sent = (File("prices.docx", prices, documents.DOCX),)
    await chat.discord.say("What do they cost?", by=BOSS, files=sent)
    await chat.discord.until(lambda discord: len(discord.shown(BOSS)) == 1)
    assert "Content of prices.docx:\n> Winter tyres cost 40 euros." in chat.bot.sent["user"]

    await chat.discord.say("!docs add tyres/", by=BOSS, files=sent)
    await chat.discord.until(lambda discord: len(discord.shown(BOSS)) == 2)
    assert "is stored as" in chat.discord.shown(BOSS)[-1].text
    kept = await asyncio.to_thread(chat.bot.runtime.knowledge.library.get, Scope("acme"), "tyres/prices.md")
    assert kept.text == "Winter tyres cost 40 euros.\n"


async def test_an_admin_lets_strangers_in_by_a_button_and_their_questions_are_answered(
    discord: DiscordEmulator,
) -> None:
    """Where they asked. Only admins' presses count, and the second one says who decided."""
    al, kim, mia = (Person(id=number, name=name) for number, name in ((503, "Al"), (504, "Kim"), (505, "Mia")))
    admins = ("discord:500", "discord:502", "discord:503")
    async with bot_on(discord_connector(discord), access_policy="pairing", access_admins=admins) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        chat = Chat(bot, discord)
        for admin in (BOSS, al, BO):
            await chat.hears("!help", by=admin)
        assert "Your pairing code is" in await chat.hears("what does the harbour plan cost?")
        await discord.until(lambda seen: all(seen.shown(admin)[-1].buttons for admin in (BOSS, al, BO)))
        asked, other, third = (discord.shown(admin)[-1] for admin in (BOSS, BO, al))
        assert "Lena" in asked.text
        assert "what does the harbour plan cost?" in asked.text
        assert list(asked.buttons) == ["Approve", "Deny"]

        await bot.runtime.access.set_role("discord:599", Role.MEMBER, "acme")
        await discord.press(third, "Deny", by=Person(id=599, name="Eve"))
        await discord.until(lambda seen: "Only admins can use" in seen.shown(al)[-1].text)
        before = len(discord.shown(LENA))
        pressed = await discord.press(asked, "Approve", by=BOSS)
        await discord.until(
            lambda seen: len(seen.shown(LENA)) == before + 2 and "may now talk" in seen.shown(BOSS)[-1].text
        )
        assert discord.shown(LENA)[before].text.startswith("Welcome! An admin has let you in.")
        assert "what does the harbour plan cost?" in bot.sent["user"]
        await discord.until(lambda _: pressed.is_answered)
        assert asked.buttons == {}
        assert "what does the harbour plan cost?" in asked.text

        await discord.press(other, "Deny", by=BO)
        await discord.until(lambda seen: "already, by Boss" in seen.shown(BO)[-1].text)
        assert await bot.runtime.access.role_of("discord:501", "acme") is Role.MEMBER

        # A command is answered to its giver alone, with a code only where nobody else could read it.
        given = await discord.command("status", by=kim, to=TEAM)
        alone = await discord.command("status", by=kim)
        await discord.until(lambda _: bool(given.shown) and bool(alone.shown))
        (waiting,) = await bot.runtime.access.pending()
        assert "I do not know you yet, Kim." in given.texts[0]
        assert waiting.code not in given.texts[0]
        assert waiting.code in alone.texts[0]
        assert all(given.ephemeral)
        assert all(alone.ephemeral)
        assert discord.shown(kim) == []

        assert "I do not know you yet, Mia." in await chat.hears(f"{chat.at_bot} what is it?", by=mia, to=TEAM)
        await discord.until(lambda seen: "Mia" in seen.shown(BOSS)[-1].text and bool(seen.shown(BOSS)[-1].buttons))
        await discord.press(discord.shown(BOSS)[-1], "Approve", by=BOSS)
        await discord.until(lambda seen: len(seen.shown(TEAM)) == 3)
        await bot.settle()
        assert discord.shown(TEAM)[1].text.startswith("Welcome! An admin has let you in.")
        assert "what is it?" in bot.sent["user"]


async def test_what_was_said_while_nobody_listened_is_answered_after_the_restart(
    discord: DiscordEmulator, data_dir: Path
) -> None:
    """What was refused before is not."""
    async with bot_on(discord_connector(discord), data_dir=data_dir, rate_limit_messages=1) as bot:
        await discord.until(lambda discord: discord.identifies == 1)
        await Chat(bot, discord).hears("the boat is called Petrel")
        await discord.say("and it is green")
        await discord.until(lambda discord: any("not accept this message" in one.text for one in discord.shown(LENA)))
        await bot.settle()
    await discord.say("is anybody there?")
    shown = len(discord.shown(LENA))

    async with bot_on(discord_connector(discord), data_dir=data_dir) as bot:
        await discord.until(lambda discord: len(discord.shown(LENA)) > shown)

        assert "is anybody there?" in bot.sent["user"]
        assert "green" not in bot.sent["user"]
        assert [event["heard"] for event in bot.told("message.missed")] == [1]
    assert len(discord.shown(LENA)) == shown + 1
