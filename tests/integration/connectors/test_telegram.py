"""Telegram's connector with the real SDK, against a Bot API on loopback that enforces Telegram's limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio
from pydantic import SecretStr
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.connector import (
    ConnectionState,
    Connector,
    ConnectorFailed,
    SendFailed,
)
from connectors.message import Accepted, Author, ConversationKey, InboundKind, InboundMessage, OutboundMessage
from connectors.telegram.connector import TelegramConnector
from runtime.coordination import Hub
from runtime.delivery import Delivery, Outbox, RateLimiters
from runtime.delivery.rate_limiter import RateLimiter
from tests.contract.connector_suite import FakeGateway, conversation, eventually, reply_to, running, send_all
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import telegram as emulated
from tests.emulators.clock import Clock
from tests.emulators.telegram import Person, Room, TelegramEmulator, rate_limited

LENA = Person(id=501, name="Lena")
OMAR = Person(id=502, name="Omar")
TEAM = Room(id=-100200, topics=(7, 8))
_AUTHOR = Author(id="501")


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator() as emulator:
        emulator.join(TEAM)
        yield emulator


@pytest.fixture
async def bot(telegram: TelegramEmulator) -> AsyncIterator[TelegramConnector]:
    connector = telegram_connector(telegram)
    yield connector
    await connector.close()


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


# Receiving


async def test_an_update_is_confirmed_only_after_it_was_accepted(
    telegram: TelegramEmulator, bot: TelegramConnector
) -> None:
    """While a message is being stored, Telegram still keeps it and everything after it."""
    release = asyncio.Event()
    seen: list[tuple[str, int]] = []

    class SlowGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "second":
                await release.wait()
            seen.append((message.text, telegram.confirmed))
            return await super().accept(message)

    gateway = SlowGateway()
    async with running(bot, gateway):
        for text in ("first", "second", "third"):
            await telegram.say(text)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await asyncio.sleep(0.05)
        confirmed_meanwhile = telegram.confirmed
        release.set()
        await gateway.until(lambda g: len(g.accepted) == 3)
        await telegram.until(lambda t: t.confirmed == emulated.FIRST_UPDATE + 3)
    assert [text for text, _ in seen] == ["first", "second", "third"]
    assert confirmed_meanwhile <= emulated.FIRST_UPDATE + 1


class NotingGateway(FakeGateway):
    """Notes how the connector calls itself whenever it offers a message in vain."""

    def __init__(self, bot: TelegramConnector) -> None:
        super().__init__()
        self._bot = bot
        self.at_refusals: list[ConnectionState] = []

    async def accept(self, message: InboundMessage) -> Accepted:
        if not self.store_available:
            self.at_refusals.append(self._bot.health.state)
        return await super().accept(message)


async def test_an_outage_of_the_store_loses_nothing_and_keeps_the_order(
    telegram: TelegramEmulator, bot: TelegramConnector
) -> None:
    """What was said before, during and after the outage arrives once each, in order; health tells of it."""
    gateway = NotingGateway(bot)
    await _live_through_an_outage(telegram, bot, gateway)
    assert [m.text for m in gateway.accepted] == ["before", *(f"during {n}" for n in range(5)), "after"]
    # It does not call itself connected between two attempts.
    assert gateway.at_refusals[0] is ConnectionState.CONNECTED
    assert set(gateway.at_refusals[1:]) == {ConnectionState.DEGRADED}
    assert bot.health.state is ConnectionState.STOPPED


async def _live_through_an_outage(telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway) -> None:
    async with running(bot, gateway):
        await telegram.say("before")
        await gateway.until(lambda g: len(g.accepted) == 1)
        gateway.store_available = False
        for number in range(5):
            await telegram.say(f"during {number}", by=LENA if number % 2 else OMAR)
        await gateway.until(lambda g: g.refusals >= 3)
        during = bot.health
        confirmed = telegram.confirmed
        gateway.store_available = True
        await telegram.say("after")
        await gateway.until(lambda g: len(g.accepted) >= 7)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert during.state is ConnectionState.DEGRADED
    assert "store" in during.why
    assert confirmed <= emulated.FIRST_UPDATE + 1


async def test_the_same_update_delivered_again_has_the_same_identity(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """A repeated delivery is passed on with the same identity, for the gateway to recognise."""
    async with running(bot, gateway):
        await telegram.say("once")
        await gateway.until(lambda g: len(g.accepted) == 1)
    again = telegram_connector(telegram)
    await telegram.deliver_again()
    async with running(again, gateway):
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert gateway.accepted[0] == gateway.accepted[1]


async def test_an_outage_of_telegram_is_survived_and_told(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Connections that break make the connector degraded; it comes back by itself."""
    async with running(bot, gateway):
        telegram.down = True
        await telegram.say("said during the outage")
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        telegram.down = False
        await gateway.until(lambda g: len(g.accepted) == 1)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert gateway.accepted[0].text == "said during the outage"


async def test_it_is_connecting_until_telegram_can_be_reached(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """A start without network is no failure: it goes on trying, and says so."""
    telegram.down = True
    task = asyncio.create_task(bot.run(gateway.accept))
    await telegram.until(lambda t: t.calls.count("getme") >= 3)
    await eventually(lambda: bot.health.why != "")
    waiting = bot.health
    telegram.down = False
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert waiting.state is ConnectionState.CONNECTING
    assert telegram.token not in waiting.why


@pytest.mark.parametrize(
    "fault",
    [
        emulated.SERVER_ERROR,
        emulated.GATEWAY_PAGE,
        emulated.LOST_REQUEST,
        emulated.LOST_ANSWER,
        emulated.rate_limited(1),
    ],
    ids=["500", "502 page", "lost request", "lost answer", "429"],
)
async def test_no_failure_of_a_poll_stops_the_polling(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway, fault: emulated.Fault
) -> None:
    """After a failed poll the next one gets what was said meanwhile."""
    telegram.fail_next("getUpdates", fault)
    async with running(bot, gateway):
        await telegram.say("hello")
        await gateway.until(lambda g: len(g.accepted) >= 1)
    assert {m.text for m in gateway.accepted} == {"hello"}


async def test_the_wait_that_telegram_asks_of_a_poll_is_kept(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """After a 429 there is no further poll before the wait is over, however short our own waits are."""
    telegram.fail_next("getUpdates", emulated.rate_limited(3600))
    task = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
    await asyncio.sleep(0.1)  # five times the longest wait of our own
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert telegram.calls.count("getupdates") == 1


@pytest.mark.parametrize(
    "token",
    ["no token at all", "123456:short", "123456:" + "B" * 35],
    ids=["malformed", "unknown", "wrong"],
)
async def test_a_bad_token_fails_with_the_name_of_its_variable(
    telegram: TelegramEmulator, gateway: FakeGateway, token: str
) -> None:
    """The error names the variable and never the token."""
    bot = TelegramConnector(SecretStr(token), telegram.base_url)
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_TELEGRAM_BOT_TOKEN") as caught:
        await bot.run(gateway.accept)
    await bot.close()
    assert token not in str(caught.value)
    assert bot.health.state is ConnectionState.FAILED
    assert "AGENT_RUNTIME_TELEGRAM_BOT_TOKEN" in bot.health.why


async def test_a_token_that_is_revoked_while_it_runs_is_noticed(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """A 401 in the middle of polling ends the connector instead of being retried for ever."""
    task = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    telegram.revoked = True
    await telegram.say("wake the poll")
    with pytest.raises(ConnectorFailed):
        await asyncio.wait_for(task, 20)
    assert bot.health.state is ConnectionState.FAILED


async def test_two_processes_with_one_token_are_told_of_each_other(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """A conflict makes the connector degraded with a reason that a person understands, and it goes on trying."""
    other = telegram_connector(telegram)
    second = FakeGateway()
    async with running(bot, gateway):
        async with running(other, second):
            await eventually(lambda: ConnectionState.DEGRADED in (bot.health.state, other.health.state))
            why = bot.health.why or other.health.why
        await telegram.say("who gets this?")
        await gateway.until(lambda g: len(g.accepted) + len(second.accepted) >= 1)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert "another process" in why


async def test_a_webhook_left_over_is_taken_down(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Telegram allows no polling beside a webhook; what waits there is not dropped."""
    telegram.webhook.url = "https://old.example/hook"
    await telegram.say("sent while the webhook was set")
    async with running(bot, gateway):
        await gateway.until(lambda g: len(g.accepted) == 1)
    assert telegram.webhook.url == ""


async def test_an_update_that_cannot_be_read_does_not_hold_up_the_others(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """An update of a shape that the SDK does not know is logged, confirmed and passed over."""
    await telegram.push("message", {"shape": "from the future"})
    await telegram.say("still here?")
    with capture_logs() as logs:
        async with running(bot, gateway):
            await gateway.until(lambda g: len(g.accepted) == 1)
    assert gateway.accepted[0].text == "still here?"
    assert [e["why"] for e in logs if e["event"] == "message.ignored"] == ["unreadable"]


async def test_a_message_that_can_never_be_accepted_is_given_up_after_a_few_attempts(
    telegram: TelegramEmulator, bot: TelegramConnector
) -> None:
    """A fault of ours with one message is logged each time and does not stop all others."""

    class FaultyGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "poison":
                raise RuntimeError(f"a fault of ours with {message.text}")
            return await super().accept(message)

    gateway = FaultyGateway()
    await telegram.say("poison")
    await telegram.say("water")
    with capture_logs() as logs:
        async with running(bot, gateway):
            await gateway.until(lambda g: len(g.accepted) == 1)
    failures = [e for e in logs if e["event"] == "message.failed"]
    assert [e["why"] for e in failures] == ["RuntimeError"] * 3
    assert "poison" not in str(failures)


# Groups


async def test_in_a_group_the_bot_hears_its_name_and_answers_in_the_topic(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """A mention in one topic is answered in that topic, and nowhere else."""
    async with running(bot, gateway):
        await telegram.say("just chatting", to=TEAM, topic=7)
        await telegram.say("@helper_bot what is the plan?", to=TEAM, topic=8)
        await gateway.until(lambda g: len(g.accepted) == 2)
        assert [(m.addressed, m.text) for m in gateway.accepted] == [
            (False, "just chatting"),
            (True, "what is the plan?"),
        ]
        await send_all(bot, reply_to(gateway.accepted[1], "The plan is simple."))
    assert [m.text for m in telegram.shown(TEAM, topic=8)] == ["The plan is simple."]
    assert telegram.shown(TEAM, topic=7) == []


async def test_edits_of_people_arrive_as_edits(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """The same message id, another kind."""
    async with running(bot, gateway):
        said = await telegram.say("when do you opne?")
        await telegram.change(LENA.id, said, "when do you open?")
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert [(m.kind, m.message_id, m.text) for m in gateway.accepted] == [
        (InboundKind.MESSAGE, str(said), "when do you opne?"),
        (InboundKind.EDIT, str(said), "when do you open?"),
    ]


# Sending


async def test_replies_have_no_link_preview_and_hang_at_the_question_once(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Previews are off; only the first part replies; a question deleted meanwhile is no obstacle."""
    async with running(bot, gateway):
        said = await telegram.say("a link?")
        await gateway.until(lambda g: len(g.accepted) == 1)
        key = conversation(gateway.accepted[0])
        await send_all(bot, OutboundMessage(key, "t1", "https://x.example " * 300, reply_to=str(said)))
        await send_all(bot, OutboundMessage(key, "t2", "gone", reply_to="999"))
    shown = telegram.shown(LENA)
    assert [m.has_preview for m in shown] == [False, False, False]
    assert [m.reply_to for m in shown] == [said, None, None]


async def test_a_reply_is_shown_formatted(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Telegram reads the tags as they are meant; an edit that changes the formatting alone is one."""
    async with running(bot, gateway):
        await telegram.say("how?")
        await gateway.until(lambda g: len(g.accepted) == 1)
        said = reply_to(gateway.accepted[0], "Use **1 < 2** in `a & b`, see [docs](https://x.example/?a=1&b=2).")
        receipt = await bot.send(said, bot.render(said)[0])
        (shown,) = telegram.shown(LENA)
        assert shown.text == "Use 1 < 2 in a & b, see docs."
        assert [(e.kind, e.of(shown.text), e.detail) for e in shown.entities] == [
            ("bold", "1 < 2", ""),
            ("code", "a & b", ""),
            ("text_link", "docs", "https://x.example/?a=1&b=2"),
        ]
        plainer = reply_to(gateway.accepted[0], "Use 1 < 2 in a & b, see docs.")
        await bot.edit(plainer, bot.render(plainer)[0], receipt)
    assert (telegram.shown(LENA)[0].entities, telegram.shown(LENA)[0].edits) == ((), 1)


async def test_formatting_that_telegram_refuses_goes_out_plain_once(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """The same part without tags, its links spelled out; another refusal is none of the formatting's."""
    refused = emulated.Fault(400, 'Bad Request: can\'t parse entities: Unsupported start tag "x" at byte offset 0')
    async with running(bot, gateway):
        await telegram.say("how?")
        await gateway.until(lambda g: len(g.accepted) == 1)
        said = reply_to(gateway.accepted[0], "**see** [docs](https://x.example/)")
        telegram.fail_next("sendMessage", refused)
        receipt = await bot.send(said, bot.render(said)[0])
        telegram.fail_next("editMessageText", refused)
        await bot.edit(said, bot.render(said)[0], receipt)
        sent = telegram.calls.count("sendmessage")
        telegram.fail_next("sendMessage", refused, refused)
        with pytest.raises(SendFailed) as caught:
            await send_all(bot, said)
        telegram.fail_next("sendMessage", emulated.Fault(400, "Bad Request: chat not found"))
        with pytest.raises(SendFailed):
            await send_all(bot, said)
    assert [(m.text, m.entities) for m in telegram.shown(LENA)] == [("see docs (https://x.example/)", ())]
    assert (caught.value.ambiguous, caught.value.retryable) == (False, False)
    assert telegram.calls.count("sendmessage") == sent + 3


async def test_a_call_that_hangs_ends_and_is_ambiguous(telegram: TelegramEmulator) -> None:
    """A server that takes the request and never answers is left after the time-out."""
    never = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    bot = TelegramConnector(SecretStr(telegram.token), base, timeout_seconds=0.2)
    message = InboundMessage("telegram", "501", "1", author=_AUTHOR, text="hi")
    with pytest.raises(SendFailed) as caught:
        await send_all(bot, reply_to(message, "hello"))
    never.set()
    await bot.close()
    server.close()
    assert caught.value.ambiguous


async def test_a_place_that_is_none_of_telegrams_is_refused(bot: TelegramConnector) -> None:
    """An external id of another platform is an error of the caller, and signs to it are lost quietly."""
    message = InboundMessage("telegram", "C123/17.001", "1", author=_AUTHOR, text="hi")
    with pytest.raises(SendFailed) as caught:
        await send_all(bot, reply_to(message, "hello"))
    await bot.typing(conversation(message))
    await bot.react(conversation(message), "1", "👀")
    assert (caught.value.retryable, caught.value.ambiguous) == (False, False)


async def test_a_message_that_expired_during_an_outage_leaves_no_trace(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """When Telegram drops what it kept too long, the connector is connected again without it."""
    gateway.store_available = False
    async with running(bot, gateway):
        await telegram.say("kept too long")
        await gateway.until(lambda g: g.refusals >= 2)
        telegram.expire()
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert gateway.accepted == []


async def test_typing_and_reactions_are_shown_and_may_be_lost(
    telegram: TelegramEmulator, bot: TelegramConnector, gateway: FakeGateway
) -> None:
    """Signs appear in their place; one that Telegram does not take disturbs nobody."""
    async with running(bot, gateway):
        said = await telegram.say("@helper_bot hi", to=TEAM, topic=7)
        await gateway.until(lambda g: len(g.accepted) == 1)
        key = conversation(gateway.accepted[0])
        await bot.typing(key)
        await bot.react(key, str(said), "👀")
        await bot.react(key, str(said), "⏳")
        await bot.react(key, "999", "👀")
        telegram.down = True
        await bot.typing(key)
        telegram.down = False
    assert telegram.typing == [(TEAM.id, 7)]
    assert telegram.reactions == {(TEAM.id, said): ["👀"]}
    assert telegram.calls.count("setmessagereaction") == 3


CROWD = Room(-100501, "Team")
TURNS = 100


class Chat:
    """One chat, in which replies are delivered one after the other."""

    def __init__(
        self, redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector, place: Person | Room
    ) -> None:
        connectors: dict[str, Connector] = {"telegram": connector}
        self.clock = Clock()
        limiters = RateLimiters(lambda connector: RateLimiter(connector, self.clock.time, self.clock.sleep))
        self.telegram = telegram
        self.outbox = Outbox(redis, Hub(redis, shared=False))
        self._delivery = Delivery(self.outbox, connectors, limiters, "resend")
        self._key = ConversationKey("acme", "telegram", str(place.id))
        self._place = place
        telegram.join(place)

    async def answer(self, *numbers: int) -> None:
        for number in numbers:
            message = OutboundMessage(self._key, f"t{number}", f"reply {number}")
            await self.outbox.put(message, ["telegram"])
            await self._delivery.deliver(self._key, message.turn_id)

    @property
    def shown(self) -> list[str]:
        return [message.text for message in self.telegram.shown(self._place)]


@pytest_asyncio.fixture
async def connector(telegram: TelegramEmulator) -> AsyncIterator[TelegramConnector]:
    connector = telegram_connector(telegram)
    yield connector
    await connector.close()


def replies(count: int) -> list[str]:
    return [f"reply {number}" for number in range(count)]


async def test_a_hundred_turns_in_a_private_chat_take_one_call_each_and_wait_for_nothing(
    redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector
) -> None:
    chat = Chat(redis, telegram, connector, LENA)
    await chat.answer(*range(TURNS))

    assert chat.clock.slept == []
    assert chat.shown == replies(TURNS)
    assert telegram.calls == ["sendmessage"] * TURNS


async def test_after_a_429_a_chat_waits_as_long_as_telegram_says_and_then_keeps_the_documented_rate(
    redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector
) -> None:
    chat = Chat(redis, telegram, connector, LENA)
    await chat.answer(*range(TURNS - 10))
    telegram.fail_next("sendMessage", rate_limited(17))
    await chat.answer(TURNS - 10)
    assert chat.clock.slept == pytest.approx([17.0])

    chat.clock.slept.clear()
    await chat.answer(*range(TURNS - 9, TURNS))
    assert chat.clock.slept == pytest.approx([1.0] * 9)
    assert chat.shown == replies(TURNS)


async def test_a_group_gets_twenty_messages_at_once_and_is_never_told_too_many(
    redis: Redis, telegram: TelegramEmulator, connector: TelegramConnector
) -> None:
    chat = Chat(redis, telegram, connector, CROWD)
    telegram.clock = chat.clock.time
    await chat.answer(*range(20))
    assert chat.clock.slept == []

    await chat.answer(*range(20, 45))
    assert chat.clock.slept
    assert telegram.too_many == []
    assert chat.shown == replies(45)
