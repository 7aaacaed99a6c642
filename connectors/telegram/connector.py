"""The connector for Telegram: signs in, receives, and sends what the runtime asks for. I/O only.

`updates` converts what comes in, `payloads` what goes out; `receive` and `webhook` are the two ways in; `errors` says
what an error of aiogram means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog
from aiogram.methods import GetFile, GetMe, SetMyCommands
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
from connectors.health import Backoff, ConnectionHealth
from connectors.message import Attachment, ConversationKey, OutboundMessage, OutboundPart, Receipt
from connectors.telegram import payloads
from connectors.telegram.api import OFFICIAL_HOST, Api
from connectors.telegram.errors import migrated_to, refuses
from connectors.telegram.receive import Intake, Places, Polling
from connectors.telegram.updates import Identity
from connectors.telegram.webhook import Registration, Webhook, check_secret

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

FILE_TOO_LARGE = "Telegram lets bots fetch files of up to 20 MB, and this one is larger. Please send a smaller one."
FILE_GONE = "Telegram does not have this file for me any more. Please send it again."
FILE_UNAVAILABLE = "Telegram does not hand out files right now. Please send it again in a moment."
FILE_UNREACHABLE = "I cannot reach the place where the Bot API server keeps this file."


class TelegramConnector:
    """A bot on Telegram: `connectors.connector.Connector`, `EditsMessages`, `ShowsTyping`, `Reacts`,
    `SharesRateLimit`, `LimitsPerMinute`, `ShowsButtons`, `LocatesAttachments`, `RegistersCommands` and `MountsRoutes`.

    Updates come by long polling; Telegram may hold each poll for ``poll_seconds``. With *webhook_secret*, Telegram
    posts them to ``/telegram/webhook`` instead. That address is registered below *public_url*, if there is one, and
    checked every ``check_seconds``. ``timeout_seconds`` limits each call. After failures the waits grow from
    ``first_backoff_seconds`` to ``longest_backoff_seconds``. A reply of more than *reply_max_parts* messages is sent
    as its beginning and a file. *sends_per_second* is the rate in all chats together; 0 means no limit.
    """

    name = payloads.CONNECTOR
    typing_lasts_seconds = 5.0
    max_buttons = payloads.MAX_BUTTONS

    def __init__(
        self,
        token: SecretStr,
        api_base: str = f"https://{OFFICIAL_HOST}",
        *,
        webhook_secret: SecretStr | None = None,
        public_url: str | None = None,
        reply_max_parts: int = 5,
        sends_per_second: float = 30.0,
        timeout_seconds: float = 20.0,
        poll_seconds: int = 30,
        check_seconds: float = 60.0,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
    ) -> None:
        self.capabilities = Capabilities(
            max_part_units=payloads.MAX_TEXT_UNITS,
            units="utf16",
            # "avoid sending more than one message per second" in one chat (Bot FAQ, "My bot is hitting limits"). Edits
            # count like messages. `max_per_minute` has the limit of groups.
            sends_per_second=1.0,
            edits_per_second=0.5,
            sends_per_second_overall=sends_per_second,
        )
        self._reply_max_parts = reply_max_parts
        self._vitals = ConnectionHealth()
        self._backoff = Backoff(first_backoff_seconds, longest_backoff_seconds)
        self._api = Api(token, api_base, timeout_seconds, self._vitals, self._backoff)
        self._places = Places()
        self._intake = Intake(self._api, self._vitals, self._places, self._backoff)
        self._secret_trouble = check_secret(webhook_secret) if webhook_secret is not None else ""
        self._source: Polling | Registration
        self._webhook: Webhook | None = None
        if webhook_secret is None:
            self._source = Polling(self._api, self._vitals, self._backoff, self._intake, poll_seconds)
            return
        self._source = Registration(self._api, self._vitals, self._backoff, webhook_secret, public_url, check_seconds)
        if not self._secret_trouble:
            self._webhook = Webhook(webhook_secret, self._intake, timeout_seconds)

    # Receiving

    @property
    def health(self) -> Health:
        return self._vitals.health

    def routes(self) -> Sequence[BaseRoute]:
        return self._webhook.routes() if self._webhook is not None else []

    async def run(self, accept: Accept) -> None:
        """Receive until cancelled. Raises `ConnectorFailed` if Telegram does not know the token."""
        self._vitals.start()
        self._backoff.failures = 0
        try:
            if self._secret_trouble:
                self._api.fail(self._secret_trouble)
            me = await self._api.call_until_answered(GetMe())
            self._intake.open(accept, Identity(id=me.id, username=me.username or ""))
            await self._source.run()
        finally:
            self._intake.close()
            self._vitals.stopped()

    async def close(self) -> None:
        self._intake.close()
        await self._api.close()
        self._vitals.stopped()

    # Replies

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return payloads.to_parts(message, self._reply_max_parts)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Send *part*. If the group has become a supergroup, send it there; the receipt then names that chat."""
        try:
            return Receipt(str(await self._send(message, part)))
        except SendFailed as failed:
            new = migrated_to(failed)
            if new is None:
                raise
        # The former chat refused the message, so nobody has seen it.
        return Receipt(f"{new}/{await self._send(payloads.in_chat(message, new), part)}")

    async def _send(self, message: OutboundMessage, part: OutboundPart) -> int:
        sent = await self._api.ask_formatted(part, lambda formatted: payloads.to_send(message, formatted))
        chat, topic = payloads.split_place(message.key.external_id)
        self._places.note_topic(chat, sent.message_id, topic)
        return sent.message_id

    def edits(self, message: OutboundMessage) -> bool:
        return True

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        message, receipt = payloads.in_receipt_chat(message, receipt)
        try:
            await self._api.ask_formatted(part, lambda formatted: payloads.to_edit(message, formatted, receipt))
        except SendFailed as failed:
            if not refuses(failed, "message is not modified"):
                raise

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        message, receipt = payloads.in_receipt_chat(message, receipt)
        try:
            await self._api.ask(lambda: payloads.to_delete(message, receipt))
        except SendFailed as failed:
            if not refuses(failed, "message to delete not found"):
                raise

    def paced_as(self, key: ConversationKey) -> str:
        return key.external_id.partition("/")[0]

    def max_per_minute(self, place: str) -> int:
        """Return the limit of groups if *place* is one. Groups have negative ids.

        So have channels; Telegram is said to limit them in the same way.
        """
        return payloads.GROUP_MESSAGES_A_MINUTE if place.startswith("-") else 0

    async def typing(self, key: ConversationKey) -> None:
        await self._api.ask_lossy(lambda: payloads.to_typing(key.external_id))

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        await self._api.ask_lossy(lambda: payloads.to_reaction(key.external_id, message_id, emoji))

    # Commands and files

    async def register_commands(self, commands: Sequence[CommandHint]) -> None:
        wanted, rejected = payloads.to_commands(commands)
        if rejected:
            log.warning("connector.commands_unfit", connector=self.name, names=rejected)
        await self._api.ask(lambda: SetMyCommands(commands=wanted))

    async def locate(self, attachment: Attachment) -> Location:
        """Return the URL of a file. It contains the bot's token, so only the fetcher may see it."""
        try:
            file = await self._api.ask(lambda: GetFile(file_id=attachment.handle))
        except SendFailed as failed:
            if refuses(failed, "file is too big"):
                raise AttachmentUnavailable(FILE_TOO_LARGE) from failed
            raise AttachmentUnavailable(FILE_UNAVAILABLE if failed.retryable else FILE_GONE) from failed
        if not file.file_path:
            raise AttachmentUnavailable(FILE_GONE)
        if file.file_path.startswith("/"):  # a Bot API server with --local names files on its own disk
            log.warning("connector.files_unreachable", connector=self.name, why="the Bot API server runs with --local")
            raise AttachmentUnavailable(FILE_UNREACHABLE)
        host = self._api.host
        return Location(self._api.file_url(file.file_path), (host,), trusts_private=host != OFFICIAL_HOST)
