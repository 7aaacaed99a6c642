"""Sessions that end, and tokens that are revoked while the socket stays open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from connectors.connector import ConnectionState, ConnectorFailed, SendFailed
from connectors.message import ConversationKey, OutboundMessage
from tests.contract.connector_suite import FakeGateway, eventually, running
from tests.contract.discord_harness import discord_connector
from tests.emulators import discord as emulated
from tests.emulators.discord import DiscordEmulator, Person, Room

LENA = Person(id=501, name="Lena")
TEAM = Room(channel_id=910, name="general")


@pytest.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator(rooms=(TEAM,)) as emulator:
        yield emulator


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


def texts(gateway: FakeGateway) -> list[str]:
    return [message.text for message in gateway.accepted]


async def test_a_refused_call_ends_nothing(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord ends the session of a token that is no longer good by itself."""
    bot = discord_connector(discord)
    async with running(bot, gateway):
        discord.fail_next("send", emulated.Fault(401, {"message": "401: Unauthorized", "code": 0}))
        message = OutboundMessage(ConversationKey("acme", "discord", "910"), "t1", "hello")
        with pytest.raises(SendFailed):
            await bot.send(message, bot.render(message)[0])
        await discord.say("still there?", by=LENA)
        await gateway.until(lambda g: texts(g) == ["still there?"])
        assert bot.health.state is ConnectionState.CONNECTED


async def test_a_session_that_is_declared_invalid_is_begun_anew(discord: DiscordEmulator, gateway: FakeGateway) -> None:
    """Discord says so when it cannot be resumed; the runtime then reads what was said in between."""
    bot = discord_connector(discord)
    async with running(bot, gateway):
        await discord.until(lambda d: d.has_session)
        assert bot.sessions == 1
        await discord.invalidate(resumable=False)
        await discord.until(lambda d: d.identifies == 2)
        await eventually(lambda: bot.sessions == 2)


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
