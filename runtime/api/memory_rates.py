"""The figures of the memory that are ratios: of what all events since the process's start said. Not thread-safe.

Research note 009 (context management) names seven; the other one, the cold start, is a histogram. A fact that was known
before the process started and is confirmed now counts as confirmed, not as added.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

SECONDS_A_DAY = 86_400.0
LEAST_SECONDS = 3600.0
"""Over less than this no growth a day is told: ten records in a first minute are not 14,400 a day."""


class MemoryRates:
    """Sums, and their ratios."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._sums: Counter[str] = Counter()

    def chosen(self, event: Mapping[str, Any]) -> None:
        """``grounding.assembled`` of a turn that records were looked for."""
        why, similarity = event.get("records_why"), event.get("records_similarity")
        self._add("turns", 0 if why == "cold" else 1)
        self._add("rebuilt", 0 if why in ("cold", "reused", "aside") else 1)
        if isinstance(similarity, int | float):
            self._add("similarity", similarity)
            self._add("similar", 1)
        if event.get("records_found"):
            self._add("taken", event.get("used_records_budget"))
            self._add("room", event.get("budget_records"))

    def used(self, event: Mapping[str, Any]) -> None:
        """``turn.answered`` of a turn whose prompt showed records."""
        self._add("shown", event.get("records_shown"))
        self._add("used", event.get("records_used"))

    def changed(self, event: Mapping[str, Any]) -> None:
        """``record.changed``."""
        is_fact, why = event.get("type") == "fact", event.get("why")
        if why == "added":
            self._add("added", 1)
            self._add("facts", 1 if is_fact else 0)
        elif is_fact and why == "confirmed" and event.get("from_state") == "new":
            self._add("confirmed", 1)

    def rates(self) -> dict[str, float]:
        """Those of the metrics ``memory_…`` of which there is something to tell."""
        elapsed = max(self._clock() - self._started, LEAST_SECONDS)
        ratios = {
            "memory_relevance": self._ratio("similarity", "similar"),
            "memory_budget_utilization": self._ratio("taken", "room"),
            "memory_refresh_rate": self._ratio("rebuilt", "turns"),
            "memory_recall_precision": self._ratio("used", "shown"),
            "memory_confirmation_rate": self._ratio("confirmed", "facts"),
            "memory_growth_per_day": self._sums["added"] / elapsed * SECONDS_A_DAY if self._sums["added"] else None,
        }
        return {name: round(value, 4) for name, value in ratios.items() if value is not None}

    def _ratio(self, part: str, whole: str) -> float | None:
        return self._sums[part] / self._sums[whole] if self._sums[whole] else None

    def _add(self, name: str, value: object) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._sums[name] += value  # type: ignore[assignment]
