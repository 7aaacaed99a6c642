"""The session at Discord's gateway: opened, kept, given up and opened again; and the truth about it.

discord.py keeps the socket, beats its heart and resumes after a drop. Here is what it does not do: it waits up to
17 minutes between attempts, does not notice a socket that is open but deaf, nor a token that was revoked while
the socket stays open.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import discord
import structlog

from connectors.connector import ConnectorFailed, Health, State
from connectors.discord.errors import DISCORD_ERRORS, Deaf, meaning, retry_after_seconds
from connectors.discord.events import CONNECTOR
from connectors.discord.login import Backoff, GatewayClient, Login

# ---- hearing ----
#
# Whether silence is that of a quiet place or of a socket that has gone deaf. Pure; the clock is handed in.


MAX_CHANNELS = 100
USUAL_GAPS = 3.0
"""Silence of this many usual gaps is asked about."""
_FADES = 0.9
_LONGEST_DOUBT = 5
"""Doublings of the wait after a session that was opened anew and stayed silent, too."""


class Hearing:
    """Remembers when Discord last told something, and the newest message of each channel.

    It is asked about silence of `USUAL_GAPS` times the longest gap of late, but not before ``least_seconds``
    and not later than ``most_seconds``; what is found out is measured against the messages that were heard.
    """

    def __init__(self, least_seconds: float, most_seconds: float, now: float) -> None:
        self._bounds = (least_seconds, max(least_seconds, most_seconds))
        self._heard_at = self._asked_at = now
        self._gap = 0.0
        self._deaf_sessions = 0
        self._newest: OrderedDict[int, int] = OrderedDict()

    def heard(self, now: float) -> None:
        """Something was told."""
        self._gap = max(now - self._heard_at, self._gap * _FADES)
        self._heard_at = self._asked_at = now
        self._deaf_sessions = 0

    def heard_message(self, channel_id: int, message_id: int) -> None:
        """A message was told, whosoever it is."""
        self._newest[channel_id] = max(message_id, self._newest.get(channel_id, 0))
        self._newest.move_to_end(channel_id)
        if len(self._newest) > MAX_CHANNELS:
            self._newest.popitem(last=False)

    def session_began(self, now: float) -> None:
        """A new session tells nothing of before: that is read over REST, and no sign of deafness."""
        self._newest.clear()
        self._asked_at = now

    def found_deaf(self) -> None:
        """A session was given up for its silence: if the next is silent too, it gets more time."""
        self._deaf_sessions = min(self._deaf_sessions + 1, _LONGEST_DOUBT)

    def asked(self, now: float) -> None:
        """Discord was asked about the silence, and it was that of a quiet place."""
        self._asked_at = now

    def seconds_until_doubt(self, now: float) -> float:
        """How long the silence may still last before it is asked about; 0 when it is time."""
        least, most = self._bounds
        patience = min(max(least, USUAL_GAPS * self._gap), most) * 2.0**self._deaf_sessions
        return max(0.0, max(self._heard_at, self._asked_at) + patience - now)

    def newest_in(self, channel_id: int) -> int:
        """The newest message that was heard there, 0 for none."""
        return self._newest.get(channel_id, 0)

    def newest(self, others: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
        """The *count* channels with the newest messages known: those heard, and *others* (channel, message)."""
        known = dict(others)
        for channel_id, message_id in self._newest.items():
            known[channel_id] = max(message_id, known.get(channel_id, 0))
        return sorted(known.items(), key=lambda one: one[1], reverse=True)[:count]


# ---- session ----


log = structlog.get_logger()

_SLOW_SECONDS = 10.0
"""A heartbeat that is answered later than this is as good as none (discord.py warns from here on, too)."""

_HEARTBEATS_MISSED = 2.2
"""After so many intervals without an answer two heartbeats have been missed: the second has had a fifth of one."""

_CHANNELS_ASKED = 3
"""Channels that are looked at when a silence is doubted."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what may last. A gateway from which nothing is heard, heartbeats included, for
    ``heartbeat_timeout_seconds`` is given up (after two unanswered heartbeats it counts as degraded); a session that
    does not come back within ``session_seconds`` is begun anew; a silence of events is asked about after
    ``silence_seconds`` (least, most), and a message that REST shows has ``late_seconds`` to be told by the gateway,
    too. What is new in a channel waits until what was missed there is read, but not for longer than ``missed_seconds``
    in which nothing of it could be."""

    heartbeat_timeout_seconds: float = 60.0
    session_seconds: float = 120.0
    silence_seconds: tuple[float, float] = (60.0, 300.0)
    late_seconds: float = 5.0
    missed_seconds: float = 120.0


class Session:
    """Hears through *login*; *began* is called when a session begins, *heard* with each thing that happens."""

    def __init__(
        self,
        login: Login,
        backoff: Backoff,
        patience: Patience,
        began: Callable[[], None],
        heard: Callable[[GatewayClient, str, tuple[Any, ...]], None],
    ) -> None:
        self._login = login
        self._backoff = backoff
        self._patience = patience
        self._began = began
        self._heard = heard
        self._hearing = Hearing(*patience.silence_seconds, time.monotonic())
        self._limit: asyncio.Timeout | None = None
        self._broken: Exception | None = None
        self._link = Health(State.CONNECTING)
        login.tell = self._hear

    @property
    def health(self) -> Health:
        """The truth about the connection now."""
        client = self._login.client
        if self._link.state is not State.CONNECTED or client is None:
            return self._link
        longest = self._patience.heartbeat_timeout_seconds
        if time.monotonic() - client.heard_at > longest:
            return Health(State.DEGRADED, f"nothing was heard from Discord for more than {longest:.0f} s")
        if time.monotonic() - client.answered_at > _HEARTBEATS_MISSED * client.heartbeat_seconds:
            return Health(State.DEGRADED, "Discord has not answered the last two heartbeats")
        if _SLOW_SECONDS < client.latency < float("inf"):
            return Health(State.DEGRADED, f"Discord answers heartbeats only after {client.latency:.0f} s")
        return self._link

    async def receive(self) -> ConnectorFailed:
        """Keeps a session open; returns when only a person can help, and why."""
        self._link = Health(State.CONNECTING)
        failures = 0
        while True:
            try:
                await self._stay_connected(await self._login.opened())
            except DISCORD_ERRORS as error:
                why = self._login.describe(error)
                needs_person = meaning(error).needs_person
                if needs_person:
                    self._link = Health(State.FAILED, f"{needs_person} ({why})")
                    return ConnectorFailed(self._link.why)
                failures = 1 if self._link.state is State.CONNECTED else failures + 1
                self._lost(why)
                await self._backoff.wait(failures, retry_after_seconds(error))
            except Exception as error:  # noqa: BLE001 - discord.py cannot read a frame, and ended the session for it
                # Without the error's own words, which may quote the message.
                log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
                if (client := self._login.client) is not None:
                    self._heard(client, "unreadable", (client.last_message,))
                failures = 1 if self._link.state is State.CONNECTED else failures + 1
                self._lost("Discord sent something that cannot be read")
                await self._backoff.wait(failures)

    async def watch(self) -> None:
        """Asks about silences, and about refused calls, until cancelled; gives a session up that is deaf."""
        while True:
            await self._until_doubt()
            client = self._login.client
            if client is None or self._link.state is not State.CONNECTED:
                self._hearing.asked(time.monotonic())
                continue
            try:
                await client.http.request(discord.http.Route("GET", "/users/@me"))
                deaf = await self._is_deaf(client)
            except DISCORD_ERRORS as error:
                deaf = False
                if meaning(error).needs_person:
                    self._break(error)
            self._hearing.asked(time.monotonic())
            if deaf:
                log.warning("connector.deaf", connector=CONNECTOR)
                self._hearing.found_deaf()
                self._break(Deaf("Discord has newer messages than its gateway tells of"))

    def stopped(self) -> None:
        """Receiving has ended."""
        if self._link.state is not State.FAILED:
            self._link = Health(State.STOPPED)

    async def _stay_connected(self, client: GatewayClient) -> None:
        """Lets discord.py connect and resume until it gives up, or does without a session for too long.

        It waits up to 17 minutes between attempts: a new session, and reading what was missed, is sooner.
        Raises one of `DISCORD_ERRORS`.
        """
        self._broken = None
        try:
            async with asyncio.timeout(self._patience.session_seconds) as self._limit:
                await client.connect()
        except TimeoutError:
            if self._broken is not None:
                raise self._broken from None
            raise
        except AttributeError as error:
            # discord.py asks the socket that it never had for its session when the first attempt fails.
            cause = error.__context__
            if not isinstance(cause, DISCORD_ERRORS):
                raise
            raise cause from error
        finally:
            self._limit = None
            await self._login.hang_up()
        raise discord.GatewayNotFound  # it returns only when it was closed

    def _hear(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        match event:
            case "socket_event_type":  # told for each event of Discord's, and for nothing else
                self._hearing.heard(time.monotonic())
                if args[0] == "READY":  # only now has Discord accepted the token and what is asked for
                    self._found()
            case "connect":
                self._hearing.session_began(time.monotonic())
                self._began()
            case "resumed":
                self._found()
            case "disconnect":
                self._lost("the connection to Discord was lost")
            case "message":
                self._hearing.heard_message(args[0].channel.id, args[0].id)
        self._heard(client, event, args)

    def _found(self) -> None:
        self._link = Health(State.CONNECTED)
        if self._limit is not None:
            self._limit.reschedule(None)

    def _lost(self, why: str) -> None:
        never_connected = self._link.state is State.CONNECTING
        self._link = Health(State.CONNECTING if never_connected else State.DEGRADED, why)
        if self._limit is not None and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._patience.session_seconds)

    def _break(self, error: Exception) -> None:
        """Ends the session at hand because of *error*."""
        self._broken = error
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _until_doubt(self) -> None:
        doubted = self._login.doubted
        while not doubted.is_set():
            wait_seconds = self._hearing.seconds_until_doubt(time.monotonic())
            if wait_seconds == 0:
                return
            try:
                async with asyncio.timeout(wait_seconds):
                    await doubted.wait()
            except TimeoutError:
                continue  # something may have been heard meanwhile
        doubted.clear()

    async def _is_deaf(self, client: GatewayClient) -> bool:
        """Whether Discord shows messages newer than the newest heard, and does not tell them even now."""
        untold = [
            (channel_id, newer)
            for channel_id, newest in self._hearing.newest(_last_known(client), _CHANNELS_ASKED)
            if (newer := await _newer(client, channel_id, newest))
        ]
        if not untold:
            return False
        await asyncio.sleep(self._patience.late_seconds)
        return any(self._hearing.newest_in(channel_id) < newer for channel_id, newer in untold)


async def _newer(client: GatewayClient, channel_id: int, newest: int) -> int:
    """A message after *newest* there, 0 for none, or where the bot may not read."""
    try:
        found = await client.http.logs_from(channel_id, 1, after=newest)
    except (discord.Forbidden, discord.NotFound):
        return 0
    return max((int(one["id"]) for one in found), default=0)


def _may_read(channel: discord.TextChannel | discord.Thread) -> bool:
    if isinstance(channel, discord.Thread) and channel.parent is None:
        return False  # discord.py knows no permissions then
    return channel.permissions_for(channel.guild.me).read_message_history


def _last_known(client: GatewayClient) -> list[tuple[int, int]]:
    """Channels of servers that the bot may read, with the last message that discord.py knows of."""
    known: list[tuple[int, int]] = []
    for guild in client.guilds:
        channels: tuple[discord.TextChannel | discord.Thread, ...] = (*guild.text_channels, *guild.threads)
        known += [
            (channel.id, channel.last_message_id)
            for channel in channels
            if channel.last_message_id and _may_read(channel)
        ]
    return known
