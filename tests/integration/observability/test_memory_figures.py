"""The figures of the memory are of all processes together, and no restart loses them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import StoreUnavailable
from runtime.observability import EventStream, read_memory_figures


def turn(why: str, similarity: float, taken: int) -> dict[str, Any]:
    return {
        "event": "grounding.assembled",
        "duration_ms": 40.0,
        "records_found": 4,
        "budget_records": 1000,
        "records_why": why,
        "records_similarity": similarity,
        "used_records_budget": taken,
    }


def fact(why: str, from_state: str = "") -> dict[str, Any]:
    return {"event": "record.changed", "type": "fact", "why": why, "from_state": from_state}


FIRST = [turn("cold", 0.6, 600), turn("reused", 0.4, 600), fact("added"), fact("added")]
SECOND = [
    turn("topic", 0.5, 300),
    {"event": "turn.answered", "records_shown": 5, "records_used": 2},
    fact("confirmed", "new"),
    fact("confirmed", "confirmed"),
    {"event": "message.accepted"},
]
FIGURES = {
    "memory_relevance": 0.5,
    "memory_budget_utilization": 0.5,
    "memory_refresh_rate": 0.5,
    "memory_recall_precision": 0.4,
    "memory_growth_per_day": 2.0,
    "memory_confirmation_rate": 0.5,
    "memory_cold_start_mean_seconds": 0.04,
}


async def written(redis: Redis, events: list[dict[str, Any]]) -> None:
    stream = EventStream()
    for event in events:
        stream.put("{}", event)
    await stream.flush(redis)


async def test_what_two_processes_counted_is_one_figure(redis: Redis) -> None:
    now = datetime.now(UTC)
    assert await read_memory_figures(redis, now) == {}

    await written(redis, FIRST)
    await written(redis, SECOND)

    assert await read_memory_figures(redis, now) == FIGURES


async def test_a_figure_is_of_the_last_thirty_days(redis: Redis) -> None:
    await written(redis, [*FIRST, *SECOND])
    now = datetime.now(UTC)

    later = await read_memory_figures(redis, now + timedelta(days=3))
    assert later.pop("memory_growth_per_day") <= 2 / 3
    assert later == {name: value for name, value in FIGURES.items() if name != "memory_growth_per_day"}
    assert await read_memory_figures(redis, now + timedelta(days=30)) == {}


async def test_what_redis_did_not_take_is_counted_later(redis: Redis) -> None:
    class Away:
        def pipeline(self, **_: object) -> Any:
            raise StoreUnavailable("switched off")

    stream = EventStream()
    for event in [*FIRST, *SECOND]:
        stream.put("{}", event)
    with pytest.raises(StoreUnavailable):
        await stream.flush(Away())  # type: ignore[arg-type]
    await stream.flush(redis)
    await stream.flush(redis)

    assert await read_memory_figures(redis, datetime.now(UTC)) == FIGURES
