"""The connector for Discord, over its gateway: receives, and sends what the runtime asks for. I/O only.

`events` converts what comes in, `payloads` what goes out; `session` keeps the connection to the gateway, `receive`
keeps messages until they are accepted, `interactions` handles commands and buttons, `login` makes the calls, and
`errors` says what an error of discord.py means.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import discord
import structlog
from discord.http import Route
from pydantic import SecretStr

from connectors.connector import (
    Accept,
    AttachmentUnavailable,
    Capabilities,
    CommandHint,
    Health,
    Location,
    SendFailed,
)
from connectors.discord import events
from connectors.discord.errors import DISCORD_ERRORS, DiscordUnavailable
from connectors.discord.interactions import TOKEN_SECONDS, Interactions, is_allowed, to_commands
from connectors.discord.login import SESSION_WAIT_SECONDS, ConnectionOptions, GatewayClient, Login
from connectors.discord.payloads import MAX_BUTTONS, MAX_TEXT_UNITS, as_request, button_row, to_edit, to_parts, to_send
from connectors.discord.receive import MAX_WAITING, Intake, convert, messages_after
from connectors.discord.session import Session
from connectors.health import Backoff, ConnectionHealth
from connectors.message import Attachment, ConversationKey, InboundMessage, OutboundMessage, OutboundPart, Receipt

log = structlog.get_logger()

_MESSAGES = "/channels/{channel_id}/messages"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_COMMANDS = "/applications/{application_id}/commands"

_DIRECT = 1
"""Reference, "Channel Types"."""


class DiscordConnector:
    """A bot on Discord: `connectors.connector.Connector`, `EditsMessages`, `ShowsTyping`, `Reacts`,
    `BackfillsMessages`,
    `LocatesAttachments`, `RegistersCommands`, `ShowsButtons`.

    ``timeout_seconds`` limits one request; a call may also wait ``rate_limit_seconds`` for rate limits. A gateway that
    answers no heartbeat for ``heartbeat_timeout_seconds`` is given up; a session that does not come back within
    ``session_seconds`` is opened anew. A reply of more than ``reply_max_parts`` is sent as its beginning and a file.
    At most ``max_waiting`` messages wait in memory.
    """

    name = events.CONNECTOR
    capabilities = Capabilities(
        max_part_units=MAX_TEXT_UNITS,
        units="utf16",
        idempotency="nonce",
        # Discord states its limits in headers, and discord.py waits for them: 5 in 5 s for one channel. `login` keeps
        # the limit of 50 requests a second.
        edits_per_second=1.0,
    )
    typing_lasts_seconds = 10.0
    max_buttons = MAX_BUTTONS

    def __init__(
        self,
        token: SecretStr,
        api_base: str = "https://discord.com/api/v10",
        gateway_url: str = "wss://gateway.discord.gg/",
        *,
        timeout_seconds: float = 20.0,
        rate_limit_seconds: float = 60.0,
        reply_max_parts: int = 5,
        heartbeat_timeout_seconds: float = 60.0,
        session_seconds: float = 120.0,
        session_wait_seconds: float = SESSION_WAIT_SECONDS,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
        answer_seconds: float = 2.0,
        token_seconds: float = TOKEN_SECONDS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        backoff = Backoff(first_backoff_seconds, longest_backoff_seconds)
        self._api_base = api_base
        self._vitals = ConnectionHealth()
        self._reply_max_parts = reply_max_parts
        options = ConnectionOptions(
            api_base,
            gateway_url,
            request_seconds=timeout_seconds,
            call_seconds=timeout_seconds + rate_limit_seconds,
            heartbeat_seconds=heartbeat_timeout_seconds,
            session_wait_seconds=session_wait_seconds,
        )
        self._login = Login(token, options)
        self._intake = Intake(self._vitals, backoff, max_waiting)
        self._interactions = Interactions(self._login, answer_seconds, token_seconds)
        self._session = Session(self._login, self._vitals, backoff, session_seconds, self._intake, self._interactions)

    # Receiving

    @property
    def health(self) -> Health:
        return self._vitals.health

    async def run(self, accept: Accept) -> None:
        """Receive until cancelled. Raises `ConnectorFailed` if only a person can help."""
        self._vitals.start()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._intake.accept_all(accept), name="discord accepts"),
                    group.create_task(self._interactions.serve(accept), name="discord commands"),
                ]
                failed = await self._session.receive()
                for task in tasks:
                    task.cancel()
            raise failed
        finally:
            await self._login.hang_up()
            self._vitals.stopped()

    @property
    def sessions(self) -> int:
        return self._intake.sessions

    async def missed(self, external_id: str, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """Yield the messages after *after_message_id* that still exist, oldest first; none if the bot may not read.

        Raises `DiscordUnavailable`.
        """
        try:
            client = await self._login.open()
            after = _id(after_message_id.rpartition("-")[2])
            async for message in messages_after(client, _id(external_id), after):
                for inbound in convert(client, "message", (message,)):
                    yield inbound
        except DISCORD_ERRORS as error:
            why = f"Discord could not be asked what was missed: {self._login.describe(error)}"
            raise DiscordUnavailable(why) from error

    async def close(self) -> None:
        await self._login.close()
        self._vitals.stopped()

    # Replies

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return to_parts(message, self._reply_max_parts)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        channel_id = _id(message.key.external_id)
        if self._interactions.answers(message):
            receipt = await self._interactions.send(message, part)
            if receipt is not None:
                return receipt
            channel = await self._login.ask(lambda client: client.http.get_channel(channel_id))
            if channel["type"] != _DIRECT:
                why = "The reply to this command can no longer be shown to one person only."
                raise SendFailed(why, retryable=False)
        # The reply to a command or a button has no message to which it can reply.
        reply_to = _id(message.reply_to) if message.reply_to is not None and message.reply_to.isdecimal() else None
        request = as_request(to_send(message, part, reply_to), part)
        route = Route("POST", _MESSAGES, channel_id=channel_id)
        sent = await self._login.ask(lambda client: client.http.request(route, **request))
        return Receipt(message_id=str(sent["id"]))

    def edits(self, message: OutboundMessage) -> bool:
        return True

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        if await self._interactions.edit(receipt, part):
            return
        channel_id, message_id = _id(message.key.external_id), _id(receipt.message_id)
        route = Route("PATCH", _MESSAGE, channel_id=channel_id, message_id=message_id)
        request = as_request({**to_edit(part), **button_row(message, part)}, part)
        # The runtime sets the pace of edits. One that waited for a rate limit might be out of date.
        await self._login.ask(lambda client: client.http.request(route, **request), waits=False)

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        channel_id, message_id = _id(message.key.external_id), _id(receipt.message_id)
        try:
            if not await self._interactions.take_back(receipt):
                await self._login.ask(lambda client: client.http.delete_message(channel_id, message_id))
        except SendFailed as failed:
            if not isinstance(failed.__cause__, discord.NotFound):
                raise

    async def typing(self, key: ConversationKey) -> None:
        await self._login.ask_lossy(lambda client: client.http.send_typing(_id(key.external_id)))

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        """Put *emoji* on a message. Does nothing for a command or a button, which are no messages."""
        if message_id.isdecimal():
            await self._login.ask_lossy(
                lambda client: client.http.add_reaction(_id(key.external_id), _id(message_id), emoji)
            )

    # Commands and files

    async def register_commands(self, commands: Sequence[CommandHint]) -> None:
        rejected = [hint.name for hint in commands if not is_allowed(hint)]
        if rejected:
            log.warning("connector.commands_unfit", connector=self.name, names=rejected)
        wanted = to_commands(commands)
        await self._login.ask(lambda client: client.http.request(_commands_route(client), json=wanted))

    async def locate(self, attachment: Attachment) -> Location:
        channel_id, message_id, attachment_id = events.read_handle(attachment.handle)
        try:
            message = await self._login.ask(lambda client: client.http.get_message(channel_id, message_id))
        except SendFailed as failed:
            if isinstance(failed.__cause__, discord.NotFound | discord.Forbidden):
                raise AttachmentUnavailable("The message with that file is gone.") from failed
            why = "Discord does not give me that file just now. Please send it again later."
            raise AttachmentUnavailable(why) from failed
        return events.location(events.url_in(message, attachment_id), self._api_base)


def _commands_route(client: GatewayClient) -> Route:
    """Return the call that replaces all commands; those that stay the same are not affected."""
    return Route("PUT", _COMMANDS, application_id=client.application_id)


def _id(text: str) -> int:
    """Return an id of Discord's as a number. Raises `SendFailed`."""
    try:
        return int(text)
    except ValueError as error:
        raise SendFailed(f"Not an id of Discord's: {error}", retryable=False) from error
