"""What the bot says, changes and takes back. I/O."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import AttachmentUnavailable, Location, SendFailed
from connectors.message import Attachment, ConversationKey, OutboundMessage, OutboundPart, Receipt
from connectors.slack import errors, payloads
from connectors.slack.api import Api, Recent
from connectors.slack.events import ASK, EXTERNAL, HIDDEN, Handle, Identity, handle_of

# ---- files ----
#
# Files to Slack and from Slack. I/O.


HOSTS = ("files.slack.com", ".slack.com")
"""Where Slack keeps files; only there the token goes."""

_READ, _WRITE = "files:read", "files:write"


class Files:
    """Upload, deletion, and where a file is."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def upload(self, channel: str, thread: str | None, part: OutboundPart) -> str:
        """Share *part* as a file; its id. Nothing is seen before the last of the three steps.

        Raises `connectors.connector.SendFailed`, ambiguous only in that step.
        """
        content, name = part.text.encode("utf-8", "replace"), payloads.upload_name(part)
        try:
            place = await self._api.ask(
                lambda client: client.files_getUploadURLExternal(filename=name, length=len(content))
            )
        except SendFailed as failed:
            raise _unseen(failed) from failed.__cause__
        file_id, url = str(place.get("file_id") or ""), str(place.get("upload_url") or "")
        if not file_id or not self._is_slacks(url):
            raise SendFailed("Slack gave no place to upload a file to.", retryable=False)
        await self._put(url, content)
        await self._api.ask(
            lambda client: client.files_completeUploadExternal(
                files=[{"id": file_id, "title": part.file_name}], channel_id=channel, thread_ts=thread
            )
        )
        return file_id

    async def delete(self, file_id: str) -> None:
        """Raises `connectors.connector.SendFailed`."""
        await self._api.ask(lambda client: client.files_delete(file=file_id))

    async def locate(self, attachment: Attachment) -> Location:
        """Where *attachment* lies. Raises `connectors.connector.AttachmentUnavailable`."""
        name = attachment.name
        try:
            handle = Handle.decode(attachment.handle)
        except ValueError as error:
            raise AttachmentUnavailable(f"I cannot find the file “{name}” on Slack.") from error
        if self._api.scopes is not None and _READ not in self._api.scopes:
            raise AttachmentUnavailable(
                f"I may not read files on Slack, so I cannot see “{name}”: the app lacks the scope {_READ}."
            )
        if handle.access == ASK:
            handle = await self._asked(handle.file_id, name)
        if handle.access == HIDDEN:
            raise AttachmentUnavailable(f"Slack hides “{name}”, because the workspace is over its plan's limit.")
        if handle.access == EXTERNAL:
            raise AttachmentUnavailable(
                f"“{name}” is not on Slack but only linked from there, where I cannot read it. Please upload it."
            )
        return self._location(handle, name)

    async def _asked(self, file_id: str, name: str) -> Handle:
        """What Slack says of a file when asked: files of other organisations come with nothing but their id."""
        try:
            answer = await self._api.call(lambda client: client.files_info(file=file_id))
        except errors.SLACK_ERRORS as error:
            word = errors.word(error)
            if word in {"file_not_found", "file_deleted"}:
                why = f"“{name}” is not on Slack any more."
            elif word == "missing_scope":
                why = f"I may not read files on Slack, so I cannot see “{name}”: the app lacks the scope {_READ}."
            else:
                why = f"Slack does not say where “{name}” is ({self._api.describe(error)})."
            raise AttachmentUnavailable(why) from error
        handle = handle_of({"id": file_id, **(answer.get("file") or {}), "file_access": "visible"})
        if handle.access == ASK:
            raise AttachmentUnavailable(f"Slack does not say where “{name}” is.")
        return handle

    def _location(self, handle: Handle, name: str) -> Location:
        host = urlsplit(handle.url).hostname or ""
        if host.endswith(".slack.com") and handle.url.startswith("https://"):
            return Location(handle.url, HOSTS, self._api.authorization)
        if host and host == self._api.host:
            return Location(handle.url, (host,), self._api.authorization, trusts_private=True)
        raise AttachmentUnavailable(f"“{name}” is not stored on Slack, so I do not read it.")

    async def _put(self, url: str, content: bytes) -> None:
        try:
            status, _, _ = await self._api.post(url, data=content)
        except errors.SLACK_ERRORS as error:
            raise _unseen(errors.send_failed(error, self._api.describe(error))) from error
        if status != 200:
            raise SendFailed(f"Slack did not take the file: HTTP {status}", retryable=status == 429 or status >= 500)

    def _is_slacks(self, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        return (host.endswith(".slack.com") and url.startswith("https://")) or (bool(host) and host == self._api.host)


def is_file(message_id: str) -> bool:
    """Whether *message_id* is the receipt of an upload."""
    return message_id.startswith("F")


def _unseen(failed: SendFailed) -> SendFailed:
    """*failed*, before anything could be seen: then trying again is no risk."""
    return SendFailed(
        str(failed), retryable=failed.retryable, ambiguous=False, retry_after_seconds=failed.retry_after_seconds
    )


# ---- responses ----
#
# Replies to slash commands: by the URL that came with the command, seen by who gave it. I/O.
#
# Slack takes five posts within 30 minutes (docs.slack.dev, "Handling user interaction"). The URLs are kept in memory
# only: they are worth nothing after that time.


log = structlog.get_logger()

LASTS_SECONDS = 30 * 60.0
MAX_POSTS = 5
HOST = "hooks.slack.com"

_PREFIX = "response-"
_REMEMBERED = 1000
_OVER = frozenset({"used_url", "expired_url", "expired_trigger_id", "no_such_url"})


@dataclass(slots=True)
class _Url:
    url: str
    until: float
    posts: int = 0


class Responses:
    """What may still be posted to, by the command's message id."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._urls: Recent[str, _Url] = Recent(_REMEMBERED)

    def expect(self, message_id: str, url: str) -> None:
        """Replies to *message_id* go to *url*, unless that is no address of Slack's."""
        if not self._is_slacks(url):
            log.warning("connector.request_refused", connector="slack", why="response_url of another host")
            return
        if message_id not in self._urls:
            self._urls.put(message_id, _Url(url, self._now() + LASTS_SECONDS))

    def forget(self, message_id: str) -> None:
        self._urls.drop(message_id)

    async def post(self, answers: tuple[str, ...], part: OutboundPart) -> Receipt | None:
        """Post *part* where one of *answers* is waited for; None where none is (any more).

        Raises `connectors.connector.SendFailed`.
        """
        for message_id in answers:
            known = self._urls.get(message_id)
            if known is None:
                continue
            if known.posts >= MAX_POSTS or known.until <= self._now():
                self.forget(message_id)
                continue
            if await self._post(known, part):
                known.posts += 1
                return Receipt(f"{_PREFIX}{message_id}-{known.posts}")
            self.forget(message_id)
        return None

    async def _post(self, known: _Url, part: OutboundPart) -> bool:
        """Whether Slack took it; False where the URL is over."""
        try:
            status, said, headers = await self._api.post(known.url, json=payloads.to_respond(part))
        except errors.SLACK_ERRORS as error:
            raise errors.send_failed(error, self._api.describe(error)) from error
        word = _word(said)
        if status == 200 and word in {"", "ok"}:
            return True
        if status in {404, 410} or word in _OVER:
            return False
        asked = headers.get("Retry-After", "")
        raise SendFailed(
            f"Slack did not take the reply to a command: {word or f'HTTP {status}'}",
            retryable=status == 429 or status >= 500,
            ambiguous=status >= 500,
            retry_after_seconds=float(asked) if status == 429 and asked.isdecimal() else None,
        )

    def _is_slacks(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if parts.username or parts.password:
            return False
        return (parts.scheme == "https" and host == HOST) or (
            parts.scheme in {"http", "https"} and bool(host) and host == self._api.host
        )


def is_response(message_id: str) -> bool:
    """Whether *message_id* is the receipt of such a reply, which can be neither edited nor deleted."""
    return message_id.startswith(_PREFIX)


def _word(said: str) -> str:
    """Slack's word for what went wrong: the answer is ``ok``, a word, or an object with ``error``."""
    try:
        told = json.loads(said)
    except ValueError:
        bare = said.strip()
        return bare if bare.replace("_", "").isalnum() and len(bare) < 64 else ("" if not bare else "unreadable")
    if isinstance(told, dict):
        return "" if told.get("ok") else str(told.get("error") or "unreadable")
    return ""


# ---- streaming ----
#
# Slack's own way to show a reply that grows: a message that is begun, added to, and stopped. I/O.
#
# An open stream refuses ``chat.update`` with ``streaming_state_conflict`` and ``chat.delete`` with
# ``cant_delete_message``; one that is not open refuses to be added to or stopped with
# ``message_not_in_streaming_state``. Slack ends a stream by itself after some five minutes.


NEVER = frozenset(
    {
        "access_denied",
        "deprecated_endpoint",
        "enterprise_is_restricted",
        "feature_not_enabled",
        "method_deprecated",
        "missing_scope",
        "no_permission",
        "not_allowed",
        "not_allowed_token_type",
        "paid_only",
        "team_access_not_granted",
        "unknown_method",
    }
)
"""Refusals that hold for all of the workspace; any other one holds for the channel."""

OPEN = frozenset({"streaming_state_conflict", "cant_delete_message"})
"""How a call is refused because the message is still streaming."""

_CLOSED = frozenset({"message_not_in_streaming_state", "stopped_by_user", "message_not_found"})
_LATER = frozenset({"ratelimited", "rate_limited"})


class Streams:
    """The messages that are streaming now, as far as this process began them, and where that is possible."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._available = True
        self._refusing: Recent[str, None] = Recent()
        self._open: Recent[tuple[str, str], None] = Recent()
        self._askers: Recent[tuple[str, str], tuple[str, str]] = Recent()

    def asked(self, channel: str, message_id: str, user: str, team: str) -> None:
        """Somebody of a team said something: in channels Slack wants to know for whom a stream is."""
        if user and team:
            self._askers.put((channel, message_id), (user, team))

    def possible(self, external_id: str, answers: tuple[str, ...]) -> bool:
        """Whether a reply to *answers* can stream there: in threads, to a person who is known."""
        if not self._available:
            return False
        try:
            channel, thread = payloads.to_place(external_id)
        except ValueError:
            return False
        return thread is not None and channel not in self._refusing and self._asker(channel, answers) is not None

    async def begin(self, message: OutboundMessage, text: str) -> Receipt:
        """Raises `connectors.connector.SendFailed`."""
        channel, thread = payloads.place_of(message.key.external_id)
        asker = self._asker(channel, message.answers)
        if thread is None or asker is None:
            raise SendFailed("Slack streams only in threads, to people who are known.", retryable=False)
        first, *rest = payloads.stream_pieces(text) or [""]
        try:
            answer = await self._api.ask(
                lambda client: client.chat_startStream(
                    channel=channel,
                    thread_ts=thread,
                    markdown_text=first or None,
                    recipient_user_id=asker[0],
                    recipient_team_id=asker[1],
                )
            )
        except SendFailed as failed:
            self._learn(channel, failed)
            raise
        ts = str(answer.get("ts") or "")
        if not ts:
            raise SendFailed("Slack gave the stream no timestamp.", retryable=True, ambiguous=True)
        self._open.put((channel, ts), None)
        for piece in rest:
            await self._append(channel, ts, piece)
        return Receipt(ts)

    async def append(self, message: OutboundMessage, receipt: Receipt, text: str) -> None:
        """Raises `connectors.connector.SendFailed`, also where Slack or a person has stopped the stream."""
        channel, _ = payloads.place_of(message.key.external_id)
        for piece in payloads.stream_pieces(text):
            await self._append(channel, receipt.message_id, piece)

    def is_open(self, channel: str, ts: str) -> bool:
        """Whether this process knows it to be streaming."""
        return (channel, ts) in self._open

    async def stop(self, channel: str, ts: str) -> None:
        """Afterwards it does not stream. Raises `connectors.connector.SendFailed` when that cannot be had."""
        try:
            await self._api.ask(lambda client: client.chat_stopStream(channel=channel, ts=ts))
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _CLOSED:
                raise
        self._open.drop((channel, ts))

    async def _append(self, channel: str, ts: str, piece: str) -> None:
        try:
            await self._api.ask(lambda client: client.chat_appendStream(channel=channel, ts=ts, markdown_text=piece))
        except SendFailed as failed:
            if errors.word(failed.__cause__) in _CLOSED:
                self._open.drop((channel, ts))
            raise

    def _asker(self, channel: str, answers: tuple[str, ...]) -> tuple[str, str] | None:
        return next((found for one in reversed(answers) if (found := self._askers.get((channel, one)))), None)

    def _learn(self, channel: str, failed: SendFailed) -> None:
        word = errors.word(failed.__cause__)
        if failed.retryable or not word or word in _LATER:
            return
        log.info("connector.streaming_unavailable", connector="slack", why=word)
        if word in NEVER:
            self._available = False
        else:
            self._refusing.put(channel, None)


# ---- sending ----


_READ_BACK_PAGES = 5
_READ_BACK_MESSAGES = 200
_GONE = frozenset({"message_not_found", "file_not_found", "file_deleted"})


class Sender:
    """The outbound half of the connector. *sent* hears of each place and message that the bot said."""

    def __init__(
        self,
        api: Api,
        streams: Streams,
        replies: Responses,
        files: Files,
        who: Callable[[], Awaitable[Identity]],
        sent: Callable[[str, str], None],
    ) -> None:
        self._api = api
        self._streams = streams
        self._replies = replies
        self._files = files
        self._who = who
        self._sent = sent

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        """Raises `connectors.connector.SendFailed`, as all methods here do."""
        channel, thread = payloads.place_of(message.key.external_id)
        if any(payloads.is_command(one) for one in message.answers):
            if not part.file_name and (receipt := await self._replies.post(message.answers, part)):
                return receipt
            if not channel.startswith("D"):
                raise SendFailed(
                    "Slack shows replies to a command to its giver only, and takes no more of them for this one.",
                    retryable=False,
                )
        if part.file_name:
            return Receipt(await self._files.upload(channel, thread, part))
        arguments = payloads.to_send(message, part)
        answer = await self._api.ask(lambda client: client.chat_postMessage(**arguments))
        ts = str(answer.get("ts") or "")
        if not ts:
            raise SendFailed("Slack gave the message no timestamp.", retryable=True, ambiguous=True)
        self._sent(message.key.external_id, ts)
        return Receipt(message_id=ts)

    async def edit(self, message: OutboundMessage, part: OutboundPart, receipt: Receipt) -> None:
        """Stops what is still streaming first, also where another process began it."""
        if part.file_name or not payloads.is_ts(receipt.message_id):
            raise SendFailed("Slack lets nobody change a file, or a reply that one person sees.", retryable=False)
        channel, _ = payloads.place_of(message.key.external_id)
        arguments = payloads.to_edit(message, part, receipt.message_id)
        await self._unlocked(
            channel,
            receipt.message_id,
            lambda: self._api.ask(lambda client: client.chat_update(**arguments)),
        )

    async def take_back(self, message: OutboundMessage, receipt: Receipt) -> None:
        """What only one person saw goes away by itself."""
        channel, _ = payloads.place_of(message.key.external_id)
        if is_response(receipt.message_id):
            return
        try:
            if is_file(receipt.message_id):
                await self._files.delete(receipt.message_id)
                return
            await self._unlocked(
                channel,
                receipt.message_id,
                lambda: self._api.ask(lambda client: client.chat_delete(channel=channel, ts=receipt.message_id)),
            )
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in _GONE:
                raise

    async def find(self, key: ConversationKey, part: OutboundPart) -> Receipt | None:
        """Among the newest messages of the place; what only one person saw is not found."""
        me = await self._who()
        async with aclosing(self._newest(key)) as pages:
            async for messages in pages:
                found = payloads.found_in(messages, part, me)
                if found is not None:
                    return Receipt(message_id=found)
        return None

    async def find_beginning(self, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """By its words, below what it answers: what is begun as a stream has no token until its last form."""
        me, after = await self._who(), payloads.asked_at(message)
        found = [
            ts async for messages in self._newest(message.key) for ts in payloads.begun_in(messages, part, me, after)
        ]
        return Receipt(message_id=max(found, key=float)) if found else None

    async def _newest(self, key: ConversationKey) -> AsyncGenerator[list[Any], None]:
        """Pages of the newest messages of a place."""
        channel, thread = payloads.place_of(key.external_id)
        cursor = ""
        for _ in range(_READ_BACK_PAGES):
            answer = await self._page(channel, thread, cursor)
            yield answer.get("messages") or []
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                return

    async def _unlocked(self, channel: str, ts: str, call: Callable[[], Awaitable[AsyncSlackResponse]]) -> None:
        """*call*, on a message that does not stream (any more)."""
        if self._streams.is_open(channel, ts):
            await self._streams.stop(channel, ts)
        try:
            await call()
        except SendFailed as failed:
            if errors.word(failed.__cause__) not in OPEN:
                raise
            await self._streams.stop(channel, ts)
            await call()

    async def _page(self, channel: str, thread: str | None, cursor: str) -> AsyncSlackResponse:
        """Messages of a place with their metadata: of a channel the newest first, of a thread the oldest."""
        page: dict[str, Any] = {"limit": _READ_BACK_MESSAGES, "include_all_metadata": True, "cursor": cursor or None}
        if thread is None:
            return await self._api.ask(lambda client: client.conversations_history(channel=channel, **page))
        return await self._api.ask(lambda client: client.conversations_replies(channel=channel, ts=thread, **page))
