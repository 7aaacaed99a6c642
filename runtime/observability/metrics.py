"""Counts what the events say, in the text format that Prometheus reads.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# ---- memory rates ----
#
# The figures of the memory that are ratios: of what all events since the process's start said. Not thread-safe.
#
# Research note 009 (context management) names seven; the other one, the cold start, is a histogram. A fact that was
# known
# before the process started and is confirmed now counts as confirmed, not as added.


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


# ---- metrics ----


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "agent_runtime_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of all times."""

Labels = tuple[tuple[str, str], ...]

_HELP = {
    "turns_total": "Turns by strategy and outcome (answered, failed).",
    "turn_failures_total": "Turns that failed, by reason.",
    "turn_seconds": "From taking a turn up to its delivered reply.",
    "turn_overhead_seconds": "The part of a turn that was not the model's.",
    "first_token_seconds": "Until the first text of a streamed answer.",
    "grounding_seconds": "Building the prompt of a turn.",
    "tokens_total": "Tokens as the providers counted them, by kind (prompt, cached, completion).",
    "cost_usd_total": "Cost of the replies' model calls in US dollars.",
    "degraded_blocks_total": "Blocks that could not be had for a turn.",
    "messages_total": "Inbound messages by connector and what became of them.",
    "reply_parts_total": "Parts of replies that were delivered, by connector.",
    "reply_retries_total": "Sends that were tried again, by connector.",
    "budget_exceeded_total": "Model calls that were not made because a budget is used up, by whose, what and period.",
    "budget_limit": "What a workspace may spend in the period; only where it has a limit.",
    "budget_left": "What is left of that.",
    "tool_calls_total": "Tool calls of the model, by tool and whether they brought something.",
    "tool_seconds": "One tool call.",
    "tool_refusals_total": "Calls of tools that were not the model's to call, by reason.",
    "access_refused_total": "People who were turned away, by reason.",
    "summaries_refreshed_total": "Context documents that were made anew.",
    "codex_turns_total": "Turns that there was material for, by how it was given (whole, search) and why.",
    "index_documents_total": "Documents that were indexed.",
    "index_chunks_embedded_total": "Chunks that were embedded.",
    "index_chunks_deepened_total": "Chunks that got their deeper vectors.",
    "context_builds_total": "Turns that records were looked for, by why they were chosen anew, or reused.",
    "records_shown_total": "Records that stood in prompts.",
    "records_used_total": "Those of them that the reply used, judged by its words.",
    "records_added_total": "Records that were added, by type.",
    "facts_confirmed_total": "Facts that were said again for the first time.",
    "censors_acted_total": "Censors that acted, by severity and place (reply, tool).",
    "memory_cold_start_seconds": "Building a prompt in a conversation that had no records chosen yet.",
    "memory_relevance": "Mean similarity of shown records and message; to aim for: as calibrated for the model.",
    "memory_budget_utilization": "Share of the records' budget that is used, where any were found; aim for .5 to .9.",
    "memory_refresh_rate": "Share of turns whose records were chosen anew, first ones aside; aim for less than .3.",
    "memory_recall_precision": "Share of shown records that replies used, judged by words; aim for more than .4.",
    "memory_growth_per_day": "Records added a day, since the process started.",
    "memory_confirmation_rate": "Facts confirmed per fact added, since the process started; aim for more than .2.",
    "turns_marked_total": "Marks that people put on replies, changed and took back, by what they are then.",
    "errors_total": "Events of the level error, by event.",
    "connector_up": "1 for the state that a connector is in.",
    "store_up": "1 for the state that a store is in.",
    "model_up": "1 for the state in which the first model was left by its last call.",
    "gpu_memory_bytes": "Graphics memory by card and kind (total, used, free).",
    "gpu_throttled": "1 where a card is slowed down by heat or a weak power supply.",
    "machine_memory_free_bytes": "Working memory that may still be taken on the machine, or in the container.",
    "machine_low_power": "1 where power is saved.",
    "prompts_condensed_total": "Prompts of which traces were taken out to save memory, by where the model runs.",
    "dead_letters": "Turns that failed for good and that nobody has dealt with, in all workspaces.",
    "conversations_waiting": "Conversations with messages that are not answered yet.",
    "events_dropped_total": "Events that were dropped because the store was away too long.",
}


@dataclass
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value as it is now; ``name`` without `PREFIX`."""

    name: str
    value: float
    labels: Labels = ()


class Metrics:
    """Sums over the events that it is shown. Any thread may call it."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], float] = defaultdict(float)
        self._histograms: dict[str, _Histogram] = defaultdict(_Histogram)
        self._lock = threading.Lock()
        self._memory = MemoryRates()

    def observe(self, event: Mapping[str, Any]) -> None:
        """Count *event*; unknown ones and fields that are missing count nothing. Never raises."""
        with self._lock:
            count = _COUNTING.get(str(event.get("event")))
            if count is not None:
                count(self, event)
            if event.get("level") in ("error", "critical"):
                self._count("errors_total", event=str(event.get("event")))

    def exposition(self, gauges: Iterable[Gauge] = ()) -> str:
        """Everything counted so far, and *gauges*, as Prometheus reads it."""
        lines: list[str] = []
        with self._lock:
            counters = sorted(self._counters.items())
            histograms = sorted(self._histograms.items())
            rates = [Gauge(name, value) for name, value in self._memory.rates().items()]
        named = ""
        for (name, labels), value in counters:
            named = _head(lines, name, "counter", named)
            lines.append(f"{PREFIX}{name}{_labels(labels)} {_number(value)}")
        for name, histogram in histograms:
            _head(lines, name, "histogram", "")
            lines += _buckets(name, histogram)
        for gauge in sorted([*gauges, *rates], key=lambda one: (one.name, one.labels)):
            named = _head(lines, gauge.name, "counter" if gauge.name.endswith("_total") else "gauge", named)
            lines.append(f"{PREFIX}{gauge.name}{_labels(gauge.labels)} {_number(gauge.value)}")
        return "\n".join(lines) + "\n"

    def _count(self, name: str, by: float = 1, **labels: str) -> None:
        self._counters[name, tuple(sorted(labels.items()))] += by

    def _time(self, name: str, milliseconds: Any) -> None:
        if _is_number(milliseconds):
            self._histograms[name].add(milliseconds / 1000)

    def _answered(self, event: Mapping[str, Any]) -> None:
        self._count("turns_total", strategy=str(event.get("strategy", "")), outcome="answered")
        self._time("turn_seconds", event.get("latency_ms"))
        self._time("turn_overhead_seconds", event.get("overhead_ms"))
        self._time("first_token_seconds", event.get("first_token_ms"))
        for kind in ("prompt", "cached", "completion"):
            self._count("tokens_total", _amount(event, f"tokens_{kind}"), kind=kind)
        self._count("cost_usd_total", _amount(event, "cost_usd"))
        if shown := _amount(event, "records_shown"):
            self._count("records_shown_total", shown)
            self._count("records_used_total", _amount(event, "records_used"))
            self._memory.used(event)

    def _failed(self, event: Mapping[str, Any]) -> None:
        self._count("turns_total", strategy=str(event.get("strategy", "")), outcome="failed")
        self._count("turn_failures_total", why=str(event.get("why", "")))

    def _grounded(self, event: Mapping[str, Any]) -> None:
        self._time("grounding_seconds", event.get("duration_ms"))
        degraded = event.get("degraded")
        for part in degraded if isinstance(degraded, list | tuple) else ():
            if isinstance(part, Mapping):
                self._count("degraded_blocks_total", block=str(part.get("block", "")))
        if mode := str(event.get("codex_mode", "")):
            self._count("codex_turns_total", mode=mode, why=str(event.get("codex_why", "")))
        if why := str(event.get("records_why", "")):
            self._count("context_builds_total", why=why)
            self._memory.chosen(event)
            if why == "cold":
                self._time("memory_cold_start_seconds", event.get("duration_ms"))

    def _condensed(self, event: Mapping[str, Any]) -> None:
        self._count("prompts_condensed_total", where=str(event.get("where", "")))

    def _message(self, event: Mapping[str, Any]) -> None:
        outcome = str(event["event"]).partition(".")[2]
        self._count("messages_total", connector=str(event.get("connector", "")), outcome=outcome)

    def _delivered(self, event: Mapping[str, Any]) -> None:
        self._count("reply_parts_total", _amount(event, "parts"), connector=str(event.get("connector", "")))

    def _retried(self, event: Mapping[str, Any]) -> None:
        self._count("reply_retries_total", connector=str(event.get("connector", "")))

    def _refused(self, event: Mapping[str, Any]) -> None:
        self._count("access_refused_total", why=str(event.get("why", "")))

    def _exceeded(self, event: Mapping[str, Any]) -> None:
        scope, what, period = (str(event.get(name, "")) for name in ("scope", "what", "period"))
        self._count("budget_exceeded_total", scope=scope, what=what, period=period)

    def _called(self, event: Mapping[str, Any]) -> None:
        self._count("tool_calls_total", tool=str(event.get("tool", "")), ok=str(event.get("ok") is True).lower())
        self._time("tool_seconds", event.get("duration_ms"))

    def _tool_refused(self, event: Mapping[str, Any]) -> None:
        self._count("tool_refusals_total", why=str(event.get("why", "")))

    def _refreshed(self, _event: Mapping[str, Any]) -> None:
        self._count("summaries_refreshed_total")

    def _record_changed(self, event: Mapping[str, Any]) -> None:
        of = str(event.get("type", ""))
        if event.get("why") == "added":
            self._count("records_added_total", type=of)
        if of == "fact" and event.get("why") == "confirmed" and event.get("from_state") == "new":
            self._count("facts_confirmed_total")
        self._memory.changed(event)

    def _censored(self, event: Mapping[str, Any]) -> None:
        self._count("censors_acted_total", severity=str(event.get("severity", "")), where=str(event.get("where", "")))

    def _marked(self, event: Mapping[str, Any]) -> None:
        self._count("turns_marked_total", mark=str(event.get("mark", "")))

    def _indexed(self, event: Mapping[str, Any]) -> None:
        self._count("index_documents_total", _amount(event, "documents"))
        self._count("index_chunks_embedded_total", _amount(event, "chunks_embedded"))

    def _deepened(self, event: Mapping[str, Any]) -> None:
        self._count("index_chunks_deepened_total", _amount(event, "chunks"))


_COUNTING = {
    "turn.answered": Metrics._answered,
    "turn.failed": Metrics._failed,
    "grounding.assembled": Metrics._grounded,
    "prompt.condensed": Metrics._condensed,
    "message.accepted": Metrics._message,
    "message.ignored": Metrics._message,
    "message.duplicate": Metrics._message,
    "reply.delivered": Metrics._delivered,
    "reply.retried": Metrics._retried,
    "tool.called": Metrics._called,
    "tool.refused": Metrics._tool_refused,
    "access.refused": Metrics._refused,
    "budget.exceeded": Metrics._exceeded,
    "summary.refreshed": Metrics._refreshed,
    "index.updated": Metrics._indexed,
    "index.deepened": Metrics._deepened,
    "record.changed": Metrics._record_changed,
    "censor.acted": Metrics._censored,
    "turn.marked": Metrics._marked,
}


_MOST = 2**53
"""Beyond it a float no longer counts by one; no event of ours says so much."""


def _is_number(value: Any) -> bool:
    """Whether it can be added up: no counter ever falls, and no sum is lost to infinity."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST


def _amount(event: Mapping[str, Any], name: str) -> float:
    value = event.get(name)
    return float(value) if value is not None and _is_number(value) else 0.0


def _head(lines: list[str], name: str, kind: str, before: str) -> str:
    if name != before:
        lines += [f"# HELP {PREFIX}{name} {_HELP[name]}", f"# TYPE {PREFIX}{name} {kind}"]
    return name


def _buckets(name: str, histogram: _Histogram) -> list[str]:
    lines, so_far = [], 0
    for bound, count in zip((*map(_number, SECONDS), "+Inf"), histogram.counts, strict=True):
        so_far += count
        lines.append(f'{PREFIX}{name}_bucket{{le="{bound}"}} {so_far}')
    return [*lines, f"{PREFIX}{name}_sum {_number(histogram.total)}", f"{PREFIX}{name}_count {so_far}"]


def _labels(labels: Labels) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    # Only a line feed ends a line of the format, but readers split at other separators, too.
    plain = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in value)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
