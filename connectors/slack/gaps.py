"""What a connection that broke may have swallowed, read from the history and put in its place. I/O.

Slack delivers again what was not acknowledged, but later than what is said meanwhile: without this a conversation's
messages would change places. Over HTTP a request that was not acknowledged is such a break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from connectors.connector import SendFailed
from connectors.slack.hearing import SPOKEN
from connectors.slack.history import History
from connectors.slack.recent import Recent

log = structlog.get_logger()

PATIENCE_SECONDS = 5.0
"""How long all that was said waits for one place's history."""
_PAUSE_SECONDS = 0.2
_REST_SECONDS = 5.0
"""For how long nothing is looked for after the history could not be had, unless Slack asks for a longer pause."""
_Place = tuple[str, str | None]


class Gaps:
    """Where something may be missing: in each conversation that has not been looked at since a connection broke.

    A conversation is a direct message's channel, or a thread; of those that nobody spoke in yet, what is missing is
    looked for from the newest message on that was heard anywhere when the connection broke.
    """

    def __init__(self, history: History, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._history = history
        self._patience_seconds = patience_seconds
        self.breaks = 0
        """Connections that broke so far."""
        self._complete: Recent[_Place, int] = Recent()
        """After how many of them it was last looked whether something is missing in a place."""
        self._newest: Recent[_Place, str] = Recent()
        """The timestamp of what people said last in a place, of what was passed on."""
        self._latest = self._since = ""
        self._rests_until = 0.0

    def broke(self, bringing: Mapping[str, Any] | None = None) -> None:
        """A connection broke: what it brought last may not have come, *bringing* among it where that is known."""
        self.breaks += 1
        self._since = self._latest
        spoken = None if bringing is None else _spoken(bringing)
        if spoken is not None and spoken[0] not in self._newest:  # what is missing there begins with it
            self._newest.put(spoken[0], f"{float(spoken[1]) - 0.000_001:.6f}")

    def passed_on(self, event: Mapping[str, Any]) -> None:
        """*event* was passed on."""
        spoken = _spoken(event)
        if spoken is None:
            return
        place, ts = spoken
        if float(ts) > float(self._newest.get(place) or 0):
            self._newest.put(place, ts)
        if float(ts) > float(self._latest or 0):
            self._latest = ts

    def is_late(self, event: Mapping[str, Any]) -> bool:
        """Whether something was passed on that was said after *event* in the same place."""
        spoken = _spoken(event)
        return spoken is not None and float(spoken[1]) < float(self._newest.get(spoken[0]) or 0)

    async def filled(self, event: dict[str, Any], follows: int) -> list[dict[str, Any]]:
        """*event*, which came by a connection that follows so many that broke, among all that people said in its
        conversation and nobody heard, oldest first.

        What was said after it, too: what it repeats may be older than the last that was swallowed.
        """
        spoken = _spoken(event)
        if spoken is None:
            return [event]
        place, ts = spoken
        since, now = self._newest.get(place) or self._since, asyncio.get_running_loop().time()
        if place[1] == ts or not follows or not since or (self._complete.get(place) or 0) >= follows:
            return [event]
        if now < self._rests_until:
            return [event]
        try:
            async with asyncio.timeout(self._patience_seconds):
                said = await self._after(*place, since)
        except (SendFailed, TimeoutError) as error:
            asked = getattr(error, "retry_after_seconds", None) or 0.0
            self._rests_until = now + max(_REST_SECONDS, asked)
            log.warning("connector.lookup_failed", connector="slack", what="history", why=str(error) or "no answer")
            return [event]
        self._complete.put(place, follows)
        missing = [one for one in said if not one.get("bot_id") and one["ts"] != ts]
        return sorted([*missing, event], key=lambda one: float(one["ts"]))

    async def _after(self, channel: str, thread: str | None, ts: str) -> list[dict[str, Any]]:
        while True:
            try:
                return await self._history.after(channel, thread, ts)
            except SendFailed as error:
                if not error.retryable or error.retry_after_seconds:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)


def as_payload(event: dict[str, Any]) -> dict[str, Any]:
    """*event*, which the history told of, as Slack would have delivered it."""
    return {"type": "event_callback", "event_id": f"history-{event['channel']}-{event['ts']}", "event": event}


def _spoken(event: Mapping[str, Any]) -> tuple[_Place, str] | None:
    """Channel and thread, and the timestamp, of what a person said; in a channel it begins a thread of its own."""
    if event.get("type") not in ("message", "app_mention") or event.get("subtype") not in SPOKEN or event.get("bot_id"):
        return None
    channel, ts, thread = event.get("channel"), event.get("ts"), event.get("thread_ts")
    if not isinstance(channel, str) or not isinstance(ts, str) or not ts.replace(".", "", 1).isdecimal():
        return None
    if isinstance(thread, str) and thread:
        return (channel, thread), ts
    return (channel, None if channel.startswith("D") else ts), ts
