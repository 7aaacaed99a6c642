"""Hand Discord's events to the runtime until it accepts them, in order within a channel. I/O.

Discord sends nothing twice and has no acknowledgement. So `Inbox` keeps in this process what the runtime has not
accepted yet. Messages that were written while there was no session, or that found no room, are a `Gap`: `Intake` reads
them over REST.
"""

from __future__ import annotations

import asyncio
import traceback
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
from connectors.health import Backoff, Lanes
from connectors.message import Accepted, InboundMessage, StoreUnavailable

log = structlog.get_logger()

MAX_WAITING = 10_000
MAX_IN_HAND = 2_000
"""Messages that were given out and are not accepted yet. The limit is high, so that one that waits does not hold up the
others."""
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
    """Takes the events of *login*, keeps them in *inbox*, and reads what is missing.

    New messages of a channel wait until its missing ones were read, unless for *patience_seconds* none of them could
    be read. Other channels do not wait.
    """

    def __init__(self, login: Login, inbox: Inbox, backoff: Backoff, patience_seconds: float) -> None:
        self._login = login
        self._inbox = inbox
        self._backoff = backoff
        self._patience_seconds = patience_seconds
        self._servers_known = asyncio.Event()
        self._lanes: Lanes[InboundMessage | _Backfill] = Lanes(self._work_on)
        self._late_lanes: Lanes[_Backfill] = Lanes(self._read_late)
        self._gaps: list[_OpenGap] = []
        self._reading = asyncio.Semaphore(_MAX_CHANNELS_READ)
        self._accept: Accept = _refuse
        self._troubles: dict[str, str] = {}

    @property
    def trouble(self) -> str:
        """Why messages wait; empty if none do."""
        return next(iter(self._troubles.values()), "")

    def session_began(self) -> None:
        """Note a new session. Messages since the end of the last one are missing."""
        self._servers_known.clear()
        self._inbox.put_gap()
        self._inbox.start_at(discord.utils.time_snowflake(discord.utils.utcnow()))

    def servers_known(self) -> None:
        """Note that Discord has described the bot's servers."""
        self._servers_known.set()

    def take(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        """Put an event into the inbox. Neither blocks nor raises."""
        for message in _convert(client, event, args):
            self._inbox.put(message)
        if event == "message":
            self._inbox.note_seen(args[0].channel.id, args[0].id)
        elif event == "unreadable" and args[0] is not None:
            self._inbox.note_seen(*args[0])  # so the next session reads what follows it in its channel

    async def accept_all(self, accept: Accept) -> None:
        """Offer everything in the inbox until cancelled. Items in hand at that time stay the next ones."""
        self._accept = accept
        async with self._late_lanes.opened(), self._lanes.opened() as tasks:
            for gap in self._gaps:
                tasks.create_task(self._find_channels(gap))
            while True:
                item = await self._inbox.get()
                if isinstance(item, Gap):
                    self._gaps.append(_OpenGap(item))
                    tasks.create_task(self._find_channels(self._gaps[-1]))
                else:
                    self._backfill_place(item.external_id)
                    self._lanes.put(item.external_id, item)

    # Offering

    async def _work_on(self, place: str, item: InboundMessage | _Backfill) -> None:
        if isinstance(item, _Backfill):
            await self._read_in_time(place, item)
        else:
            await self._offer(item)
            self._inbox.done()

    async def _offer(self, message: InboundMessage) -> None:
        """Offer *message* until it is accepted. After some failures of ours, give it up."""
        place, backoff, faults = message.external_id, self._backoff.fresh(), 0
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
            await asyncio.sleep(backoff.next_seconds())
        self._troubles.pop(place, None)

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
            self._lanes.put(str(channel_id), _Backfill(channel_id, open_gap.gap.after_in(channel_id)))

    async def _read_in_time(self, place: str, backfill: _Backfill) -> None:
        """Read what is missing. If that makes no progress in time, go on with it next to the new messages."""
        try:
            async with asyncio.timeout(self._patience_seconds) as limit:
                await self._read_all(place, backfill, limit)
        except TimeoutError:
            log.warning("connector.overtaken", connector=CONNECTOR, external_id=place, why=self._troubles.get(place))
            self._late_lanes.put(place, backfill)

    async def _read_late(self, place: str, backfill: _Backfill) -> None:
        async with asyncio.timeout(None) as limit:
            await self._read_all(place, backfill, limit)

    async def _read_all(self, place: str, backfill: _Backfill, limit: asyncio.Timeout) -> None:
        backoff, is_unreadable = self._backoff.fresh(), False
        while True:
            client = await self._login.open_with_retries()
            try:
                async with self._reading:
                    if is_unreadable and not await _skip_next(client, backfill):
                        break
                    is_unreadable = False
                    await self._read_on(client, backfill, limit)
            except DISCORD_ERRORS as error:
                self._troubles[place] = f"what was missed cannot be read yet: {self._login.describe(error)}"
                await asyncio.sleep(backoff.next_seconds(retry_after_seconds(error)))
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                _log_fault(error, f"after {backfill.after}")
                is_unreadable = True
            else:
                break
        self._troubles.pop(place, None)

    async def _read_on(self, client: GatewayClient, backfill: _Backfill, limit: asyncio.Timeout) -> None:
        """Raises one of `DISCORD_ERRORS`."""
        is_limited = limit.when() is not None
        async for message in messages_after(client, backfill.channel_id, backfill.after):
            limit.reschedule(None)  # waiting for the store does not count, and reading has made progress
            for inbound in _convert(client, "message", (message,)):
                await self._offer(inbound)
            backfill.after = message.id
            if is_limited:
                limit.reschedule(asyncio.get_running_loop().time() + self._patience_seconds)


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
    frame = traceback.extract_tb(error.__traceback__)[-1]
    log.error(
        "message.failed",
        connector=CONNECTOR,
        why=type(error).__name__,  # not the error's text, which may quote the message
        where=f"{frame.name}:{frame.lineno}",
        message_id=message_id,
    )


class Inbox:
    """Messages that the runtime has not accepted yet, in order, and the gaps between them.

    One consumer takes items with `get` and reports with `done` that it has finished a message. Putting never waits.
    *limit* messages may wait, and *max_in_hand* may be in the consumer's hand.
    """

    def __init__(self, limit: int = MAX_WAITING, max_in_hand: int = MAX_IN_HAND) -> None:
        self._limit = limit
        self._max_in_hand = max_in_hand
        self._in_hand = 0
        self._waiting: deque[InboundMessage | Gap] = deque()
        self._changed = asyncio.Event()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._start = 0
        self._newest = 0
        self._overflowed = False

    def start_at(self, snowflake: int) -> None:
        """Declare that nothing before *snowflake* is missing. Only the first call counts."""
        self._start = self._start or snowflake

    def put(self, message: InboundMessage) -> None:
        """Add *message*, or make it part of a gap if there is no room."""
        if self._overflowed:
            return
        if len(self._waiting) >= self._limit:
            self._put(self._gap())
            self._overflowed = True
            return
        self._put(message)

    def note_seen(self, channel_id: int, message_id: int) -> None:
        """Note a message of the gateway, by anybody: later ones are new. Call it after `put`."""
        if self._overflowed:
            return  # the message has to be read again
        self._newest = max(self._newest, message_id)
        self._seen[channel_id] = max(message_id, self._seen.get(channel_id, 0))
        self._seen.move_to_end(channel_id)
        if len(self._seen) > MAX_CHANNELS:
            self._seen.popitem(last=False)

    def put_gap(self) -> None:
        """Declare that messages between the last one and the next one may be missing."""
        if self._start and not self._overflowed:
            self._put(self._gap())

    async def get(self) -> InboundMessage | Gap:
        """Return the next item; wait for one. After the gap of an overflow there is room again."""
        while not self._waiting or self._in_hand >= self._max_in_hand:
            self._changed.clear()
            await self._changed.wait()
        item = self._waiting.popleft()
        if isinstance(item, Gap):
            self._overflowed = False
        else:
            self._in_hand += 1
        return item

    def done(self) -> None:
        """Report that a message from `get` was accepted or given up."""
        self._in_hand -= 1
        self._changed.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def _gap(self) -> Gap:
        # By Discord's clock if it has sent a message, else by ours.
        floor = (self._newest or self._start) - (SLACK_MILLISECONDS << _TIME_SHIFT)
        return Gap(seen=dict(self._seen), floor=max(floor, 0))

    def _put(self, item: InboundMessage | Gap) -> None:
        self._waiting.append(item)
        self._changed.set()
