"""The ways to reply on Slack that are more than one call. I/O. The arguments of the calls are in `payloads`.

In threads a reply can grow as a stream (`Streams`). A reply to a slash command goes to the URL that came with the
command (`CommandResponses`). A part with a file name is uploaded (`Files`).
"""

from __future__ import annotations

import json
from typing import Any

import structlog

from connectors.connector import AttachmentUnavailable, Location, SendFailed
from connectors.message import Attachment, OutboundMessage, OutboundPart, Receipt
from connectors.slack import errors, payloads
from connectors.slack.api import Api, Recent
from connectors.slack.events import FileAccess, Handle, handle_of

log = structlog.get_logger()


_RESPONSE_PREFIX = "response-"
_URL_EXPIRED = frozenset({"used_url", "expired_url", "expired_trigger_id", "no_such_url"})

_HOSTS = ("files.slack.com", ".slack.com")
"""The hosts of Slack's files; the token goes only there."""

_READ_SCOPE = "files:read"

_STREAM_ENDED = frozenset({"message_not_in_streaming_state", "stopped_by_user", "message_not_found"})
"""Errors of the calls that append to a stream or stop it, for one that has ended."""


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
        if not (self._api.is_slacks(url) or self._api.is_operators(url)):
            log.warning("connector.request_refused", connector="slack", why="response_url of another host")
        elif message_id not in self._urls:
            self._urls.put(message_id, url)

    def forget(self, message_id: str) -> None:
        self._urls.drop(message_id)

    async def post(self, answers: tuple[str, ...], part: OutboundPart) -> Receipt | None:
        """Post *part* as a reply to one of *answers*; None if none of them takes replies (any more).

        Raises `connectors.connector.SendFailed`, which is never ambiguous.
        """
        for message_id in answers:
            url = self._urls.get(message_id)
            if url is None:
                continue
            for response in payloads.to_responses(part):
                try:
                    is_taken = await self._post(url, response)
                except SendFailed as failed:
                    if not failed.ambiguous:
                        raise
                    # Nobody can look for what one person sees. So it is not sent again.
                    log.warning("reply.ambiguous", connector="slack", part=part.index, why=str(failed), then="skip")
                    is_taken = True
                if not is_taken:
                    self.forget(message_id)
                    break
            else:
                return Receipt(f"{_RESPONSE_PREFIX}{message_id}-{part.index}")
        return None

    async def _post(self, url: str, response: dict[str, Any]) -> bool:
        """Return True if Slack took it, False if the URL has expired."""
        try:
            status, body, headers = await self._api.post(url, json=response)
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


class Files:
    """Uploads, deletes and locates files with one bot token."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def upload(self, channel: str, thread: str | None, part: OutboundPart) -> str:
        """Share *part* as a file and return its id.

        Raises `connectors.connector.SendFailed`, ambiguous only in the last of the three steps: before that nobody
        sees anything.
        """
        content, name = part.text.encode("utf-8", "replace"), payloads.upload_name(part)
        try:
            target = await self._api.request(
                lambda client: client.files_getUploadURLExternal(filename=name, length=len(content))
            )
        except SendFailed as failed:
            raise _unambiguous(failed) from failed.__cause__
        file_id, url = str(target.get("file_id") or ""), str(target.get("upload_url") or "")
        if not file_id or not (self._api.is_slacks(url) or self._api.is_operators(url)):
            raise SendFailed("Slack gave no place to upload a file to.", retryable=False)
        await self._put(url, content)
        await self._api.request(
            lambda client: client.files_completeUploadExternal(
                files=[{"id": file_id, "title": part.file_name}], channel_id=channel, thread_ts=thread
            )
        )
        return file_id

    async def delete(self, file_id: str) -> None:
        """Delete a file. Raises `connectors.connector.SendFailed`."""
        await self._api.request(lambda client: client.files_delete(file=file_id))

    async def locate(self, attachment: Attachment) -> Location:
        """Return where *attachment* can be fetched. Raises `connectors.connector.AttachmentUnavailable`."""
        name = attachment.name
        try:
            handle = Handle.decode(attachment.handle)
        except ValueError as error:
            raise AttachmentUnavailable(f"I cannot find the file “{name}” on Slack.") from error
        if self._api.scopes is not None and _READ_SCOPE not in self._api.scopes:
            raise AttachmentUnavailable(_missing_scope(name))
        if handle.access == FileAccess.ASK:
            handle = await self._look_up(handle.file_id, name)
        if handle.access == FileAccess.HIDDEN:
            raise AttachmentUnavailable(f"Slack hides “{name}”, because the workspace is over its plan's limit.")
        if handle.access == FileAccess.EXTERNAL:
            raise AttachmentUnavailable(
                f"“{name}” is not on Slack but only linked from there, where I cannot read it. Please upload it."
            )
        if self._api.is_slacks(handle.url):
            return Location(handle.url, _HOSTS, self._api.authorization)
        if self._api.is_operators(handle.url):
            return Location(handle.url, (self._api.host,), self._api.authorization, trusts_private=True)
        raise AttachmentUnavailable(f"“{name}” is not stored on Slack, so I do not read it.")

    async def _look_up(self, file_id: str, name: str) -> Handle:
        try:
            answer = await self._api.call(lambda client: client.files_info(file=file_id))
        except errors.SLACK_ERRORS as error:
            word = errors.word(error)
            if word in {"file_not_found", "file_deleted"}:
                why = f"“{name}” is not on Slack any more."
            elif word == "missing_scope":
                why = _missing_scope(name)
            else:
                why = f"Slack does not say where “{name}” is ({self._api.describe(error)})."
            raise AttachmentUnavailable(why) from error
        handle = handle_of({"id": file_id, **(answer.get("file") or {}), "file_access": "visible"})
        if handle.access == FileAccess.ASK:
            raise AttachmentUnavailable(f"Slack does not say where “{name}” is.")
        return handle

    async def _put(self, url: str, content: bytes) -> None:
        try:
            status, _, _ = await self._api.post(url, data=content)
        except errors.SLACK_ERRORS as error:
            raise _unambiguous(errors.send_failed(error, self._api.describe(error))) from error
        if status != 200:
            raise SendFailed(f"Slack did not take the file: HTTP {status}", retryable=status == 429 or status >= 500)


def is_file(message_id: str) -> bool:
    """Return whether *message_id* is the receipt of an upload."""
    return message_id.startswith("F")


def _missing_scope(name: str) -> str:
    return f"I may not read files on Slack, so I cannot see “{name}”: the app lacks the scope {_READ_SCOPE}."


def _unambiguous(failed: SendFailed) -> SendFailed:
    """Return *failed* for a step that shows nothing to anybody, so that it can be repeated without risk."""
    return SendFailed(str(failed), retryable=failed.retryable, retry_after_seconds=failed.retry_after_seconds)


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
