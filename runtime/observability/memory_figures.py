"""The key figures of the memory, of all processes together, over the last days.

docs/selection.md says what each means and what is aimed at. They are made of sums, which each process adds to a hash of
the day when it writes its events (`runtime.observability.stream`), so that no restart loses them.

Keys (owner ``events``): ``ar:events:{events}:memory:<day>``, each of which expires after `DAYS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from connectors.message import redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

DAYS = 30
"""The figures are of so many days, today included: a change of last year should not hide one of last week."""
SECONDS_A_DAY = 86_400.0
Sums = Counter[str]
MEMORY_EVENTS = frozenset({"grounding.assembled", "turn.answered", "record.changed"})


def memory_sums(event: Mapping[str, Any]) -> Sums:
    """Return what *event* adds to the sums. Pure.

    A fact of more than `DAYS` ago that is confirmed now counts as confirmed, not as added.
    """
    sums: Sums = Counter()

    def add(name: str, value: object) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            sums[name] += value  # type: ignore[assignment]

    match event.get("event"):
        case "grounding.assembled" if why := event.get("records_why"):
            add("turns", int(why != "cold"))
            add("rebuilt", int(why not in ("cold", "reused", "aside")))
            if isinstance(similarity := event.get("records_similarity"), int | float):
                add("similarity", similarity)
                add("similar", 1)
            if event.get("records_found"):
                add("taken", event.get("used_records_budget"))
                add("room", event.get("budget_records"))
            if why == "cold" and isinstance(milliseconds := event.get("duration_ms"), int | float):
                add("cold_seconds", milliseconds / 1000)
                add("cold", 1)
        case "turn.answered" if event.get("records_shown"):
            add("shown", event.get("records_shown"))
            add("used", event.get("records_used"))
        case "record.changed" if event.get("why") == "added":
            add("added", 1)
            add("facts", int(event.get("type") == "fact"))
        case "record.changed" if is_new_fact_confirmed(event):
            add("confirmed", 1)
    return +sums


def is_new_fact_confirmed(event: Mapping[str, Any]) -> bool:
    """Say whether a ``record.changed`` is the first confirmation of a fact."""
    return event.get("type") == "fact" and event.get("why") == "confirmed" and event.get("from_state") == "new"


def add_sums(pipeline: Pipeline, sums: Mapping[str, float], now: datetime) -> None:
    """Add to *pipeline* the calls that add *sums* to those of the day."""
    key = _key(now)
    for name, value in sums.items():
        pipeline.hincrbyfloat(key, name, value)
    pipeline.expire(key, timedelta(days=DAYS + 1))


async def read_memory_figures(redis: Redis, now: datetime) -> dict[str, float]:
    """Return the metrics ``memory_…`` that have a value. Raises `connectors.message.StoreUnavailable`."""
    days = [now - timedelta(days=age) for age in range(DAYS)]
    pipeline = redis.pipeline(transaction=False)
    for day in days:
        pipeline.hgetall(_key(day))
    rows: list[dict[str, str]] = await pipeline.execute()
    sums: Counter[str] = Counter()
    for row in rows:
        for name, value in row.items():
            sums[name] += float(value)  # type: ignore[assignment]
    oldest = max((age for age, row in enumerate(rows) if row), default=0)
    begun = (now - timedelta(days=oldest)).replace(hour=0, minute=0, second=0, microsecond=0)
    return memory_figures(sums, max((now - begun).total_seconds() / SECONDS_A_DAY, 1.0))


def memory_figures(sums: Mapping[str, float], days: float) -> dict[str, float]:
    """Return the figures of *sums* over so many *days*. Pure."""

    def ratio(part: str, whole: str) -> float | None:
        return sums.get(part, 0.0) / sums[whole] if sums.get(whole) else None

    figures = {
        "memory_relevance": ratio("similarity", "similar"),
        "memory_budget_utilization": ratio("taken", "room"),
        "memory_refresh_rate": ratio("rebuilt", "turns"),
        "memory_recall_precision": ratio("used", "shown"),
        "memory_cold_start_mean_seconds": ratio("cold_seconds", "cold"),
        "memory_confirmation_rate": ratio("confirmed", "facts"),
        "memory_growth_per_day": sums["added"] / days if sums.get("added") else None,
    }
    return {name: round(value, 4) for name, value in figures.items() if value is not None}


def _key(day: datetime) -> str:
    return redis_key("events", "{events}", "memory", day.astimezone(UTC).date().isoformat())
