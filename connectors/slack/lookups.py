"""Reads on Slack what its events leave out, and what no event brought. I/O.

`Lookups`: names, files, public channels, and whether the bot takes part in a thread. Only the last one is waited for,
since it decides whether a message is answered; without any other answer the message soon goes on with fewer details.
`History`: messages that were written while nobody listened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import structlog
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.connector import SendFailed
from connectors.health import Backoff
from connectors.message import InboundMessage
from connectors.slack import errors, events, payloads
from connectors.slack.api import Api, ApiCall, Recent
from connectors.slack.events import CONNECTOR, MALFORMED, EventDetails, Identity
from connectors.slack.mrkdwn import mentions

log = structlog.get_logger()

ANSWER_WITHIN_SECONDS = 1.0
"""Slack waits 3 s for an acknowledgement, and the message has to be stored in that time, too."""

NAME_LASTS_SECONDS = 3600.0
CHANNEL_LASTS_SECONDS = 60.0
"""Short, because a channel may become private."""

THREAD_SECONDS = 120.0
"""How long Slack is asked again about a thread. It may let an app ask once a minute only."""

PAUSE_SECONDS = 60.0
"""A pause before a failed question is asked again, unless Slack sets a wait."""

CHANNEL_SCAN_SECONDS = 24 * 3600.0
"""Age of the oldest mention in a channel that is answered although it began a thread nobody here knows."""

MAX_MISSED_SECONDS = 7 * 24 * 3600.0
"""Conversations that were silent for longer are not read. There may be thousands of them, and Slack's rate limits
would delay all."""

_REPLIES_READ = 200
_PAGES = 10
_MESSAGES = 200
_UNREADABLE = frozenset({"channel_not_found", "not_in_channel", "thread_not_found", "missing_scope", "is_archived"})


class Lookups:
    """Asks Slack, and remembers the answers. All methods but `takes_part` take `ANSWER_WITHIN_SECONDS` at most."""

    def __init__(self, api: Api, backoff: Backoff, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._backoff = backoff
        self._now = now
        self._names: Recent[str, tuple[str, float]] = Recent()
        self._threads: Recent[tuple[str, str], bool] = Recent()
        self._public_channels: Recent[str, tuple[bool, float]] = Recent()
        self._paused_until: Recent[str, float] = Recent()

    async def names(self, user_ids: Iterable[str]) -> dict[str, str]:
        """Return the names that are known or can be looked up in time, by user id."""
        ids = sorted(set(user_ids))
        names = await asyncio.gather(*map(self._name, ids))
        return {user_id: name for user_id, name in zip(ids, names, strict=True) if name}

    async def _name(self, user_id: str) -> str:
        """Return the name as Slack shows it: the display name, which may be empty, else the real one."""
        name, expires_at = self._names.get(user_id) or ("", 0.0)
        if expires_at > self._now():
            return name
        answer = await self._ask("users.info", user_id, lambda client: client.users_info(user=user_id))
        if answer is None:
            return name
        user: dict[str, Any] = answer.get("user") or {}
        profile: dict[str, Any] = user.get("profile") or {}
        candidates = (profile.get("display_name"), profile.get("real_name"), user.get("real_name"), user.get("name"))
        name = next((str(candidate) for candidate in candidates if candidate), "")
        self._names.put(user_id, (name, self._now() + NAME_LASTS_SECONDS))
        return name

    def note_channel(self, channel: str, public: bool) -> None:
        """Remember that an event named the channel's type."""
        self._public_channels.put(channel, (public, self._now() + CHANNEL_LASTS_SECONDS))

    async def is_public(self, channel: str) -> bool:
        """Return whether everybody in the Slack workspace may read *channel*; False if Slack does not say."""
        if channel.startswith("D"):
            return False
        public, expires_at = self._public_channels.get(channel) or (False, 0.0)
        if expires_at > self._now():
            return public
        answer = await self._ask(
            "conversations.info", channel, lambda client: client.conversations_info(channel=channel)
        )
        if answer is None:
            return False
        info: dict[str, Any] = answer.get("channel") or {}
        public = bool(info.get("is_channel")) and not any(info.get(f"is_{kind}") for kind in ("private", "mpim", "im"))
        self.note_channel(channel, public)
        return public

    def note_participation(self, channel: str, thread: str) -> None:
        """Remember that the bot takes part in a thread."""
        self._threads.put((channel, thread), True)

    def assume_participation(self, channel: str, thread: str) -> bool:
        """Return whether the bot takes part in a thread of former times: it does, unless Slack has said otherwise."""
        known = self._threads.get((channel, thread))
        if known is None:
            self.note_participation(channel, thread)
        return known is None or known

    async def takes_part(self, channel: str, thread: str, me: Identity) -> bool:
        """Return whether the bot was mentioned in a thread or wrote there.

        Asks Slack once for each thread, about its first messages, and again after failures for `THREAD_SECONDS` at
        most. Without an answer the result is False, and the next message asks again.
        """
        known = self._threads.get((channel, thread))
        if known is not None:
            return known
        messages = await self._first_messages(channel, thread)
        if messages is None:
            return False
        takes_part = any(
            events.is_own(message, me)
            or me.user_id in (message.get("reply_users") or ())
            or mentions(message.get("text") or "", me.user_id)
            for message in messages
        )
        self._threads.put((channel, thread), takes_part)
        return takes_part

    async def _first_messages(self, channel: str, thread: str) -> list[dict[str, Any]] | None:
        """Return the first messages of a thread, or None if Slack refuses or fails for `THREAD_SECONDS`."""
        subject = f"first messages {channel}/{thread}"
        if self._is_paused(subject):
            return None
        backoff, deadline = self._backoff.fresh(), self._now() + THREAD_SECONDS
        while True:
            try:
                answer = await self._api.request(
                    lambda client: client.conversations_replies(channel=channel, ts=thread, limit=_REPLIES_READ)
                )
            except SendFailed as failed:
                wait_seconds = backoff.next_seconds(failed.retry_after_seconds)
                if not failed.retryable or self._now() + wait_seconds > deadline:
                    why = errors.word(failed.__cause__) or str(failed)
                    log.warning("connector.lookup_failed", connector=CONNECTOR, what="thread", why=why)
                    self._paused_until.put(subject, self._now() + PAUSE_SECONDS)
                    return None
                await asyncio.sleep(wait_seconds)
            else:
                return answer.get("messages") or []

    async def thread_of(self, channel: str, ts: str) -> str | None:
        """Return the thread in which a message is a reply, "" if it is none; None if Slack does not say."""
        answer = await self._ask(
            "conversations.replies",
            f"{channel}/{ts}",
            lambda client: client.conversations_replies(channel=channel, ts=ts, limit=1),
        )
        messages: list[dict[str, Any]] = [] if answer is None else answer.get("messages") or []
        threads = [str(message.get("thread_ts") or "") for message in messages if message.get("ts") == ts]
        return next(("" if thread == ts else thread for thread in threads), None)

    async def complete_files(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *event* with the details of those files of which Slack sent only the id."""
        files = event.get("files")
        if not isinstance(files, list):
            return event
        return {**event, "files": await asyncio.gather(*map(self._complete_file, files))}

    async def _complete_file(self, file: Any) -> Any:
        if not isinstance(file, Mapping) or "id" not in file or not events.is_bare(file):
            return file
        file_id = str(file["id"])
        answer = await self._ask("files.info", file_id, lambda client: client.files_info(file=file_id))
        return file if answer is None else answer.get("file") or file

    async def _ask(self, method: str, subject: str, call: ApiCall) -> AsyncSlackResponse | None:
        """Return Slack's answer, or None if there is none in time.

        After a failure that may pass, *method* pauses; after a refusal (a person of another workspace, a channel that
        the bot may not read), or an answer that comes too late, only questions about *subject* do.
        """
        about_subject = f"{method} {subject}"
        if self._is_paused(method, about_subject):
            return None
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SECONDS):
                return await self._api.call(call)
        except errors.SLACK_ERRORS as error:
            log.debug("connector.lookup_failed", connector=CONNECTOR, what=method, why=self._api.describe(error))
            may_pass = errors.meaning(error).retryable and not isinstance(error, TimeoutError)
            key = method if may_pass else about_subject
            self._paused_until.put(key, self._now() + (errors.retry_after_seconds(error) or PAUSE_SECONDS))
            return None

    def _is_paused(self, *keys: str) -> bool:
        return any((self._paused_until.get(key) or 0.0) > self._now() for key in keys)


class History:
    """Reads the messages of a conversation that no event brought."""

    def __init__(self, api: Api, lookups: Lookups, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._lookups = lookups
        self._now = now
        self._scanned_channels: set[str] = set()

    def forget_scans(self) -> None:
        """Let each channel be scanned for new mentions once more."""
        self._scanned_channels.clear()

    async def missed(self, external_id: str, after_message_id: str, me: Identity) -> AsyncIterator[InboundMessage]:
        """Yield the messages of a conversation after one of them, and then mentions that began other threads.

        Yields nothing if Slack does not let the bot read. Raises `connectors.connector.SendFailed` if it may later.
        """
        channel, thread = payloads.split_place(external_id)
        if not payloads.is_ts(after_message_id):
            return  # a command, which is not in the history
        if self._now() - float(after_message_id) > MAX_MISSED_SECONDS:
            return
        public = await self._lookups.is_public(channel)
        takes_part = thread is not None and self._lookups.assume_participation(channel, thread)
        for event in await self._readable(channel, thread, after_message_id):
            message = _to_inbound(event, me, EventDetails(takes_part=takes_part, public=public))
            if message is not None:
                self._note_participation(message)
                takes_part = takes_part or (thread is not None and message.addressed)
                yield message
        if thread is None or channel.startswith("D") or channel in self._scanned_channels:
            return
        since = max(float(after_message_id), self._now() - CHANNEL_SCAN_SECONDS)
        for event in await self._readable(channel, None, f"{since:.6f}"):
            message = _to_inbound(event, me, EventDetails(public=public))
            if message is not None and message.addressed:
                self._note_participation(message)
                yield message
        self._scanned_channels.add(channel)  # not before: a mention that was not accepted has to be found again

    def _note_participation(self, message: InboundMessage) -> None:
        channel, thread = payloads.split_place(message.external_id)
        if thread is not None and message.addressed:
            self._lookups.note_participation(channel, thread)

    async def _readable(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        """Return the messages after *ts*; none if Slack does not let the bot read."""
        try:
            return await self._after(channel, thread, ts)
        except SendFailed as failed:
            if failed.retryable:
                raise
            why = errors.word(failed.__cause__)
            level = log.info if why in _UNREADABLE else log.warning
            level("connector.lookup_failed", connector=CONNECTOR, what="history", why=why or "refused")
            return []

    async def _after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        """Return the messages after *ts* as events. Raises `connectors.connector.SendFailed`."""
        messages: list[dict[str, Any]] = []
        pages = 0
        async for page in self._api.messages(channel, thread, max_pages=_PAGES, oldest=ts, limit=_MESSAGES):
            messages += page
            pages += 1
        if pages == _PAGES:
            log.warning("connector.history_cut", connector=CONNECTOR, found=len(messages))
        # By timestamp: every page of a thread repeats its first message.
        newer = {str(message["ts"]): message for message in messages if float(message["ts"]) > float(ts)}
        kind = {"channel_type": "im"} if channel.startswith("D") else {}
        return [{"type": "message", **newer[at], "channel": channel, **kind} for at in sorted(newer, key=float)]


def _to_inbound(event: dict[str, Any], me: Identity, details: EventDetails) -> InboundMessage | None:
    try:
        return events.to_inbound(event, me, details)
    except MALFORMED:
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
        return None
