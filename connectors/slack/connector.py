"""Slack, by Socket Mode or HTTP events: the connector, put together from the package's parts.

In: `bolt` takes what Slack delivers, `receive` passes it on, `events` says what it means.
Out: `payloads` renders a reply and cuts it into parts, `send` sends them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import SecretStr
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import Accept, Capabilities, ConnectorFailed, Health, Location, SendFailed
from connectors.health import Backoff, ConnectionHealth
from connectors.message import Attachment, ConversationKey, InboundMessage, OutboundMessage, OutboundPart, Receipt
from connectors.slack import errors, events, payloads
from connectors.slack.api import Api, ApiCall
from connectors.slack.bolt import HttpEvents, SocketMode, create_app
from connectors.slack.check import APP_TOKEN_VARIABLE, SECRET_VARIABLE
from connectors.slack.lookups import History, Lookups
from connectors.slack.mrkdwn import emoji_name
from connectors.slack.receive import Intake
from connectors.slack.send import CommandResponses, Files, Streams, is_file, is_response

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger()

_STATUS = "is thinking…"

_READ_BACK_PAGES = 5
_READ_BACK_MESSAGES = 200
_GONE = frozenset({"message_not_found", "file_not_found", "file_deleted"})
_STILL_STREAMING = frozenset({"streaming_state_conflict", "cant_delete_message"})
"""Errors of ``chat.update`` and ``chat.delete`` for a message that is streaming."""


class SlackConnector:
    """A bot on Slack: `connectors.connector.Connector`, `EditsMessages`, `AppendsText`, `ShowsTyping`, `Reacts`,
    `FindsSentParts`, `BackfillsMessages`, `LocatesAttachments`, `ShowsButtons` and `MountsRoutes`.

    With *app_token* events come by Socket Mode (see `SocketMode` for *ping_seconds*), else with *signing_secret* over
    HTTP. As Slack waits 3 s, an event over HTTP is not acknowledged if it is not stored within *answer_within_seconds*,
    and a command or press has failed after *command_seconds*. *timeout_seconds* bounds each call. The bot token is
    tested every *check_seconds*. After failures the waits grow from *first_backoff_seconds* to
    *longest_backoff_seconds*. A reply of more than *reply_max_parts* parts is sent as its beginning and a file.
    """

    name = events.CONNECTOR
    capabilities = Capabilities(
        max_part_units=payloads.MAX_TEXT_CHARACTERS,
        # docs.slack.dev, "Rate limits": one message a second in a channel. Every other method has a rate for the whole
        # workspace: 50 a minute for chat.update (tier 3), 100 for chat.appendStream (tier 4), 20 for chat.startStream
        # and chat.stopStream (tier 2); five at once and then fifteen a minute stay within these 20.
        sends_per_second=1.0,
        edits_per_second=0.8,
        edits_per_second_overall=50 / 60,
        stream_starts_per_second_overall=15 / 60,
        stream_appends_per_second_overall=100 / 60,
        # The limit for all messages in a workspace, "several hundred per minute", has no figure: a 429 shows it.
        command_mark=events.COMMAND_MARK,
    )
    typing_lasts_seconds = 90.0  # Slack removes the status after two minutes, or when the answer comes
    max_buttons = payloads.MAX_BUTTONS

    def __init__(
        self,
        token: SecretStr,
        api_base: str = "https://slack.com/api/",
        *,
        app_token: SecretStr | None = None,
        signing_secret: SecretStr | None = None,
        timeout_seconds: float = 20.0,
        ping_seconds: float = 5.0,
        answer_within_seconds: float = 2.8,
        command_seconds: float = 2.0,
        check_seconds: float = 300.0,
        first_backoff_seconds: float = 1.0,
        longest_backoff_seconds: float = 30.0,
        reply_max_parts: int = payloads.MAX_PARTS,
    ) -> None:
        self._check_seconds = check_seconds
        self._reply_max_parts = reply_max_parts
        self._backoff = Backoff(first_backoff_seconds, longest_backoff_seconds)
        self._vitals = ConnectionHealth()
        self._me: events.Identity | None = None
        self._api = Api(token, api_base, timeout_seconds, app_token, signing_secret)
        self._streams, self._responses, self._files = Streams(self._api), CommandResponses(self._api), Files(self._api)
        lookups = Lookups(self._api, self._backoff)
        self._history = History(self._api, lookups)
        self._intake = Intake(
            self._api, self._vitals, self._streams, self._responses, lookups, self._backoff, command_seconds
        )
        self._shows_status = True
        self._socket_mode: SocketMode | None = None
        self._http: HttpEvents | None = None
        if app_token is not None:
            app = create_app(self._intake, None, None)
            self._socket_mode = SocketMode(app, self._api, self._history, self._vitals, app_token, ping_seconds)
        elif signing_secret is not None and signing_secret.get_secret_value().strip():
            self._http = HttpEvents(create_app(self._intake, signing_secret, answer_within_seconds))

    @property
    def health(self) -> Health:
        return self._vitals.health

    def routes(self) -> Sequence[BaseRoute]:
        """Return ``/slack/events`` and ``/slack/commands`` if events come over HTTP."""
        return self._http.routes() if self._http is not None else ()

    async def run(self, accept: Accept) -> None:
        """Receive until cancelled. Raises `ConnectorFailed` if a token is missing or refused."""
        failed: ConnectorFailed | None = None
        self._vitals.start()
        try:
            self._require_a_way_in()
            me = await self._sign_in()
            async with asyncio.TaskGroup() as tasks:
                self._intake.open(accept, me, tasks)
                try:
                    tasks.create_task(self._watch_token(), name="slack token")
                    await self._receive()
                finally:
                    self._intake.close()
        except* ConnectorFailed as group:
            failed = _first(group)
            self._vitals.failed(str(failed))
        finally:
            self._vitals.stopped()
        if failed is not None:
            raise failed

    async def _receive(self) -> None:
        """Receive until cancelled, also over HTTP, where there is nothing to do for it."""
        if self._socket_mode is None:
            self._vitals.connected()
            await asyncio.Event().wait()
        else:
            await self._socket_mode.run()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return payloads.to_parts(message, self._reply_max_parts)

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        channel, thread = payloads.split_place(message.key.external_id)
        if any(map(events.is_command, message.answers)) and not (part.file_name and channel.startswith("D")):
            if receipt := await self._responses.post(message.answers, part):
                return receipt
            if not channel.startswith("D"):
                raise SendFailed(
                    "Slack shows replies to a command to its giver only, and takes no more of them for this one.",
                    retryable=False,
                )
        if part.file_name:
            return Receipt(await self._files.upload(channel, thread, part))
        arguments = payloads.to_send(message, part)
        answer = await self._api.request(lambda client: client.chat_postMessage(**arguments))
        ts = str(answer.get("ts") or "")
        if not ts:
            raise SendFailed("Slack gave the message no timestamp.", retryable=True, ambiguous=True)
        self._intake.note_sent(message.key.external_id, ts)
        return Receipt(message_id=ts)

    def edits(self, message: OutboundMessage) -> bool:
        return not any(map(events.is_command, message.answers))

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        """Replace a message with *part*; ends its stream first, also one that another process began."""
        if part.file_name or not payloads.is_ts(receipt.message_id):
            raise SendFailed("Slack lets nobody change a file, or a reply that one person sees.", retryable=False)
        channel, _ = payloads.split_place(message.key.external_id)
        arguments = payloads.to_edit(message, part, receipt.message_id)
        await self._change(channel, receipt.message_id, lambda client: client.chat_update(**arguments))

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        """Delete a message or file. A reply to a command, which only one person saw, disappears by itself."""
        channel, _ = payloads.split_place(message.key.external_id)
        ts = receipt.message_id
        if is_response(ts):
            return
        try:
            if is_file(ts):
                await self._files.delete(ts)
            else:
                await self._change(channel, ts, lambda client: client.chat_delete(channel=channel, ts=ts))
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _GONE:
                raise

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        """Find *part* among the newest messages of its conversation. Replies to commands are not found."""
        me = await self._identity()
        async with aclosing(self._newest(key)) as pages:
            async for messages in pages:
                message_id = payloads.find_part(messages, part, me)
                if message_id is not None:
                    return Receipt(message_id)
        return None

    def appends(self, message: OutboundMessage) -> bool:
        return self._streams.possible(message)

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        receipt = await self._streams.begin(message, text)
        self._intake.note_sent(message.key.external_id, receipt.message_id)
        return receipt

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """Find the stream that began *part* by its text, since a stream has no token before its final form."""
        me, after = await self._identity(), payloads.question_time(message)
        pages = self._newest(message.key)
        found = [ts async for messages in pages for ts in payloads.find_stream_starts(messages, part, me, after)]
        return Receipt(max(found, key=float)) if found else None

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        await self._streams.append(message, receipt, text)

    def paced_as(self, key: ConversationKey) -> str:
        return key.external_id.partition("/")[0]

    async def typing(self, key: ConversationKey) -> None:
        """Show a status in a thread; Slack has none in other places, nor without a scope for it."""
        channel, _, thread = key.external_id.partition("/")
        if thread and self._shows_status:
            refused = await self._api.request_lossy(
                lambda client: client.assistant_threads_setStatus(channel_id=channel, thread_ts=thread, status=_STATUS)
            )
            self._shows_status = refused != "missing_scope"

    async def react(self, key: ConversationKey, message_id: str, emoji: str) -> None:
        """Add *emoji* to a message. A command shows no message and gets none."""
        name = emoji_name(emoji)
        if name is not None and payloads.is_ts(message_id):
            channel = self.paced_as(key)
            await self._api.request_lossy(
                lambda client: client.reactions_add(channel=channel, timestamp=message_id, name=name)
            )

    @property
    def sessions(self) -> int:
        return self._socket_mode.sessions if self._socket_mode is not None else 1

    async def missed(self, external_id: str, after_message_id: str) -> AsyncIterator[InboundMessage]:
        """Yield missed messages; see `History.missed`."""
        async for message in self._history.missed(external_id, after_message_id, await self._identity()):
            yield message

    async def locate(self, attachment: Attachment) -> Location:
        return await self._files.locate(attachment)

    async def close(self) -> None:
        try:
            await self._api.close()
        except errors.SLACK_ERRORS as error:
            log.warning("connector.close_failed", connector=self.name, why=type(error).__name__)
        self._vitals.stopped()

    def _newest(self, key: ConversationKey) -> AsyncGenerator[list[dict[str, Any]], None]:
        channel, thread = payloads.split_place(key.external_id)
        return self._api.messages(
            channel, thread, max_pages=_READ_BACK_PAGES, limit=_READ_BACK_MESSAGES, include_all_metadata=True
        )

    async def _change(self, channel: str, ts: str, call: ApiCall) -> None:
        """Edit or delete a message. If it is streaming, end the stream first."""
        if self._streams.is_open(channel, ts):
            await self._streams.stop(channel, ts)
        try:
            await self._api.request(call)
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _STILL_STREAMING:
                raise
            await self._streams.stop(channel, ts)
            await self._api.request(call)

    def _require_a_way_in(self) -> None:
        if self._socket_mode is None and self._http is None:
            raise ConnectorFailed(
                f"Slack has no way to reach this bot. Set {APP_TOKEN_VARIABLE} (Socket Mode) or {SECRET_VARIABLE} "
                "(events over HTTP at /slack/events; without it nobody could tell them from forged ones)."
            )

    async def _sign_in(self) -> events.Identity:
        backoff = self._backoff.fresh()
        while True:
            wait_seconds = await self._try_token(backoff)
            if wait_seconds is None and self._me is not None:
                return self._me
            await asyncio.sleep(wait_seconds or 0)

    async def _try_token(self, backoff: Backoff) -> float | None:
        """Ask Slack who the bot is. Returns None, or the time (s) until the next attempt if Slack does not answer.

        Otherwise nobody would notice a bad bot token: the app token alone opens a socket. Raises `ConnectorFailed`.
        """
        try:
            self._me = _to_identity(await self._api.call(lambda client: client.auth_test()))
        except errors.SLACK_ERRORS as error:
            if needs_person := errors.meaning(error).needs_person:
                raise ConnectorFailed(f"{needs_person} ({self._api.describe(error)})") from error
            self._vitals.trouble("api", f"Slack's Web API does not answer: {self._api.describe(error)}")
            return backoff.next_seconds(errors.retry_after_seconds(error))
        backoff.failures = 0
        self._vitals.well("api")
        return None

    async def _identity(self) -> events.Identity:
        """Return who the bot is, also while it does not run. Raises `SendFailed`."""
        if self._me is not None:
            return self._me
        answer = await self._api.request(lambda client: client.auth_test())
        try:
            return _to_identity(answer)
        except ValueError as error:
            raise SendFailed(f"Slack does not say who the bot is: {error}", retryable=True) from error

    async def _watch_token(self) -> None:
        """Test the token from time to time, and at once if a call says that it is bad."""
        backoff = self._backoff.fresh()
        wait_seconds = self._check_seconds
        while True:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._api.token_suspect.wait()
            except TimeoutError:
                pass
            self._api.token_suspect.clear()
            wait_seconds = await self._try_token(backoff) or self._check_seconds


def _first(group: ExceptionGroup[ConnectorFailed]) -> ConnectorFailed:
    """Return the first failure of a group, which may contain groups."""
    first = group.exceptions[0]
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


def _to_identity(answer: AsyncSlackResponse) -> events.Identity:
    """Convert the answer of ``auth.test``. Raises `ValueError` if it names no bot."""
    user_id, team_id = str(answer.get("user_id") or ""), str(answer.get("team_id") or "")
    if not user_id or not re.fullmatch("[A-Z0-9]+", team_id):
        raise ValueError("auth.test names no bot")
    return events.Identity(user_id, str(answer.get("bot_id") or ""), team_id, str(answer.get("user") or ""))
