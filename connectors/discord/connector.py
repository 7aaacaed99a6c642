"""Discord, over its gateway: I/O only. What events mean is in `convert`, what errors mean in `errors`.

discord.py keeps the socket, beats its heart and resumes after a drop. A session that cannot be resumed has
lost what was said in between; `intake` reads that over REST before anything newer is accepted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import discord
from discord.http import Route
from pydantic import SecretStr

from connectors.connector import Accept, Capabilities, ConnectorFailed, Health, SendFailed, State
from connectors.discord import convert
from connectors.discord.client import SESSION_WAIT_SECONDS, GatewayClient, Told
from connectors.discord.errors import DISCORD_ERRORS, DiscordUnavailable, meaning, retry_after_seconds
from connectors.discord.inbox import Inbox
from connectors.discord.intake import Intake, said_after
from connectors.discord.login import Backoff, Login
from connectors.message import ConversationKey, InboundMessage, OutboundMessage, OutboundPart, Receipt

_Result = TypeVar("_Result")

_MESSAGES = "/channels/{channel_id}/messages"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"

_SLOW_SECONDS = 10.0
"""A heartbeat that is answered later than this is as good as none (discord.py warns from here on, too)."""


class DiscordConnector:
    """A bot on Discord: `connectors.connector.Connector`, `EditsMessages`, `ShowsTyping`, `Reacts`, `FetchesMissed`.

    ``timeout_seconds`` bounds one request; a call may also wait ``rate_limit_seconds`` for rate limits. A
    gateway from which nothing is heard for ``heartbeat_timeout_seconds`` (Discord wants a heartbeat every 41 s,
    and answers each) is given up, and a session that does not come back within ``patience_seconds`` is begun
    anew.
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
        rate_limit_seconds: float = 60.0,
        heartbeat_timeout_seconds: float = 60.0,
        patience_seconds: float = 120.0,
        ready_seconds: float = 2.0,
        session_wait_seconds: float = SESSION_WAIT_SECONDS,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
        inbox: Inbox | None = None,
    ) -> None:
        def client(told: Told) -> GatewayClient:
            return GatewayClient(
                told,
                api_base,
                gateway_url,
                timeout_seconds=timeout_seconds,
                heartbeat_timeout_seconds=heartbeat_timeout_seconds,
                ready_seconds=ready_seconds,
                session_wait_seconds=session_wait_seconds,
            )

        self._backoff = Backoff(first_backoff_seconds, longest_backoff_seconds)
        self._login = Login(token, client, timeout_seconds + rate_limit_seconds, self._backoff)
        self._login.tell = self._hear
        self._intake = Intake(self._login, inbox or Inbox(), self._backoff)
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._patience_seconds = patience_seconds
        self._patience: asyncio.Timeout | None = None
        self._link = Health(State.CONNECTING)

    @property
    def health(self) -> Health:
        client = self._login.client
        if self._link.state is not State.CONNECTED or client is None:
            return self._link
        silent_seconds = time.monotonic() - client.heard_at
        if silent_seconds > self._heartbeat_timeout_seconds:
            return Health(State.DEGRADED, f"nothing was heard from Discord for {silent_seconds:.0f} s")
        if _SLOW_SECONDS < client.latency < float("inf"):
            return Health(State.DEGRADED, f"Discord answers heartbeats only after {client.latency:.0f} s")
        return Health(State.DEGRADED, self._intake.trouble) if self._intake.trouble else self._link

    async def run(self, accept: Accept) -> None:
        """Receives until cancelled. Raises `ConnectorFailed` when only a person can help."""
        self._link = Health(State.CONNECTING)
        try:
            async with asyncio.TaskGroup() as group:
                accepting = group.create_task(self._intake.accept_all(accept), name="discord accepts")
                failed = await self._receive()
                accepting.cancel()
            raise failed
        finally:
            await self._login.hang_up()
            self._stopped()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return convert.to_parts(message)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        body = _checked(lambda: convert.to_send(message, part))
        route = Route("POST", _MESSAGES, channel_id=_id(message.key.external_id))
        sent = await self._login.ask(lambda client: client.http.request(route, json=body))
        return Receipt(message_id=str(sent["id"]))

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        place, message_id = _id(message.key.external_id), _id(receipt.message_id)
        route = Route("PATCH", _MESSAGE, channel_id=place, message_id=message_id)
        await self._login.ask(lambda client: client.http.request(route, json=convert.to_edit(part)))

    async def typing(self, key: ConversationKey) -> None:
        await self._login.ask_in_passing(lambda client: client.http.send_typing(_id(key.external_id)))

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        await self._login.ask_in_passing(
            lambda client: client.http.add_reaction(_id(key.external_id), _id(message_id), emoji)
        )

    async def missed(self, key: ConversationKey, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """What was said after *after_message_id* and still stands, oldest first.

        Raises `DiscordUnavailable`; nothing where the bot may not read the channel (any more).
        """
        try:
            client = await self._login.opened()
            async for said in said_after(client, _id(key.external_id), _id(after_message_id)):
                message = convert.from_message(said, client.user.id) if client.user is not None else None
                if message is not None:
                    yield message
        except DISCORD_ERRORS as error:
            why = f"Discord could not be asked what was missed: {self._login.describe(error)}"
            raise DiscordUnavailable(why) from error

    async def close(self) -> None:
        await self._login.close()
        self._stopped()

    # The session at the gateway

    async def _receive(self) -> ConnectorFailed:
        """Keeps a session open; returns when only a person can help, and why."""
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

    async def _stay_connected(self, client: GatewayClient) -> None:
        """Lets discord.py connect and resume until it gives up, or does without a session for too long.

        It waits up to 17 minutes between attempts: a new session, and reading what was missed, is sooner.
        Raises one of `DISCORD_ERRORS`.
        """
        try:
            async with asyncio.timeout(self._patience_seconds) as self._patience:
                await client.connect()
        except AttributeError as error:
            # discord.py asks the socket that it never had for its session when the first attempt fails.
            cause = error.__context__
            if not isinstance(cause, DISCORD_ERRORS):
                raise
            raise cause from error
        finally:
            self._patience = None
            await self._login.hang_up()
        raise discord.GatewayNotFound  # it returns only when it was closed

    def _hear(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        match event:
            case "connect":
                self._intake.session_began()
                self._found()
            case "resumed":
                self._found()
            case "disconnect":
                self._lost("the connection to Discord was lost")
            case "ready":
                self._intake.servers_known()
            case _:
                self._intake.take(client, event, args)

    def _found(self) -> None:
        self._link = Health(State.CONNECTED)
        if self._patience is not None:
            self._patience.reschedule(None)

    def _lost(self, why: str) -> None:
        never_connected = self._link.state is State.CONNECTING
        self._link = Health(State.CONNECTING if never_connected else State.DEGRADED, why)
        if self._patience is not None and self._patience.when() is None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._patience_seconds)

    def _stopped(self) -> None:
        if self._link.state is not State.FAILED:
            self._link = Health(State.STOPPED)


def _id(text: str) -> int:
    return _checked(lambda: int(text))


def _checked(build: Callable[[], _Result]) -> _Result:
    try:
        return build()
    except ValueError as error:
        raise SendFailed(f"Not an id of Discord's: {error}", retryable=False) from error
