"""Stores the events of all processes in one Redis stream, and reads them back, also as they arrive. With them it
stores what the figures of the memory are made of (`runtime.observability.memory_figures`).

Key (owner ``events``): ``ar:events:{events}:stream``, capped at about `STREAM_LENGTH` entries. An entry has the version
of its format, ``v``, and the event as JSON, ``e``.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import StoreUnavailable, redis_key
from runtime.observability.memory_figures import MEMORY_EVENTS, Sums, add_sums, memory_sums
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


Event = dict[str, Any]

STREAM_LENGTH = 20_000
QUEUE_LENGTH = 10_000
BATCH = 200

_FORMAT = 1
_STREAM = redis_key("events", "{events}", "stream")
_WRITE_SECONDS = 0.25
_RETRY_SECONDS = 1.0
_LAST_FLUSH_SECONDS = 2.0
_PAGE = 500
_POLL_SECONDS = 0.5

log = structlog.get_logger()


class EventStream:
    """Takes events at once, from any thread, and writes them to Redis when it can.

    Before Redis is open and while it is away at most *capacity* events wait; then the oldest are dropped and counted.
    An event is written at least once: twice if Redis stored it and the answer was lost. About the newest *stored*
    events are kept.
    """

    def __init__(self, capacity: int = QUEUE_LENGTH, stored: int = STREAM_LENGTH) -> None:
        self._waiting: deque[str] = deque()
        self._counted: deque[Sums] = deque()
        """What the figures of the memory do not have yet."""
        self._capacity = capacity
        self._stored = stored
        self.dropped = 0
        """The events dropped since the process started."""

    def put(self, line: str, event: Event | None = None) -> None:
        """Add an event, as JSON, to those to be written. Never waits, never raises.

        *event* is the same, if the figures of the memory are to count it; they also count what is dropped.
        """
        if event is not None and event.get("event") in MEMORY_EVENTS:
            self._counted.append(memory_sums(event))
        self._waiting.append(line)
        if len(self._waiting) > self._capacity:
            with suppress(IndexError):  # `flush` has just taken it
                self._waiting.popleft()
                self.dropped += 1

    async def run(self, redis: Redis) -> None:
        """Write events until cancelled; then the rest, if Redis takes it within `_LAST_FLUSH_SECONDS`."""
        reported = self.dropped
        try:
            while True:
                await asyncio.sleep(_WRITE_SECONDS)  # the events of many turns become one write
                try:
                    await self.flush(redis)
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                if self.dropped > reported:
                    log.warning("events.dropped", dropped=self.dropped - reported)
                    reported = self.dropped
        finally:
            with suppress(StoreUnavailable, TimeoutError):  # they were also printed
                async with asyncio.timeout(_LAST_FLUSH_SECONDS):
                    await self.flush(redis)

    async def flush(self, redis: Redis) -> None:
        """Write all waiting events. Raises `StoreUnavailable`; those not written then keep waiting."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            counted = sum([self._counted.popleft() for _ in range(len(self._counted))], Counter[str]())
            try:
                pipeline = redis.pipeline(transaction=False)
                for line in batch:
                    entry: dict[Any, Any] = {"v": _FORMAT, "e": line}
                    pipeline.xadd(_STREAM, entry, maxlen=self._stored, approximate=True)
                if counted:
                    add_sums(pipeline, counted, datetime.now(UTC))
                await pipeline.execute()
            except BaseException:
                self._counted.append(counted)
                self._waiting.extendleft(reversed(batch))
                raise


async def newest_id(redis: Redis) -> str:
    """Return the id of the newest event, or "0-0". Raises `StoreUnavailable`."""
    entries: Any = await redis.xrevrange(_STREAM, count=1)
    return str(entries[0][0]) if entries else "0-0"


async def read_events(
    redis: Redis,
    *,
    until: str | None = None,
    limit: int = 50,
    workspace: str | None = None,
    strategy: str | None = None,
    event: str | None = None,
    follow: bool = False,
) -> AsyncIterator[Event]:
    """Yield the last *limit* events up to the id *until* (None: the newest), oldest first; with *follow* then each
    later one as it arrives, for ever.

    *workspace*, *strategy* and *event* select events by ``workspace_id``, ``strategy`` and ``event``. Raises
    `StoreUnavailable` at the start; later it waits for a store that is away.
    """
    filters = {"workspace_id": workspace, "strategy": strategy, "event": event}

    def matches(found: Event) -> bool:
        return all(value is None or found.get(name) == value for name, value in filters.items())

    last_id = await newest_id(redis) if until is None else until
    for stored in await _last(redis, last_id, limit, matches):
        yield stored
    while follow:
        try:
            answer = await redis.xread({_STREAM: last_id}, count=_PAGE)
        except StoreUnavailable:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if not answer:
            await asyncio.sleep(_POLL_SECONDS)
        for entry_id, fields in _entries(answer):
            last_id = entry_id
            later = _event(fields)
            if matches(later):
                yield later


async def _last(redis: Redis, end: str, limit: int, matches: Callable[[Event], bool]) -> list[Event]:
    found: list[Event] = []
    upper = end
    while len(found) < limit:
        page: Any = await redis.xrevrange(_STREAM, max=upper, count=_PAGE)
        for _entry_id, fields in page:
            event = _event(fields)
            if matches(event) and len(found) < limit:
                found.append(event)
        if len(page) < _PAGE:
            break
        upper = "(" + str(page[-1][0])
    return found[::-1]


def _entries(answer: Any) -> list[tuple[str, dict[str, str]]]:
    """Return the entries in an answer of XREAD: pairs of stream and entries, or (RESP3) a mapping of them."""
    found: list[tuple[str, dict[str, str]]] = []
    for _stream, entries in answer.items() if isinstance(answer, dict) else answer or ():
        is_nested = bool(entries) and isinstance(entries[0], list)  # RESP3 wraps the entries in one more list
        found.extend(entries[0] if is_nested else entries)
    return found


def _event(fields: dict[str, str]) -> Event:
    if int(fields["v"]) > _FORMAT:
        raise NewerFormat(f"events are stored in format {fields['v']}; run the newer version that wrote them")
    event: Event = json.loads(fields["e"])
    return event
