"""People talk to the bot on Telegram: the real SDK against an emulated Bot API."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import Role
from grounding.prompt import layers
from runtime.http import create_app
from tests.contract.telegram_harness import PUBLIC_URL, telegram_connector, telegram_connector_by_webhook
from tests.emulators import telegram as emulated
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI, Reply
from tests.emulators.telegram import Person, Room, TelegramEmulator

LENA = Person(id=501, name="Lena")
BO = Person(id=502, name="Bo")
TEAM = Room(id=-100200)
TOPICS = Room(id=-100300, topics=(7, 8))
GOOD_ANSWERS = layers.KARMA_HEAD.splitlines()[1]


@dataclass
class Chat:
    """A bot on Telegram and the people around it."""

    bot: Bot
    telegram: TelegramEmulator

    async def hears(self, text: str, by: Person = LENA, to: Room | None = None, topic: int | None = None) -> str:
        """What the bot says next to *by* (or in the room), when *by* says *text*."""
        place = to or by
        before = len(self.telegram.said(place, topic))
        await self.telegram.say(text, by=by, to=to, topic=topic)
        await self.telegram.until(lambda telegram: len(telegram.said(place, topic)) > before)
        return self.telegram.said(place, topic)[-1].text

    @property
    def at_bot(self) -> str:
        return f"@{self.telegram.me.username}"


@pytest_asyncio.fixture
async def telegram() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def chat(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> AsyncIterator[Chat]:
    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        yield Chat(bot, telegram)


async def test_a_direct_message_is_answered_and_remembered(chat: Chat) -> None:
    chat.bot.model.will("Ahoy, Lena!")
    assert await chat.hears("the boat is called Petrel") == "Ahoy, Lena!"
    await chat.bot.settle()
    chat.bot.model.will("Petrel, you said.")
    assert await chat.hears("what did I call the boat?") == "Petrel, you said."

    assert "Lena: the boat is called Petrel" in chat.bot.sent["user"]
    assert "assistant: Ahoy, Lena!" in chat.bot.sent["user"]


async def test_in_a_group_the_bot_answers_only_when_it_is_meant(chat: Chat) -> None:
    await chat.telegram.say("nobody asks the bot", by=BO, to=TEAM)
    reply = await chat.hears(f"{chat.at_bot} what is the pricing policy?", by=LENA, to=TEAM)

    assert reply
    assert len(chat.telegram.said(TEAM)) == 1
    assert chat.bot.sent["user"].endswith("what is the pricing policy?")
    assert "nobody asks" not in chat.bot.sent["user"]


async def test_an_acknowledgement_is_asked_for_where_something_is_looked_up(chat: Chat) -> None:
    await chat.hears("what is the pricing policy?")
    assert "acknowledge" in chat.bot.sent["user"]

    await chat.hears("what is the capital of France?")
    assert "acknowledge" not in chat.bot.sent["user"]


async def test_a_very_long_reply_arrives_whole_and_in_order(chat: Chat) -> None:
    whole = "\n\n".join(f"Paragraph {number}. " + "All of it has to arrive. " * 12 for number in range(60))
    chat.bot.model.will(Reply(text=whole))

    await chat.telegram.say("tell me everything", by=LENA)
    await chat.telegram.until(lambda telegram: "Paragraph 59" in "".join(m.text for m in telegram.said(LENA)))

    parts = [message.text for message in chat.telegram.said(LENA)]
    assert len(parts) >= 4
    assert "".join("".join(parts).split()) == "".join(whole.split())


async def test_topics_of_one_group_are_conversations_of_their_own(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} the code is 1234", to=TOPICS, topic=7)
    await chat.hears(f"{chat.at_bot} as I said, what is the code?", to=TOPICS, topic=8)

    assert "1234" not in chat.bot.sent["user"]


async def test_a_busy_group_is_answered_within_what_telegram_lets_a_bot_say_there(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs, previews and replies of all its topics together are never refused for being too many. In the test a
    "minute" has one and a half seconds and takes four messages."""
    monkeypatch.setattr("runtime.delivery.rate_limiter.MINUTE_SECONDS", 1.6)
    monkeypatch.setattr("connectors.telegram.payloads.GROUP_MESSAGES_A_MINUTE", 4)
    chat.telegram.group_limit = (4, 1.5)
    busy = Room(id=-100400, topics=tuple(range(1, 7)))

    chat.bot.model.chunk_delay_seconds = 0.02
    chat.bot.model.will(*["A reply that takes its time. " * 6] * len(busy.topics))
    for topic in busy.topics:
        await chat.telegram.say(f"{chat.at_bot} how deep is it?", to=busy, topic=topic)
    await chat.telegram.until(
        lambda telegram: all(
            [one.text.endswith("time.") for one in telegram.said(busy, topic)] == [True] for topic in busy.topics
        ),
        seconds=30.0,
    )
    assert chat.telegram.too_many == []


async def test_a_message_that_is_delivered_twice_is_answered_once(chat: Chat) -> None:
    await chat.hears("only once, please")
    await chat.telegram.deliver_again()
    await chat.hears("and another")

    assert len(chat.telegram.said(LENA)) == 2
    assert len(chat.bot.replies_asked) == 2


async def test_a_send_that_is_held_back_by_telegram_is_made_good(chat: Chat) -> None:
    chat.telegram.fail_next("sendMessage", emulated.rate_limited(1))

    assert await chat.hears("are the docs up?")
    assert chat.telegram.calls.count("sendmessage") == 2
    assert len(chat.telegram.shown(LENA)) == 1


async def test_a_reply_of_which_nobody_knows_whether_it_arrived_is_said_again(chat: Chat) -> None:
    """Telegram cannot be asked. Better twice than never."""
    chat.telegram.fail_next("sendMessage", emulated.LOST_ANSWER)

    await chat.telegram.say("are the docs up?", by=LENA)
    await chat.telegram.until(lambda telegram: len(telegram.shown(LENA)) == 2)

    first, again = chat.telegram.shown(LENA)
    assert first.text == again.text
    assert len(chat.bot.told("reply.ambiguous")) == 1
    assert await chat.hears("and now, what do they say?") != first.text


async def test_a_stranger_pairs_with_a_code_that_an_admin_approves(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="pairing", default_workspace="acme")
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        notice = await chat.hears("hello?")
        assert "(you are telegram:501)" in notice
        assert "An admin sees what you wrote and decides" in notice
        assert openai_server.requests == []

        waiting = await bot.runtime.access.pending()
        code = next(word.strip("`.,:") for word in notice.split() if len(word.strip("`.,:")) >= 8 and word.isupper())
        assert [person.user for person in waiting] == ["telegram:501"]
        approved = await bot.runtime.access.approve(code)
        assert approved.role is Role.MEMBER
        await telegram.until(lambda seen: len(seen.said(LENA)) == 3)  # that they are in, and the first answer

        openai_server.will("Welcome aboard.")
        assert await chat.hears("hello again, what do the docs say?") == "Welcome aboard."
        assert bot.told("access.refused")


async def test_an_admin_lets_a_stranger_in_by_a_button_and_their_question_is_answered(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Only admins' presses count, and the second one says who decided."""
    boss = Person(id=500, name="Boss")
    settings = model_settings(access_admins=("telegram:500", "telegram:502"))
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        for admin in (boss, BO):
            await chat.hears("/help", by=admin)
        assert "Your pairing code is" in await chat.hears("what does the harbour plan cost?")
        await telegram.until(lambda seen: all(seen.said(admin)[-1].buttons for admin in (boss, BO)))
        asked, other = telegram.said(boss)[-1], telegram.said(BO)[-1]
        assert "Lena" in asked.text
        assert "what does the harbour plan cost?" in asked.text
        assert list(asked.buttons) == ["Approve", "Deny"]

        await bot.runtime.access.set_role("telegram:599", Role.MEMBER, "default")
        await telegram.press(other, "Deny", by=Person(id=599, name="Eve"))
        await telegram.until(lambda seen: "Only admins can use" in seen.said(BO)[-1].text)
        before = len(telegram.said(LENA))
        pressed = await telegram.press(asked, "Approve", by=boss)
        await telegram.until(
            lambda seen: len(seen.said(LENA)) == before + 2 and "may now talk" in seen.said(boss)[-1].text
        )
        assert telegram.said(LENA)[before].text.startswith("Welcome! An admin has let you in.")
        assert "what does the harbour plan cost?" in bot.sent["user"]
        assert (asked.buttons, telegram.pressed[pressed]) == ({}, "")

        assert "already, by Boss" in await chat.hears(f"/{asked.text.split('/')[1].split(' lets')[0]}", by=BO)
        assert await bot.runtime.access.role_of("telegram:501", "default") is Role.MEMBER


async def test_a_new_admin_is_told_of_those_who_wait(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Where no admin can be told, a stranger does not read that one was."""
    boss = Person(id=500, name="Boss")
    async with running_bot(model_settings(), openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        notice = await chat.hears("what does the harbour plan cost?")
        assert "Whoever runs this bot has to let you in" in notice
        assert "I have asked the admins" not in notice

        await bot.runtime.access.set_role("telegram:500", Role.ADMIN, "default")
        await telegram.say("/status", by=boss)
        await telegram.until(
            lambda seen: any("what does the harbour plan cost?" in one.text for one in seen.said(boss))
        )
        (asked,) = [one for one in telegram.said(boss) if one.buttons]
        await telegram.press(asked, "Approve", by=boss)
        await telegram.until(lambda seen: len(seen.said(LENA)) == 3)

        assert "I have asked the admins" in await chat.hears("hello?", by=Person(id=598, name="Kim"))


async def test_a_stranger_who_mentions_the_bot_in_a_group_is_let_in_and_answered_there(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Others read no code, and one line however often the stranger asks; who only chats is no stranger to anybody."""
    boss = Person(id=500, name="Boss")
    settings = model_settings(access_admins=("telegram:500",), answer_in_groups="all")
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        await chat.hears("/help", by=boss)
        await telegram.say("nobody asks the bot", by=BO, to=TEAM)
        line = await chat.hears(f"{chat.at_bot} what does the harbour plan cost?", to=TEAM)
        assert line == (
            "I do not know you yet, Lena. I have asked an admin to let you in. "
            "An admin sees what you wrote and decides."
        )
        (waiting,) = await bot.runtime.access.pending()
        assert (waiting.user, waiting.asked_in) == ("telegram:501", (f"telegram:{TEAM.id}",))
        await telegram.until(lambda seen: bool(seen.said(boss)[-1].buttons))
        asked = telegram.said(boss)[-1]
        assert f"telegram:{TEAM.id}" in asked.text
        assert "what does the harbour plan cost?" in asked.text

        await telegram.say(f"{chat.at_bot} anybody?", to=TEAM)
        await telegram.press(asked, "Approve", by=boss)
        await telegram.until(lambda seen: len(seen.said(TEAM)) >= 3)
        await bot.settle()
        said = [one.text for one in telegram.said(TEAM)]
        assert said[1].startswith("Welcome! An admin has let you in.")
        assert [line for line in said if "I do not know you" in line] == said[:1]
        assert any("what does the harbour plan cost?" in prompt for prompt in openai_server.prompts)
        assert not any(waiting.code in line for line in said)
        assert not any("nobody asks the bot" in prompt for prompt in openai_server.prompts)


async def test_a_stranger_in_a_group_who_is_turned_away_hears_nothing_more(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Where no admin can be told, they read who can let them in."""
    async with running_bot(model_settings(), openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        line = await chat.hears(f"{chat.at_bot} hello?", to=TEAM)
        assert "Ask whoever runs me to run ./agent-runtime access list." in line
        (waiting,) = await bot.runtime.access.pending()
        await bot.runtime.access.deny(waiting.code)
        await telegram.say(f"{chat.at_bot} please?", to=TEAM)
        await telegram.until(lambda _: len(bot.told("access.refused")) == 2)
        await bot.runtime.access.set_role(f"telegram:{BO.id}", Role.MEMBER, "default")
        await chat.hears(f"{chat.at_bot} hello?", by=BO, to=TEAM)
        assert len(telegram.said(TEAM)) == 2
        assert telegram.said(LENA) == []


async def test_in_a_group_an_allowlist_stays_silent(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="allowlist", access_allowlist=("telegram:502",))
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        await telegram.say(f"{chat.at_bot} hello?", to=TEAM)
        await telegram.until(lambda _: len(bot.told("access.refused")) == 1)
        await chat.hears(f"{chat.at_bot} hello?", by=BO, to=TEAM)
        assert len(telegram.said(TEAM)) == 1
        assert await bot.runtime.access.pending() == []


async def test_a_stranger_who_is_turned_away_is_told_once(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_admins=("telegram:502",))
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        await chat.hears("let me in")
        (waiting,) = await bot.runtime.access.pending()
        await bot.runtime.access.deny(waiting.code)
        await telegram.until(lambda seen: "decided not to let you in" in seen.said(LENA)[-1].text)
        await telegram.say("please?")
        await chat.hears("hello", by=BO)

        assert "decided not to let you in" in telegram.said(LENA)[-1].text
        assert "please?" not in "".join(openai_server.prompts)


async def test_who_was_let_in_while_no_bot_ran_is_answered_at_its_next_start(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(), openai_server, [telegram_connector(telegram)]) as bot:
        await Chat(bot, telegram).hears("what does the harbour plan cost?")
    async with running_bot(model_settings(), openai_server, parts=frozenset()) as bot:
        (waiting,) = await bot.runtime.access.pending()
        await bot.runtime.access.approve(waiting.code)
    async with running_bot(model_settings(), openai_server, [telegram_connector(telegram)]) as bot:
        await telegram.until(lambda seen: len(seen.said(LENA)) == 3)
        assert len(bot.replies_asked) == 1
    assert telegram.said(LENA)[1].text.startswith("Welcome!")


async def test_with_an_allowlist_strangers_are_not_answered(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="allowlist", access_allowlist=("telegram:501",), default_workspace="acme")
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        await telegram.say("let me in", by=BO)
        assert await chat.hears("it is me")

        assert "let me in" not in "".join(openai_server.prompts)


async def test_all_chats_share_a_workspace_where_nothing_routes_them(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """What is in `default` is found from every chat, by people who were told nothing about workspaces."""
    settings = model_settings(access_policy="open", routes={"telegram:-100200": "crew"})
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        await bot.write_documents("default", {"pricing.md": "# Prices\n\nThe harbour plan costs 12 euros a month."})
        await chat.hears("what do our docs say about the harbour plan?")
        assert "12 euros" in bot.sent["user"]
        await chat.hears(f"{chat.at_bot} hello", to=TEAM)
        await chat.hears("hello", by=BO)

        seen = [event["workspace_id"] for event in bot.told("message.accepted")]
        assert seen == ["default", "crew", "default"]


async def test_with_a_workspace_per_place_chats_share_nothing(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", workspace_per_place=True)
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        chat = Chat(bot, telegram)
        await chat.hears("hello there, bot")
        await chat.hears(f"{chat.at_bot} hello", to=TEAM)

        seen = [event["workspace_id"] for event in bot.told("message.accepted")]
        assert seen == ["telegram-501", "telegram--100200"]


async def test_a_wrong_token_fails_telegram_alone(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    connector = telegram_connector(telegram)
    telegram.token = "999:other"
    async with running_bot(model_settings(access_policy="open"), openai_server, [connector]) as bot:
        await bot.say("hello over HTTP")
        states = [event for event in bot.told("connector.state") if event["connector"] == "telegram"]

        assert states[-1]["state"] == "failed"
        assert "AGENT_RUNTIME_TELEGRAM_BOT_TOKEN" in states[-1]["why"]


async def test_a_stranger_who_is_refused_makes_no_workspace(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="pairing")
    async with running_bot(settings, openai_server, [telegram_connector(telegram)]) as bot:
        await Chat(bot, telegram).hears("hello?")

        assert not await bot.runtime.workspaces.exists("telegram-501")
        assert [one["workspace_id"] for one in bot.told("workspace.created")] == ["default", "acme"]


async def test_by_webhook_people_are_answered_on_the_runtimes_own_face(
    telegram: TelegramEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", default_workspace="acme", http_public_url=PUBLIC_URL)
    async with running_bot(settings, openai_server, [telegram_connector_by_webhook(telegram)]) as bot:
        transport = httpx.ASGITransport(create_app(bot.runtime))

        async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
            async with httpx.AsyncClient(transport=transport) as face:
                return (await face.post(url, content=body, headers=dict(headers))).status_code

        telegram.webhook.post = post
        openai_server.will("Ahoy by webhook!")
        assert await Chat(bot, telegram).hears("are you there?") == "Ahoy by webhook!"
        assert await post(f"{PUBLIC_URL}/telegram/webhook", b"{}", {}) == 401
        assert "getupdates" not in telegram.calls


async def test_who_starts_the_bot_is_told_what_it_can_do(chat: Chat) -> None:
    said = await chat.hears("/start")

    assert "/help" in said
    assert chat.bot.replies_asked == []


async def test_the_commands_are_offered_by_telegram_itself(chat: Chat) -> None:
    await chat.telegram.until(lambda telegram: bool(telegram.commands))

    assert {"help", "new", "status"} <= {command["command"] for command in chat.telegram.commands}


async def test_what_was_forwarded_is_answered_with_its_origin_in_mind(chat: Chat) -> None:
    origin = {"type": "hidden_user", "date": 1, "sender_user_name": "Ada"}
    before = len(chat.telegram.said(LENA))
    await chat.telegram.say("the party is on Friday", by=LENA, forward_origin=origin)
    await chat.telegram.until(lambda telegram: len(telegram.said(LENA)) > before)

    assert chat.bot.sent["user"].endswith("[forwarded from Ada]\nthe party is on Friday")


async def test_an_answer_that_was_liked_is_shown_where_it_is_asked_again_until_it_is_not(chat: Chat) -> None:
    """By somebody else, too; the word of one member puts nothing before everybody, whatever they ask."""
    team = Room(id=-100200, username="team")
    asked, answer = (
        "how do I moor the Petrel?",
        "Moor the Petrel at the north pier, bow to the swell, with two springs.",
    )
    chat.bot.model.will(answer)
    await chat.hears(f"{chat.at_bot} {asked}", to=team)
    await chat.bot.settle()
    message_id = chat.telegram.said(team)[-1].message_id
    await chat.telegram.react(team.id, message_id, "👀", by=BO)
    await chat.telegram.react(team.id, message_id, "👍", by=BO)
    await chat.telegram.until(lambda _: len(chat.bot.told("turn.marked")) == 1)

    await chat.hears(f"{asked} Anything about springs?", by=LENA)
    assert f"<good_answers>\n{GOOD_ANSWERS}\n- Asked: {asked}\n  Answered: {answer}" in chat.bot.sent["user"]
    assert answer not in chat.bot.sent["system"]
    await chat.hears("what does the harbour plan cost?", by=LENA)
    assert "<good_answers>" not in chat.bot.sent["user"]

    await chat.telegram.react(team.id, message_id, "", by=BO)
    await chat.telegram.until(lambda _: len(chat.bot.told("turn.marked")) == 2)
    await chat.hears("/new", by=LENA)
    await chat.hears(f"{asked} Anything about springs?", by=LENA)
    assert "<good_answers>" not in chat.bot.sent["user"]
    assert [one["mark"] for one in chat.bot.told("turn.marked")] == ["good", "none"]
    assert answer not in str(chat.bot.told("turn.marked"))
