"""What discord.py does not notice of its connection is noticed: deaf sockets and revoked tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from connectors.connector import ConnectionState, ConnectorFailed, SendFailed
from connectors.discord.session import Patience
from connectors.message import ConversationKey, OutboundMessage
from tests.contract.connector_suite import FakeGateway, eventually, running
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators.discord import DiscordEmulator, Person, Room

LENA = Person(id=501, name="Lena")
TEAM = Room(channel_id=910, name="general")
HEARS_SOON = Patience(silence_seconds=(0.1, 0.2), late_seconds=0.05)


@pytest.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM,)) as emulator:
        yield emulator


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


def texts(gateway: FakeGateway) -> list[str]:
    return [message.text for message in gateway.accepted]


@pytest.mark.parametrize("where", ["in private", "on a server"])
async def test_a_deaf_gateway_is_noticed_and_nothing_said_is_lost(
    discord: DiscordEmulator, gateway: FakeGateway, where: str
) -> None:
    """Its heartbeats are answered, but Discord shows messages that it does not tell: a new session is begun."""
    room = TEAM if where == "on a server" else None
    bot = discord_connector(discord, patience=HEARS_SOON)
    with capture_logs() as logs:
        async with running(bot, gateway):
            await discord.say(f"{discord.at_bot} before", to=room, by=LENA)
            await gateway.until(lambda g: texts(g) == ["before"])
            discord.deafen()
            await discord.say(f"{discord.at_bot} can you hear me?", to=room, by=LENA)
            await gateway.until(lambda g: "can you hear me?" in texts(g))
            await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    assert (discord.identifies, discord.resumes) == (2, 0)
    assert [entry["connector"] for entry in logs if entry["event"] == "connector.deaf"] == ["discord"]


async def test_a_quiet_place_is_not_taken_for_a_deaf_socket(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord is asked again and again, and shows nothing that was not heard."""
    bot = discord_connector(discord, patience=HEARS_SOON)
    async with running(bot, gateway):
        await discord.say(f"{discord.at_bot} before", to=TEAM, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        asked = discord.calls.count("history")
        await discord.until(lambda d: d.calls.count("history") >= asked + 3)
        assert bot.health.state is ConnectionState.CONNECTED
    assert discord.identifies == 1


async def test_a_message_that_is_only_late_is_no_sign_of_deafness(
    discord: DiscordEmulator, gateway: FakeGateway
) -> None:
    bot = discord_connector(discord, patience=Patience(silence_seconds=(0.1, 0.2), late_seconds=0.5))
    async with running(bot, gateway):
        await discord.say("before", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        late = discord.message_json(LENA, LENA, "late")
        discord._messages[int(late["id"])] = late
        await discord.until(lambda d: d.calls.count("history") >= 1)
        await discord.push("MESSAGE_CREATE", late, LENA)
        await gateway.until(lambda g: "late" in texts(g))
        asked = discord.calls.count("history")
        await discord.until(lambda d: d.calls.count("history") > asked)
    assert discord.identifies == 1


async def test_a_channel_that_may_not_be_read_says_nothing_of_the_socket(
    discord: DiscordEmulator, gateway: FakeGateway
) -> None:
    bot = discord_connector(discord, patience=HEARS_SOON)
    async with running(bot, gateway):
        await discord.say(f"{discord.at_bot} before", to=TEAM, by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        discord.fail_next("history", emulated.FORBIDDEN, emulated.SERVER_ERROR)
        await discord.until(lambda d: d.calls.count("history") >= 3)
        assert bot.health.state is ConnectionState.CONNECTED
    assert discord.identifies == 1


async def test_a_token_that_is_revoked_while_the_socket_stays_open_is_noticed(
    discord: DiscordEmulator, gateway: FakeGateway
) -> None:
    """In a quiet place, at the next time that Discord is asked."""
    bot = discord_connector(discord, patience=HEARS_SOON)
    receiving = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    discord.token = "another"
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_DISCORD_BOT_TOKEN"):
        await receiving
    assert bot.health.state is ConnectionState.FAILED
    await bot.close()


async def test_a_call_that_is_refused_for_the_token_is_looked_into_at_once(
    discord: DiscordEmulator, gateway: FakeGateway
) -> None:
    bot = discord_connector(discord)
    receiving = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    discord.token = "another"
    message = OutboundMessage(ConversationKey("acme", "discord", "910"), "t1", "hello")
    with pytest.raises(SendFailed):
        await bot.send(message, bot.render(message)[0])
    with pytest.raises(ConnectorFailed, match="AGENT_RUNTIME_DISCORD_BOT_TOKEN"):
        await receiving
    await bot.close()


async def test_a_single_odd_refusal_ends_nothing(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord is asked whether the token is good before the connector gives up."""
    bot = discord_connector(discord)
    async with running(bot, gateway):
        discord.fail_next("send", emulated.Fault(401, {"message": "401: Unauthorized", "code": 0}))
        message = OutboundMessage(ConversationKey("acme", "discord", "910"), "t1", "hello")
        with pytest.raises(SendFailed):
            await bot.send(message, bot.render(message)[0])
        await discord.until(lambda d: d.calls.count("me") == 2)  # at the login, and now
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: texts(g) == ["still there?"])
        assert bot.health.state is ConnectionState.CONNECTED


async def test_a_session_that_is_declared_invalid_is_begun_anew(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord says so when it cannot be resumed; what was said in between is read over REST."""
    bot = discord_connector(discord)
    async with running(bot, gateway):
        await discord.say("before", by=LENA)
        await gateway.until(lambda g: len(g.accepted) == 1)
        await discord.until(lambda d: d.has_session)
        await discord.invalidate(resumable=False)
        await discord.say("in between", by=LENA)
        await discord.until(lambda d: d.identifies == 2)
        await gateway.until(lambda g: "in between" in texts(g))


@pytest.mark.parametrize(("code", "names"), [(4004, "DISCORD_BOT_TOKEN"), (4013, "intent"), (4014, "Message Content")])
async def test_a_close_that_only_a_person_can_help_says_what_to_do(
    discord: DiscordEmulator, gateway: FakeGateway, code: int, names: str
) -> None:
    bot = discord_connector(discord)
    receiving = asyncio.create_task(bot.run(gateway.accept))
    await eventually(lambda: bot.health.state is ConnectionState.CONNECTED)
    await discord.until(lambda d: d.has_session)
    await discord.close_with(code)
    with pytest.raises(ConnectorFailed, match=names):
        await receiving
    await bot.close()


async def test_a_close_that_passes_is_come_back_from(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    bot = discord_connector(discord)
    async with running(bot, gateway):
        await discord.until(lambda d: d.has_session)
        await discord.close_with(4000)
        await discord.until(lambda d: d.resumes == 1)
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: texts(g) == ["still there?"])
