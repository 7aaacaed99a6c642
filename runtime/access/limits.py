"""Limits how many messages one person may send into one conversation: a sliding window.

Keys (owner ``limits``, tag of the conversation): ``counted``, a sorted set of the messages that were admitted within
the window by their times, each once however often it comes, and ``told``, which exists if the person was told of a
refusal in this window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from config.settings import Settings
from connectors.message import ConversationKey, InboundMessage, Role, encode_id, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis


# Times are whole milliseconds by the server's clock, which all processes share.
_ADMIT = """
local now = tonumber(ARGV[3])
if now == nil then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - window))
if redis.call('ZSCORE', KEYS[1], ARGV[4]) then return {1, 0, 0} end
if redis.call('ZCARD', KEYS[1]) < limit then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[4])
  redis.call('PEXPIRE', KEYS[1], window)
  return {1, 0, 0}
end
local wait = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]) + window - now
local first = redis.call('SET', KEYS[2], '1', 'NX', 'PX', window)
return {0, wait, first and 1 or 0}
"""
MOMENT_SECONDS = 20
"""A wait that people call a moment."""
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600
_LONGEST = 31 * _DAY
"""No quota lasts longer than a month; a larger number is a date in seconds, or milliseconds."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a message is within the limit.

    ``retry_after_seconds`` of a refused message is whole and at least 1. ``first_refusal`` is true at most once in a
    window, for the message whose author is told.
    """

    allowed: bool
    retry_after_seconds: int = 0
    first_refusal: bool = False


class RateLimit:
    """``RATE_LIMIT_MESSAGES`` per ``RATE_LIMIT_WINDOW_SECONDS``, for each person in each conversation.

    *clock* (seconds) replaces the server's clock in tests.
    """

    def __init__(self, redis: Redis, settings: Settings, *, clock: Callable[[], float] | None = None) -> None:
        self._redis = redis
        self._admit = redis.register_script(_ADMIT)
        self._messages = settings.rate_limit_messages
        self._window_milliseconds = settings.rate_limit_window_seconds * 1000
        self._clock = clock

    async def admit(self, key: ConversationKey, message: InboundMessage, role: Role, *, bucket: str = "") -> Admission:
        """Count *message* if it is within the limit, once however often this is called. Raises `StoreUnavailable`.

        Each *bucket* has a limit of its own, of the same size. Admins by *role* or by token are not counted, whatever
        author they name. Refused messages do not lengthen the wait.
        """
        if Role.ADMIN in (role, message.caller_role):
            return Admission(True)
        names = [encode_id(message.author.id), *([bucket] if bucket else [])]
        allowed, wait, first = await self._admit(
            keys=[redis_key("limits", key.tag, part, key.encoded, *names) for part in ("counted", "told")],
            args=[
                self._messages,
                self._window_milliseconds,
                "" if self._clock is None else math.floor(self._clock() * 1000),
                encode_id(message.message_id),
            ],
        )
        return Admission(True) if allowed else Admission(False, max(1, math.ceil(wait / 1000)), bool(first))


def wait_in_words(seconds: float) -> str:
    """Return a wait in words, rounded up: ``in a moment``, ``in about 15 minutes``, ``later`` beyond a month."""
    if seconds <= MOMENT_SECONDS:
        return "in a moment"
    if seconds <= _MINUTE - 10:
        return f"in about {_round_up(seconds, 10)} seconds"
    if seconds <= _HOUR - 5 * _MINUTE:
        minutes = _round_up(seconds / _MINUTE, 1)
        return _in_about(minutes if minutes <= 10 else _round_up(minutes, 5), "minute")
    if seconds <= _DAY:
        return _in_about(_round_up(seconds / _HOUR, 1), "hour")
    return _in_about(_round_up(seconds / _DAY, 1), "day") if seconds <= _LONGEST else "later"


def _round_up(amount: float, step: int) -> int:
    return math.ceil(amount / step) * step


def _in_about(count: int, unit: str) -> str:
    if count == 1:
        return f"in about {'an' if unit == 'hour' else 'a'} {unit}"
    return f"in about {count} {unit}s"
