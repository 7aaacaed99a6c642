"""How people are told how long to wait. Pure."""

from __future__ import annotations

import math

MOMENT_SECONDS = 20
"""Up to here it is a moment."""
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600
_LONGEST = 31 * _DAY
"""No quota lasts for longer than a month: what does is no wait, but the seconds of a date, or milliseconds."""


def in_words(seconds: float) -> str:
    """``in a moment``, ``in about 15 minutes``: rounded up, so that nobody comes back too soon, to what people say;
    ``later`` for what nobody can mean."""
    if seconds <= MOMENT_SECONDS:
        return "in a moment"
    if seconds <= _MINUTE - 10:
        return f"in about {_up(seconds, 10)} seconds"
    if seconds <= _HOUR - 5 * _MINUTE:
        minutes = _up(seconds / _MINUTE, 1)
        return _about(minutes if minutes <= 10 else _up(minutes, 5), "minute")
    if seconds <= _DAY:
        return _about(_up(seconds / _HOUR, 1), "hour")
    return _about(_up(seconds / _DAY, 1), "day") if seconds <= _LONGEST else "later"


def _up(amount: float, step: int) -> int:
    return math.ceil(amount / step) * step


def _about(count: int, what: str) -> str:
    if count == 1:
        return f"in about {'an' if what == 'hour' else 'a'} {what}"
    return f"in about {count} {what}s"
