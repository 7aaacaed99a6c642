"""What is said on Discord, offered to the gateway's door until it is accepted: in order within a channel."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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
from connectors.lanes import Lanes
from connectors.message import Accepted, InboundMessage, StoreUnavailable

log = structlog.get_logger()

_ATTEMPTS_PER_MESSAGE = 3
"""How often a message is offered when accepting it fails for another reason than an absent store."""

_SERVERS_SECONDS = 60.0
"""How long Discord may take to describe the servers at the beginning of a session."""


_AT_ONCE = 8
"""Channels that are read at the same time."""


@dataclass(slots=True)
class _Missing:
    """What was said in a channel after the message ``after``, which moves on, is still to be read."""

    channel_id: int
    after: int


@dataclass(slots=True)
class _Open:
    """A gap of which it is not known yet where it lies, and the channels that were looked at already."""

    gap: Gap
    looked_at: set[int] = field(default_factory=set)


class Intake:
    """Keeps what was heard in *inbox*; reads what is missing through *login*.

    What is new in a channel waits until what is missing there was read, for *patience_seconds* in which nothing of it
    could be; other channels do not wait for that.
    """

    def __init__(self, login: Login, inbox: Inbox, backoff: Backoff, patience_seconds: float) -> None:
        self._login = login
        self._inbox = inbox
        self._backoff = backoff
        self._patience_seconds = patience_seconds
        self._servers_known = asyncio.Event()
        self._lanes: Lanes[InboundMessage | _Missing] = Lanes(self._work_on)
        self._late: Lanes[_Missing] = Lanes(self._read_late)
        self._gaps: list[_Open] = []
        self._reading = asyncio.Semaphore(_AT_ONCE)
        self._accept: Accept = _closed
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str:
        """Why messages wait; empty while they do not."""
        return next(iter(self._troubles.values()), "")

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
        self._accept = accept
        async with self._late.opened(), self._lanes.opened() as tasks:
            for known in self._gaps:
                tasks.create_task(self._find_missing(known))
            while True:
                item = await self._inbox.get()
                if isinstance(item, Gap):
                    self._gaps.append(_Open(item))
                    tasks.create_task(self._find_missing(self._gaps[-1]))
                else:
                    self._look_before(item.external_id)
                    self._lanes.put(item.external_id, item)

    def _look_before(self, place: str) -> None:
        """Where it is not known yet in which channels something is missing, that of *place* is read at once."""
        if not place.isdecimal():
            return
        for known in self._gaps:
            self._read(known, int(place), known.gap.seen.get(int(place), known.gap.floor))

    def _read(self, known: _Open, channel_id: int, after: int) -> None:
        if channel_id not in known.looked_at:
            known.looked_at.add(channel_id)
            self._lanes.put(str(channel_id), _Missing(channel_id, after))

    async def _find_missing(self, known: _Open) -> None:
        """Has what was said while nobody listened read in each channel, before what is said there from now on."""
        client = await self._login.opened_at_last()
        with suppress(TimeoutError):  # then by what is known of the servers by now
            async with asyncio.timeout(_SERVERS_SECONDS):
                await self._servers_known.wait()
        for channel_id, after in places_of(known.gap, client):
            self._read(known, channel_id, after)
        self._gaps.remove(known)

    async def _work_on(self, place: str, item: InboundMessage | _Missing) -> None:
        if isinstance(item, _Missing):
            await self._catch_up(place, item)
        else:
            await self._offer(item)
            self._inbox.done()

    async def _offer(self, message: InboundMessage) -> None:
        """Offers *message* until it is accepted; a fault of ours is given up after some attempts."""
        place, failures, faults = message.external_id, 0, 0
        while True:
            try:
                await self._accept(message)
            except StoreUnavailable:
                self._troubles[place] = "the store is unavailable; messages wait in this process"
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                faults += 1
                _log_fault(error, message.message_id)
                if faults == _ATTEMPTS_PER_MESSAGE:
                    break
                self._troubles[place] = f"a message could not be accepted ({type(error).__name__})"
            else:
                break
            failures += 1
            await self._backoff.wait(failures)
        self._troubles.pop(place, None)

    async def _catch_up(self, place: str, missing: _Missing) -> None:
        """Reads what is missing; where that does not work in time it goes on beside what is new there."""
        try:
            async with asyncio.timeout(self._patience_seconds) as limit:
                await self._read_all(place, missing, limit)
        except TimeoutError:
            log.warning("connector.overtaken", connector=CONNECTOR, external_id=place, why=self._troubles.get(place))
            self._late.put(place, missing)

    async def _read_late(self, place: str, missing: _Missing) -> None:
        async with asyncio.timeout(None) as limit:
            await self._read_all(place, missing, limit)

    async def _read_all(self, place: str, missing: _Missing, limit: asyncio.Timeout) -> None:
        failures = 0
        while True:
            client = await self._login.opened_at_last()
            try:
                async with self._reading:
                    await self._read_on(client, missing, limit)
            except DISCORD_ERRORS as error:
                failures += 1
                self._troubles[place] = f"what was missed cannot be read yet: {self._login.describe(error)}"
                await self._backoff.wait(failures, retry_after_seconds(error))
            except Exception as error:  # noqa: BLE001 - the boundary: one channel must not stop all others
                _log_fault(error, f"after {missing.after}")
                break
            else:
                break
        self._troubles.pop(place, None)

    async def _read_on(self, client: GatewayClient, missing: _Missing, limit: asyncio.Timeout) -> None:
        """Raises one of `DISCORD_ERRORS`."""
        is_limited = limit.when() is not None
        async for said in said_after(client, missing.channel_id, missing.after):
            limit.reschedule(None)  # a store that is away is waited for, and what was read is no reason to hurry
            for message in _understood(client, "message", (said,)):
                await self._offer(message)
            missing.after = said.id
            if is_limited:
                limit.reschedule(asyncio.get_running_loop().time() + self._patience_seconds)


async def _closed(message: InboundMessage) -> Accepted:
    raise StoreUnavailable("the connector is not receiving")


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
