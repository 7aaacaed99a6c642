"""What is said on Discord, offered to the gateway's door until it is accepted: in order within a channel."""

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
from connectors.discord import events
from connectors.discord.errors import DISCORD_ERRORS, retry_after_seconds
from connectors.discord.events import CONNECTOR
from connectors.discord.login import Backoff, GatewayClient, Login
from connectors.health import Lanes
from connectors.message import Accepted, InboundKind, InboundMessage, StoreUnavailable

# ---- inbox ----
#
# What the gateway said and nobody has accepted yet, in order; and from where on something is missing.
#
# Discord has no acknowledgement: what the gateway has sent, it does not send again. So it waits here,
# in this process, until it is accepted. What does not fit any more is left out, and read later over
# REST like everything that was said while there was no session.


MAX_WAITING = 10_000
MAX_IN_HAND = 2_000
"""Messages that were given out and are not accepted yet: one that waits must not keep others from being given out."""
MAX_CHANNELS = 10_000

SLACK_MILLISECONDS = 60_000
"""How much older than the newest message seen one may be that was not sent yet."""

_TIME_SHIFT = 22
"""Reference, "Snowflakes": the bits above these are milliseconds."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages may be missing: in each channel of ``seen`` those after the id there, in others those
    after ``floor``."""

    seen: Mapping[int, int]
    floor: int


class Inbox:
    """One consumer takes by `get`, and says of each message when it is `done` with it; putting never waits.

    *limit* messages may wait, and *at_once* may be in hand.
    """

    def __init__(self, limit: int = MAX_WAITING, at_once: int = MAX_IN_HAND) -> None:
        self._limit = limit
        self._at_once = at_once
        self._in_hand = 0
        self._waiting: deque[InboundMessage | Gap] = deque()
        self._moved = asyncio.Event()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._start = 0
        self._newest = 0
        self._overflowed = False

    def start_at(self, snowflake: int) -> None:
        """Nothing before *snowflake* is missing. The first call counts."""
        self._start = self._start or snowflake

    def saw(self, channel_id: int, message_id: int) -> None:
        """The gateway sent a message, whosoever it is: what comes after it is new. To be said after `put`."""
        if self._overflowed:
            return  # it is among those that are to be read again
        self._newest = max(self._newest, message_id)
        self._seen[channel_id] = max(message_id, self._seen.get(channel_id, 0))
        self._seen.move_to_end(channel_id)
        if len(self._seen) > MAX_CHANNELS:
            self._seen.popitem(last=False)

    def put(self, message: InboundMessage) -> None:
        """*message* waits to be accepted, or is left out and belongs to a gap."""
        if self._overflowed:
            return
        if len(self._waiting) >= self._limit:
            self._put(self._gap())
            self._overflowed = True
            return
        self._put(message)

    def put_gap(self) -> None:
        """From here on nothing may be missing, before it something may."""
        if self._start and not self._overflowed:
            self._put(self._gap())

    async def get(self) -> InboundMessage | Gap:
        """The next; waits for one. After the `Gap` of what did not fit there is room again."""
        while not self._waiting or self._in_hand >= self._at_once:
            self._moved.clear()
            await self._moved.wait()
        item = self._waiting.popleft()
        if isinstance(item, Gap):
            self._overflowed = False
        else:
            self._in_hand += 1
        return item

    def done(self) -> None:
        """A message that was given out is accepted, or given up."""
        self._in_hand -= 1
        self._moved.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def _gap(self) -> Gap:
        # By the clock of Discord, if it has shown any.
        floor = (self._newest or self._start) - (SLACK_MILLISECONDS << _TIME_SHIFT)
        return Gap(seen=dict(self._seen), floor=max(floor, 0))

    def _put(self, item: InboundMessage | Gap) -> None:
        self._waiting.append(item)
        self._moved.set()


# ---- events ----
#
# Which of our nouns an event of discord.py's becomes. Looks things up in the client's memory, no I/O.


def heard(client: discord.Client, me: int, event: str, args: tuple[Any, ...]) -> tuple[InboundMessage, ...]:
    """What *event* (discord.py's name of it) with *args* says to the bot whose user id is *me*."""
    match event:
        case "message":
            return _one(events.from_message(args[0], me))
        case "raw_message_edit":
            return _one(events.from_edit(args[0], me))
        case "raw_message_delete":
            return _deleted(client, me, args[0])
        case "raw_bulk_message_delete":
            return _all_deleted(client, me, args[0])
        case "raw_reaction_add" | "raw_reaction_remove":
            event_of: discord.RawReactionActionEvent = args[0]
            place = _place(client, event_of.channel_id, event_of.guild_id)
            return _one(events.from_reaction(event_of, place, me))
        case "guild_join":
            return (events.from_membership(args[0], me, InboundKind.JOINED),)
        case "guild_remove":
            return (events.from_membership(args[0], me, InboundKind.LEFT),)
        case _:
            return ()


def place_of(interaction: discord.Interaction[Any]) -> events.Place:
    """Where somebody gave a command. Raises `TypeError` where nothing can be said."""
    if not isinstance(interaction.channel, events.Place):
        raise TypeError("an interaction in a place without messages")
    return interaction.channel


def _one(message: InboundMessage | None) -> tuple[InboundMessage, ...]:
    return () if message is None else (message,)


def _deleted(client: discord.Client, me: int, event: discord.RawMessageDeleteEvent) -> tuple[InboundMessage, ...]:
    place = _place(client, event.channel_id, event.guild_id)
    return _one(events.from_delete(event.message_id, event.cached_message, place, me))


def _all_deleted(
    client: discord.Client, me: int, event: discord.RawBulkMessageDeleteEvent
) -> tuple[InboundMessage, ...]:
    place = _place(client, event.channel_id, event.guild_id)
    remembered = {message.id: message for message in event.cached_messages}
    found = (events.from_delete(one, remembered.get(one), place, me) for one in sorted(event.message_ids))
    return tuple(message for message in found if message is not None)


def _place(client: discord.Client, channel_id: int, guild_id: int | None) -> events.Place:
    known = client.get_channel(channel_id)
    if isinstance(known, discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread):
        return known
    return client.get_partial_messageable(channel_id, guild_id=guild_id)


# ---- intake ----


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
        elif event == "unreadable" and args[0] is not None:
            self._inbox.saw(*args[0])  # so what comes after it in that channel is read in the next session

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
        failures, is_unreadable = 0, False
        while True:
            client = await self._login.opened_at_last()
            try:
                async with self._reading:
                    if is_unreadable and not await _skip_next(client, missing):
                        break
                    is_unreadable = False
                    await self._read_on(client, missing, limit)
            except DISCORD_ERRORS as error:
                failures += 1
                self._troubles[place] = f"what was missed cannot be read yet: {self._login.describe(error)}"
                await self._backoff.wait(failures, retry_after_seconds(error))
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                _log_fault(error, f"after {missing.after}")
                is_unreadable = True
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


async def _skip_next(client: GatewayClient, missing: _Missing) -> bool:
    """Move *missing* past the next message, which discord.py cannot read; return whether there is one.

    Raises one of `DISCORD_ERRORS`.
    """
    found = await client.http.logs_from(missing.channel_id, 1, after=missing.after)
    missing.after = max((int(message["id"]) for message in found), default=missing.after)
    return bool(found)


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
