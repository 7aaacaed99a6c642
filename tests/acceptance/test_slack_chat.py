"""People talk to the bot on Slack: the real SDK against an emulated workspace."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from config.settings import Settings
from connectors.message import Role
from connectors.slack.connector import SlackConnector
from runtime.http import create_app
from tests.contract.slack_harness import slack_connector, slack_connector_over_http
from tests.emulators import slack as emulated
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI, Reply
from tests.emulators.slack import Channel, Person, SlackEmulator

LENA = Person("U501", "Lena")
BO = Person("U502", "Bo")
TEAM = Channel("C200", "team")


@dataclass
class Chat:
    """A bot on Slack and the people around it."""

    bot: Bot
    slack: SlackEmulator

    async def hears(self, text: str, by: Person = LENA, to: Channel | None = None, thread: str | None = None) -> str:
        """What the bot says next to *by* (or in the channel), when *by* says *text*."""
        place = to or by
        before = len(self.slack.shown(place))
        self.slack.say(text, by=by, to=to, thread=thread)
        await self.slack.until(lambda slack: len(slack.shown(place)) > before)
        return self.slack.shown(place)[-1].text

    @property
    def at_bot(self) -> str:
        return self.slack.at_bot


@pytest_asyncio.fixture
async def slack() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def chat(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> AsyncIterator[Chat]:
    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        yield Chat(bot, slack)


async def test_a_direct_message_is_answered_and_remembered(chat: Chat) -> None:
    chat.bot.model.will("Ahoy, Lena!")
    assert await chat.hears("the boat is called Petrel") == "Ahoy, Lena!"
    await chat.bot.settle()
    chat.bot.model.will("Petrel, you said.")
    assert await chat.hears("what did I call the boat?") == "Petrel, you said."

    assert "Lena: the boat is called Petrel" in chat.bot.sent["user"]
    assert "assistant: Ahoy, Lena!" in chat.bot.sent["user"]


async def test_what_slack_never_delivered_while_the_socket_was_broken_is_read(chat: Chat) -> None:
    """It is answered before what is said afterwards, though Slack does not deliver it again."""
    await chat.hears("one")
    chat.slack.mute = True
    chat.slack.say("two", by=LENA)
    chat.slack.deliveries[-1].acknowledged = True  # Slack has given up
    await chat.slack.kill()
    chat.slack.mute = False
    await chat.slack.until(lambda slack: slack.sockets == 1)
    chat.slack.say("three", by=LENA)
    await chat.slack.until(lambda slack: len(slack.shown(LENA)) == 3)
    await chat.bot.settle()
    asked = [str(body["messages"][-1]["content"]).rpartition("\n")[2] for body in chat.bot.replies_asked]
    assert asked == ["one", "two", "three"]


async def test_in_a_channel_the_bot_answers_only_when_it_is_meant(chat: Chat) -> None:
    chat.slack.say("nobody asks the bot", by=BO, to=TEAM)
    reply = await chat.hears(f"{chat.at_bot} what is the pricing policy?", to=TEAM)

    assert reply
    assert len(chat.slack.shown(TEAM)) == 1
    assert chat.bot.sent["user"].endswith("what is the pricing policy?")
    assert "nobody asks" not in chat.bot.sent["user"]


async def test_a_mention_is_answered_in_its_thread_where_the_talk_goes_on(chat: Chat) -> None:
    chat.bot.model.will("Noted.")
    await chat.hears(f"{chat.at_bot} the boat is called Petrel", to=TEAM)
    await chat.bot.settle()
    root = chat.slack.shown(TEAM)[-1].thread
    assert root is not None
    chat.bot.model.will("Petrel.")
    assert await chat.hears("what did Lena call the boat?", by=BO, to=TEAM, thread=root) == "Petrel."

    assert "Lena: the boat is called Petrel" in chat.bot.sent["user"]
    assert [message.thread for message in chat.slack.shown(TEAM)] == [root, root]


async def test_commands_are_named_as_they_can_be_written_in_slack(chat: Chat) -> None:
    """Slack lets nobody write ``/queue``, which is no command of its own."""
    assert "`!queue collect`" in await chat.hears("!queue sometimes")
    assert "`!stop`" in await chat.hears("!help")


async def test_threads_of_one_channel_are_conversations_of_their_own(chat: Chat) -> None:
    await chat.hears(f"{chat.at_bot} the code is 1234", to=TEAM)
    await chat.hears(f"{chat.at_bot} as I said, what is the code?", to=TEAM)

    assert "1234" not in chat.bot.sent["user"]
    assert len({message.thread for message in chat.slack.shown(TEAM)}) == 2


async def test_a_very_long_reply_arrives_whole_and_in_order(chat: Chat) -> None:
    whole = "\n\n".join(f"Paragraph {number}. " + "All of it has to arrive. " * 12 for number in range(60))
    chat.bot.model.will(Reply(text=whole))

    chat.slack.say("tell me everything", by=LENA)
    await chat.slack.until(lambda slack: "Paragraph 59" in "".join(m.text for m in slack.shown(LENA)))

    parts = [message.text for message in chat.slack.shown(LENA)]
    assert len(parts) >= 4
    assert "".join("".join(parts).split()) == "".join(whole.split())


async def test_a_formatted_reply_is_shown_with_slacks_own_marks(chat: Chat) -> None:
    chat.bot.model.will("Refunds take **14 days** [refunds.md › Windows]; see [the *policy*](https://x.org/p?a=1&b=2).")
    shown = await chat.hears("how long do refunds take?")

    assert "Refunds take *14 days* [refunds.md › Windows]; see " in shown
    assert shown.endswith("see the _policy_.")
    assert "<https://x.org/p?a=1&amp;b=2|policy>" in chat.slack.shown(LENA)[-1].raw


async def test_a_table_is_shown_as_aligned_code(chat: Chat) -> None:
    chat.bot.model.will(Reply(text="The plans:\n\n| Plan | Price |\n|---|---:|\n| A & B | 5 |\n| Crew | 120 |"))
    shown = await chat.hears("what are the plans?")

    introduction, table, rest = shown.split("```")
    assert introduction.strip() == "The plans:"
    assert table.strip("\n").splitlines() == [
        "Plan  │ Price",
        "──────┼──────",
        "A & B │     5",
        "Crew  │   120",
    ]
    assert rest == ""


async def test_what_slack_delivers_again_and_again_is_answered_once(chat: Chat) -> None:
    chat.slack.redeliver_seconds = 0.02
    chat.slack.drop_acks = 4
    chat.slack.doubles = True
    await chat.hears(f"{chat.at_bot} only once, please", to=TEAM)
    await chat.slack.until(lambda slack: all(delivery.acknowledged for delivery in slack.deliveries))
    await chat.hears("and another")

    assert len(chat.slack.shown(TEAM)) == 1
    assert len(chat.bot.replies_asked) == 2


async def test_what_is_said_while_the_connection_is_away_is_answered(chat: Chat) -> None:
    chat.slack.down = True
    await chat.slack.kill()
    chat.slack.say("is anybody there?", by=LENA)
    chat.slack.down = False

    await chat.slack.until(lambda slack: len(slack.shown(LENA)) == 1)


async def test_a_send_that_is_held_back_by_slack_is_made_good(chat: Chat) -> None:
    chat.slack.fail_next("chat.postMessage", emulated.rate_limited(1))

    assert await chat.hears("are the docs up?")
    assert len(chat.bot.told("reply.retried")) == 1
    assert len(chat.slack.shown(LENA)) == 1


async def test_a_send_of_which_nobody_knows_is_read_back_and_not_repeated(chat: Chat) -> None:
    chat.slack.fail_next("chat.postMessage", emulated.LOST_ANSWER)

    await chat.hears("are the docs up?")
    await chat.hears("and now, what do they say?")

    assert len(chat.slack.shown(LENA)) == 2
    assert chat.bot.told("reply.ambiguous") == []


async def test_a_stranger_pairs_with_a_code_that_an_admin_approves(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="pairing", default_workspace="acme")
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        chat = Chat(bot, slack)
        notice = await chat.hears("hello?")
        assert openai_server.requests == []

        waiting = await bot.runtime.access.pending()
        code = next(word.strip("`.,:") for word in notice.split() if len(word.strip("`.,:")) >= 8 and word.isupper())
        assert [person.user for person in waiting] == ["slack:U501"]
        approved = await bot.runtime.access.approve(code)
        assert approved.role is Role.MEMBER
        await slack.until(
            lambda seen: sum(not one.text.endswith("…") for one in seen.shown(LENA)) == 3
        )  # that they are in, and the first answer

        openai_server.will("Welcome aboard.")
        assert await chat.hears("hello again, what do the docs say?") == "Welcome aboard."


@pytest.mark.parametrize("connector", [slack_connector, slack_connector_over_http])
async def test_an_admin_lets_a_stranger_in_by_a_button_and_their_question_is_answered(
    connector: Callable[[SlackEmulator], SlackConnector],
    slack: SlackEmulator,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    """Only admins' presses count, and the second one says who decided."""
    boss, al = Person("U500", "Boss"), Person("U503", "Al")
    settings = model_settings(access_admins=("slack:U500", "slack:U502", "slack:U503"))
    async with running_bot(settings, openai_server, [connector(slack)]) as bot:
        chat = Chat(bot, slack)
        for admin in (boss, al, BO):
            await chat.hears("!help", by=admin)
        assert "Your pairing code is" in await chat.hears("what does the harbour plan cost?")
        await slack.until(lambda seen: all(seen.shown(admin)[-1].buttons for admin in (boss, al, BO)))
        asked, other, third = (slack.shown(admin)[-1] for admin in (boss, BO, al))
        assert "Lena" in asked.text
        assert "what does the harbour plan cost?" in asked.text
        assert list(asked.buttons) == ["Approve", "Deny"]

        await bot.runtime.access.set_role("slack:U599", Role.MEMBER, "default")
        slack.press(third, "Deny", by=Person("U599", "Eve"))
        await slack.until(lambda seen: "Only admins can use" in seen.shown(al)[-1].text)
        before = len(slack.shown(LENA))
        pressed = slack.press(asked, "Approve", by=boss)
        await slack.until(
            lambda seen: len(seen.shown(LENA)) == before + 2 and "may now talk" in seen.shown(boss)[-1].text
        )
        assert slack.shown(LENA)[before].text.startswith("Welcome! An admin has let you in.")
        assert "what does the harbour plan cost?" in bot.sent["user"]
        await slack.until(lambda _: pressed.acknowledged)
        assert asked.buttons == {}
        assert "what does the harbour plan cost?" in asked.text

        slack.press(other, "Deny", by=BO)
        await slack.until(lambda seen: "already, by boss" in seen.shown(BO)[-1].text)
        assert await bot.runtime.access.role_of("slack:U501", "default") is Role.MEMBER


async def test_a_stranger_who_mentions_the_bot_in_a_channel_is_let_in_and_answered_there(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Each mention begins a thread of its own; one line is said for all of them."""
    boss = Person("U500", "Boss")
    settings = model_settings(access_admins=("slack:U500",))
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        chat = Chat(bot, slack)
        await chat.hears("!help", by=boss)
        assert "I do not know you yet, Lena" in await chat.hears(f"{chat.at_bot} what does the plan cost?", to=TEAM)
        slack.say(f"{chat.at_bot} and the harbour?", by=LENA, to=TEAM)
        await slack.until(lambda _: len(bot.told("access.refused")) == 2)
        (waiting,) = await bot.runtime.access.pending()
        assert waiting.asked_in == (f"slack:{TEAM.id}",)

        await slack.until(lambda seen: bool(seen.shown(boss)[-1].buttons))
        slack.press(slack.shown(boss)[-1], "Approve", by=boss)
        await slack.until(lambda seen: len(seen.shown(TEAM)) == 4)  # the line, the welcome, and two answers
        await bot.settle()
        said = [one.text for one in slack.shown(TEAM)]
        assert said[1].startswith("Welcome! An admin has let you in.")
        assert [line for line in said if "I do not know you" in line] == said[:1]
        assert not any(waiting.code in line for line in said)
        assert len(bot.replies_asked) == 2


async def test_a_stranger_who_chats_in_a_thread_of_the_bot_is_no_stranger_to_it_until_they_mention_it(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_allowlist=("slack:U501",))
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        chat = Chat(bot, slack)
        thread = slack.say(f"{chat.at_bot} what does the plan cost?", by=LENA, to=TEAM)
        await slack.until(lambda seen: len(seen.shown(TEAM)) == 1)
        await bot.settle()
        slack.say("I wonder, too", by=BO, to=TEAM, thread=thread)
        await slack.until(lambda _: len(bot.told("access.refused")) == 1)
        assert await bot.runtime.access.pending() == []
        assert "I do not know you yet, Bo." in await chat.hears(f"{chat.at_bot} why?", by=BO, to=TEAM, thread=thread)
        assert len(slack.shown(TEAM)) == 2


async def test_a_channel_may_be_routed_and_with_a_workspace_per_place_all_else_goes_to_the_teams_own(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", routes={"slack:T0TEAM/C200": "crew"}, workspace_per_place=True)
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        chat = Chat(bot, slack)
        await chat.hears("hello there, bot")
        await chat.hears(f"{chat.at_bot} hello", to=TEAM)

        seen = [event["workspace_id"] for event in bot.told("message.accepted")]
        assert seen == ["slack-t0team", "crew"]


async def test_over_http_people_are_answered_alike(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [slack_connector_over_http(slack)]) as bot:
        openai_server.will("Ahoy over HTTP!")
        assert await Chat(bot, slack).hears(f"{slack.at_bot} are you there?", to=TEAM) == "Ahoy over HTTP!"
        assert slack.opened == 0


async def test_slack_finds_its_address_on_the_runtimes_own_face(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB"}).encode()
    async with running_bot(model_settings(), openai_server, [slack_connector_over_http(slack)]) as bot:
        transport = httpx.ASGITransport(create_app(bot.runtime))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as face:
            answer = await face.post("/slack/events", content=body, headers=slack.signed(body))
            forged = await face.post("/slack/events", content=body)

    assert answer.json() == {"challenge": "3eZbrw1aB"}
    assert forged.status_code == 401


async def test_a_command_finds_its_way_over_the_runtimes_own_face(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", default_workspace="acme")
    body = slack.commands.form(slack.commands.payload("help", LENA, TEAM, None))
    async with running_bot(settings, openai_server, [slack_connector_over_http(slack)]) as bot:
        transport = httpx.ASGITransport(create_app(bot.runtime))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as face:
            headers = slack.signed(body) | {"content-type": "application/x-www-form-urlencoded"}
            answer = await face.post("/slack/commands", content=body, headers=headers)
            forged = await face.post("/slack/commands", content=body)
        await slack.until(lambda slack: len(slack.whispers) == 1)

    assert (answer.status_code, answer.text) == (200, "")
    assert forged.status_code == 401
    assert "usage" in slack.whispers[0].text


async def test_a_wrong_token_fails_slack_alone(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    connector = slack_connector(slack)
    slack.token = "xoxb-other"
    async with running_bot(model_settings(access_policy="open"), openai_server, [connector]) as bot:
        await bot.say("hello over HTTP")
        states = [event for event in bot.told("connector.state") if event["connector"] == "slack"]

        assert states[-1]["state"] == "failed"
        assert "AGENT_RUNTIME_SLACK_BOT_TOKEN" in states[-1]["why"]


async def test_a_reply_in_a_thread_grows_by_slacks_own_streaming(chat: Chat) -> None:
    """It is one message, which in the end says it all, formatted."""
    whole = " ".join(f"**{number}** of many words." for number in range(30))
    chat.bot.model.will(Reply(text=whole))
    chat.bot.model.chunk_delay_seconds = 0.02

    chat.slack.say(f"{chat.at_bot} tell me a lot", to=TEAM, by=LENA)
    await chat.slack.until(lambda slack: any(shown.streaming for shown in slack.shown(TEAM)))
    await chat.slack.until(lambda slack: "*29* of many" in slack.shown(TEAM)[-1].text)
    await chat.bot.settle()

    (shown,) = chat.slack.shown(TEAM)
    assert not shown.streaming
    assert chat.slack.streams.begun == 1
    assert "**" not in shown.text


async def test_a_slash_command_is_answered_for_its_givers_eyes(chat: Chat) -> None:
    """In a channel, where nobody else sees it; without words it explains what there is."""
    chat.slack.command("", by=LENA, to=TEAM)
    await chat.slack.until(lambda slack: len(slack.whispers) == 1)

    (whisper,) = chat.slack.whispers
    assert (whisper.user, whisper.channel) == (LENA.id, TEAM.id)
    assert "usage" in whisper.text
    assert chat.slack.shown(TEAM) == []
    assert chat.bot.model.requests == []


async def test_what_was_asked_while_the_bot_was_down_is_answered_after_its_start(
    slack: SlackEmulator, model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Although Slack has given up bringing it."""
    settings = model_settings(access_policy="open", default_workspace="acme")
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        await Chat(bot, slack).hears("the boat is called Petrel")
        await bot.settle()
    slack.say("what is the boat called?", by=LENA)
    for delivery in slack.deliveries:
        delivery.acknowledged = True
    async with running_bot(settings, openai_server, [slack_connector(slack)]) as bot:
        await slack.until(lambda slack: len(slack.shown(LENA)) == 2)
        assert bot.sent["user"].endswith("what is the boat called?")


async def test_who_stops_an_answer_before_its_first_word_is_told_so_once(chat: Chat) -> None:
    chat.bot.model.will("hang")
    chat.slack.say("tell me everything about boats", by=BO)
    await chat.slack.until(lambda _: len(chat.bot.replies_asked) == 1)
    chat.slack.say("/stop", by=BO)

    await chat.slack.until(lambda _: len(chat.bot.told("reply.delivered")) == 2)
    assert [message.text for message in chat.slack.shown(BO)] == ["Stopped."]


async def test_a_reply_in_a_thread_is_marked_by_the_names_of_the_emoji(chat: Chat) -> None:
    """Who has put both is taken at the newer one, and at the other when that is gone."""
    await chat.hears(f"{chat.at_bot} how do I moor the Petrel?", to=TEAM)
    await chat.bot.settle()
    ts = chat.slack.shown(TEAM)[-1].ts
    steps = [("+1::skin-tone-4", True), ("thumbsdown", True), ("thumbsdown", False), ("+1::skin-tone-4", False)]
    for name, added in steps:
        before = len(chat.bot.told("turn.marked"))
        chat.slack.react(TEAM, ts, name, added=added)
        await chat.slack.until(lambda _: len(chat.bot.told("turn.marked")) > before)  # noqa: B023 - awaited here

    assert [one["mark"] for one in chat.bot.told("turn.marked")] == ["good", "bad", "good", "none"]


async def test_an_answer_that_can_be_seen_is_finished_below_what_is_left_of_its_deleted_question(chat: Chat) -> None:
    whole = "\n\n".join(f"Paragraph {n}. " + "All of it has to arrive. " * 12 for n in range(16))
    chat.bot.model.chunk_delay_seconds = 0.02
    chat.bot.model.answer = lambda _: whole

    asked = chat.slack.say(f"{chat.at_bot} tell us everything", to=TEAM, by=LENA)
    await chat.slack.until(lambda slack: bool(slack.shown(TEAM, asked)))
    begun = chat.slack.shown(TEAM, asked)[0].text
    await chat.slack.until(lambda slack: slack.shown(TEAM, asked)[0].text != begun)  # the bot knows that it is seen
    chat.slack.delete(TEAM, asked)
    await chat.slack.until(lambda _: bool(chat.bot.told("message.deleted")))
    chat.bot.model.chunk_delay_seconds = 0
    await chat.slack.until(lambda _: bool(chat.bot.told("reply.delivered")), seconds=60)

    shown = "".join(part.text for part in chat.slack.shown(TEAM, asked))
    assert "".join(shown.split()) == "".join(whole.split())
    assert chat.bot.told("turn.failed") == []
