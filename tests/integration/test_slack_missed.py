"""What Slack does not bring (any more) is read from its history."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from connectors.connector import BackfillsMessages, ConnectionState, ConnectorFailed, SendFailed
from connectors.message import Accepted, ConversationKey, InboundMessage
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
