"""Discord, over its gateway: I/O only. What events mean is in `convert`, what errors mean in `errors`.

discord.py keeps the socket, beats its heart and resumes after a drop. A session that cannot be resumed has
lost what was said in between; that is read over REST before anything newer is accepted.
"""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import discord
import structlog
from aiohttp import ClientError
from discord.gateway import DiscordWebSocket
from discord.http import Route
from pydantic import SecretStr

from connectors.connector import Accept, Capabilities, ConnectorFailed, Health, SendFailed, State
from connectors.discord import convert
from connectors.discord.client import LONGEST_RATE_LIMIT_SECONDS, SESSION_WAIT_SECONDS, GatewayClient
from connectors.discord.errors import DISCORD_ERRORS, DiscordUnavailable, meaning, retry_after_seconds, send_failed
from connectors.discord.events import heard
from connectors.discord.inbox import Gap, Inbox
from connectors.message import (
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
    StoreUnavailable,
)

log = structlog.get_logger()

_Result = TypeVar("_Result")

_MESSAGES = "/channels/{channel_id}/messages"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"

_ATTEMPTS_PER_MESSAGE = 3
"""How often a message is offered when accepting it fails for another reason than an absent store."""

_SLOW_SECONDS = 10.0
"""A heartbeat that is answered later than this is as good as none (discord.py warns from here on, too)."""

_CLOSE_SECONDS = 5.0


class DiscordConnector:
    """A bot on Discord: `connectors.connector.Connector`, `EditsMessages`, `ShowsTyping`, `Reacts`, `FetchesMissed`.

    ``timeout_seconds`` bounds one request; a call may also wait for rate limits. A gateway from which nothing
    is heard for ``heartbeat_timeout_seconds`` (Discord wants a heartbeat every 41 s, and answers each) is
    given up, and a session that does not come back within ``patience_seconds`` is begun anew.
    """

    name = convert.CONNECTOR
    capabilities = Capabilities(
        max_part_units=convert.MAX_TEXT_UNITS,
        units="utf16",
        threads=True,
        idempotency="nonce",
        # Discord tells its limits in headers, and discord.py waits by them: 5 in 5 s for one channel.
        sends_per_second=1.0,
        edits_per_second=1.0,
    )
    typing_lasts_seconds = 10.0

    def __init__(
        self,
        token: SecretStr,
        api_base: str = "https://discord.com/api/v10",
        gateway_url: str = "wss://gateway.discord.gg/",
        *,
        timeout_seconds: float = 20.0,
        heartbeat_timeout_seconds: float = 60.0,
        patience_seconds: float = 120.0,
        ready_seconds: float = 2.0,
        session_wait_seconds: float = SESSION_WAIT_SECONDS,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
        inbox: Inbox | None = None,
    ) -> None:
        self._token = token
        self._addresses = (api_base, gateway_url)
        self._timeout_seconds = timeout_seconds
        self._longest_call_seconds = timeout_seconds + 2 * LONGEST_RATE_LIMIT_SECONDS
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._patience_seconds = patience_seconds
        self._ready_seconds = ready_seconds
        self._session_wait_seconds = session_wait_seconds
        self._first_backoff_seconds = first_backoff_seconds
        self._longest_backoff_seconds = longest_backoff_seconds
        self._inbox = inbox or Inbox()
        self._client: GatewayClient | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._link = Health(State.CONNECTING)
        self._trouble = ""
        self._patience: asyncio.Timeout | None = None
        self._servers_known = asyncio.Event()

    @property
    def health(self) -> Health:
        if self._link.state is not State.CONNECTED or self._client is None:
            return self._link
        silent_seconds = time.monotonic() - self._client.heard_at
        if silent_seconds > self._heartbeat_timeout_seconds:
            return Health(State.DEGRADED, f"nothing was heard from Discord for {silent_seconds:.0f} s")
        latency = self._client.latency
        if _SLOW_SECONDS < latency < float("inf"):
            return Health(State.DEGRADED, f"Discord answers heartbeats only after {latency:.0f} s")
        return Health(State.DEGRADED, self._trouble) if self._trouble else self._link

    async def run(self, accept: Accept) -> None:
        """Receives until cancelled. Raises `ConnectorFailed` when only a person can help."""
        try:
            async with asyncio.TaskGroup() as group:
                accepting = group.create_task(self._accept_all(accept), name="discord accepts")
                failed = await self._receive()
                accepting.cancel()
            raise failed
        finally:
            if self._client is not None:
                await self._hang_up(self._client)
            if self._link.state is not State.FAILED:
                self._link = Health(State.STOPPED)

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return convert.to_parts(message)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        body = _checked(lambda: convert.to_send(message, part))
        route = Route("POST", _MESSAGES, channel_id=_id(message.key.external_id))
        sent = await self._ask(lambda client: client.http.request(route, json=body))
        return Receipt(message_id=str(sent["id"]))

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        place, message_id = _id(message.key.external_id), _id(receipt.message_id)
        route = Route("PATCH", _MESSAGE, channel_id=place, message_id=message_id)
        await self._ask(lambda client: client.http.request(route, json=convert.to_edit(part)))

    async def typing(self, key: ConversationKey) -> None:
        await self._ask_in_passing(lambda client: client.http.send_typing(_id(key.external_id)))

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        await self._ask_in_passing(
            lambda client: client.http.add_reaction(_id(key.external_id), _id(message_id), emoji)
        )

    async def missed(self, key: ConversationKey, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """What was said after *after_message_id* and still stands, oldest first.

        Raises `DiscordUnavailable`; nothing where the bot may not read the channel (any more).
        """
        try:
            client = await self._opened()
            async for said in self._said_after(client, _id(key.external_id), _id(after_message_id)):
                message = convert.from_message(said, _me(client))
                if message is not None:
                    yield message
        except DISCORD_ERRORS as error:
            raise DiscordUnavailable(f"Discord could not be asked what was missed: {self._describe(error)}") from error

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await self._let_go(client)
        if self._link.state is not State.FAILED:
            self._link = Health(State.STOPPED)

    # Receiving

    async def _receive(self) -> ConnectorFailed:
        """Keeps a session open; returns when only a person can help, and why."""
        failures = 0
        while True:
            try:
                client = await self._opened()
                await self._stay_connected(client)
            except DISCORD_ERRORS as error:
                needs_person = meaning(error).needs_person
                if needs_person:
                    self._link = Health(State.FAILED, f"{needs_person} ({self._describe(error)})")
                    return ConnectorFailed(self._link.why)
                failures = 0 if self._link.state is State.CONNECTED else failures + 1
                self._lost(self._describe(error))
                await self._back_off(failures, retry_after_seconds(error))

    async def _stay_connected(self, client: GatewayClient) -> None:
        """Lets discord.py connect and resume until it gives up, or does without a session for too long.

        It waits up to 17 minutes between attempts: a new session, and reading what was missed, is sooner.
        """
        try:
            async with asyncio.timeout(self._patience_seconds) as self._patience:
                await client.connect()
        except AttributeError as error:
            # discord.py asks the socket that it never had for its session when the first attempt fails.
            if client.ws is not None:
                raise
            cause = error.__context__
            raise (cause if isinstance(cause, DISCORD_ERRORS) else discord.GatewayNotFound()) from error
        finally:
            self._patience = None
            await self._hang_up(client)
        raise discord.GatewayNotFound  # it returns only when it was closed

    def _tell(self, event: str, args: tuple[Any, ...]) -> None:
        """What the gateway says, in order. The boundary: one event must not end the session."""
        client = self._client
        if client is None or client.user is None:
            return
        match event:
            case "connect":
                self._servers_known.clear()
                self._inbox.put_gap()
                self._inbox.start_at(discord.utils.time_snowflake(discord.utils.utcnow()))
                self._found()
            case "ready":
                self._servers_known.set()
            case "resumed":
                self._found()
            case "disconnect":
                self._lost("the connection to Discord was lost")
            case _:
                try:
                    messages = heard(client, client.user.id, event, args)
                except Exception as error:  # noqa: BLE001 - logged; the others go on
                    self._unreadable(error)
                    return
                for message in messages:
                    self._inbox.put(message)
                if event == "message":
                    self._inbox.saw(args[0].channel.id, args[0].id)

    def _found(self) -> None:
        self._link = Health(State.CONNECTED)
        if self._patience is not None:
            self._patience.reschedule(None)

    def _lost(self, why: str) -> None:
        never_connected = self._link.state is State.CONNECTING
        if self._patience is not None and self._patience.when() is None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._patience_seconds)
        self._link = Health(State.CONNECTING if never_connected else State.DEGRADED, why)

    # Accepting

    async def _accept_all(self, accept: Accept) -> None:
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
        failures = 0
        faults = 0
        while True:
            try:
                await accept(message)
            except StoreUnavailable:
                self._trouble = "the store is unavailable; messages wait in this process"
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                faults += 1
                _log_fault(error, message_id=message.message_id)
                if faults == _ATTEMPTS_PER_MESSAGE:
                    break
                self._trouble = f"a message could not be accepted ({type(error).__name__})"
            else:
                break
            failures += 1
            await self._back_off(failures)
        self._trouble = ""

    async def _fill(self, gap: Gap, accept: Accept) -> None:
        """Reads what was said while nobody listened, channel by channel."""
        client = await self._opened_at_last()
        with suppress(TimeoutError):  # then with the servers that are known by now
            async with asyncio.timeout(self._longest_call_seconds):
                await self._servers_known.wait()
        for channel_id, after in list(_places_of(gap, client)):
            await self._catch_up(channel_id, after, accept)

    async def _catch_up(self, channel_id: int, after: int, accept: Accept) -> None:
        failures = 0
        while True:
            client = await self._opened_at_last()
            try:
                async for said in self._said_after(client, channel_id, after):
                    for message in self._understood(client, said):
                        await self._offer(message, accept)
                    after = said.id
            except DISCORD_ERRORS as error:
                failures += 1
                self._trouble = f"what was missed cannot be read yet: {self._describe(error)}"
                await self._back_off(failures, retry_after_seconds(error))
            else:
                self._trouble = ""
                return

    def _understood(self, client: GatewayClient, said: discord.Message) -> tuple[InboundMessage, ...]:
        try:
            return heard(client, _me(client), "message", (said,))
        except Exception as error:  # noqa: BLE001 - logged; the others go on
            self._unreadable(error)
            return ()

    async def _said_after(self, client: GatewayClient, channel_id: int, after: int) -> AsyncIterator[discord.Message]:
        try:
            channel = client.get_channel(channel_id) or await client.fetch_channel(channel_id)
            if isinstance(channel, discord.abc.Messageable):
                async for message in channel.history(limit=None, after=discord.Object(after), oldest_first=True):
                    yield message
        except (discord.Forbidden, discord.NotFound) as error:
            log.info("connector.unreadable", connector=self.name, why=self._describe(error))

    async def _opened_at_last(self) -> GatewayClient:
        failures = 0
        while True:
            try:
                return await self._opened()
            except DISCORD_ERRORS as error:
                failures += 1
                await self._back_off(failures, retry_after_seconds(error))

    async def _back_off(self, failures: int, asked_seconds: float | None = None) -> None:
        # Exponential with jitter, so that many bots do not come back in the same instant.
        longest = min(self._longest_backoff_seconds, self._first_backoff_seconds * 2.0 ** min(failures, 20))
        await asyncio.sleep(asked_seconds or longest * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _unreadable(self, error: Exception) -> None:
        log.warning("message.ignored", connector=self.name, why="unreadable", error=type(error).__name__)

    # Calling

    async def _opened(self) -> GatewayClient:
        """A client that is logged in. Raises what discord.py raises, and `SendFailed` after `close`."""
        async with self._opening:
            if self._closed:
                raise SendFailed("The Discord connector was closed.", retryable=True)
            if self._client is None or self._client.is_closed():
                client = self._new_client()
                try:
                    async with asyncio.timeout(self._longest_call_seconds):
                        await client.login(self._token.get_secret_value())
                except BaseException:
                    await self._let_go(client)
                    raise
                self._client = client
            return self._client

    def _new_client(self) -> GatewayClient:
        return GatewayClient(
            self._tell,
            *self._addresses,
            timeout_seconds=self._timeout_seconds,
            heartbeat_timeout_seconds=self._heartbeat_timeout_seconds,
            ready_seconds=self._ready_seconds,
            session_wait_seconds=self._session_wait_seconds,
        )

    async def _ask(self, call: Callable[[GatewayClient], Awaitable[_Result]]) -> _Result:
        try:
            client = await self._opened()
        except DISCORD_ERRORS as error:
            found = meaning(error)
            raise SendFailed(f"Discord was not reached: {self._describe(error)}", retryable=found.retryable) from error
        try:
            async with asyncio.timeout(self._longest_call_seconds):
                return await call(client)
        except DISCORD_ERRORS as error:
            raise send_failed(error, self._describe(error)) from error

    async def _ask_in_passing(self, call: Callable[[GatewayClient], Awaitable[None]]) -> None:
        """Asks for what may be lost."""
        try:
            await self._ask(call)
        except SendFailed as failed:
            log.debug("connector.sign_lost", connector=self.name, why=str(failed))

    async def _hang_up(self, client: GatewayClient) -> None:
        """Ends the session; calls can still be made."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                socket: DiscordWebSocket | None = client.ws  # None until the first attempt succeeds
                if socket is not None and socket.open:
                    await socket.close(code=1000)
        except (TimeoutError, OSError, ClientError) as error:
            log.warning("connector.close_failed", connector=self.name, why=type(error).__name__)

    async def _let_go(self, client: GatewayClient) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await client.close()
        except (TimeoutError, OSError, ClientError) as error:
            log.warning("connector.close_failed", connector=self.name, why=type(error).__name__)

    def _describe(self, error: Exception) -> str:
        """*error* in one line, without the token."""
        text = str(error).replace(self._token.get_secret_value(), "**********") or type(error).__name__
        return " ".join(text.split())[:300]


def _me(client: GatewayClient) -> int:
    assert client.user is not None  # it is logged in
    return client.user.id


def _id(text: str) -> int:
    return _checked(lambda: int(text))


def _checked(build: Callable[[], _Result]) -> _Result:
    try:
        return build()
    except ValueError as error:
        raise SendFailed(f"Not an id of Discord's: {error}", retryable=False) from error


def _places_of(gap: Gap, client: GatewayClient) -> Iterator[tuple[int, int]]:
    """The channels that may hold something new, and after which message."""
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


def _log_fault(error: Exception, message_id: str) -> None:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    log.error(
        "message.failed",
        connector=convert.CONNECTOR,
        why=type(error).__name__,  # without the error's own words, which may quote the message
        where=f"{frame.name}:{frame.lineno}",
        message_id=message_id,
    )
