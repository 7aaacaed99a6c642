"""Keeps calls to a platform within its rates: final parts of replies, previews and typing signs.

A final part goes at once while its chat and the platform have burst left; then it waits for the documented rate. After
a 429, nothing goes until the platform's pause is over (`RateLimiter.hold`), and for a minute after that there are no
bursts. Previews and signs never wait in line and never use up a final part's burst: if they may not go now, their
caller drops them.

`Limits` is pure: each method gets the time, in seconds on a monotonic clock. `RateLimiter` waits on the event loop. The
limits hold for one process: one gateway at a time serves a platform.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

from connectors.connector import Capabilities, Connector, LimitsPerMinute, SendFailed, SharesRateLimit
from connectors.message import ConversationKey

CHAT_BURST = 100
"""Final parts that may go to one chat before its documented rate holds."""
OVERALL_BURST_SECONDS = 4.0
"""The platform-wide burst, as seconds of the overall rate."""
CALM_SECONDS = 60.0
"""Time after a pause that a platform asked for, without bursts, previews and signs."""
MINUTE_SECONDS = 61.0
"""A platform's minute, and one second more: the platform counts when calls arrive, and some take longer than others."""
_REMEMBERED_CHATS = 4096


class Extra(Enum):
    """A kind of call that gives way to final parts."""

    MESSAGE = auto()
    """The first message of a preview."""
    EDIT = auto()
    """A preview that grows by an edit."""
    OPENING = auto()
    """The beginning of a preview that grows by the platform's own means."""
    ADDITION = auto()
    """An addition to such a preview."""
    SIGN = auto()
    """A typing sign or a reaction."""


class Bucket:
    """Allows *burst* calls at once, then *rate* a second; a rate of 0 is no limit.

    This is the generic cell rate algorithm (ITU-T I.371).
    """

    def __init__(self, rate: float, burst: float = 1.0) -> None:
        self._interval = 1.0 / rate if rate > 0 else 0.0
        self._tolerance = max(0.0, burst - 1.0) * self._interval
        self._next = -math.inf
        """Time of the next call by the rate alone."""
        self._held_until = -math.inf

    def free_at(self) -> float:
        """Return when the next call may be made."""
        by_burst = max(self._next - self._tolerance, self._held_until + CALM_SECONDS)
        return max(self._held_until, min(self._next, by_burst))

    def roomy_at(self) -> float:
        """Return when the next call may be made that leaves half of the burst, and respects `CALM_SECONDS`."""
        return max(self._next - self._tolerance / 2, self._held_until + CALM_SECONDS)

    def count(self, now: float) -> None:
        self._next = max(self._next, now) + self._interval

    def hold(self, until: float) -> None:
        """Allow nothing before *until*, then one call after the other."""
        self._held_until = self._next = max(self._held_until, until)

    def is_idle(self, now: float) -> bool:
        """Return whether the past has no effect any more."""
        return max(self._next, self._held_until + CALM_SECONDS) <= now


class Window:
    """Allows *most* calls in any minute."""

    def __init__(self, most: int) -> None:
        self._calls: deque[float] = deque(maxlen=most)
        self._half = max(1, most // 2)

    def free_at(self) -> float:
        """Return when the next call may be made."""
        return self._calls[0] + MINUTE_SECONDS if len(self._calls) == self._calls.maxlen else -math.inf

    def roomy_at(self) -> float:
        """Return when the next call may be made that leaves half of the minute."""
        return self._calls[-self._half] + MINUTE_SECONDS if len(self._calls) >= self._half else -math.inf

    def count(self, now: float) -> None:
        self._calls.append(now)

    def is_idle(self, now: float) -> bool:
        """Return whether there was no call in the last minute."""
        return not self._calls or self._calls[-1] + MINUTE_SECONDS <= now


@dataclass(frozen=True, slots=True)
class _Chat:
    finals: Bucket
    previews: Bucket
    minute: Window | None

    def is_idle(self, now: float) -> bool:
        minute = self.minute is None or self.minute.is_idle(now)
        return minute and self.finals.is_idle(now) and self.previews.is_idle(now)


class Limits:
    """The rates of one platform.

    *max_per_minute* returns how many messages and edits a chat takes in a minute, or 0 for no such limit.
    """

    def __init__(self, rates: Capabilities, max_per_minute: Callable[[str], int] = lambda _: 0) -> None:
        self._rates = rates
        self._most = max_per_minute
        self._overall = Bucket(rates.sends_per_second_overall, rates.sends_per_second_overall * OVERALL_BURST_SECONDS)
        self._extras = {
            Extra.EDIT: Bucket(rates.edits_per_second_overall),
            Extra.OPENING: Bucket(rates.stream_starts_per_second_overall),
            Extra.ADDITION: Bucket(rates.stream_appends_per_second_overall),
        }
        self._chats: dict[str, _Chat] = {}
        self._forget_beyond = _REMEMBERED_CHATS

    def take_final(self, chat: str, now: float) -> float:
        """Count a final part and return 0.0, if it may go now; else return the seconds until it might."""
        state = self._chat(chat)
        free_at = max(state.finals.free_at(), self._overall.free_at())
        if state.minute:
            free_at = max(free_at, state.minute.free_at())
        if free_at > now:
            return free_at - now
        state.finals.count(now)
        if state.minute:
            state.minute.count(now)
        self._overall.count(now)
        self._forget_idle(now)
        return 0.0

    def take_extra(self, chat: str, extra: Extra, now: float) -> float:
        """Count a preview or sign and return 0.0, if it may go now; else return the seconds until it might."""
        state, bucket = self._chat(chat), self._extras.get(extra)
        free_at = max(state.finals.roomy_at(), self._overall.roomy_at(), bucket.free_at() if bucket else -math.inf)
        if extra is not Extra.SIGN:
            free_at = max(free_at, state.previews.free_at(), state.minute.roomy_at() if state.minute else -math.inf)
        if free_at > now:
            return free_at - now
        self._overall.count(now)
        if bucket:
            bucket.count(now)
        if extra is not Extra.SIGN:
            state.previews.count(now)
            if state.minute:
                state.minute.count(now)
        return 0.0

    def count_edit(self, now: float) -> None:
        """Count an edit that gives a reply its last form: previews wait for it, and it waits for none."""
        self._extras[Extra.EDIT].count(now)

    def hold(self, chat: str | None, until: float) -> None:
        """Allow no call to *chat*, or with None to any chat, before *until*."""
        (self._overall if chat is None else self._chat(chat).finals).hold(until)

    def _chat(self, chat: str) -> _Chat:
        state = self._chats.get(chat)
        if state is None:
            most, rates = self._most(chat), self._rates
            if most:
                a_second = most / MINUTE_SECONDS
                edits = min(rates.edits_per_second, a_second / 2)
                state = _Chat(Bucket(a_second, most), Bucket(edits), Window(most))
            else:
                state = _Chat(Bucket(rates.sends_per_second, CHAT_BURST), Bucket(rates.edits_per_second), None)
            self._chats[chat] = state
        return state

    def _forget_idle(self, now: float) -> None:
        if len(self._chats) > self._forget_beyond:
            self._chats = {name: state for name, state in self._chats.items() if not state.is_idle(now)}
            self._forget_beyond = max(_REMEMBERED_CHATS, 2 * len(self._chats))  # else each call would look


class RateLimiter:
    """Makes calls to the platform of *connector* wait. The default *clock* is the event loop's."""

    def __init__(
        self,
        connector: Connector,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connector = connector
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        rates = connector.capabilities
        if isinstance(connector, LimitsPerMinute):
            self._limits = Limits(rates, connector.max_per_minute)
        else:
            self._limits = Limits(rates)
        self._lines: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """A lock for each chat while somebody waits for it."""

    async def wait_for_turn(self, key: ConversationKey) -> None:
        """Wait until a final part for *key* may go, first come, first served within its chat, and count it."""
        chat = self._chat(key)
        async with self._lines.setdefault(chat, asyncio.Lock()):
            while seconds := self._limits.take_final(chat, self._clock()):
                await self._sleep(seconds)

    def take_extra(self, key: ConversationKey, extra: Extra) -> float:
        """Count a preview or sign for *key* and return 0.0, if it may go now; else the seconds until it might."""
        return self._limits.take_extra(self._chat(key), extra, self._clock())

    def count_edit(self) -> None:
        """Count an edit that gives a reply its last form; some platforms limit all edits together."""
        self._limits.count_edit(self._clock())

    def hold(self, key: ConversationKey, error: SendFailed) -> None:
        """Allow no call to the chat of *key*, or to the platform, for the pause that *error* (a 429) asks for."""
        if error.retry_after_seconds:
            chat = None if error.everywhere else self._chat(key)
            self._limits.hold(chat, self._clock() + error.retry_after_seconds)

    def _chat(self, key: ConversationKey) -> str:
        return self._connector.paced_as(key) if isinstance(self._connector, SharesRateLimit) else key.external_id


class RateLimiters:
    """One rate limiter for each connector of the process."""

    def __init__(self, make: Callable[[Connector], RateLimiter] = RateLimiter) -> None:
        self._make = make
        self._limiters: dict[str, RateLimiter] = {}

    def of(self, connector: Connector) -> RateLimiter:
        """Return the rate limiter of all calls to *connector*'s platform."""
        limiter = self._limiters.get(connector.name)
        if limiter is None:
            limiter = self._limiters[connector.name] = self._make(connector)
        return limiter
