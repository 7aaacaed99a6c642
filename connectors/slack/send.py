"""Sends, edits and deletes the bot's messages on Slack. I/O. The arguments of the calls are in `payloads`.

A reply to a slash command goes to the URL that came with the command (`CommandResponses`), a part with a file name is
uploaded (`connectors.slack.files`), everything else is a message. In threads a reply can grow as a stream (`Streams`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import structlog

from connectors.connector import SendFailed
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt
from connectors.slack import errors, payloads
from connectors.slack.api import Api, ApiCall, Recent
from connectors.slack.events import Identity, is_command
from connectors.slack.files import Files, is_file

log = structlog.get_logger()

_READ_BACK_PAGES = 5
_READ_BACK_MESSAGES = 200
_GONE = frozenset({"message_not_found", "file_not_found", "file_deleted"})

_RESPONSE_HOST = "hooks.slack.com"
_RESPONSE_PREFIX = "response-"
_URL_EXPIRED = frozenset({"used_url", "expired_url", "expired_trigger_id", "no_such_url"})

_STILL_STREAMING = frozenset({"streaming_state_conflict", "cant_delete_message"})
"""Errors of ``chat.update`` and ``chat.delete`` for a message that is streaming."""

_STREAM_ENDED = frozenset({"message_not_in_streaming_state", "stopped_by_user", "message_not_found"})
"""Errors of the calls that append to a stream or stop it, for one that has ended."""


class Sender:
    """The outbound half of the connector. All methods raise `connectors.connector.SendFailed`.

    *note_sent* is called with the external id and the message id of each message that was posted.
    """

    def __init__(
        self,
        api: Api,
        streams: Streams,
        responses: CommandResponses,
        files: Files,
        identity: Callable[[], Awaitable[Identity]],
        note_sent: Callable[[str, str], None],
    ) -> None:
        self._api = api
        self._streams = streams
        self._responses = responses
        self._files = files
        self._identity = identity
        self._note_sent = note_sent

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        channel, thread = payloads.split_place(message.key.external_id)
        if any(map(is_command, message.answers)):
            if not part.file_name and (receipt := await self._responses.post(message.answers, part)):
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
        self._note_sent(message.key.external_id, ts)
        return Receipt(message_id=ts)

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

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """Find the stream that began *part* by its text, since a stream has no token before its final form."""
        me, after = await self._identity(), payloads.question_time(message)
        pages = self._newest(message.key)
        found = [ts async for messages in pages for ts in payloads.find_stream_starts(messages, part, me, after)]
        return Receipt(max(found, key=float)) if found else None

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


class Streams:
    """Slack's own way to show a reply that grows: a message that is started, appended to and stopped.

    An open stream can be neither edited nor deleted. Slack ends a stream by itself after some five minutes.
    All I/O raises `connectors.connector.SendFailed`.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._refusing_channels: Recent[str, None] = Recent()
        self._open: Recent[tuple[str, str], None] = Recent()
        self._askers: Recent[tuple[str, str], tuple[str, str]] = Recent()

    def note_asker(self, channel: str, message_id: str, user: str, team: str) -> None:
        """Remember who wrote a message. In channels Slack wants to know for whom a stream is."""
        if user and team:
            self._askers.put((channel, message_id), (user, team))

    def possible(self, message: OutboundMessage) -> bool:
        """Return whether *message* can stream: in a thread, to a person who is known, unless Slack refused it."""
        channel, _, thread = message.key.external_id.partition("/")
        return bool(thread and channel not in self._refusing_channels and self._asker(channel, message))

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        channel, thread = payloads.split_place(message.key.external_id)
        asker = self._asker(channel, message)
        if thread is None or asker is None:
            raise SendFailed("Slack streams only in threads, to people who are known.", retryable=False)
        first, *rest = payloads.stream_pieces(text) or [""]
        try:
            answer = await self._api.request(
                lambda client: client.chat_startStream(
                    channel=channel,
                    thread_ts=thread,
                    markdown_text=first or None,
                    recipient_user_id=asker[0],
                    recipient_team_id=asker[1],
                )
            )
        except SendFailed as failed:
            self._note_refusal(channel, failed)
            raise
        ts = str(answer.get("ts") or "")
        if not ts:
            raise SendFailed("Slack gave the stream no timestamp.", retryable=True, ambiguous=True)
        self._open.put((channel, ts), None)
        for piece in rest:
            await self._append(channel, ts, piece)
        return Receipt(ts)

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        """Append *text*. Fails also if Slack or a person has stopped the stream."""
        channel, _ = payloads.split_place(message.key.external_id)
        for piece in payloads.stream_pieces(text):
            await self._append(channel, receipt.message_id, piece)

    def is_open(self, channel: str, ts: str) -> bool:
        """Return whether this process began the stream and does not know of its end."""
        return (channel, ts) in self._open

    async def stop(self, channel: str, ts: str) -> None:
        """End a stream; one that has ended is no error."""
        try:
            await self._api.request(lambda client: client.chat_stopStream(channel=channel, ts=ts))
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _STREAM_ENDED:
                raise
        self._open.drop((channel, ts))

    async def _append(self, channel: str, ts: str, piece: str) -> None:
        try:
            await self._api.request(
                lambda client: client.chat_appendStream(channel=channel, ts=ts, markdown_text=piece)
            )
        except SendFailed as failed:
            if errors.word(failed.__cause__) in _STREAM_ENDED:
                self._open.drop((channel, ts))
            raise

    def _asker(self, channel: str, message: OutboundMessage) -> tuple[str, str] | None:
        askers = (self._askers.get((channel, message_id)) for message_id in reversed(message.answers))
        return next(filter(None, askers), None)

    def _note_refusal(self, channel: str, failed: SendFailed) -> None:
        word = errors.word(failed.__cause__)
        if not failed.retryable and word:
            log.info("connector.streaming_unavailable", connector="slack", why=word)
            self._refusing_channels.put(channel, None)


class CommandResponses:
    """Replies to slash commands, which only the person who gave the command sees.

    They go to the ``response_url`` that came with the command. It is in memory only, as Slack takes five posts within
    30 minutes (docs.slack.dev, "Handling user interaction").
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._urls: Recent[str, str] = Recent(1000)

    def expect(self, message_id: str, url: str) -> None:
        """Let replies to *message_id* go to *url*, unless that is no address of Slack's."""
        if not self._is_slacks(url):
            log.warning("connector.request_refused", connector="slack", why="response_url of another host")
        elif message_id not in self._urls:
            self._urls.put(message_id, url)

    def forget(self, message_id: str) -> None:
        self._urls.drop(message_id)

    async def post(self, answers: tuple[str, ...], part: OutboundPart) -> Receipt | None:
        """Post *part* as a reply to one of *answers*; None if none of them takes replies (any more).

        Raises `connectors.connector.SendFailed`.
        """
        for message_id in answers:
            url = self._urls.get(message_id)
            if url is None:
                continue
            if await self._post(url, part):
                return Receipt(f"{_RESPONSE_PREFIX}{message_id}-{part.index}")
            self.forget(message_id)
        return None

    async def _post(self, url: str, part: OutboundPart) -> bool:
        """Return True if Slack took it, False if the URL has expired."""
        try:
            status, body, headers = await self._api.post(url, json=payloads.to_respond(part))
        except errors.SLACK_ERRORS as error:
            raise errors.send_failed(error, self._api.describe(error)) from error
        word = _error_word(body)
        if status == 200 and word in {"", "ok"}:
            return True
        if status in {404, 410} or word in _URL_EXPIRED:
            return False
        retry_after = headers.get("Retry-After", "")
        raise SendFailed(
            f"Slack did not take the reply to a command: {word or f'HTTP {status}'}",
            retryable=status == 429 or status >= 500,
            ambiguous=status >= 500,
            retry_after_seconds=float(retry_after) if status == 429 and retry_after.isdecimal() else None,
        )

    def _is_slacks(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if parts.username or parts.password:
            return False
        return (parts.scheme == "https" and host == _RESPONSE_HOST) or (
            parts.scheme in {"http", "https"} and bool(host) and host == self._api.host
        )


def is_response(message_id: str) -> bool:
    """Return whether *message_id* is the receipt of a reply to a command, which can be neither edited nor deleted."""
    return message_id.startswith(_RESPONSE_PREFIX)


def _error_word(body: str) -> str:
    """Return Slack's word for the error. The body is ``ok``, a word, or an object with ``ok`` or ``error``."""
    try:
        answer = json.loads(body)
    except ValueError:
        word = body.strip()
        return word if not word or (word.replace("_", "").isalnum() and len(word) < 64) else "unreadable"
    if isinstance(answer, dict):
        return "" if answer.get("ok") else str(answer.get("error") or "unreadable")
    return ""
