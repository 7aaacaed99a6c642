"""People talk to the bot on Telegram: the real SDK against an emulated Bot API."""

import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from connectors.connector import Connector
from connectors.message import Role
from grounding.prompt import layers
from runtime.http import create_app
from tests.contract.discord_harness import discord_connector
from tests.contract.slack_harness import slack_connector
from tests.contract.telegram_harness import PUBLIC_URL, telegram_connector, telegram_connector_by_webhook
from tests.emulators import telegram as emulated
from tests.emulators.bot import Bot, bot_on
from tests.emulators.discord import DiscordEmulator
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import Person, Room, TelegramEmulator

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENA = Person(id=501, name="Lena")
BO = Person(id=502, name="Bo")
BOSS = Person(id=500, name="Boss")
TEAM = Room(id=-100200)
GOOD_ANSWERS = layers.KARMA_HEAD.splitlines()[1]


@dataclass
class Chat:
    """A bot on Telegram and the people around it."""

    bot: Bot
    telegram: TelegramEmulator
    lena: Person = LENA
    bo: Person = BO
    team: Room = TEAM

    async def hears(self, text: str, by: Person | None = None, to: Room | None = None, topic: int | None = None) -> str:
        """What the bot says next to *by* (or in the room), when *by* says *text*."""
        by = by or self.lena
        place = to or by
        before = len(self.telegram.said(place, topic))
        await self.telegram.say(text, by=by, to=to, topic=topic)
        await self.telegram.until(lambda telegram: len(telegram.said(place, topic)) > before)
        return self.telegram.said(place, topic)[-1].text

    @property
    def at_bot(self) -> str:
        return f"@{self.telegram.me.username}"


@pytest_asyncio.fixture(loop_scope="module")
async def telegram() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator() as emulator:
        yield emulator


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Chat]:
    """One bot for the tests that change nothing of it."""
    async with TelegramEmulator() as telegram, bot_on(telegram_connector(telegram)) as bot:
        yield Chat(bot, telegram)


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: Chat) -> AsyncIterator[Chat]:
    """The shared bot, with people and a group of the test's own."""
    n = next(_numbers)
    lena, bo, team = Person(id=600 + n, name="Lena"), Person(id=700 + n, name="Bo"), Room(id=-100_300 - n)
    yield Chat(shared.bot.from_now(), shared.telegram, lena, bo, team)
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


async def test_in_a_group_the_bot_answers_only_when_it_is_meant(chat: Chat) -> None:
    await chat.telegram.say("nobody asks the bot", by=chat.bo, to=chat.team)
    reply = await chat.hears(f"{chat.at_bot} what is the pricing policy?", by=chat.lena, to=chat.team)

    assert reply
    assert len(chat.telegram.said(chat.team)) == 1
    assert chat.bot.sent["user"].endswith("what is the pricing policy?")
    assert "nobody asks" not in chat.bot.sent["user"]


async def test_topics_of_one_group_are_conversations_of_their_own(chat: Chat) -> None:
    topics = Room(id=-100_400, topics=(7, 8))
    await chat.hears(f"{chat.at_bot} the code is 1234", to=topics, topic=7)
    await chat.hears(f"{chat.at_bot} as I said, what is the code?", to=topics, topic=8)

    assert "1234" not in chat.bot.sent["user"]


async def test_who_starts_the_bot_is_told_what_it_can_do(chat: Chat) -> None:
    """The commands are offered by Telegram itself, too."""
    assert "/help" in await chat.hears("/start")
    assert chat.bot.replies_asked == []
    await chat.telegram.until(lambda telegram: bool(telegram.commands))
    assert {"help", "new", "status"} <= {command["command"] for command in chat.telegram.commands}


async def test_an_acknowledgement_is_asked_for_where_something_is_looked_up(chat: Chat) -> None:
    await chat.hears("what is the pricing policy?")
    assert "acknowledge" in chat.bot.sent["user"]

    await chat.hears("what is the capital of France?")
    assert "acknowledge" not in chat.bot.sent["user"]


async def test_a_message_that_is_delivered_twice_is_answered_once(chat: Chat) -> None:
    await chat.hears("only once, please")
    await chat.telegram.deliver_again()
    await chat.hears("and another")

    assert len(chat.telegram.said(chat.lena)) == 2
    assert len(chat.bot.replies_asked) == 2


async def test_a_send_that_goes_wrong_is_made_good(telegram: TelegramEmulator) -> None:
    """One that Telegram holds back is repeated. One of which nobody knows is said again, for Telegram cannot be asked:
    better twice than never.

    In a bot of its own: after a send that was held back, no reply grows for a minute.
    """
    async with bot_on(telegram_connector(telegram)) as bot:
        chat = Chat(bot, telegram)
        calls = chat.telegram.calls.count("sendmessage")
        chat.telegram.fail_next("sendMessage", emulated.rate_limited(1))
        assert await chat.hears("are the docs up?", by=chat.bo)
        assert chat.telegram.calls.count("sendmessage") == calls + 2
        assert len(chat.telegram.shown(chat.bo)) == 1

        chat.telegram.fail_next("sendMessage", emulated.LOST_ANSWER)
        await chat.telegram.say("are the docs up?", by=chat.lena)
        await chat.telegram.until(lambda telegram: len(telegram.shown(chat.lena)) == 2)
        first, again = chat.telegram.shown(chat.lena)
        assert first.text == again.text
        assert len(chat.bot.told("reply.ambiguous")) == 1
        assert await chat.hears("and now, what do they say?") != first.text


async def test_what_was_forwarded_is_answered_with_its_origin_in_mind(chat: Chat) -> None:
    origin = {"type": "hidden_user", "date": 1, "sender_user_name": "Ada"}
    before = len(chat.telegram.said(chat.lena))
    await chat.telegram.say("the party is on Friday", by=chat.lena, forward_origin=origin)
    await chat.telegram.until(lambda telegram: len(telegram.said(chat.lena)) > before)

    assert chat.bot.sent["user"].endswith("[forwarded from Ada]\nthe party is on Friday")


async def test_an_answer_that_was_liked_is_shown_where_it_is_asked_again_until_it_is_not(chat: Chat) -> None:
    """By somebody else, too; the word of one member puts nothing before everybody, whatever they ask."""
    team = Room(id=-100_600, username="team")
    asked, answer = (
        "how do I moor the Petrel?",
        "Moor the Petrel at the north pier, bow to the swell, with two springs.",
    )
    chat.bot.model.will(answer)
    await chat.hears(f"{chat.at_bot} {asked}", to=team)
    await chat.bot.settle()
    message_id = chat.telegram.said(team)[-1].message_id
    await chat.telegram.react(team.id, message_id, "👀", by=chat.bo)
    await chat.telegram.react(team.id, message_id, "👍", by=chat.bo)
    await chat.telegram.until(lambda _: len(chat.bot.told("turn.marked")) == 1)

    await chat.hears(f"{asked} Anything about springs?", by=chat.lena)
    assert f"<good_answers>\n{GOOD_ANSWERS}\n- Asked: {asked}\n  Answered: {answer}" in chat.bot.sent["user"]
    assert answer not in chat.bot.sent["system"]
    await chat.hears("what does the harbour plan cost?", by=chat.lena)
    assert "<good_answers>" not in chat.bot.sent["user"]

    await chat.telegram.react(team.id, message_id, "", by=chat.bo)
    await chat.telegram.until(lambda _: len(chat.bot.told("turn.marked")) == 2)
    await chat.hears("/new", by=chat.lena)
    await chat.hears(f"{asked} Anything about springs?", by=chat.lena)
    assert "<good_answers>" not in chat.bot.sent["user"]
    assert [one["mark"] for one in chat.bot.told("turn.marked")] == ["good", "none"]
    assert answer not in str(chat.bot.told("turn.marked"))


async def test_an_admin_lets_strangers_in_by_a_button_and_their_questions_are_answered(
    telegram: TelegramEmulator,
) -> None:
    """Where they asked. Only admins' presses count, and the second one says who decided."""
    kim, mia, al = (Person(id=number, name=name) for number, name in ((504, "Kim"), (505, "Mia"), (506, "Al")))
    fields: dict[str, Any] = {
        "access_policy": "pairing",
        "access_admins": ("telegram:500", "telegram:502"),
        "answer_in_groups": "all",
    }
    async with bot_on(telegram_connector(telegram), **fields) as bot:
        chat = Chat(bot, telegram)
        for admin in (BOSS, BO):
            await chat.hears("/help", by=admin)
        assert "Your pairing code is" in await chat.hears("what does the harbour plan cost?")
        await telegram.until(lambda seen: all(seen.said(admin)[-1].buttons for admin in (BOSS, BO)))
        asked, other = telegram.said(BOSS)[-1], telegram.said(BO)[-1]
        assert "Lena" in asked.text
        assert "what does the harbour plan cost?" in asked.text
        assert list(asked.buttons) == ["Approve", "Deny"]

        await bot.runtime.access.set_role("telegram:599", Role.MEMBER, "acme")
        await telegram.press(other, "Deny", by=Person(id=599, name="Eve"))
        await telegram.until(lambda seen: "Only admins can use" in seen.said(BO)[-1].text)
        before = len(telegram.said(LENA))
        pressed = await telegram.press(asked, "Approve", by=BOSS)
        await telegram.until(
            lambda seen: len(seen.said(LENA)) == before + 2 and "may now talk" in seen.said(BOSS)[-1].text
        )
        assert telegram.said(LENA)[before].text.startswith("Welcome! An admin has let you in.")
        assert "what does the harbour plan cost?" in bot.sent["user"]
        assert (asked.buttons, telegram.pressed[pressed]) == ({}, "")

        assert "already, by Boss" in await chat.hears(f"/{asked.text.split('/')[1].split(' lets')[0]}", by=BO)
        assert await bot.runtime.access.role_of("telegram:501", "acme") is Role.MEMBER

        # In a group others read no code, and one line however often the stranger asks. Who only chats is no stranger.
        await telegram.say("nobody asks the bot", by=kim, to=TEAM)
        line = await chat.hears(f"{chat.at_bot} what does the ocean plan cost?", by=mia, to=TEAM)
        assert line == (
            "I do not know you yet, Mia. I have asked an admin to let you in. An admin sees what you wrote and decides."
        )
        (waiting,) = await bot.runtime.access.pending()
        assert (waiting.user, waiting.asked_in) == ("telegram:505", (f"telegram:{TEAM.id}",))
        await telegram.until(lambda seen: "Mia" in seen.said(BOSS)[-1].text and bool(seen.said(BOSS)[-1].buttons))
        asked = telegram.said(BOSS)[-1]
        assert f"telegram:{TEAM.id}" in asked.text
        assert "what does the ocean plan cost?" in asked.text

        await telegram.say(f"{chat.at_bot} anybody?", by=mia, to=TEAM)
        await telegram.press(asked, "Approve", by=BOSS)
        await telegram.until(lambda seen: len(seen.said(TEAM)) >= 3)
        await bot.settle()
        said = [one.text for one in telegram.said(TEAM)]
        assert said[1].startswith("Welcome! An admin has let you in.")
        assert [line for line in said if "I do not know you" in line] == said[:1]
        assert any("what does the ocean plan cost?" in prompt for prompt in bot.model.prompts)
        assert not any(waiting.code in line for line in said)
        assert not any("nobody asks the bot" in prompt for prompt in bot.model.prompts)

        # Who is turned away is told once.
        await chat.hears("let me in", by=al)
        (waiting,) = await bot.runtime.access.pending()
        await bot.runtime.access.deny(waiting.code)
        await telegram.until(lambda seen: "decided not to let you in" in seen.said(al)[-1].text)
        await telegram.say("please?", by=al)
        await chat.hears("hello", by=BO)
        assert "decided not to let you in" in telegram.said(al)[-1].text
        assert "please?" not in "".join(bot.model.prompts)


async def test_where_no_admin_can_be_told_strangers_read_who_can_let_them_in(telegram: TelegramEmulator) -> None:
    """By the code that they read, or once there is an admin, who is told of those who wait."""
    kim, mia = Person(id=504, name="Kim"), Person(id=505, name="Mia")
    fields: dict[str, Any] = {"access_policy": "pairing", "default_workspace": "default"}
    async with bot_on(telegram_connector(telegram), **fields) as bot:
        chat, access = Chat(bot, telegram), bot.runtime.access
        notice = await chat.hears("hello?")
        assert "(you are telegram:501)" in notice
        assert "An admin sees what you wrote and decides" in notice
        assert "Whoever runs this bot has to let you in" in notice
        assert "I have asked the admins" not in notice
        (waiting,) = await access.pending()
        assert waiting.user == "telegram:501"
        assert waiting.code in notice

        # In a group who is turned away hears nothing more.
        line = await chat.hears(f"{chat.at_bot} hello?", by=mia, to=TEAM)
        assert "Ask whoever runs me to run ./agent-runtime access list." in line
        (turned_away,) = [one for one in await access.pending() if one.user == "telegram:505"]
        await access.deny(turned_away.code)
        refused = len(bot.told("access.refused"))
        await telegram.say(f"{chat.at_bot} please?", by=mia, to=TEAM)
        await telegram.until(lambda _: len(bot.told("access.refused")) == refused + 1)
        assert bot.model.requests == []
        # A stranger makes no workspace.
        assert not await bot.runtime.workspaces.exists("telegram-501")
        assert [one["workspace_id"] for one in bot.told("workspace.created")] == ["default", "acme"]

        assert (await access.approve(waiting.code)).role is Role.MEMBER
        await telegram.until(lambda seen: len(seen.said(LENA)) == 3)  # that they are in, and the first answer
        bot.model.will("Welcome aboard.")
        assert await chat.hears("hello again, what do the docs say?") == "Welcome aboard."
        await access.set_role("telegram:502", Role.MEMBER, "default")
        await chat.hears(f"{chat.at_bot} hello?", by=BO, to=TEAM)
        assert len(telegram.said(TEAM)) == 2
        assert telegram.said(mia) == []

        await chat.hears("what does the harbour plan cost?", by=kim)
        await access.set_role("telegram:500", Role.ADMIN, "default")
        await telegram.say("/status", by=BOSS)
        await telegram.until(
            lambda seen: any("what does the harbour plan cost?" in one.text for one in seen.said(BOSS))
        )
        (asked,) = [one for one in telegram.said(BOSS) if one.buttons]
        await telegram.press(asked, "Approve", by=BOSS)
        await telegram.until(lambda seen: len(seen.said(kim)) == 3)
        assert "I have asked the admins" in await chat.hears("hello?", by=Person(id=598, name="Ann"))


async def test_with_an_allowlist_strangers_are_not_answered(telegram: TelegramEmulator) -> None:
    """In a group not with a word."""
    fields: dict[str, Any] = {"access_policy": "allowlist", "access_allowlist": ("telegram:501",)}
    async with bot_on(telegram_connector(telegram), **fields) as bot:
        chat = Chat(bot, telegram)
        await telegram.say("let me in", by=BO)
        await telegram.say(f"{chat.at_bot} let me in", by=BO, to=TEAM)
        await telegram.until(lambda _: len(bot.told("access.refused")) == 2)
        assert await chat.hears("it is me")
        await chat.hears(f"{chat.at_bot} hello?", to=TEAM)
        assert len(telegram.said(TEAM)) == 1
        assert await bot.runtime.access.pending() == []
        assert "let me in" not in "".join(bot.model.prompts)


async def test_who_was_let_in_while_no_bot_ran_is_answered_at_its_next_start(
    telegram: TelegramEmulator, data_dir: Path
) -> None:
    fields: dict[str, Any] = {"data_dir": data_dir, "access_policy": "pairing"}
    async with bot_on(telegram_connector(telegram), **fields) as bot:
        await Chat(bot, telegram).hears("what does the harbour plan cost?")
    async with bot_on(parts=frozenset(), **fields) as bot:
        (waiting,) = await bot.runtime.access.pending()
        await bot.runtime.access.approve(waiting.code)
    async with bot_on(telegram_connector(telegram), **fields) as bot:
        await telegram.until(lambda seen: len(seen.said(LENA)) == 3)
        assert len(bot.replies_asked) == 1
    assert telegram.said(LENA)[1].text.startswith("Welcome!")


async def test_all_chats_share_a_workspace_where_nothing_routes_them(telegram: TelegramEmulator) -> None:
    """What is in it is found from every chat, by people who were told nothing about workspaces."""
    async with bot_on(telegram_connector(telegram), routes={"telegram:-100200": "crew"}) as bot:
        chat = Chat(bot, telegram)
        await chat.hears("what do our docs say about the harbour plan?")
        assert "12 euros" in bot.sent["user"]
        await chat.hears(f"{chat.at_bot} hello", to=TEAM)
        await chat.hears("hello", by=BO)

        seen = [event["workspace_id"] for event in bot.told("message.accepted")]
        assert seen == ["acme", "crew", "acme"]


async def test_with_a_workspace_per_place_chats_share_nothing(telegram: TelegramEmulator) -> None:
    async with bot_on(telegram_connector(telegram), workspace_per_place=True) as bot:
        chat = Chat(bot, telegram)
        await chat.hears("hello there, bot")
        await chat.hears(f"{chat.at_bot} hello", to=TEAM)

        seen = [event["workspace_id"] for event in bot.told("message.accepted")]
        assert seen == ["telegram-501", "telegram--100200"]


async def test_a_wrong_token_fails_its_platform_alone(telegram: TelegramEmulator) -> None:
    async with SlackEmulator() as slack, DiscordEmulator() as discord:
        platforms: list[Connector] = [telegram_connector(telegram), slack_connector(slack), discord_connector(discord)]
        telegram.token, slack.token, discord.token = "999:other", "xoxb-other", "another"
        async with bot_on(*platforms) as bot:
            await bot.say("hello over HTTP")
            for platform in ("telegram", "slack", "discord"):
                await telegram.until(lambda _, name=platform: newest(bot, name)["state"] == "failed")  # type: ignore[misc]
                assert f"AGENT_RUNTIME_{platform.upper()}_BOT_TOKEN" in newest(bot, platform)["why"]


def newest(bot: Bot, platform: str) -> dict[str, str]:
    """The newest that was told of a platform's state."""
    return [{"state": ""}, *(one for one in bot.told("connector.state") if one["connector"] == platform)][-1]


async def test_by_webhook_people_are_answered_on_the_runtimes_own_face(telegram: TelegramEmulator) -> None:
    async with bot_on(telegram_connector_by_webhook(telegram), http_public_url=PUBLIC_URL) as bot:
        transport = httpx.ASGITransport(create_app(bot.runtime))

        async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
            async with httpx.AsyncClient(transport=transport) as face:
                return (await face.post(url, content=body, headers=dict(headers))).status_code

        telegram.webhook.post = post
        bot.model.will("Ahoy by webhook!")
        assert await Chat(bot, telegram).hears("are you there?") == "Ahoy by webhook!"
        assert await post(f"{PUBLIC_URL}/telegram/webhook", b"{}", {}) == 401
        assert "getupdates" not in telegram.calls
