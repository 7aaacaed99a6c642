"""Hand Discord's events to the runtime until it accepts them, in order within a channel. I/O.

Discord sends nothing twice and has no acknowledgement. So `Intake` keeps in this process what the runtime has not
accepted yet. Messages that were written while there was no session, or that found no room, are a `Gap`: they are read
over REST.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import discord
import structlog

from connectors.connector import Accept
from connectors.discord.errors import DISCORD_ERRORS, retry_after_seconds
from connectors.discord.events import CONNECTOR, to_inbound
from connectors.discord.login import GatewayClient, Login
from connectors.health import Backoff, ConnectionHealth
from connectors.message import Accepted, InboundMessage, StoreUnavailable
from connectors.sdk_errors import origin

log = structlog.get_logger()

MAX_WAITING = 10_000
MAX_CHANNELS = 10_000

SLACK_MILLISECONDS = 60_000
"""A message that Discord has not sent yet may be so much older than the newest one that it has sent."""

_TIME_SHIFT = 22
"""Reference, "Snowflakes": the bits above these are milliseconds."""

_ATTEMPTS_PER_MESSAGE = 3
"""How often a message is offered if it fails for any reason but an unavailable store."""

_SERVERS_SECONDS = 60.0
"""How long Discord may take to describe the servers at the beginning of a session."""

_MAX_CHANNELS_READ = 8
"""Channels that are read at the same time."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages may be missing: those after the id in ``seen`` in each of its channels, after ``floor`` in others."""

    seen: Mapping[int, int]
    floor: int

    def after_in(self, channel_id: int) -> int:
        """Return the id after which messages of a channel may be missing."""
        return self.seen.get(channel_id, self.floor)


@dataclass(slots=True)
class _Backfill:
    """The messages of a channel after ``after`` have to be read. ``after`` advances."""

    channel_id: int
    after: int


@dataclass(slots=True)
class _OpenGap:
    """A gap whose channels are not all known yet, and the channels whose backfill has begun."""

    gap: Gap
    begun: set[int] = field(default_factory=set)


class Intake:
    """Takes the events of *login*, keeps them until they are accepted, and reads what is missing.

    Each channel has a lane: its messages are offered in order, and new ones wait until its missing ones were read.
    Other channels do not wait. If *max_waiting* messages wait, newer ones are left at Discord and read later.
    """

    def __init__(
        self, login: Login, vitals: ConnectionHealth, backoff: Backoff, max_waiting: int = MAX_WAITING
    ) -> None:
        self._login = login
        self._vitals = vitals
        self._backoff = backoff
        self._max_waiting = max_waiting
        self._servers_known = asyncio.Event()
        self._lanes: dict[str, deque[InboundMessage | _Backfill]] = {}
        self._waiting = 0
        self._overflowed = False
        self._seen: OrderedDict[int, int] = OrderedDict()
        """The newest message of each channel that the gateway has delivered."""
        self._started_at = 0
        self._newest = 0
        self._gaps: list[_OpenGap] = []
        self._reading = asyncio.Semaphore(_MAX_CHANNELS_READ)
        self._accept: Accept = _refuse
        self._tasks: asyncio.TaskGroup | None = None

    def session_began(self) -> None:
        """Note a new session. Messages since the end of the last one are missing; before the first one, none are."""
        self._servers_known.clear()
        if not self._started_at:
            self._started_at = discord.utils.time_snowflake(discord.utils.utcnow())
        elif not self._overflowed:
            self._open_gap()

    def servers_known(self) -> None:
        """Note that Discord has described the bot's servers."""
        self._servers_known.set()

    def take(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        """Put an event into its lane. Neither blocks nor raises."""
        for message in _convert(client, event, args):
            if self._overflowed or self._waiting >= self._max_waiting:
                self._overflowed = True
            else:
                self._waiting += 1
                self._backfill_place(message.external_id)
                self._put(message.external_id, message)
        if event == "message" and not self._overflowed:
            self._note_seen(args[0].channel.id, args[0].id)

    async def accept_all(self, accept: Accept) -> None:
        """Offer everything in the lanes until cancelled. What is being offered then stays the first of its lane."""
        self._accept = accept
        async with asyncio.TaskGroup() as self._tasks:
            for open_gap in self._gaps:
                self._tasks.create_task(self._find_channels(open_gap))
            for place in self._lanes:
                self._tasks.create_task(self._empty_lane(place))
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    # Lanes and gaps

    def _put(self, place: str, item: InboundMessage | _Backfill) -> None:
        if place in self._lanes:
            self._lanes[place].append(item)
            return
        self._lanes[place] = deque([item])
        if self._tasks is not None:
            self._tasks.create_task(self._empty_lane(place), name=f"discord lane {place}")

    async def _empty_lane(self, place: str) -> None:
        lane = self._lanes[place]
        while lane:
            item = lane[0]
            if isinstance(item, _Backfill):
                await self._read_all(place, item)
            else:
                await self._offer(item)
                self._waiting -= 1
            lane.popleft()
            if self._overflowed and self._waiting <= self._max_waiting // 2:
                self._overflowed = False
                self._open_gap()
        del self._lanes[place]

    def _note_seen(self, channel_id: int, message_id: int) -> None:
        self._newest = max(self._newest, message_id)
        self._seen[channel_id] = max(message_id, self._seen.get(channel_id, 0))
        self._seen.move_to_end(channel_id)
        if len(self._seen) > MAX_CHANNELS:
            self._seen.popitem(last=False)

    def _open_gap(self) -> None:
        """Have the messages read that may be missing after those that were seen."""
        # By Discord's clock if it has sent a message, else by ours.
        floor = (self._newest or self._started_at) - (SLACK_MILLISECONDS << _TIME_SHIFT)
        self._gaps.append(_OpenGap(Gap(seen=dict(self._seen), floor=max(floor, 0))))
        if self._tasks is not None:
            self._tasks.create_task(self._find_channels(self._gaps[-1]))

    # Offering

    async def _offer(self, message: InboundMessage) -> None:
        """Offer *message* until it is accepted. After some failures of ours, give it up."""
        place, backoff, faults = message.external_id, self._backoff.fresh(), 0
        while True:
            try:
                await self._accept(message)
            except StoreUnavailable:
                self._vitals.trouble(place, "the store is unavailable; messages wait in this process")
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                faults += 1
                _log_fault(error, message.message_id)
                if faults == _ATTEMPTS_PER_MESSAGE:
                    break
                self._vitals.trouble(place, f"a message could not be accepted ({type(error).__name__})")
            else:
                break
            await asyncio.sleep(backoff.next_seconds())
        self._vitals.well(place)

    # Reading what is missing

    async def _find_channels(self, open_gap: _OpenGap) -> None:
        """Begin a backfill in each channel that may miss messages, before its new messages."""
        client = await self._login.open_with_retries()
        with suppress(TimeoutError):  # then use the servers that are known by now
            async with asyncio.timeout(_SERVERS_SECONDS):
                await self._servers_known.wait()
        for channel_id in _channels_of(open_gap.gap, client):
            self._begin_backfill(open_gap, channel_id)
        self._gaps.remove(open_gap)

    def _backfill_place(self, place: str) -> None:
        """Begin the backfill of *place* at once if `_find_channels` has not found its channels yet."""
        if place.isdecimal():
            for open_gap in self._gaps:
                self._begin_backfill(open_gap, int(place))

    def _begin_backfill(self, open_gap: _OpenGap, channel_id: int) -> None:
        if channel_id not in open_gap.begun:
            open_gap.begun.add(channel_id)
            self._put(str(channel_id), _Backfill(channel_id, open_gap.gap.after_in(channel_id)))

    async def _read_all(self, place: str, backfill: _Backfill) -> None:
        backoff, is_unreadable = self._backoff.fresh(), False
        while True:
            client = await self._login.open_with_retries()
            try:
                async with self._reading:
                    if is_unreadable and not await _skip_next(client, backfill):
                        break
                    is_unreadable = False
                    await self._read_on(client, backfill)
            except DISCORD_ERRORS as error:
                self._vitals.trouble(place, f"what was missed cannot be read yet: {self._login.describe(error)}")
                await asyncio.sleep(backoff.next_seconds(retry_after_seconds(error)))
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                _log_fault(error, f"after {backfill.after}")
                is_unreadable = True
            else:
                break
        self._vitals.well(place)

    async def _read_on(self, client: GatewayClient, backfill: _Backfill) -> None:
        """Raises one of `DISCORD_ERRORS`."""
        async for message in messages_after(client, backfill.channel_id, backfill.after):
            for inbound in _convert(client, "message", (message,)):
                await self._offer(inbound)
            backfill.after = message.id


async def _refuse(message: InboundMessage) -> Accepted:
    raise StoreUnavailable("the connector is not receiving")


def _convert(client: GatewayClient, event: str, args: tuple[Any, ...]) -> tuple[InboundMessage, ...]:
    if client.user is None:
        return ()
    try:
        return to_inbound(client, client.user.id, event, args)
    except Exception as error:  # noqa: BLE001 - the boundary: one event must not end the session
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
        return ()


async def messages_after(client: GatewayClient, channel_id: int, after: int) -> AsyncIterator[discord.Message]:
    """Yield the messages of a channel after the id *after*, oldest first; none if the bot may not read there.

    Raises one of `DISCORD_ERRORS`.
    """
    try:
        channel = client.get_channel(channel_id) or await client.fetch_channel(channel_id)
        if isinstance(channel, discord.abc.Messageable):
            async for message in channel.history(limit=None, after=discord.Object(after), oldest_first=True):
                yield message
    except (discord.Forbidden, discord.NotFound) as error:
        log.info("connector.unreadable", connector=CONNECTOR, why=error.text)


async def _skip_next(client: GatewayClient, backfill: _Backfill) -> bool:
    """Move *backfill* past the next message, which discord.py cannot read. Return whether there is one.

    Raises one of `DISCORD_ERRORS`.
    """
    found = await client.http.logs_from(backfill.channel_id, 1, after=backfill.after)
    backfill.after = max((int(message["id"]) for message in found), default=backfill.after)
    return bool(found)


def _channels_of(gap: Gap, client: discord.Client) -> Iterator[int]:
    """Yield the channels that may miss messages."""
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
            if (channel.last_message_id or 0) > gap.after_in(channel.id):
                yield channel.id
    for channel_id in gap.seen:
        if channel_id not in known:  # direct messages, archived threads
            yield channel_id


def _log_fault(error: Exception, message_id: str) -> None:
    log.error(
        "message.failed",
        connector=CONNECTOR,
        why=type(error).__name__,  # not the error's text, which may quote the message
        where=origin(error),
        message_id=message_id,
    )
