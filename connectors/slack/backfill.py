"""Messages that no event brought, read from Slack's history. I/O.

Two uses: conversations are caught up after a downtime (`History.missed`), and a broken connection may have swallowed
messages that belong before the next one (`Gaps`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeGuard

import structlog

from connectors.connector import SendFailed
from connectors.message import ConversationKey, InboundMessage
from connectors.slack import errors, events, payloads
from connectors.slack.api import Api, Recent
from connectors.slack.events import CONNECTOR, MALFORMED, MESSAGE_SUBTYPES, EventDetails, Identity
from connectors.slack.lookups import Lookups

log = structlog.get_logger()

CHANNEL_SCAN_SECONDS = 24 * 3600.0
"""Age of the oldest mention in a channel that is answered although it began a thread nobody here knows."""

MAX_MISSED_SECONDS = 7 * 24 * 3600.0
"""Conversations that were silent for longer are not read. There may be thousands of them, and Slack's rate limits
would delay all."""

GAP_SECONDS = 5.0
"""The longest time that all events wait for the history of one conversation."""

_PAGES = 10
_MESSAGES = 200
_UNREADABLE = frozenset({"channel_not_found", "not_in_channel", "thread_not_found", "missing_scope", "is_archived"})
_RETRY_SECONDS = 0.2
_PAUSE_SECONDS = 5.0
"""A pause in the search for gaps after the history could not be read, unless Slack asks for a longer one."""

_Place = tuple[str, str | None]
"""A channel, and a thread in it."""


class History:
    """The messages of a channel or thread, oldest first, at most `_PAGES` pages."""

    def __init__(self, api: Api, lookups: Lookups, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._lookups = lookups
        self._now = now
        self._scanned_channels: Recent[str, None] = Recent()

    async def after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
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

    async def missed(self, key: ConversationKey, after_message_id: str, me: Identity) -> AsyncIterator[InboundMessage]:
        """Yield the messages of a conversation after one of them, and then mentions that began other threads.

        Yields nothing if Slack does not let the bot read. Raises `connectors.connector.SendFailed` if it may later.
        """
        channel, thread = payloads.split_place(key.external_id)
        if not payloads.is_ts(after_message_id):
            return  # a command, which is not in the history
        if self._now() - float(after_message_id) > MAX_MISSED_SECONDS:
            return
        public = await self._lookups.is_public(channel)
        for event in await self._readable(channel, thread, after_message_id):
            message = _to_inbound(event, me, EventDetails(takes_part=thread is not None, public=public))
            if message is not None:
                yield message
        if thread is None or channel.startswith("D") or channel in self._scanned_channels:
            return
        since = max(float(after_message_id), self._now() - CHANNEL_SCAN_SECONDS)
        mentions = await self._readable(channel, None, f"{since:.6f}")
        self._scanned_channels.put(channel, None)
        for event in mentions:
            message = _to_inbound(event, me, EventDetails(public=public))
            if message is not None and message.addressed:
                yield message

    async def _readable(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        """Return the messages after *ts*; none if Slack does not let the bot read."""
        try:
            return await self.after(channel, thread, ts)
        except SendFailed as failed:
            if failed.retryable:
                raise
            why = errors.word(failed.__cause__)
            level = log.info if why in _UNREADABLE else log.warning
            level("connector.lookup_failed", connector=CONNECTOR, what="history", why=why or "refused")
            return []


def as_payload(event: dict[str, Any]) -> dict[str, Any]:
    """Return *event*, which comes from the history, in the envelope in which Slack would have delivered it."""
    return {"type": "event_callback", "event_id": f"history-{event['channel']}-{event['ts']}", "event": event}


def _to_inbound(event: dict[str, Any], me: Identity, details: EventDetails) -> InboundMessage | None:
    try:
        return events.to_inbound(event, me, details)
    except MALFORMED:
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable")
        return None


class Gaps:
    """Restores the order of a conversation after a connection broke.

    Slack delivers again what was not acknowledged, but later than newer messages. So the first message of each
    conversation after a break brings the missing ones before it, from the history. (Over HTTP a request that was not
    acknowledged is a break.)

    A conversation is a direct message's channel, or a thread. If nobody has written in it yet, it is read from the
    newest message of any conversation at the time of the break.
    """

    def __init__(self, history: History, patience_seconds: float = GAP_SECONDS) -> None:
        self._history = history
        self._patience_seconds = patience_seconds
        self.breaks = 0
        """The number of connections that broke."""
        self._checked: Recent[_Place, int] = Recent()
        """The number of breaks when a conversation was last checked."""
        self._newest: Recent[_Place, str] = Recent()
        """The timestamp of the newest message passed on, by conversation."""
        self._newest_anywhere = ""
        self._newest_at_break = ""
        self._paused_until = 0.0

    def note_break(self, lost: Mapping[str, Any] | None = None) -> None:
        """Note that a connection broke, with the event *lost* if that is known."""
        self.breaks += 1
        self._newest_at_break = self._newest_anywhere
        spoken = None if lost is None else _place_and_ts(lost)
        if spoken is not None and spoken[0] not in self._newest:  # the conversation begins with the lost message
            self._newest.put(spoken[0], f"{float(spoken[1]) - 0.000_001:.6f}")

    def note_passed_on(self, event: Mapping[str, Any]) -> None:
        """Note that *event* was passed on."""
        spoken = _place_and_ts(event)
        if spoken is None:
            return
        place, ts = spoken
        if float(ts) > float(self._newest.get(place) or 0):
            self._newest.put(place, ts)
        if float(ts) > float(self._newest_anywhere or 0):
            self._newest_anywhere = ts

    async def fill(self, event: dict[str, Any], breaks: int) -> list[dict[str, Any]]:
        """Return *event* among the missing messages of its conversation, oldest first.

        *breaks* is the number of breaks before the connection that brought it. Newer messages are included, since
        *event* may be a repetition that is older than the last one swallowed.
        """
        spoken = _place_and_ts(event)
        if spoken is None:
            return [event]
        place, ts = spoken
        since, now = self._newest.get(place) or self._newest_at_break, asyncio.get_running_loop().time()
        begins_thread = place[1] == ts
        if begins_thread or not breaks or not since or (self._checked.get(place) or 0) >= breaks:
            return [event]
        if now < self._paused_until:
            return [event]
        try:
            async with asyncio.timeout(self._patience_seconds):
                newer = await self._read_history(*place, since)
        except (SendFailed, TimeoutError) as error:
            wait_seconds = getattr(error, "retry_after_seconds", None) or 0.0
            self._paused_until = now + max(_PAUSE_SECONDS, wait_seconds)
            log.warning("connector.lookup_failed", connector=CONNECTOR, what="history", why=str(error) or "no answer")
            return [event]
        self._checked.put(place, breaks)
        missing = [message for message in newer if not message.get("bot_id") and message["ts"] != ts]
        return sorted([*missing, event], key=lambda message: float(message["ts"]))

    async def _read_history(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        while True:
            try:
                return await self._history.after(channel, thread, ts)
            except SendFailed as error:
                if not error.retryable or error.retry_after_seconds:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)


def _place_and_ts(event: Mapping[str, Any]) -> tuple[_Place, str] | None:
    """Return the conversation and timestamp of a person's message; in a channel each one begins a thread."""
    if event.get("type") not in ("message", "app_mention") or event.get("bot_id"):
        return None
    channel, ts, thread = event.get("channel"), event.get("ts"), event.get("thread_ts")
    if event.get("subtype") not in MESSAGE_SUBTYPES or not isinstance(channel, str) or not _is_number(ts):
        return None
    if isinstance(thread, str) and thread:
        return (channel, thread), ts
    return (channel, None if channel.startswith("D") else ts), ts


def _is_number(ts: Any) -> TypeGuard[str]:
    return isinstance(ts, str) and ts.replace(".", "", 1).isdecimal()
