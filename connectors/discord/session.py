"""The session at Discord's gateway: opened, watched, given up and opened again; and its health.

discord.py keeps the socket, sends heartbeats and resumes after a drop. `Session` does what discord.py does not: it
limits the wait between attempts (discord.py waits up to 17 minutes), and it notices a socket that delivers no events,
and a token that was revoked while the socket stays open.
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

from connectors.connector import ConnectionState, ConnectorFailed, Health
from connectors.discord.errors import DISCORD_ERRORS, Deaf, meaning, retry_after_seconds
from connectors.discord.events import CONNECTOR
from connectors.discord.login import GatewayClient, Login
from connectors.health import Backoff

log = structlog.get_logger()

MAX_CHANNELS = 100
"""The channels whose newest message is remembered."""

_SLOW_SECONDS = 10.0
"""A heartbeat that is answered later is as good as unanswered (discord.py warns at the same limit)."""

_HEARTBEATS_MISSED = 2.2
"""After so many intervals without an answer, two heartbeats are unanswered: the second one for a fifth of one."""

_CHANNELS_CHECKED = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """How long `Session` and `Intake` wait before they act.

    - ``heartbeat_timeout_seconds``: a gateway that sends nothing, not even answers to heartbeats, is given up.
    - ``session_seconds``: if a session does not come back, a new one is opened.
    - ``silence_seconds`` (first, longest): if there are no events, Discord is asked whether that is true.
    - ``late_seconds``: a message that REST shows may take so long to come from the gateway.
    - ``missed_seconds``: new messages of a channel wait for missed ones, while reading those makes progress.
    """

    heartbeat_timeout_seconds: float = 60.0
    session_seconds: float = 120.0
    silence_seconds: tuple[float, float] = (60.0, 300.0)
    late_seconds: float = 5.0
    missed_seconds: float = 120.0


class Session:
    """Receives through *login*. *began* is called for each new session, *on_event* for each event."""

    def __init__(
        self,
        login: Login,
        backoff: Backoff,
        patience: Patience,
        began: Callable[[], None],
        on_event: Callable[[GatewayClient, str, tuple[Any, ...]], None],
    ) -> None:
        self._login = login
        self._backoff = backoff
        self._patience = patience
        self._began = began
        self._on_event = on_event
        self._silence = Silence(*patience.silence_seconds, time.monotonic())
        self._newest = NewestMessages()
        self._deadline: asyncio.Timeout | None = None
        self._end_reason: Exception | None = None
        self._link = Health(ConnectionState.CONNECTING)
        login.on_event = self._take

    @property
    def health(self) -> Health:
        client = self._login.client
        if self._link.state is not ConnectionState.CONNECTED or client is None:
            return self._link
        timeout = self._patience.heartbeat_timeout_seconds
        if time.monotonic() - client.heard_at > timeout:
            return Health(ConnectionState.DEGRADED, f"nothing was heard from Discord for more than {timeout:.0f} s")
        if time.monotonic() - client.answered_at > _HEARTBEATS_MISSED * client.heartbeat_seconds:
            return Health(ConnectionState.DEGRADED, "Discord has not answered the last two heartbeats")
        if _SLOW_SECONDS < client.latency < float("inf"):
            return Health(ConnectionState.DEGRADED, f"Discord answers heartbeats only after {client.latency:.0f} s")
        return self._link

    async def receive(self) -> ConnectorFailed:
        """Keep a session open. Return, with the reason, if only a person can help."""
        self._link = Health(ConnectionState.CONNECTING)
        backoff = self._backoff.fresh()
        while True:
            try:
                await self._connect(await self._login.open())
            except DISCORD_ERRORS as error:
                why = self._login.describe(error)
                needs_person = meaning(error).needs_person
                if needs_person:
                    self._link = Health(ConnectionState.FAILED, f"{needs_person} ({why})")
                    return ConnectorFailed(self._link.why)
                asked_seconds = retry_after_seconds(error)
            except Exception as error:  # noqa: BLE001 - discord.py cannot read a frame, and ended the session for it
                # Not the error's text, which may quote the message.
                log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
                if (client := self._login.client) is not None:
                    self._on_event(client, "unreadable", (client.last_message,))
                why = "Discord sent something that cannot be read"
                asked_seconds = None
            if self._link.state is ConnectionState.CONNECTED:
                backoff.failures = 0
            self._note_lost(why)
            await asyncio.sleep(backoff.next_seconds(asked_seconds))

    async def watch(self) -> None:
        """Check long silences, and the token after a refused call, until cancelled. End a session that is deaf."""
        while True:
            await self._wait_for_doubt()
            client = self._login.client
            if client is None or self._link.state is not ConnectionState.CONNECTED:
                self._silence.note_check(time.monotonic())
                continue
            try:
                await client.http.request(discord.http.Route("GET", "/users/@me"))
                is_deaf = await self._is_deaf(client)
            except DISCORD_ERRORS as error:
                is_deaf = False
                if meaning(error).needs_person:
                    self._end_session(error)
            self._silence.note_check(time.monotonic())
            if is_deaf:
                log.warning("connector.deaf", connector=CONNECTOR)
                self._end_session(Deaf("Discord has newer messages than its gateway tells of"))

    def stopped(self) -> None:
        """Report that receiving has ended. A failure stays a failure."""
        if self._link.state is not ConnectionState.FAILED:
            self._link = Health(ConnectionState.STOPPED)

    async def _connect(self, client: GatewayClient) -> None:
        """Let discord.py connect and resume, until it gives up or has had no session for too long.

        It waits up to 17 minutes between attempts. A new session, after which the missed messages are read, is sooner.
        Raises one of `DISCORD_ERRORS`.
        """
        self._end_reason = None
        try:
            async with asyncio.timeout(self._patience.session_seconds) as self._deadline:
                await client.connect()
        except TimeoutError:
            if self._end_reason is not None:
                raise self._end_reason from None
            raise
        except AttributeError as error:
            # If the first attempt fails, discord.py asks a socket that does not exist for its session.
            cause = error.__context__
            if not isinstance(cause, DISCORD_ERRORS):
                raise
            raise cause from error
        finally:
            self._deadline = None
            await self._login.hang_up()
        raise discord.GatewayNotFound  # connect() returns only after the client was closed

    def _take(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        match event:
            case "socket_event_type":  # sent for each event of Discord's, and for nothing else
                self._silence.end(time.monotonic())
                if args[0] == "READY":  # Discord accepts the token and the intents only now
                    self._note_connected()
            case "connect":
                self._newest.clear()
                self._silence.note_check(time.monotonic())
                self._began()
            case "resumed":
                self._note_connected()
            case "disconnect":
                self._note_lost("the connection to Discord was lost")
            case "message":
                self._newest.note(args[0].channel.id, args[0].id)
        self._on_event(client, event, args)

    def _note_connected(self) -> None:
        self._link = Health(ConnectionState.CONNECTED)
        if self._deadline is not None:
            self._deadline.reschedule(None)

    def _note_lost(self, why: str) -> None:
        never_connected = self._link.state is ConnectionState.CONNECTING
        self._link = Health(ConnectionState.CONNECTING if never_connected else ConnectionState.DEGRADED, why)
        if self._deadline is not None and self._deadline.when() is None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._patience.session_seconds)

    def _end_session(self, error: Exception) -> None:
        self._end_reason = error
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _wait_for_doubt(self) -> None:
        """Wait until a silence is too long, or a call was refused."""
        token_in_doubt = self._login.token_in_doubt
        while not token_in_doubt.is_set():
            wait_seconds = self._silence.seconds_until_check(time.monotonic())
            if wait_seconds == 0:
                return
            try:
                async with asyncio.timeout(wait_seconds):
                    await token_in_doubt.wait()
            except TimeoutError:
                continue  # an event may have come meanwhile
        token_in_doubt.clear()

    async def _is_deaf(self, client: GatewayClient) -> bool:
        """Return whether Discord has newer messages than the gateway delivers, even after a short wait."""
        undelivered = [
            (channel_id, newer)
            for channel_id, newest in self._newest.newest_channels(_last_messages(client), _CHANNELS_CHECKED)
            if (newer := await _message_after(client, channel_id, newest))
        ]
        if not undelivered:
            return False
        await asyncio.sleep(self._patience.late_seconds)
        return any(self._newest.newest_in(channel_id) < newer for channel_id, newer in undelivered)


class Silence:
    """Decides when a silence of the gateway has to be checked: after *first_seconds*.

    If the check finds nothing, the next wait is twice as long, but at most *longest_seconds*.
    """

    def __init__(self, first_seconds: float, longest_seconds: float, now: float) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = max(first_seconds, longest_seconds)
        self._wait_seconds = first_seconds
        self._since = now

    def end(self, now: float) -> None:
        """Note an event."""
        self._since = now
        self._wait_seconds = self._first_seconds

    def note_check(self, now: float) -> None:
        """Note that the silence was checked, or that a new session began."""
        self._since = now
        self._wait_seconds = min(2 * self._wait_seconds, self._longest_seconds)

    def seconds_until_check(self, now: float) -> float:
        """Return how long the silence may still last; 0 if it has to be checked now."""
        return max(0.0, self._since + self._wait_seconds - now)


class NewestMessages:
    """The newest message that the gateway has delivered in each of the last `MAX_CHANNELS` channels."""

    def __init__(self) -> None:
        self._newest: OrderedDict[int, int] = OrderedDict()

    def note(self, channel_id: int, message_id: int) -> None:
        self._newest[channel_id] = max(message_id, self._newest.get(channel_id, 0))
        self._newest.move_to_end(channel_id)
        if len(self._newest) > MAX_CHANNELS:
            self._newest.popitem(last=False)

    def clear(self) -> None:
        """Forget everything: a new session does not deliver what came before it, and that is no deafness."""
        self._newest.clear()

    def newest_in(self, channel_id: int) -> int:
        """Return the newest message of a channel, or 0."""
        return self._newest.get(channel_id, 0)

    def newest_channels(self, others: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
        """Return the *count* channels with the newest messages: from this record and *others* (channel, message)."""
        known = dict(others)
        for channel_id, message_id in self._newest.items():
            known[channel_id] = max(message_id, known.get(channel_id, 0))
        return sorted(known.items(), key=lambda item: item[1], reverse=True)[:count]


async def _message_after(client: GatewayClient, channel_id: int, message_id: int) -> int:
    """Return a newer message of a channel; 0 if there is none or the bot may not read there."""
    try:
        found = await client.http.logs_from(channel_id, 1, after=message_id)
    except (discord.Forbidden, discord.NotFound):
        return 0
    return max((int(message["id"]) for message in found), default=0)


def _last_messages(client: GatewayClient) -> list[tuple[int, int]]:
    """Return the channels of servers that the bot may read, with the last message that discord.py knows."""
    known: list[tuple[int, int]] = []
    for guild in client.guilds:
        channels: tuple[discord.TextChannel | discord.Thread, ...] = (*guild.text_channels, *guild.threads)
        known += [
            (channel.id, channel.last_message_id)
            for channel in channels
            if channel.last_message_id and _may_read(channel)
        ]
    return known


def _may_read(channel: discord.TextChannel | discord.Thread) -> bool:
    if isinstance(channel, discord.Thread) and channel.parent is None:
        return False  # discord.py knows no permissions then
    return channel.permissions_for(channel.guild.me).read_message_history
