"""Slack's connector with the real SDK, against a Slack on loopback that enforces Slack's limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from connectors.connector import (
    BackfillsMessages,
    ConnectionState,
    ConnectorFailed,
    SendFailed,
)
from connectors.message import Accepted, ConversationKey, InboundKind, InboundMessage, OutboundMessage, Receipt
from connectors.slack.connector import SlackConnector
from tests.contract.connector_suite import FakeGateway, conversation, eventually, reply_to, running, send_all
from tests.contract.slack_harness import slack_connector, slack_connector_over_http
from tests.emulators import slack as emulated
from tests.emulators.slack import Channel, Person, SlackEmulator

LENA = Person("U501", "Lena")
OMAR = Person("U502", "Omar")
TEAM = Channel("C200")


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


async def failed(bot: SlackConnector, gateway: FakeGateway) -> str:
    """What it says when it fails for good."""
    with pytest.raises(ConnectorFailed) as caught:
        await asyncio.wait_for(bot.run(gateway.accept), 20)
    assert bot.health.state is ConnectionState.FAILED
    assert bot.health.why == str(caught.value)
    return str(caught.value)


# Starting


@pytest.mark.parametrize("token", ["xoxb-unknown", "xapp-of-the-wrong-kind"])
async def test_a_bad_bot_token_fails_with_the_name_of_its_variable(
    slack: SlackEmulator, gateway: FakeGateway, token: str
) -> None:
    """Before any socket is opened, which would look healthy. The error never has the token."""
    slack.app_token = "xapp-of-the-wrong-kind"
    bot = SlackConnector(SecretStr(token), slack.base_url, app_token=SecretStr(slack.app_token))
    why = await failed(bot, gateway)
    await bot.close()
    assert "AGENT_RUNTIME_SLACK_BOT_TOKEN" in why
    assert token not in why
    assert slack.opened == 0


async def test_a_bad_app_token_fails_with_the_name_of_its_variable(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """Instead of being tried for ever, as the SDK does by itself."""
    bot = slack_connector(slack, app_token=SecretStr("xapp-unknown"))
    why = await failed(bot, gateway)
    await bot.close()
    assert "AGENT_RUNTIME_SLACK_APP_TOKEN" in why
    assert "xapp-unknown" not in why
    assert slack.calls.count("apps.connections.open") == 1


async def test_without_a_way_in_it_does_not_start(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """No app token, and no secret by which events over HTTP could be told from forged ones."""
    for secret in (None, SecretStr(""), SecretStr("  ")):
        bot = slack_connector(slack, app_token=None, signing_secret=secret)
        assert bot.routes() == ()
        why = await failed(bot, gateway)
        assert "AGENT_RUNTIME_SLACK_APP_TOKEN" in why
        assert "AGENT_RUNTIME_SLACK_SIGNING_SECRET" in why
    assert slack.calls == []


async def test_it_is_connecting_until_slack_can_be_reached(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """A start without network is no failure: it goes on trying, and says so."""
    slack.down = True
    task = asyncio.create_task(bot.run(gateway.accept))
    await slack.until(lambda s: s.calls.count("auth.test") >= 3)
    await eventually(lambda: bot.health.why != "")
    waiting = bot.health
    slack.down = False
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert waiting.state is ConnectionState.CONNECTING
    assert slack.token not in waiting.why


@pytest.mark.parametrize("method", ["auth.test", "apps.connections.open"])
@pytest.mark.parametrize(
    "fault",
    [
        emulated.SERVER_ERROR,
        emulated.GATEWAY_PAGE,
        emulated.PLAIN_TEXT,
        emulated.LOST_REQUEST,
        emulated.LOST_ANSWER,
        emulated.rate_limited(1),
        emulated.refused("fatal_error"),
    ],
    ids=["500", "502 page", "plain text", "lost request", "lost answer", "429", "fatal_error"],
)
async def test_no_passing_failure_keeps_it_from_connecting(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway, method: str, fault: emulated.Fault
) -> None:
    """It tries again, after the wait that was asked for."""
    slack.fail_next(method, fault)
    async with running(bot, gateway):
        slack.say("hello")
        await gateway.until(lambda g: len(g.accepted) == 1)
    assert slack.calls.count(method) == 2


async def test_a_token_that_is_revoked_while_it_runs_is_noticed(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """The open socket knows nothing of it; a refused call tells."""
    task = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    slack.say("hello")
    await gateway.until(lambda g: len(g.accepted) == 1)
    slack.revoked = True
    with pytest.raises(SendFailed) as caught:
        await send_all(bot, reply_to(gateway.accepted[0], "hi"))
    with pytest.raises(ConnectorFailed):
        await asyncio.wait_for(task, 20)
    assert not caught.value.retryable
    assert bot.health.state is ConnectionState.FAILED


async def test_the_token_is_tried_from_time_to_time(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """So that a silent bot whose token was revoked does not look healthy for long; nor after Slack says so."""
    bot = slack_connector(slack, check_seconds=0.01)
    task = asyncio.create_task(bot.run(gateway.accept))
    await slack.until(lambda s: s.calls.count("auth.test") >= 3)
    slack.revoked = True
    with pytest.raises(ConnectorFailed):
        await asyncio.wait_for(task, 20)
    slack.revoked = False
    other = slack_connector(slack)
    task = asyncio.create_task(other.run(gateway.accept))
    await eventually(lambda: other.health.state is ConnectionState.CONNECTED)
    slack.revoked = True
    slack.push({"type": "tokens_revoked", "tokens": {"bot": ["U0BOT"]}})
    with pytest.raises(ConnectorFailed):
        await asyncio.wait_for(task, 20)
    await bot.close()
    await other.close()


# Receiving


async def test_an_envelope_is_acknowledged_only_after_it_was_accepted(
    slack: SlackEmulator, bot: SlackConnector
) -> None:
    """While a message is being stored, Slack still has it and everything after it."""
    release = asyncio.Event()

    class SlowGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "second":
                await release.wait()
            return await super().accept(message)

    gateway = SlowGateway()
    async with running(bot, gateway):
        said = [slack.say(text) for text in ("first", "second", "third")]
        await slack.until(lambda s: len(s.acknowledged) == 1)
        await asyncio.sleep(0.05)
        meanwhile = set(slack.acknowledged)
        release.set()
        await slack.until(lambda s: len(s.acknowledged) == 3)
    assert [m.text for m in gateway.accepted] == ["first", "second", "third"]
    assert meanwhile == {(LENA.channel_id, said[0])}


@pytest.mark.parametrize("over_http", [False, True])
async def test_one_conversation_keeps_its_order_and_holds_up_no_other(slack: SlackEmulator, over_http: bool) -> None:
    """A hundred messages of one person at once, of whom the store takes the first slowly; another one talks, too."""
    slow = asyncio.Event()

    class SlowGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "0":
                await slow.wait()
            await asyncio.sleep(0.005 * (len(self.accepted) % 3))
            return await super().accept(message)

    bot = slack_connector_over_http(slack, answer_within_seconds=0.02) if over_http else slack_connector(slack)
    gateway = SlowGateway()
    slack.redeliver_seconds = 0.3
    async with running(bot, gateway):
        for number in range(100):
            slack.say(str(number), by=LENA)
            if number == 50:
                slack.say("hello", by=OMAR)
        await gateway.until(lambda g: len(g.accepted) == 1)
        slow.set()
        await slack.until(lambda s: len(s.acknowledged) == 101)
    assert [m.text for m in gateway.accepted] == ["hello", *map(str, range(100))]


async def test_an_outage_of_the_store_loses_nothing_and_keeps_the_order(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """What was said before, during and after arrives once each, in order, though Slack repeats itself."""
    slack.redeliver_seconds = 0.05
    async with running(bot, gateway):
        slack.say("before", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        gateway.store_available = False
        for number in range(6):
            slack.say(f"during {number}", by=LENA if number % 2 else OMAR)
        await gateway.until(lambda g: g.refusals >= 5)
        during = bot.health
        acknowledged = len(slack.acknowledged)
        gateway.store_available = True
        slack.say("after", by=LENA)
        await slack.until(lambda s: len(s.acknowledged) == 8)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    said = {who: [m.text for m in gateway.accepted if m.author.id == who.id] for who in (LENA, OMAR)}
    assert said[LENA] == ["before", "during 1", "during 3", "during 5", "after"]
    assert said[OMAR] == ["during 0", "during 2", "during 4"]
    assert during.state is ConnectionState.DEGRADED
    assert "store" in during.why
    assert acknowledged == 1


async def test_what_slack_delivers_again_is_passed_on_once(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Lost acknowledgements, and events that come twice at once."""
    slack.redeliver_seconds = 0.02
    slack.drop_acks = 3
    slack.doubles = True
    async with running(bot, gateway):
        slack.say("once")
        slack.say(f"{slack.at_bot} twice?", to=TEAM)
        await slack.until(lambda s: all(delivery.acknowledged for delivery in s.deliveries))
    assert sorted(m.text for m in gateway.accepted) == ["once", "twice?"]
    assert sum(delivery.attempt for delivery in slack.deliveries) >= 9


async def test_the_same_message_has_the_same_identity_in_another_process(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """For the gateway to recognise what Slack delivers again after a restart."""
    slack.redeliver_seconds = 0.02
    slack.drop_acks = 1000
    async with running(bot, gateway):
        slack.say("once")
        await gateway.until(lambda g: len(g.accepted) == 1)
    again = slack_connector(slack)
    async with running(again, gateway):
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert gateway.accepted[0] == gateway.accepted[1]


async def test_a_message_that_can_never_be_accepted_is_given_up_after_a_few_attempts(
    slack: SlackEmulator, bot: SlackConnector
) -> None:
    """A fault of ours with one message is logged each time and does not stop all others."""

    class FaultyGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            if message.text == "poison":
                raise RuntimeError(f"a fault of ours with {message.text}")
            return await super().accept(message)

    gateway = FaultyGateway()
    slack.say("poison")
    slack.say("water")
    with capture_logs() as logs:
        async with running(bot, gateway):
            await slack.until(lambda s: len(s.acknowledged) == 2)
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert [m.text for m in gateway.accepted] == ["water"]
    failures = [e for e in logs if e["event"] == "message.failed"]
    assert [e["why"] for e in failures] == ["RuntimeError"] * 3
    assert "poison" not in str(failures)


async def test_an_event_that_cannot_be_read_does_not_hold_up_the_others(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """It is logged, acknowledged and passed over."""
    slack.push({"type": "message", "shape": "from the future"})
    slack.push({"no": "type"})
    slack.say("still here?")
    with capture_logs() as logs:
        async with running(bot, gateway):
            await slack.until(lambda s: all(delivery.acknowledged for delivery in s.deliveries))
    assert [m.text for m in gateway.accepted] == ["still here?"]
    assert len([e for e in logs if e["event"] == "message.ignored"]) == 2


async def test_names_are_asked_for_once_and_a_failure_costs_the_name_only(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """A message is never held up by it."""
    slack.fail_next("users.info", emulated.SERVER_ERROR)
    async with running(bot, gateway):
        slack.say("who am I?")
        await gateway.until(lambda g: len(g.accepted) == 1)
    other = slack_connector(slack)
    async with running(other, gateway):
        slack.say("and now, <@U502>?", by=LENA)
        slack.people[OMAR.id] = OMAR
        slack.say("still <@U502>?", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 3)
    assert [m.author.name for m in gateway.accepted] == ["", "Lena", "Lena"]
    assert gateway.accepted[1].text == gateway.accepted[2].text.replace("still", "and now,") == "and now, @Omar?"
    assert slack.calls.count("users.info") == 3


# Connection


async def test_a_socket_that_slack_replaces_costs_no_message_and_no_alarm(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """What the old one did not bring comes on the next."""
    with capture_logs() as logs:
        async with running(bot, gateway):
            for number in range(3):
                slack.say(f"before {number}")
                await slack.disconnect(after_seconds=0.02)
                slack.say(f"after {number}")
                await slack.until(lambda s, n=number: s.opened >= n + 2)  # type: ignore[misc]
            await slack.until(lambda s: len(s.acknowledged) == 6)
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    said = [m.text for m in gateway.accepted]
    assert sorted(said) == sorted(f"{when} {n}" for n in range(3) for when in ("before", "after"))
    assert not [e for e in logs if e["log_level"] in {"warning", "error"}]


async def test_a_replacement_waits_for_nothing(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """What Slack asked for is no failure: no wait, and health does not flicker."""
    bot = slack_connector(slack, ping_seconds=600.0)
    async with running(bot, gateway):
        await slack.disconnect("warning")
        await slack.until(lambda s: s.opened == 2)
        slack.say("on the new one")
        await gateway.until(lambda g: len(g.accepted) == 1)
        assert bot.health.state is ConnectionState.CONNECTED
        assert bot.sessions == 1


async def test_a_socket_that_breaks_is_opened_again(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """An outage makes the connector degraded; it comes back by itself with what was said meanwhile."""
    async with running(bot, gateway):
        slack.down = True
        await slack.kill()
        slack.say("said during the outage")
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        slack.down = False
        await gateway.until(lambda g: len(g.accepted) == 1)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert slack.opened == 2


async def test_a_url_that_was_used_up_is_not_tried_for_ever(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """As the SDK would by itself: after an outage that began between the question for it and its use."""
    bot = slack_connector(slack, ping_seconds=0.1)
    async with running(bot, gateway):
        slack.voids_urls = True
        await slack.kill()
        await slack.until(lambda s: s.calls.count("apps.connections.open") == 2)
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        slack.voids_urls = False
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
        slack.say("can you hear me?")
        await gateway.until(lambda g: len(g.accepted) == 1)


async def test_an_opening_that_gets_no_answer_is_given_up(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """And a socket that did open stays, however long ago that was."""
    bot = slack_connector(slack, ping_seconds=0.2)
    async with running(bot, gateway):
        slack.hangs = True
        await slack.kill()
        await slack.until(lambda s: s.hung == 1)
        slack.hangs = False
        slack.say("can you hear me?")
        await gateway.until(lambda g: len(g.accepted) == 1)
        await asyncio.sleep(1.0)
        slack.say("and now?")
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert slack.opened == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"type": "from the future"}'])
async def test_a_frame_that_says_nothing_holds_nothing_up(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway, text: str
) -> None:
    """Slack itself sends empty ones."""
    async with running(bot, gateway):
        for _ in range(4):
            await slack.write(text)
        slack.say("can you hear me?")
        await gateway.until(lambda g: len(g.accepted) == 1)
    assert slack.opened == 1  # held up, it would not see the answers to its pings


async def test_a_deaf_socket_is_noticed(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """One that is open but answers no ping is given up for another."""
    bot = slack_connector(slack, ping_seconds=0.1)
    async with running(bot, gateway):
        slack.mute = True
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        slack.mute = False
        slack.say("can you hear me?")
        await gateway.until(lambda g: len(g.accepted) == 1)
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert slack.opened >= 2


async def test_a_socket_without_a_greeting_is_not_called_connected(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """Only with ``hello`` do events come."""
    slack.greets = False
    bot = slack_connector(slack)
    task = asyncio.create_task(bot.run(gateway.accept))
    await slack.until(lambda s: s.opened == 1)
    await asyncio.sleep(0.05)
    before = bot.health
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await bot.close()
    assert before.state is ConnectionState.CONNECTING


async def test_a_socket_outlives_the_time_out_of_calls(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """The bound of one call is none for a connection."""
    bot = slack_connector(slack, timeout_seconds=0.3)
    async with running(bot, gateway):
        await asyncio.sleep(0.7)
        slack.say("still here?")
        await gateway.until(lambda g: len(g.accepted) == 1)
    assert slack.opened == 1


# Threads


async def test_a_mention_is_answered_in_a_thread_which_is_the_conversation(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """What follows there needs no mention; other talk in the channel is not for the bot."""
    async with running(bot, gateway):
        slack.say("just chatting", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
        root = slack.say(f"{slack.at_bot} what is the plan?", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 2)
        await send_all(bot, reply_to(gateway.accepted[1], "The plan is simple."))
        slack.say("which is?", to=TEAM, thread=root)
        await gateway.until(lambda g: len(g.accepted) == 3)
    assert {(m.external_id, m.addressed, m.text) for m in gateway.accepted} == {
        (TEAM.id, False, "just chatting"),
        (f"{TEAM.id}/{root}", True, "what is the plan?"),
        (f"{TEAM.id}/{root}", True, "which is?"),
    }
    assert [m.text for m in slack.shown(TEAM, thread=root)] == ["The plan is simple."]


async def test_threads_of_former_times_are_looked_up_once(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """After a restart the bot still knows its threads, and leaves others' alone."""
    async with running(bot, gateway):
        ours = slack.say("a plan, anyone?", to=TEAM)
        slack.say(f"{slack.at_bot} you", to=TEAM, thread=ours)
        theirs = slack.say("lunch?", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 3)
    other, later = slack_connector(slack), FakeGateway()
    slack.calls.clear()
    async with running(other, later):
        for text in ("and?", "go on"):
            slack.say(text, to=TEAM, thread=ours, by=OMAR)
            slack.say(text, to=TEAM, thread=theirs, by=OMAR)
        await later.until(lambda g: len(g.accepted) == 4)
    assert [(m.external_id, m.addressed) for m in sorted(later.accepted, key=lambda m: m.message_id)] == [
        (f"{TEAM.id}/{thread}", thread == ours) for thread in (ours, theirs, ours, theirs)
    ]
    assert slack.calls.count("conversations.replies") == 2


@pytest.mark.parametrize(
    "fault",
    [None, emulated.SERVER_ERROR, emulated.LOST_ANSWER, emulated.rate_limited(1)],
    ids=["slow", "500", "lost answer", "429"],
)
async def test_a_thread_of_former_times_is_known_though_slack_is_slow_to_say_so(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway, fault: emulated.Fault | None
) -> None:
    """What is said there waits for it: it would get no answer otherwise."""
    async with running(bot, gateway):
        root = slack.say(f"{slack.at_bot} a plan?", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
    other, later = slack_connector(slack), FakeGateway()
    slack.calls.clear()
    if fault is None:
        slack.delays["conversations.replies"] = 1.2
    else:
        slack.fail_next("conversations.replies", fault)
    async with running(other, later):
        slack.say("and?", to=TEAM, thread=root, by=OMAR)
        slack.say("go on", to=TEAM, thread=root, by=OMAR)
        slack.say("elsewhere", by=LENA)
        await later.until(lambda g: len(g.accepted) == 3)
    assert later.accepted[0].text == "elsewhere"  # waits for nobody
    assert [(m.text, m.addressed) for m in later.accepted[1:]] == [("and?", True), ("go on", True)]
    assert slack.calls.count("conversations.replies") == (1 if fault is None else 2)


async def test_a_thread_of_which_slack_refuses_to_tell_is_left_alone(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """At once, and Slack is not asked again for each message."""
    root = slack.say("lunch?", to=TEAM)
    slack.fail_next("conversations.replies", emulated.refused("missing_scope"))
    with capture_logs() as logs:
        async with running(bot, gateway):
            slack.say("yes", to=TEAM, thread=root, by=OMAR)
            slack.say("when?", to=TEAM, thread=root, by=OMAR)
            await gateway.until(lambda g: len(g.accepted) == 3)
    assert not any(m.addressed for m in gateway.accepted)
    assert slack.calls.count("conversations.replies") == 1
    failures = [(e["what"], e["why"], e["log_level"]) for e in logs if e["event"] == "connector.lookup_failed"]
    assert failures == [("thread", "missing_scope", "warning")]


async def test_edits_deletions_and_reactions_arrive_as_such(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """The same message id and place, another kind; a reaction to a message in a thread is in the thread."""
    async with running(bot, gateway):
        said = slack.say(f"{slack.at_bot} when do you opne?", to=TEAM)
        slack.change(TEAM, said, f"{slack.at_bot} when do you open?")
        await gateway.until(lambda g: len(g.accepted) == 2)
        (receipt,) = await send_all(bot, reply_to(gateway.accepted[0], "At nine."))
        slack.react(TEAM, receipt, "+1")
        slack.delete(TEAM, said)
        await gateway.until(lambda g: len(g.accepted) == 4)
    assert [(m.kind, m.message_id, m.text) for m in gateway.accepted] == [
        (InboundKind.MESSAGE, said, "when do you opne?"),
        (InboundKind.EDIT, said, "when do you open?"),
        (InboundKind.REACTION, receipt, ""),
        (InboundKind.DELETE, said, "when do you open?"),
    ]
    assert {m.external_id for m in gateway.accepted} == {f"{TEAM.id}/{said}"}
    assert gateway.accepted[2].reaction == "👍"


async def test_a_reaction_on_a_reply_of_former_times_is_in_its_thread(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """After a restart, or at another process, Slack is asked once where the bot's message stands."""
    async with running(bot, gateway):
        said = slack.say(f"{slack.at_bot} when do you open?", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
        (receipt,) = await send_all(bot, reply_to(gateway.accepted[0], "At nine."))
    other, later = slack_connector(slack), FakeGateway()
    slack.calls.clear()
    async with running(other, later):
        slack.react(TEAM, receipt, "+1")  # what it is on is looked up for the bot's own messages alone
        slack.react(TEAM, receipt, "+1", added=False)
        slack.react(TEAM, said, "+1")
        await later.until(lambda g: len(g.accepted) == 3)
    assert [m.external_id for m in later.accepted] == [f"{TEAM.id}/{said}"] * 2 + [TEAM.id]
    assert slack.calls.count("conversations.replies") == 1


# Sending


async def test_a_reply_notifies_nobody_and_shows_no_preview(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Whatever the model writes."""
    async with running(bot, gateway):
        slack.say("hi")
        await gateway.until(lambda g: len(g.accepted) == 1)
        await send_all(
            bot, reply_to(gateway.accepted[0], "<!channel> @here see [this](https://x.org) or https://y.org")
        )
    (shown,) = slack.shown(LENA)
    assert shown.text == "<!channel> @here see this or https://y.org"
    assert not shown.notifies_all
    assert not shown.has_preview


async def test_a_call_whose_connection_broke_is_not_repeated(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """The SDK would by itself, and the message would be there twice; but what became of it can be found out."""
    async with running(bot, gateway):
        slack.say("direct")
        await gateway.until(lambda g: len(g.accepted) == 1)
        root = slack.say(f"{slack.at_bot} in a thread", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 2)
        places: tuple[Person | Channel, ...] = (LENA, TEAM)
        for message, place in zip(gateway.accepted, places, strict=True):
            answer = reply_to(message, "once")
            (part,) = bot.render(answer)
            assert await bot.find(answer.key, part) is None
            slack.fail_next("chat.postMessage", emulated.LOST_ANSWER)
            with pytest.raises(SendFailed) as caught:
                await bot.send(answer, part)
            assert caught.value.ambiguous
            (shown,) = slack.shown(place)
            assert await bot.find(answer.key, part) == Receipt(shown.ts)
            assert await bot.find(answer.key, replace(part, token="another")) is None
    assert slack.calls.count("chat.postMessage") == 2
    assert slack.shown(TEAM)[0].thread == root


async def test_a_place_that_is_none_or_was_left_is_refused(slack: SlackEmulator, bot: SlackConnector) -> None:
    """For good; and after closing nothing is sent."""
    slack.leave(TEAM)
    for place in (TEAM.id, "C999", "not a place"):
        with pytest.raises(SendFailed) as caught:
            await send_all(bot, OutboundMessage(ConversationKey("acme", "slack", place), "t1", "hi"))
        assert (caught.value.retryable, caught.value.ambiguous) == (False, False)
    await bot.close()
    with pytest.raises(SendFailed) as caught:
        await send_all(bot, OutboundMessage(ConversationKey("acme", "slack", TEAM.id), "t1", "hi"))
    assert not caught.value.ambiguous


async def test_status_and_reactions_are_shown_and_may_be_lost(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """The status in threads, until the answer comes; signs that Slack does not take disturb nobody."""
    async with running(bot, gateway):
        root = slack.say(f"{slack.at_bot} hi", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 1)
        slack.say("hi")
        await gateway.until(lambda g: len(g.accepted) == 2)
        thread, direct = (conversation(message) for message in gateway.accepted)
        await bot.typing(thread)
        await bot.typing(direct)
        shown = list(slack.statuses)
        await send_all(bot, reply_to(gateway.accepted[0], "hello"))
        for emoji in ("👀", "👀", "🧿", "no such place"):
            await bot.react(thread, root, emoji)
        slack.down = True
        await bot.typing(thread)
        await bot.react(thread, root, "✅")
        slack.down = False
        slack.scopes.discard("chat:write")
        for _ in range(3):  # a missing scope is remembered
            await bot.typing(thread)
    assert shown == [(TEAM.id, root, "is thinking…")]
    assert slack.statuses == []
    assert slack.reactions == {(TEAM.id, root): ["eyes"]}
    assert slack.calls.count("assistant.threads.setStatus") == 3


async def missed(bot: SlackConnector, key: ConversationKey, after: str) -> list[InboundMessage]:
    return [message async for message in bot.missed(key.external_id, after)]


async def test_what_was_said_while_nobody_listened_can_be_read(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """In order, as it would have come, and without the bot's own words; more than one page of it."""
    assert isinstance(bot, BackfillsMessages)
    async with running(bot, gateway):
        slack.say("heard", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        root = slack.say(f"{slack.at_bot} heard", to=TEAM, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 2)
        direct, thread = (conversation(message) for message in gateway.accepted)
        for message in gateway.accepted:
            await send_all(bot, reply_to(message, "an answer"))
    for number in range(450):
        slack.say(f"missed {number}", by=LENA)
    slack.say("and this", to=TEAM, by=OMAR, thread=root)
    later = slack_connector(slack)
    private = await missed(later, direct, gateway.accepted[0].message_id)
    public = await missed(later, thread, gateway.accepted[1].message_id)
    nothing = await missed(later, direct, "command-1.2.f00")
    await later.close()
    assert nothing == []
    assert [message.text for message in private] == [f"missed {number}" for number in range(450)]
    assert all(message.direct and message.external_id == direct.external_id for message in private)
    assert [(message.text, message.addressed, message.external_id) for message in public] == [
        ("and this", True, thread.external_id)
    ]


async def test_a_call_in_a_channel_that_nobody_heard_is_read_once(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """It begins a thread of its own; talk that is not for the bot is left alone."""
    async with running(bot, gateway):
        slack.say(f"{slack.at_bot} heard", to=TEAM, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
    key, after = conversation(gateway.accepted[0]), gateway.accepted[0].message_id
    slack.say("just chatting", to=TEAM)
    call = slack.say(f"{slack.at_bot} anybody?", to=TEAM, by=OMAR)
    later = slack_connector(slack)
    first, again = await missed(later, key, after), await missed(later, key, after)
    await later.close()
    assert [(message.text, message.external_id) for message in first] == [("anybody?", f"{TEAM.id}/{call}")]
    assert again == []


async def test_a_call_that_nobody_heard_is_found_until_it_was_accepted(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """A reading that ends early, as when the store is away, is no reading of the channel."""
    root = slack.say(f"{slack.at_bot} heard", to=TEAM, by=LENA)
    for text in ("one?", "two?"):
        slack.say(f"{slack.at_bot} {text}", to=TEAM, by=OMAR)
    place = f"{TEAM.id}/{root}"
    async for message in bot.missed(place, root):
        assert message.text == "one?"
        break
    found = [message.text async for message in bot.missed(place, root)]
    assert found == ["one?", "two?"]
    assert [message async for message in bot.missed(place, root)] == []


async def test_a_reading_goes_by_who_takes_part_in_a_thread_and_remembers_it(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """The bot stays out of a thread of others, and asks for none that it has read."""
    async with running(bot, gateway):
        theirs = slack.say("lunch?", to=TEAM)
        slack.say("yes", to=TEAM, thread=theirs, by=OMAR)
        await gateway.until(lambda g: len(g.accepted) == 2)
        slack.calls.clear()
        ours = slack.say("a plan, anyone?", to=TEAM)
        await gateway.until(lambda g: len(g.accepted) == 3)
        others = await missed(bot, ConversationKey("acme", "slack", f"{TEAM.id}/{theirs}"), theirs)
        await missed(bot, ConversationKey("acme", "slack", f"{TEAM.id}/{ours}"), ours)
        slack.say("go on", to=TEAM, thread=ours, by=OMAR)
        await gateway.until(lambda g: len(g.accepted) == 4)
    assert [(message.text, message.addressed) for message in others] == [("yes", False)]
    assert gateway.accepted[-1].addressed
    assert slack.calls.count("conversations.replies") == 2


@pytest.mark.parametrize(("ago_days", "texts"), [(2, ["and here?"]), (8, [])])
async def test_what_was_said_long_ago_is_not_dug_out(
    slack: SlackEmulator, bot: SlackConnector, ago_days: int, texts: list[str]
) -> None:
    """A conversation is read for a week, a channel for calls that nobody heard for a day."""
    slack.first_second -= ago_days * 86_400
    root = slack.say(f"{slack.at_bot} heard", to=TEAM, by=LENA)
    slack.say(f"{slack.at_bot} anybody?", to=TEAM, by=OMAR)
    slack.say("and here?", to=TEAM, by=OMAR, thread=root)
    found = await missed(bot, ConversationKey("acme", "slack", f"{TEAM.id}/{root}"), root)
    assert [message.text for message in found] == texts


async def test_where_slack_does_not_let_the_bot_read_nothing_was_missed(
    slack: SlackEmulator, bot: SlackConnector
) -> None:
    """What may pass is raised, for another attempt."""
    key, after = ConversationKey("acme", "slack", TEAM.id), slack.say("hello", to=TEAM)
    slack.fail_next("conversations.history", emulated.rate_limited(3), emulated.refused("not_in_channel"))
    with pytest.raises(SendFailed) as caught:
        await missed(bot, key, after)
    assert caught.value.retryable
    assert await missed(bot, key, after) == []
    slack.scopes.discard("channels:history")
    assert await missed(bot, key, after) == []


# A connection that is turned off


@pytest.mark.parametrize(("reason", "words"), [("link_disabled", "turned off"), ("too_many_websockets", "too many")])
async def test_a_socket_that_slack_ends_for_a_reason_is_told_as_such(
    slack: SlackEmulator, gateway: FakeGateway, reason: str, words: str
) -> None:
    """Degraded while it may come back."""
    bot = slack_connector(slack, ping_seconds=0.2)
    async with running(bot, gateway):
        slack.fail_next("apps.connections.open", emulated.SERVER_ERROR)
        await slack.disconnect(reason)
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        during = bot.health
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert words in during.why


async def test_socket_mode_that_is_turned_off_for_good_fails(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """With the variable, once Slack refuses to open another socket."""
    bot = slack_connector(slack)
    with pytest.raises(ConnectorFailed) as caught:
        async with running(bot, gateway):
            slack.fail_next("apps.connections.open", emulated.refused("not_allowed"))
            await slack.disconnect("link_disabled")
            await eventually(lambda: bot.health.state is ConnectionState.FAILED)
            raise ConnectorFailed(bot.health.why)
    assert "AGENT_RUNTIME_SLACK_APP_TOKEN" in str(caught.value)


# A connection that breaks


async def test_a_break_begins_a_session_whose_beginning_has_to_be_read(slack: SlackEmulator) -> None:
    """It is counted before its first message is accepted. A socket that takes over at once begins none."""
    bot = slack_connector(slack, ping_seconds=0.2)
    counted: list[int] = []

    class CountingGateway(FakeGateway):
        async def accept(self, message: InboundMessage) -> Accepted:
            counted.append(bot.sessions)
            return await super().accept(message)

    gateway = CountingGateway()
    async with running(bot, gateway):
        slack.say("before", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        slack.down = True
        await slack.kill()
        slack.say("during", by=LENA)
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        slack.down = False
        await gateway.until(lambda g: len(g.accepted) == 2)
    assert counted == [1, 2]
    assert [message.text for message in gateway.accepted] == ["before", "during"]
