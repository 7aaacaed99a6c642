"""What Slack does not bring (any more) is read from its history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from connectors.connector import BackfillsMessages, ConnectionState, ConnectorFailed, SendFailed
from connectors.message import ConversationKey, InboundMessage
from connectors.slack.connector import SlackConnector
from tests.contract.connector_suite import FakeGateway, conversation, eventually, reply_to, running, send_all
from tests.contract.slack_harness import slack_connector
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


async def missed(bot: SlackConnector, key: ConversationKey, after: str) -> list[InboundMessage]:
    return [message async for message in bot.missed(key.external_id, after)]


async def test_what_was_said_while_nobody_listened_can_be_read(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """In order, as it would have come, and without the bot's own words; more than one page of it."""
    assert isinstance(bot, BackfillsMessages)
    async with running(bot, gateway):
        slack.say("heard", by=LENA)
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


async def test_socket_mode_that_is_turned_off_is_told_as_such(slack: SlackEmulator, gateway: FakeGateway) -> None:
    """Degraded while it may come back; failed, with the variable, once Slack refuses to open another."""
    bot = slack_connector(slack, first_backoff_seconds=0.2, longest_backoff_seconds=0.2)
    async with running(bot, gateway):
        await slack.disconnect("link_disabled")
        await eventually(lambda: bot.health.state is ConnectionState.DEGRADED)
        during = bot.health
        await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert "turned off" in during.why
    other = slack_connector(slack)
    with pytest.raises(ConnectorFailed) as caught:
        async with running(other, gateway):
            slack.fail_next("apps.connections.open", emulated.refused("not_allowed"))
            await slack.disconnect("link_disabled")
            await eventually(lambda: other.health.state is ConnectionState.FAILED)
            raise ConnectorFailed(other.health.why)
    assert "AGENT_RUNTIME_SLACK_APP_TOKEN" in str(caught.value)


# A connection that breaks


async def swallowed(slack: SlackEmulator, *said: tuple[str, Channel | None, str | None]) -> list[str]:
    """What is said (text, channel, thread) while the open socket swallows all; it breaks, and Slack repeats later."""
    slack.mute = True
    stamps = [slack.say(text, to=to, by=LENA, thread=thread) for text, to, thread in said]
    for delivery in slack.deliveries:
        if not delivery.acknowledged:
            delivery.attempt, delivery.sent_at = 1, asyncio.get_running_loop().time() + 1.0
    await slack.kill()
    slack.mute = False
    return stamps


async def test_what_a_broken_socket_swallowed_is_heard_before_what_is_said_after_it(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Slack delivers it again, but later; in a direct message and in a thread, of one that nobody had heard of, too."""
    async with running(bot, gateway):
        slack.say("one", by=LENA)
        root = slack.say(f"{slack.at_bot} root", to=TEAM, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 2)
        (_, _, _, begun) = await swallowed(
            slack,
            ("two", None, None),
            ("three", None, None),
            ("aside", TEAM, root),
            (f"{slack.at_bot} new", TEAM, None),
        )
        await slack.until(lambda s: s.sockets == 1)
        slack.say("four", by=LENA)
        slack.say("further", to=TEAM, by=LENA, thread=root)
        slack.say("more", to=TEAM, by=LENA, thread=begun)
        slack.say("five", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 10)
        await slack.until(lambda s: all(one.acknowledged for one in s.deliveries))
    heard: dict[str, list[str]] = {}
    for message in gateway.accepted:
        heard.setdefault(message.external_id, []).append(message.text)
    assert list(heard.values()) == [
        ["one", "two", "three", "four", "five"],
        ["root", "aside", "further"],
        ["new", "more"],
    ]
    assert slack.calls.count("conversations.history") == 1
    assert slack.calls.count("conversations.replies") == 2


async def test_what_is_repeated_does_not_hide_that_more_was_swallowed_after_it(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """Of two that were swallowed the first is repeated at once, the second after what is said next."""
    async with running(bot, gateway):
        slack.say("one", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await swallowed(slack, ("two", None, None), ("three", None, None))
        slack.deliveries[-2].attempt = 0
        await slack.until(lambda s: s.sockets == 1 and s.deliveries[-2].acknowledged)
        slack.say("four", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 4)
    assert [message.text for message in gateway.accepted] == ["one", "two", "three", "four"]


async def test_where_the_history_cannot_be_had_what_is_said_goes_on_and_nothing_is_lost(
    slack: SlackEmulator, bot: SlackConnector, gateway: FakeGateway
) -> None:
    """What the broken socket swallowed comes when Slack delivers it again; nobody waits for its history any more."""
    async with running(bot, gateway):
        slack.say("one", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await swallowed(slack, ("two", None, None))
        slack.fail_next("conversations.history", emulated.rate_limited(60))
        await slack.until(lambda s: s.sockets == 1)
        for text in ("three", "four"):
            slack.say(text, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 4)
    assert sorted(message.text for message in gateway.accepted) == ["four", "one", "three", "two"]
    assert slack.calls.count("conversations.history") == 1
