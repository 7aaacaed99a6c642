"""Whether a connection that looks alive still brings events: judged by its own baseline. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.slack.recent import Recent

SPOKEN = frozenset({None, "file_share", "thread_broadcast", "me_message", "bot_message"})
_WEIGHT = 0.1
_PATIENCE = 5.0
PLACES = 5
GRACE_SECONDS = 15.0
"""A message that is younger may still be on its way as an event."""


class Hearing:
    """What was heard last, where, and how often something is heard usually.

    A silence is overdue once it lasts ``quiet_seconds`` and five times the usual gap between two events
    (an exponential moving average with weight 0.1).
    """

    def __init__(self, quiet_seconds: float) -> None:
        self._quiet_seconds = quiet_seconds
        self._last: float | None = None
        self._usual_seconds = 0.0
        self._asked = 0.0
        self._places: Recent[tuple[str, str | None], str] = Recent(1000)

    def heard(self, payload: Mapping[str, Any], now: float) -> None:
        """An event came, of whatever kind; *now* by a clock that never goes back."""
        if self._last is not None:
            gap = now - self._last
            self._usual_seconds += _WEIGHT * (gap - self._usual_seconds)
        self._last = now
        event = payload.get("event")
        # An ``app_mention`` alone says nothing about whether messages of the channel are subscribed to.
        if isinstance(event, Mapping) and event.get("type") == "message" and event.get("subtype") in SPOKEN:
            self.reached(event)

    def reached(self, event: Mapping[str, Any]) -> None:
        """What was said in a place until this message is known."""
        channel, ts, thread = event.get("channel"), event.get("ts"), event.get("thread_ts")
        if not isinstance(channel, str) or not isinstance(ts, str) or not ts.replace(".", "").isdecimal():
            return
        place = (channel, thread if isinstance(thread, str) and thread != ts else None)
        if float(ts) > float(self._places.get(place) or 0):
            self._places.put(place, ts)

    def is_overdue(self, now: float) -> bool:
        """Whether it is time to ask whether something was said that was not heard."""
        if self._last is None:
            return False
        return now - max(self._last, self._asked) > max(self._quiet_seconds, _PATIENCE * self._usual_seconds)

    def asked(self, now: float) -> None:
        """It was asked."""
        self._asked = now

    def places(self) -> list[tuple[str, str | None, str]]:
        """Channel, thread and newest heard timestamp of the places where something was heard last."""
        return [(channel, thread, ts) for (channel, thread), ts in self._places.newest(PLACES)]


def is_unheard(said: Mapping[str, Any], now_seconds: float) -> bool:
    """Whether *said*, newer than all that was heard in its place, should have come as an event by now.

    What apps say is left out: of its own messages an app need not hear, such as those that it streams.
    """
    if said.get("bot_id"):
        return False
    return said.get("subtype") in SPOKEN and now_seconds - float(said["ts"]) > GRACE_SECONDS
