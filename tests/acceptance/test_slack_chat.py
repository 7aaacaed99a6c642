"""People talk to the bot on Slack: the real SDK against an emulated workspace."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from connectors.message import Role, Scope
from runtime.http import create_app
from tests.contract.slack_harness import slack_connector, slack_connector_over_http
from tests.emulators import documents
from tests.emulators import slack as emulated
from tests.emulators.bot import Bot, bot_on
from tests.emulators.openai import Reply
from tests.emulators.slack import Channel, Person, SlackEmulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENA = Person("U501", "Lena")
BO = Person("U502", "Bo")
BOSS = Person("U500", "Boss")
TEAM = Channel("C200", "team")


@dataclass
class Chat:
    """A bot on Slack and the people around it."""

    bot: Bot
    slack: SlackEmulator
    lena: Person = LENA
    bo: Person = BO
    team: Channel = TEAM

    async def hears(
        self, text: str, by: Person | None = None, to: Channel | None = None, thread: str | None = None
    ) -> str:
        """What the bot says next to *by* (or in the channel), when *by* says *text*."""
        by = by or self.lena
        place = to or by
        before = len(self.slack.shown(place))
        self.slack.say(text, by=by, to=to, thread=thread)
        await self.slack.until(lambda slack: len(slack.shown(place)) > before)
        return self.slack.shown(place)[-1].text

    @property
    def at_bot(self) -> str:
        return self.slack.at_bot


@pytest_asyncio.fixture(loop_scope="module")
async def slack() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator() as emulator:
        yield emulator


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Chat]:
    """One bot for the tests that change nothing of it."""
    async with SlackEmulator() as slack, bot_on(slack_connector(slack), access_admins=("slack:U500",)) as bot:
        yield Chat(bot, slack)


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: Chat) -> AsyncIterator[Chat]:
    """The shared bot, with people and a channel of the test's own."""
    n = next(_numbers)
    lena, bo, team = Person(f"U6{n:02}", "Lena"), Person(f"U7{n:02}", "Bo"), Channel(f"C3{n:02}", f"team{n}")
    yield Chat(shared.bot.from_now(), shared.slack, lena, bo, team)
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


async def test_in_a_channel_the_bot_answers_only_when_it_is_meant(chat: Chat) -> None:
    """In a thread, where the talk goes on without a mention. Each thread is a conversation of its own."""
    chat.slack.say("nobody asks the bot", by=chat.bo, to=chat.team)
    chat.bot.model.will("Noted.")
    await chat.hears(f"{chat.at_bot} the boat is called Petrel", to=chat.team)
    await chat.bot.settle()
    root = chat.slack.shown(chat.team)[-1].thread
    assert root is not None
    assert "nobody asks" not in chat.bot.sent["user"]
    chat.bot.model.will("Petrel.")
    asked = "what did Lena call the boat?"
    assert await chat.hears(asked, by=chat.bo, to=chat.team, thread=root) == "Petrel."
    assert "Lena: the boat is called Petrel" in chat.bot.sent["user"]
    assert [message.thread for message in chat.slack.shown(chat.team)] == [root, root]

    await chat.hears(f"{chat.at_bot} as I said, what is the boat called?", to=chat.team)
    assert chat.bot.sent["user"].endswith("as I said, what is the boat called?")
    assert "Petrel" not in chat.bot.sent["user"]
    assert len({message.thread for message in chat.slack.shown(chat.team)}) == 2


async def test_commands_are_named_as_they_can_be_written_in_slack(chat: Chat) -> None:
    """Slack lets nobody write ``/queue``, which is no command of its own. A slash command is answered for its
    giver's eyes alone; without words it explains what there is."""
    assert "`!queue collect`" in await chat.hears("!queue sometimes")
    assert "`!stop`" in await chat.hears("!help")

    chat.slack.command("", by=chat.lena, to=chat.team)
    await chat.slack.until(lambda slack: len(slack.whispers) == 1)
    (whisper,) = chat.slack.whispers
    assert (whisper.user, whisper.channel) == (chat.lena.id, chat.team.id)
    assert "usage" in whisper.text
    assert chat.slack.shown(chat.team) == []
    assert chat.bot.replies_asked == []


async def test_a_formatted_reply_is_shown_with_slacks_own_marks(chat: Chat) -> None:
    chat.bot.model.will("Refunds take **14 days** [refunds.md › Windows]; see [the *policy*](https://x.org/p?a=1&b=2).")
    shown = await chat.hears("how long do refunds take?")

    assert "Refunds take *14 days* [refunds.md › Windows]; see " in shown
    assert shown.endswith("see the _policy_.")
    assert "<https://x.org/p?a=1&amp;b=2|policy>" in chat.slack.shown(chat.lena)[-1].raw


async def test_a_reply_in_a_thread_grows_by_slacks_own_streaming(chat: Chat) -> None:
    """It is one message, which in the end says it all, formatted."""
    whole = " ".join(f"**{number}** of many words." for number in range(30))
    chat.bot.model.will(Reply(text=whole))
    chat.bot.model.chunk_delay_seconds = 0.02

    begun = chat.slack.streams.begun
    chat.slack.say(f"{chat.at_bot} tell me a lot", to=chat.team, by=chat.lena)
    await chat.slack.until(lambda slack: any(shown.streaming for shown in slack.shown(chat.team)))
    await chat.slack.until(lambda slack: "*29* of many" in slack.shown(chat.team)[-1].text)
    await chat.bot.settle()

    (shown,) = chat.slack.shown(chat.team)
    assert not shown.streaming
    assert chat.slack.streams.begun == begun + 1
    assert "**" not in shown.text


async def test_an_answer_that_can_be_seen_is_finished_below_what_is_left_of_its_deleted_question(chat: Chat) -> None:
    whole = "\n\n".join(f"Paragraph {n}. " + "All of it has to arrive. " * 12 for n in range(16))
    chat.bot.model.chunk_delay_seconds = 0.02
    chat.bot.model.answer = lambda _: whole

    asked = chat.slack.say(f"{chat.at_bot} tell us everything", to=chat.team, by=chat.lena)
    await chat.slack.until(lambda slack: bool(slack.shown(chat.team, asked)))
    begun = chat.slack.shown(chat.team, asked)[0].text
    await chat.slack.until(
        lambda slack: slack.shown(chat.team, asked)[0].text != begun
    )  # the bot knows that it is seen
    chat.slack.delete(chat.team, asked)
    await chat.slack.until(lambda _: bool(chat.bot.told("message.deleted")))
    chat.bot.model.chunk_delay_seconds = 0
    await chat.slack.until(lambda _: bool(chat.bot.told("reply.delivered")), seconds=60)

    shown = "".join(part.text for part in chat.slack.shown(chat.team, asked))
    assert "".join(shown.split()) == "".join(whole.split())
    assert chat.bot.told("turn.failed") == []


async def test_who_stops_an_answer_before_its_first_word_is_told_so_once(chat: Chat) -> None:
    chat.bot.model.will("hang")
    chat.slack.say("tell me everything about boats", by=chat.bo)
    await chat.slack.until(lambda _: len(chat.bot.replies_asked) == 1)
    chat.slack.say("/stop", by=chat.bo)

    await chat.slack.until(lambda _: len(chat.bot.told("reply.delivered")) == 2)
    assert [message.text for message in chat.slack.shown(chat.bo)] == ["Stopped."]


async def test_a_reply_in_a_thread_is_marked_by_the_names_of_the_emoji(chat: Chat) -> None:
    """Who has put both is taken at the newer one, and at the other when that is gone."""
    await chat.hears(f"{chat.at_bot} how do I moor the Petrel?", to=chat.team)
    await chat.bot.settle()
    ts = chat.slack.shown(chat.team)[-1].ts
    steps = [("+1::skin-tone-4", True), ("thumbsdown", True), ("thumbsdown", False), ("+1::skin-tone-4", False)]
    for name, added in steps:
        before = len(chat.bot.told("turn.marked"))
        chat.slack.react(chat.team, ts, name, added=added)
        await chat.slack.until(lambda _: len(chat.bot.told("turn.marked")) > before)  # noqa: B023 - awaited here

    assert [one["mark"] for one in chat.bot.told("turn.marked")] == ["good", "bad", "good", "none"]


async def test_what_slack_delivers_again_and_again_is_answered_once(chat: Chat) -> None:
    patience, chat.slack.redeliver_seconds = chat.slack.redeliver_seconds, 0.02
    chat.slack.drop_acks, chat.slack.doubles = 4, True
    await chat.hears(f"{chat.at_bot} only once, please", to=chat.team)
    await chat.slack.until(lambda slack: all(delivery.acknowledged for delivery in slack.deliveries))
    chat.slack.redeliver_seconds, chat.slack.doubles = patience, False
    await chat.hears("and another")

    assert len(chat.slack.shown(chat.team)) == 1
    assert len(chat.bot.replies_asked) == 2


async def test_what_slack_never_delivered_while_the_socket_was_broken_is_read(chat: Chat) -> None:
    """It is answered before what is said afterwards, though Slack does not deliver it again."""
    await chat.hears("one")
    chat.slack.mute = True
    chat.slack.say("two", by=chat.lena)
    chat.slack.deliveries[-1].acknowledged = True  # Slack has given up
    await chat.slack.kill()
    chat.slack.mute = False
    await chat.slack.until(lambda slack: slack.sockets == 1)
    chat.slack.say("three", by=chat.lena)
    await chat.slack.until(lambda slack: len(slack.shown(chat.lena)) == 3)
    await chat.bot.settle()
    asked = [str(body["messages"][-1]["content"]).rpartition("\n")[2] for body in chat.bot.replies_asked]
    assert asked == ["one", "two", "three"]


async def test_a_send_that_goes_wrong_is_made_good_once(slack: SlackEmulator) -> None:
    """One that Slack holds back is repeated; one of which nobody knows is read back, and not repeated.

    In a bot of its own: after a send that was held back, no reply grows for a minute.
    """
    async with bot_on(slack_connector(slack)) as bot:
        chat = Chat(bot, slack)
        chat.slack.fail_next("chat.postMessage", emulated.rate_limited(1))
        assert await chat.hears("are the docs up?")
        assert len(chat.bot.told("reply.retried")) == 1

        chat.slack.fail_next("chat.postMessage", emulated.LOST_ANSWER)
        await chat.hears("what do they say?")
        await chat.hears("and now, what do they say?")
        assert len(chat.slack.shown(chat.lena)) == 3
        assert chat.bot.told("reply.ambiguous") == []


async def test_a_file_is_read_and_kept_by_an_admin(chat: Chat) -> None:
    """Fetched with what Slack asks for."""
    prices = documents.docx(documents.paragraph("Winter tyres cost 40 euros."))
    chat.slack.upload("prices.docx", prices, media_type=documents.DOCX, text="What do they cost?", by=BOSS)
    await chat.slack.until(lambda slack: len(slack.shown(BOSS)) == 1)
    assert "Content of prices.docx:\n> Winter tyres cost 40 euros." in chat.bot.sent["user"]

    chat.slack.upload("prices.docx", prices, media_type=documents.DOCX, text="!docs add tyres/", by=BOSS)
    await chat.slack.until(lambda slack: len(slack.shown(BOSS)) == 2)
    assert "is stored as" in chat.slack.shown(BOSS)[-1].text
    kept = await asyncio.to_thread(chat.bot.runtime.knowledge.library.get, Scope("acme"), "tyres/prices.md")
    assert kept.text == "Winter tyres cost 40 euros.\n"


async def test_an_admin_lets_strangers_in_by_a_button_and_their_questions_are_answered(slack: SlackEmulator) -> None:
    """Where they asked. Only admins' presses count, and the second one says who decided."""
    al, kim, team = Person("U503", "Al"), Person("U504", "Kim"), Channel("C201")
    admins = ("slack:U500", "slack:U502", "slack:U503")
    async with bot_on(slack_connector(slack), access_policy="pairing", access_admins=admins) as bot:
        chat = Chat(bot, slack)
        for admin in (BOSS, al, BO):
            await chat.hears("!help", by=admin)
        assert "Your pairing code is" in await chat.hears("what does the harbour plan cost?")
        await slack.until(lambda seen: all(seen.shown(admin)[-1].buttons for admin in (BOSS, al, BO)))
        asked, other, third = (slack.shown(admin)[-1] for admin in (BOSS, BO, al))
        assert "Lena" in asked.text
        assert "what does the harbour plan cost?" in asked.text
        assert list(asked.buttons) == ["Approve", "Deny"]

        await bot.runtime.access.set_role("slack:U599", Role.MEMBER, "acme")
        slack.press(third, "Deny", by=Person("U599", "Eve"))
        await slack.until(lambda seen: "Only admins can use" in seen.shown(al)[-1].text)
        before = len(slack.shown(LENA))
        pressed = slack.press(asked, "Approve", by=BOSS)
        await slack.until(
            lambda seen: len(seen.shown(LENA)) == before + 2 and "may now talk" in seen.shown(BOSS)[-1].text
        )
        assert slack.shown(LENA)[before].text.startswith("Welcome! An admin has let you in.")
        assert "what does the harbour plan cost?" in bot.sent["user"]
        await slack.until(lambda _: pressed.acknowledged)
        assert asked.buttons == {}
        assert "what does the harbour plan cost?" in asked.text

        slack.press(other, "Deny", by=BO)
        await slack.until(lambda seen: "already, by boss" in seen.shown(BO)[-1].text)
        assert await bot.runtime.access.role_of("slack:U501", "acme") is Role.MEMBER

        # A stranger who only chats in a thread of the bot is none to it.
        thread = slack.say(f"{chat.at_bot} what does the ocean plan cost?", by=LENA, to=TEAM)
        await slack.until(lambda seen: len(seen.shown(TEAM)) == 1)
        refused = len(bot.told("access.refused"))
        slack.say("I wonder, too", by=kim, to=TEAM, thread=thread)
        await slack.until(lambda _: len(bot.told("access.refused")) == refused + 1)
        assert await bot.runtime.access.pending() == []

        # Each mention begins a thread of its own; one line is said for all of them.
        await bot.settle()
        answered = len(bot.replies_asked)
        assert "I do not know you yet, Kim" in await chat.hears(f"{chat.at_bot} what is it?", by=kim, to=team)
        slack.say(f"{chat.at_bot} and the harbour?", by=kim, to=team)
        await slack.until(lambda _: len(bot.told("access.refused")) == refused + 3)
        (waiting,) = await bot.runtime.access.pending()
        assert waiting.asked_in == (f"slack:{team.id}",)
        await slack.until(lambda seen: "Kim" in seen.shown(BOSS)[-1].text and bool(seen.shown(BOSS)[-1].buttons))
        slack.press(slack.shown(BOSS)[-1], "Approve", by=BOSS)
        await slack.until(lambda seen: len(seen.shown(team)) == 4)  # the line, the welcome, and two answers
        await bot.settle()
        said = [one.text for one in slack.shown(team)]
        assert said[1].startswith("Welcome! An admin has let you in.")
        assert [line for line in said if "I do not know you" in line] == said[:1]
        assert not any(waiting.code in line for line in said)
        assert len(bot.replies_asked) == answered + 2


async def test_over_http_people_are_answered_on_the_runtimes_own_face(slack: SlackEmulator) -> None:
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB"}).encode()
    command = slack.commands.form(slack.commands.payload("help", LENA, TEAM, None))
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with bot_on(slack_connector_over_http(slack)) as bot:
        transport = httpx.ASGITransport(create_app(bot.runtime))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as face:
            verified = await face.post("/slack/events", content=body, headers=slack.signed(body))
            assert verified.json() == {"challenge": "3eZbrw1aB"}
            assert (await face.post("/slack/events", content=body)).status_code == 401

            given = await face.post("/slack/commands", content=command, headers=slack.signed(command) | form)
            assert (given.status_code, given.text) == (200, "")
            assert (await face.post("/slack/commands", content=command)).status_code == 401
        await slack.until(lambda slack: len(slack.whispers) == 1)
        assert "usage" in slack.whispers[0].text

        bot.model.will("Ahoy over HTTP!")
        assert await Chat(bot, slack).hears(f"{slack.at_bot} are you there?", to=TEAM) == "Ahoy over HTTP!"
        assert slack.opened == 0


async def test_what_was_asked_while_the_bot_was_down_is_answered_after_its_start(
    slack: SlackEmulator, data_dir: Path
) -> None:
    """Although Slack has given up bringing it."""
    async with bot_on(slack_connector(slack), data_dir=data_dir) as bot:
        await Chat(bot, slack).hears("the boat is called Petrel")
        await bot.settle()
    slack.say("what is the boat called?", by=LENA)
    for delivery in slack.deliveries:
        delivery.acknowledged = True
    async with bot_on(slack_connector(slack), data_dir=data_dir) as bot:
        await slack.until(lambda slack: len(slack.shown(LENA)) == 2)
        assert bot.sent["user"].endswith("what is the boat called?")
