"""The stream of events, on a real Redis and without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import StoreUnavailable
from runtime.observability import EventStream, newest_id, read_events
from runtime.stores import NewerFormat

KEY = "ar:events:{events}:stream"


class Switch:
    """A Redis that can be taken away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.away = False
        self.refused = asyncio.Event()

    def pipeline(self, **options: Any) -> Any:
        if self.away:
            self.refused.set()
            raise StoreUnavailable("away")
        return self._redis.pipeline(**options)


@asynccontextmanager
async def running(stream: EventStream, redis: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(stream.run(redis))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def names(redis: Redis, **options: Any) -> list[str]:
    return [event["event"] async for event in read_events(redis, **options)]


async def until_written(redis: Redis, count: int) -> None:
    async with asyncio.timeout(20):
        while await redis.xlen(KEY) < count:
            await asyncio.sleep(0.01)


async def test_what_was_logged_before_redis_was_open_is_written_in_order(redis: Redis) -> None:
    """Events of the start are kept until there is a store, and come before the later ones."""
    stream = EventStream()
    stream.put(json.dumps({"event": "early"}))
    async with running(stream, redis):
        await until_written(redis, 1)
        stream.put(json.dumps({"event": "late"}))
        await until_written(redis, 2)
        await asyncio.sleep(0.1)  # who is ended before the answer to a write does not know of it, and writes again
    assert await names(redis) == ["early", "late"]


async def test_what_is_left_at_the_end_is_written(redis: Redis) -> None:
    """Stopping writes what has not been written yet."""
    stream = EventStream()
    async with running(stream, redis):
        await asyncio.sleep(0)
        for n in range(500):
            stream.put(json.dumps({"event": str(n)}))
    assert await names(redis, limit=1000) == [str(n) for n in range(500)]


async def test_an_outage_of_redis_loses_no_event_that_fits_and_counts_the_rest(redis: Redis) -> None:
    """While the store is away events wait, the oldest beyond the capacity are dropped and counted."""
    switch = Switch(redis)
    switch.away = True
    stream = EventStream(capacity=10)
    async with running(stream, switch):
        for n in range(15):
            stream.put(json.dumps({"event": str(n)}))
        await switch.refused.wait()
        assert stream.dropped == 5
        switch.away = False
        await until_written(redis, 10)
    assert (await names(redis))[:10] == [str(n) for n in range(5, 15)]


async def test_events_from_other_threads_arrive(redis: Redis) -> None:
    """Libraries log from threads; their events are written as well."""
    stream = EventStream()
    async with running(stream, redis):
        await asyncio.sleep(0.01)
        await asyncio.gather(*(asyncio.to_thread(stream.put, json.dumps({"event": str(n)})) for n in range(20)))
        await until_written(redis, 20)
    assert stream.dropped == 0


async def test_the_last_events_are_read_oldest_first_and_filtered(redis: Redis) -> None:
    """Reading gives the last so many that fit workspace and strategy, oldest first, however far back they lie."""
    stream = EventStream()
    for n in range(1200):
        stream.put(
            json.dumps({"event": str(n), "workspace_id": "acme" if n % 400 == 0 else "other", "strategy": "qmd"})
        )
    await stream.flush(redis)
    assert await names(redis, limit=3) == ["1197", "1198", "1199"]
    assert await names(redis, limit=50, workspace="acme") == ["0", "400", "800"]
    assert await names(redis, limit=2, workspace="acme", strategy="qmd") == ["400", "800"]
    assert await names(redis, workspace="acme", strategy="tail") == []


async def test_following_gives_each_new_event_once(redis: Redis) -> None:
    """Following yields the last ones and then each new one that fits, none twice and none left out."""
    stream = EventStream()
    stream.put(json.dumps({"event": "before", "workspace_id": "acme"}))
    await stream.flush(redis)
    seen: list[str] = []

    async def follow() -> None:
        async for event in read_events(redis, workspace="acme", follow=True):
            seen.append(event["event"])
            if event["event"] == "last":
                return

    async with asyncio.timeout(20), running(stream, redis), asyncio.TaskGroup() as tasks:
        tasks.create_task(follow())
        for n in range(20):
            stream.put(json.dumps({"event": str(n), "workspace_id": "acme" if n % 2 else "other"}))
            await asyncio.sleep(0.01)
        stream.put(json.dumps({"event": "last", "workspace_id": "acme"}))
    assert seen == ["before", *(str(n) for n in range(20) if n % 2), "last"]


async def test_following_misses_nothing_that_came_between_a_place_and_the_first_look(redis: Redis) -> None:
    """Whoever was told that following began sees what happened from then on, however late the first look is."""
    stream = EventStream()
    stream.put(json.dumps({"event": "before"}))
    await stream.flush(redis)
    place = await newest_id(redis)
    stream.put(json.dumps({"event": "between"}))
    await stream.flush(redis)
    async with asyncio.timeout(20):
        assert (await anext(read_events(redis, until=place, limit=0, follow=True)))["event"] == "between"
    assert await names(redis, until=place) == ["before"]


async def test_the_stream_is_capped(redis: Redis) -> None:
    """Old events make room for new ones."""
    stream = EventStream(stored=100)
    for n in range(1000):
        stream.put(json.dumps({"event": str(n)}))
    await stream.flush(redis)
    assert 100 <= await redis.xlen(KEY) < 400
    assert await names(redis, limit=1) == ["999"]


async def test_events_of_a_newer_program_are_a_clear_error(redis: Redis) -> None:
    """An entry whose format is newer than ours is named as such."""
    await redis.xadd(KEY, {"v": 2, "e": "?"})
    with pytest.raises(NewerFormat, match="newer version"):
        await names(redis)
