"""What was said in a place after a moment, from Slack's history. I/O."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from connectors.connector import SendFailed
from connectors.message import ConversationKey, InboundMessage
from connectors.slack import convert, errors, outgoing
from connectors.slack.api import Api
from connectors.slack.lookups import Channels
from connectors.slack.recent import Recent

log = structlog.get_logger()

_PAGES = 10
_MESSAGES = 200
SCAN_SECONDS = 24 * 3600.0
"""How far back a channel is read for calls that began a thread which nobody here has heard of."""

MISSED_SECONDS = 7 * 24 * 3600.0
"""Conversations that were silent for longer are not read: one that knows thousands would be held back by Slack for
long, and what was heard so long ago is not known to have been answered."""

_UNREADABLE = frozenset({"channel_not_found", "not_in_channel", "thread_not_found", "missing_scope", "is_archived"})


class History:
    """Messages of a place, oldest first, bounded to `_PAGES` pages."""

    def __init__(self, api: Api, channels: Channels, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._channels = channels
        self._now = now
        self._scanned: Recent[str, None] = Recent()

    async def after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        """What was said after *ts*, as events. Raises `connectors.connector.SendFailed`."""
        found: list[dict[str, Any]] = []
        cursor = ""
        for _ in range(_PAGES):
            page: dict[str, Any] = {"oldest": ts, "limit": _MESSAGES, "cursor": cursor or None}
            if thread is None:
                answer = await self._api.ask(lambda client: client.conversations_history(channel=channel, **page))  # noqa: B023
            else:
                answer = await self._api.ask(
                    lambda client: client.conversations_replies(channel=channel, ts=thread, **page)  # noqa: B023
                )
            found += answer.get("messages") or []
            cursor = str((answer.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                break
        else:
            log.warning("connector.history_cut", connector=convert.CONNECTOR, found=len(found))
        # A page has the newest first, or not; and a thread's first message comes with every page.
        newer = {str(said["ts"]): said for said in found if float(said["ts"]) > float(ts)}
        return [as_event(newer[at], channel) for at in sorted(newer, key=float)]

    async def missed(
        self, key: ConversationKey, after_message_id: str, me: convert.Identity
    ) -> AsyncIterator[InboundMessage]:
        """What was said in a conversation after a message, and calls in its channel that began another.

        Nothing where Slack does not let the bot read. Raises `connectors.connector.SendFailed` where it may later.
        """
        channel, thread = outgoing.place_of(key.external_id)
        if not outgoing.is_ts(after_message_id):
            return  # a command, of which Slack keeps nothing
        if self._now() - float(after_message_id) > MISSED_SECONDS:
            return
        public = await self._channels.is_public(channel)
        for event in await self._readable(channel, thread, after_message_id):
            message = _understood(event, me, convert.Known(takes_part=thread is not None, public=public))
            if message is not None:
                yield message
        if thread is None or channel.startswith("D") or channel in self._scanned:
            return
        since = max(float(after_message_id), self._now() - SCAN_SECONDS)
        events = await self._readable(channel, None, f"{since:.6f}")
        self._scanned.put(channel, None)
        for event in events:
            message = _understood(event, me, convert.Known(public=public))
            if message is not None and message.addressed:
                yield message

    async def _readable(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        try:
            return await self.after(channel, thread, ts)
        except SendFailed as failed:
            if failed.retryable:
                raise
            why = errors.word(failed.__cause__)
            level = log.info if why in _UNREADABLE else log.warning
            level("connector.lookup_failed", connector=convert.CONNECTOR, what="history", why=why or "refused")
            return []


def as_event(said: dict[str, Any], channel: str) -> dict[str, Any]:
    """A message of the history as the event by which it would have come."""
    kind = {"channel_type": "im"} if channel.startswith("D") else {}
    return {"type": "message", **said, "channel": channel, **kind}


def _understood(event: dict[str, Any], me: convert.Identity, known: convert.Known) -> InboundMessage | None:
    try:
        return convert.to_inbound(event, me, known)
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("message.ignored", connector=convert.CONNECTOR, why="unreadable")
        return None
