"""Slack's slash command: heard by Socket Mode and over HTTP, answered where only its giver sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from structlog.testing import capture_logs

from connectors.connector import SendFailed
from connectors.message import (
    Accepted,
    Button,
    ConversationKey,
    InboundKind,
    InboundMessage,
    OutboundMessage,
    StoreUnavailable,
)
from connectors.slack.connector import SlackConnector
from tests.contract.connector_suite import FakeGateway, reply_to, running, send_all
from tests.contract.slack_harness import slack_connector, slack_connector_over_http
from tests.emulators.slack import Channel, Person, SlackEmulator

LENA = Person("U501", "Lena")
TEAM = Channel("C200", "team")
FORM = "application/x-www-form-urlencoded"

POSTS_PER_COMMAND = 5


@pytest.fixture
async def slack() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator() as emulator:
        emulator.join(TEAM)
        yield emulator


@pytest.fixture
async def bot(slack: SlackEmulator) -> AsyncIterator[SlackConnector]:
    connector = slack_connector(slack)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


async def heard(slack: SlackEmulator, gateway: FakeGateway, text: str, to: Channel | None = None) -> InboundMessage:
    """The command as the runtime heard it."""
    before = len(gateway.accepted)
    slack.command(text, by=LENA, to=to)
    await gateway.until(lambda g: len(g.accepted) > before)
    return gateway.accepted[-1]


async def test_a_command_is_heard_as_it_was_typed(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """With its place and giver; one without words asks for help; it is acknowledged once it was accepted."""
    async with running(bot, gateway):
        command = await heard(slack, gateway, "  prompt set system Be brief, *please*  ", to=TEAM)
        bare = await heard(slack, gateway, "")
        await slack.until(lambda s: all(one.acknowledged for one in s.deliveries))
    assert (command.kind, command.text) == (InboundKind.COMMAND, "prompt set system Be brief, *please*")
    assert (command.external_id, command.author.id, command.direct) == (TEAM.id, LENA.id, False)
    assert command.routes == ("slack:T0TEAM/C200", "slack:T0TEAM")
    assert (bare.text, bare.external_id, bare.direct) == ("help", LENA.channel_id, True)
    assert command.message_id != bare.message_id
    assert slack.whispers == []


async def test_its_reply_is_seen_by_its_giver_only(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Also in a channel that the bot is not in; it may be taken back and edited by nobody."""
    slack.leave(TEAM)
    async with running(bot, gateway):
        message = reply_to(await heard(slack, gateway, "usage", to=TEAM), "You used **3** tokens.")
        (receipt,) = await send_all(bot, message)
        assert not bot.appends(message)
        assert not bot.edits(message)
        await bot.react(message.key, message.answers[0], "👀")
    assert [(whisper.user, whisper.text) for whisper in slack.whispers] == [(LENA.id, "You used *3* tokens.")]
    assert slack.shown(TEAM) == []
    assert receipt.startswith("response-")
    assert "reactions.add" not in slack.calls


@pytest.mark.parametrize("over", ["posts", "time", "restart"])
async def test_once_slack_takes_no_more_replies_a_direct_message_serves(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway, over: str
) -> None:
    """After five posts, 30 minutes or a restart; in a channel, where all would see it, the reply fails for good."""
    async with running(bot, gateway):
        private = reply_to(await heard(slack, gateway, "usage"), "again")
        public = reply_to(await heard(slack, gateway, "usage", to=TEAM), "again")
        for _ in range(POSTS_PER_COMMAND if over == "posts" else 0):
            await send_all(bot, private)
            await send_all(bot, public)
        slack.commands.expired = over == "time"
        later = slack_connector(slack) if over == "restart" else bot
        await send_all(later, private)
        with pytest.raises(SendFailed) as caught:
            await send_all(later, public)
        await later.close()
    assert (caught.value.retryable, caught.value.ambiguous) == (False, False)
    assert [shown.text for shown in slack.shown(LENA)] == ["again"]
    assert slack.shown(TEAM) == []
    assert len(slack.whispers) == (2 * POSTS_PER_COMMAND if over == "posts" else 0)


async def test_a_reply_that_is_too_long_for_messages_comes_whole(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """In a channel, where all would see a file, as a long message for its giver; in private as a file."""
    text = "\n\n".join(f"paragraph {n}: {'words ' * 30}" for n in range(250)).rstrip()
    bot = slack_connector(slack, reply_max_parts=1)
    async with running(bot, gateway):
        await send_all(bot, reply_to(await heard(slack, gateway, "memory list", to=TEAM), text))
        await send_all(bot, reply_to(await heard(slack, gateway, "memory list"), text))
    beginning, first, second, private = (whisper.text for whisper in slack.whispers)
    assert "".join((first + second).split()) == "".join(text.split())
    assert text.startswith(beginning[:100])
    assert private == beginning
    assert slack.shown(TEAM) == []
    assert [shown.raw for shown in slack.shown(LENA)] == [text]


async def test_a_reply_that_slack_asks_to_wait_with_waits(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """For as long as Slack says."""
    async with running(bot, gateway):
        message = reply_to(await heard(slack, gateway, "usage"), "later")
        slack.commands.rate_limited = True
        with pytest.raises(SendFailed) as caught:
            await send_all(bot, message)
        await send_all(bot, message)
    assert (caught.value.retryable, caught.value.ambiguous, caught.value.retry_after_seconds) == (True, False, 7.0)
    assert len(slack.whispers) == 1


async def test_a_reply_of_which_nobody_knows_whether_it_was_shown_is_not_repeated(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Nobody can look for what one person sees."""
    async with running(bot, gateway):
        message = reply_to(await heard(slack, gateway, "usage"), "You used 3 tokens.")
        slack.commands.answer_lost = True
        with capture_logs() as logs:
            (receipt,) = await send_all(bot, message)
    assert receipt.startswith("response-")
    assert len(slack.whispers) == 1
    assert [e["then"] for e in logs if e["event"] == "reply.ambiguous"] == ["skip"]


async def test_while_the_store_is_away_its_giver_is_told_at_once(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack brings no command twice; and messages that wait for the store hold up none."""
    gateway.store_available = False
    async with running(bot, gateway):
        slack.say("this waits")
        await gateway.until(lambda g: g.refusals >= 1)
        slack.command("usage", by=LENA)
        await slack.until(lambda s: len(s.whispers) == 1)
    assert slack.whispers[0].text == StoreUnavailable.user_text


async def test_a_gateway_that_hangs_or_breaks_keeps_nobody_waiting(
    slack: SlackEmulator,
) -> None:
    """Slack shows an error of its own after three seconds."""
    bot = slack_connector(slack, command_seconds=0.05)

    class OddGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "hang":
                await asyncio.Event().wait()
            raise RuntimeError(f"a fault of ours with {message.text}")

    with capture_logs() as logs:
        async with running(bot, OddGateway()):
            slack.command("hang", by=LENA)
            slack.command("break", by=LENA)
            await slack.until(lambda s: len(s.whispers) == 2)
    assert {whisper.text for whisper in slack.whispers} == {
        StoreUnavailable.user_text,
        "Something went wrong here. Please try again.",
    }
    assert "ours with" not in str(logs)


async def test_buttons_and_shortcuts_are_acknowledged_and_left_alone(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Those of other apps' making, and those that make no sense; what comes after them is heard."""
    others: list[dict[str, Any]] = [
        {"type": "block_actions", "actions": [{"action_id": "theirs", "value": "pair approve X"}]},
        {"type": "view_submission"},
        {"type": "block_actions", "actions": [{"action_id": "command-0", "value": "help"}]},
    ]
    with capture_logs() as logs:
        async with running(bot, gateway):
            pressed = [slack.interact(payload) for payload in others]
            slack.say("hello")
            await gateway.until(lambda g: len(g.accepted) == 1)
            await slack.until(lambda s: all(one.acknowledged for one in pressed))
    assert sorted(e["why"] for e in logs if e["event"] == "message.ignored") == [
        "unreadable",
        "unsupported: block_actions",
        "unsupported: view_submission",
    ]


async def test_a_press_that_is_not_stored_in_time_is_shown_as_failed(
    slack: SlackEmulator,
) -> None:
    """It is not acknowledged, and the buttons stay."""
    bot = slack_connector(slack, command_seconds=0.05)
    slack.deadline_seconds = 0.3

    class OddGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "hang":
                await asyncio.Event().wait()
            if message.text == "break":
                raise RuntimeError("a fault of ours")
            return Accepted("refused", "rate_limit")

    buttons = tuple(Button(word, word) for word in ("hang", "break", "refuse"))
    key = ConversationKey("acme", "slack", slack.join(LENA))
    async with running(bot, OddGateway()):
        await send_all(bot, OutboundMessage(key, "t1", "Choose.", kind="notice", buttons=buttons))
        (shown,) = slack.shown(LENA)
        pressed = [slack.press(shown, one.label, by=LENA) for one in buttons]
        await slack.until(lambda _: all(one.failed for one in pressed))
    assert list(shown.buttons) == ["hang", "break", "refuse"]


async def test_over_http_a_press_is_heard_where_it_is_signed(slack: SlackEmulator, gateway: FakeGateway) -> None:
    bot = slack_connector_over_http(slack)
    key = ConversationKey("acme", "slack", slack.join(LENA))
    async with running(bot, gateway):
        await send_all(bot, OutboundMessage(key, "t1", "May they?", buttons=(Button("Deny", "pair deny X"),)))
        (shown,) = slack.shown(LENA)
        slack.post = None
        body = slack.commands.form(slack.press(shown, "Deny", by=LENA).payload)
        forged = await post(bot, "/slack/events", body, {})
        genuine = await post(bot, "/slack/events", body, slack.signed(body))
        again = await post(bot, "/slack/events", body, slack.signed(body))
    assert (forged.status_code, genuine.status_code, again.status_code) == (401, 200, 200)
    assert slack.calls.count("chat.update") == 1
    assert [(one.kind, one.text) for one in gateway.accepted] == [(InboundKind.COMMAND, "pair deny X")]


async def test_a_reply_goes_to_no_address_but_slacks(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Whatever the payload says; the reply is then a direct message."""
    slack.join(LENA)
    async with running(bot, gateway):
        for url in (
            "https://hooks.slack.com.evil.org/x",
            "http://hooks.slack.com/x",
            "https://u:p@hooks.slack.com/x",
            "ftp://127.0.0.1/x",
            "http://[",
            "",
        ):
            slack.bring(slack.commands.payload("usage", LENA, None, None, response_url=url))
        await gateway.until(lambda g: len(g.accepted) == 6)
        for message in gateway.accepted:
            await send_all(bot, reply_to(message, "here"))
    assert [shown.text for shown in slack.shown(LENA)] == ["here"] * 6


# Over HTTP


async def post(
    bot: SlackConnector, path: str, body: bytes, headers: Mapping[str, str], kind: str = FORM
) -> httpx.Response:
    """A request from Slack."""
    transport = httpx.ASGITransport(Starlette(routes=list(bot.routes())))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot.test") as client:
        return await client.post(path, content=body, headers={**headers, "content-type": kind})


@pytest.mark.parametrize("path", ["/slack/events", "/slack/commands"])
async def test_over_http_a_command_is_heard_where_it_is_signed(
    slack: SlackEmulator, gateway: FakeGateway, path: str
) -> None:
    """Once, also if it is sent again; forged ones are refused."""
    bot = slack_connector_over_http(slack)
    body = slack.commands.form(slack.commands.payload("new & <fresh> payload", LENA, TEAM, "1700000000.000100"))
    async with running(bot, gateway):
        forged = await post(bot, path, body, {})
        headers = slack.signed(body)
        answers = [await post(bot, path, body, headers, f"{FORM}; charset=utf-8") for _ in range(2)]
        await send_all(bot, reply_to(gateway.accepted[0], "done"))
    assert forged.status_code == 401
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, "")] * 2
    (command,) = gateway.accepted
    assert (command.kind, command.text) == (InboundKind.COMMAND, "new & <fresh> payload")
    assert command.external_id == f"{TEAM.id}/1700000000.000100"
    assert [whisper.text for whisper in slack.whispers] == ["done"]


async def test_over_http_a_command_without_a_store_is_answered_in_words(
    slack: SlackEmulator, gateway: FakeGateway
) -> None:
    """For its giver's eyes; a status that is no success would show an error of Slack's."""
    bot = slack_connector_over_http(slack)
    gateway.store_available = False
    early, late = (slack.commands.form(slack.commands.payload("usage", LENA, None, None)) for _ in range(2))
    answers = [await post(bot, "/slack/commands", early, slack.signed(early))]
    async with running(bot, gateway):
        answers.append(await post(bot, "/slack/commands", late, slack.signed(late)))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.json() for answer in answers] == [
        {"response_type": "ephemeral", "text": StoreUnavailable.user_text}
    ] * 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"payload=" + json.dumps({"type": "view_submission"}).encode(), 200),
        (b"payload=nonsense", 400),
        (b"ssl_check=1&token=x", 200),
        (b"hello=there", 200),
        (b"", 200),
        (b"command=%2Fagent&text=usage", 200),
        (b"command=%FF%FE&channel_id=&trigger_id=1&user_id=U1", 200),
    ],
)
async def test_other_forms_are_answered(slack: SlackEmulator, gateway: FakeGateway, body: bytes, status: int) -> None:
    """Interactions, Slack's look at the certificate, and nonsense: nothing is passed on."""
    bot = slack_connector_over_http(slack)
    async with running(bot, gateway):
        answer = await post(bot, "/slack/commands", body, slack.signed(body))
    assert answer.status_code == status
    assert gateway.accepted == []
