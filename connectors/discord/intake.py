"""What is said on Discord, offered to the gateway's door one by one and in order, until it is accepted."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import discord
import structlog

from connectors.connector import Accept
from connectors.discord.client import GatewayClient
from connectors.discord.convert import CONNECTOR
from connectors.discord.errors import DISCORD_ERRORS, retry_after_seconds
from connectors.discord.events import heard
from connectors.discord.inbox import Gap, Inbox
from connectors.discord.login import Backoff, Login
from connectors.message import InboundMessage, StoreUnavailable

log = structlog.get_logger()

_ATTEMPTS_PER_MESSAGE = 3
"""How often a message is offered when accepting it fails for another reason than an absent store."""

_SERVERS_SECONDS = 60.0
"""How long Discord may take to describe the servers at the beginning of a session."""


class Intake:
    """Keeps what was heard in *inbox*; reads what is missing through *login*."""

    def __init__(self, login: Login, inbox: Inbox, backoff: Backoff) -> None:
        self._login = login
        self._inbox = inbox
        self._backoff = backoff
        self._servers_known = asyncio.Event()
        self.trouble = ""
        """Why messages wait; empty while they do not."""

    def session_began(self) -> None:
        """Discord has opened a new session: what was said since the last one ended is missing."""
        self._servers_known.clear()
        self._inbox.put_gap()
        self._inbox.start_at(discord.utils.time_snowflake(discord.utils.utcnow()))

    def servers_known(self) -> None:
        """Discord has described the servers that the bot is on."""
        self._servers_known.set()

    def take(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        """Something happened. Neither blocks nor raises."""
        for message in _understood(client, event, args):
            self._inbox.put(message)
        if event == "message":
            self._inbox.saw(args[0].channel.id, args[0].id)

    async def accept_all(self, accept: Accept) -> None:
        """Offers what has come, and what will, until cancelled. What is in hand then stays the next."""
        while True:
            item = await self._inbox.get()
            try:
                if isinstance(item, Gap):
                    await self._fill(item, accept)
                else:
                    await self._offer(item, accept)
            except asyncio.CancelledError:
                self._inbox.put_back(item)
                raise

    async def _offer(self, message: InboundMessage, accept: Accept) -> None:
        """Offers *message* until it is accepted; a fault of ours is given up after some attempts."""
        failures = faults = 0
        while True:
            try:
                await accept(message)
            except StoreUnavailable:
                self.trouble = "the store is unavailable; messages wait in this process"
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                faults += 1
                _log_fault(error, message.message_id)
                if faults == _ATTEMPTS_PER_MESSAGE:
                    break
                self.trouble = f"a message could not be accepted ({type(error).__name__})"
            else:
                break
            failures += 1
            await self._backoff.wait(failures)
        self.trouble = ""

    async def _fill(self, gap: Gap, accept: Accept) -> None:
        """Reads what was said while nobody listened, channel by channel."""
        client = await self._login.opened_at_last()
        with suppress(TimeoutError):  # then by what is known of the servers by now
            async with asyncio.timeout(_SERVERS_SECONDS):
                await self._servers_known.wait()
        for channel_id, after in list(places_of(gap, client)):
            await self._catch_up(channel_id, after, accept)

    async def _catch_up(self, channel_id: int, after: int, accept: Accept) -> None:
        failures = 0
        while True:
            client = await self._login.opened_at_last()
            try:
                async for said in said_after(client, channel_id, after):
                    for message in _understood(client, "message", (said,)):
                        await self._offer(message, accept)
                    after = said.id
            except DISCORD_ERRORS as error:
                failures += 1
                self.trouble = f"what was missed cannot be read yet: {self._login.describe(error)}"
                await self._backoff.wait(failures, retry_after_seconds(error))
            except Exception as error:  # noqa: BLE001 - the boundary: one channel must not stop all others
                _log_fault(error, f"after {after}")
                return
            else:
                self.trouble = ""
                return


async def said_after(client: GatewayClient, channel_id: int, after: int) -> AsyncIterator[discord.Message]:
    """The messages of a channel after the id *after*, oldest first; none where the bot may not read.

    Raises one of `DISCORD_ERRORS`.
    """
    try:
        channel = client.get_channel(channel_id) or await client.fetch_channel(channel_id)
        if isinstance(channel, discord.abc.Messageable):
            async for message in channel.history(limit=None, after=discord.Object(after), oldest_first=True):
                yield message
    except (discord.Forbidden, discord.NotFound) as error:
        log.info("connector.unreadable", connector=CONNECTOR, why=error.text)


def places_of(gap: Gap, client: discord.Client) -> Iterator[tuple[int, int]]:
    """The channels that may hold something new, each with the message after which it would be."""
    known = set()
    for guild in client.guilds:
        channels: tuple[discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread, ...] = (
            *guild.text_channels,
            *guild.voice_channels,
            *guild.stage_channels,
            *guild.threads,
        )
        for channel in channels:
            known.add(channel.id)
            after = gap.seen.get(channel.id, gap.floor)
            if (channel.last_message_id or 0) > after:
                yield channel.id, after
    for channel_id, after in gap.seen.items():
        if channel_id not in known:  # direct messages, archived threads
            yield channel_id, after


def _understood(client: GatewayClient, event: str, args: tuple[Any, ...]) -> tuple[InboundMessage, ...]:
    if client.user is None:
        return ()
    try:
        return heard(client, client.user.id, event, args)
    except Exception as error:  # noqa: BLE001 - the boundary: one event must not end the session
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
        return ()


def _log_fault(error: Exception, message_id: str) -> None:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    log.error(
        "message.failed",
        connector=CONNECTOR,
        why=type(error).__name__,  # without the error's own words, which may quote the message
        where=f"{frame.name}:{frame.lineno}",
        message_id=message_id,
    )
