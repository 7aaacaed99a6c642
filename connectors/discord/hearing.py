"""Whether silence is that of a quiet place or of a socket that has gone deaf. Pure; the clock is handed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_CHANNELS = 100
USUAL_GAPS = 3.0
"""Silence of this many usual gaps is asked about."""
_FADES = 0.9
_LONGEST_DOUBT = 5
"""Doublings of the wait after a session that was opened anew and stayed silent, too."""


class Hearing:
    """Remembers when Discord last told something, and the newest message of each channel.

    It is asked about silence of `USUAL_GAPS` times the longest gap of late, but not before ``least_seconds``
    and not later than ``most_seconds``; what is found out is measured against the messages that were heard.
    """

    def __init__(self, least_seconds: float, most_seconds: float, now: float) -> None:
        self._bounds = (least_seconds, max(least_seconds, most_seconds))
        self._heard_at = self._asked_at = now
        self._gap = 0.0
        self._deaf_sessions = 0
        self._newest: OrderedDict[int, int] = OrderedDict()

    def heard(self, now: float) -> None:
        """Something was told."""
        self._gap = max(now - self._heard_at, self._gap * _FADES)
        self._heard_at = self._asked_at = now
        self._deaf_sessions = 0

    def heard_message(self, channel_id: int, message_id: int) -> None:
        """A message was told, whosoever it is."""
        self._newest[channel_id] = max(message_id, self._newest.get(channel_id, 0))
        self._newest.move_to_end(channel_id)
        if len(self._newest) > MAX_CHANNELS:
            self._newest.popitem(last=False)

    def session_began(self, now: float) -> None:
        """A new session tells nothing of before: that is read over REST, and no sign of deafness."""
        self._newest.clear()
        self._asked_at = now

    def found_deaf(self) -> None:
        """A session was given up for its silence: if the next is silent too, it gets more time."""
        self._deaf_sessions = min(self._deaf_sessions + 1, _LONGEST_DOUBT)

    def asked(self, now: float) -> None:
        """Discord was asked about the silence, and it was that of a quiet place."""
        self._asked_at = now

    def seconds_until_doubt(self, now: float) -> float:
        """How long the silence may still last before it is asked about; 0 when it is time."""
        least, most = self._bounds
        patience = min(max(least, USUAL_GAPS * self._gap), most) * 2.0**self._deaf_sessions
        return max(0.0, max(self._heard_at, self._asked_at) + patience - now)

    def newest_in(self, channel_id: int) -> int:
        """The newest message that was heard there, 0 for none."""
        return self._newest.get(channel_id, 0)

    def newest(self, others: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
        """The *count* channels with the newest messages known: those heard, and *others* (channel, message)."""
        known = dict(others)
        for channel_id, message_id in self._newest.items():
            known[channel_id] = max(message_id, known.get(channel_id, 0))
        return sorted(known.items(), key=lambda one: one[1], reverse=True)[:count]
