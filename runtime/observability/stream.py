"""The events of all processes in one Redis stream, from which they are read back, live or not.

Key (owner ``events``): ``ar:events:{events}:stream``, capped at about `STREAM_LENGTH`; an entry has the
format's version ``v`` and the event as JSON, ``e``.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import StoreUnavailable, redis_key
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


Event = dict[str, Any]

STREAM_LENGTH = 20_000
QUEUE_LENGTH = 10_000
BATCH = 200

_FORMAT = 1
_STREAM = redis_key("events", "{events}", "stream")
_GATHER_SECONDS = 0.25
_RETRY_SECONDS = 1.0
_LAST_FLUSH_SECONDS = 2.0
_PAGE = 500
_POLL_SECONDS = 0.5

log = structlog.get_logger()


class EventStream:
    """Takes events at once, from any thread, and writes them to Redis when it can.

    Before Redis is open and while it is away they wait, *capacity* of them; then the oldest are dropped
    and counted. An event is written at least once: twice where Redis took it and could not say so.
    """

    def __init__(self, capacity: int = QUEUE_LENGTH) -> None:
        self._waiting: deque[str] = deque()
        self._capacity = capacity
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._wake = asyncio.Event()
        self.dropped = 0
        """How many events were dropped since the process started."""

    def put(self, line: str) -> None:
        """Keep an event, as JSON, for writing. Never waits, never raises."""
        self._waiting.append(line)
        if len(self._waiting) > self._capacity:
            with suppress(IndexError):  # written in this very moment
                self._waiting.popleft()
                self.dropped += 1
        loop = self._loop
        if loop is not None and threading.get_ident() == self._thread:
            self._wake.set()
        elif loop is not None and not self._wake.is_set():
            with suppress(RuntimeError):  # the loop was closed: there is nobody to wake
                loop.call_soon_threadsafe(self._wake.set)

    async def run(self, redis: Redis) -> None:
        """Write what comes until cancelled; then what is left, if Redis takes it in a few seconds."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._wake.set()  # for what came before
        reported = self.dropped
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(_GATHER_SECONDS)  # the events of many turns become one write
                try:
                    await self.flush(redis)
                except StoreUnavailable:
                    await asyncio.sleep(_RETRY_SECONDS)
                    self._wake.set()
                    continue
                if self.dropped > reported:
                    log.warning("events.dropped", dropped=self.dropped - reported)
                    reported = self.dropped
        finally:
            self._loop = None
            with suppress(StoreUnavailable, TimeoutError):  # they were printed, too
                async with asyncio.timeout(_LAST_FLUSH_SECONDS):
                    await self.flush(redis)

    async def flush(self, redis: Redis) -> None:
        """Write all that waits. Raises `StoreUnavailable`; then what was not written waits on."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                pipeline = redis.pipeline(transaction=False)
                for line in batch:
                    entry: dict[Any, Any] = {"v": _FORMAT, "e": line}
                    pipeline.xadd(_STREAM, entry, maxlen=STREAM_LENGTH, approximate=True)
                await pipeline.execute()
            except BaseException:
                self._waiting.extendleft(reversed(batch))
                raise


async def newest(redis: Redis) -> str:
    """Where the stream stands now: what comes later is told from there. Raises `StoreUnavailable`."""
    entries: Any = await redis.xrevrange(_STREAM, count=1)
    return str(entries[0][0]) if entries else "0-0"


async def tail(
    redis: Redis,
    *,
    until: str | None = None,
    limit: int = 50,
    workspace: str | None = None,
    strategy: str | None = None,
    event: str | None = None,
    follow: bool = False,
) -> AsyncIterator[Event]:
    """The last *limit* events until a place in the stream (`newest`; now, where None), oldest first; with *follow*
    then each that came later, as it comes, for ever.

    *workspace*, *strategy* and *event* leave out all events without these in ``workspace_id``, ``strategy``
    and ``event``.
    Raises `StoreUnavailable` at the start; a store that goes away later is waited for.
    """

    asked = {"workspace_id": workspace, "strategy": strategy, "event": event}

    def wanted(found: Event) -> bool:
        return all(value is None or found.get(name) == value for name, value in asked.items())

    last_id = await newest(redis) if until is None else until
    for stored in await _last(redis, last_id, limit, wanted):
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
            fresh = _event(fields)
            if wanted(fresh):
                yield fresh


async def _last(redis: Redis, end: str, limit: int, wanted: Any) -> list[Event]:
    found: list[Event] = []
    upper = end
    while len(found) < limit:
        page: Any = await redis.xrevrange(_STREAM, max=upper, count=_PAGE)
        for _entry_id, fields in page:
            event = _event(fields)
            if wanted(event) and len(found) < limit:
                found.append(event)
        if len(page) < _PAGE:
            break
        upper = "(" + str(page[-1][0])
    return found[::-1]


def _entries(answer: Any) -> list[tuple[str, dict[str, str]]]:
    """The entries in what XREAD answers: pairs of stream and entries, or (RESP3) a mapping of them."""
    found: list[tuple[str, dict[str, str]]] = []
    for _stream, entries in answer.items() if isinstance(answer, dict) else answer or ():
        # RESP3 wraps the entries in one more list.
        nested = bool(entries) and isinstance(entries[0], list)
        found.extend(entries[0] if nested else entries)
    return found


def _event(fields: dict[str, str]) -> Event:
    if int(fields["v"]) > _FORMAT:
        raise NewerFormat(f"events are stored in format {fields['v']}; run the newer version that wrote them")
    event: Event = json.loads(fields["e"])
    return event
