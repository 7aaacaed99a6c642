"""Counts what the events report, in the text format that Prometheus reads.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.observability.memory_figures import is_new_fact_confirmed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "agent_runtime_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of all times."""
_LARGEST = 2**53
"""Beyond it a float cannot count by one; none of our events has so large a number."""

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
    "degraded_blocks_total": "Blocks that a turn had to do without.",
    "messages_total": "Inbound messages by connector and outcome (accepted, ignored, duplicate).",
    "reply_parts_total": "Parts of replies that were delivered, by connector.",
    "reply_retries_total": "Sends that were tried again, by connector.",
    "budget_exceeded_total": "Model calls that were not made because a budget is used up, by whose, what and period.",
    "budget_limit": "What a workspace may spend in the period, if it has a limit.",
    "budget_left": "What is left of that.",
    "tool_calls_total": "Tool calls of the model, by tool and whether they succeeded.",
    "tool_seconds": "One tool call.",
    "tool_refusals_total": "Tool calls that the model was not allowed, by reason.",
    "access_refused_total": "People who were turned away, by reason.",
    "summaries_refreshed_total": "Context documents that were made anew.",
    "summaries_kept_total": "Context documents that could not be made anew, by the kind of the problem.",
    "codex_turns_total": "Turns with material, by how the model got it (whole, search) and why.",
    "queries_translated_total": "Questions that were translated into the language of the documents, by both languages.",
    "queries_untranslated_total": "Questions that could not be, by reason.",
    "index_documents_total": "Documents that were indexed.",
    "index_chunks_embedded_total": "Chunks that were embedded.",
    "index_chunks_deepened_total": "Chunks that got their deeper vectors.",
    "context_builds_total": "Turns that records were looked for, by why they were chosen anew or reused.",
    "records_shown_total": "Records that stood in prompts.",
    "records_used_total": "Those of them that the reply used, judged by its words.",
    "records_added_total": "Records that were added, by type.",
    "facts_confirmed_total": "Facts that were said again for the first time.",
    "censors_acted_total": "Censors that acted, by severity and place (reply, tool).",
    "memory_cold_start_seconds": "Building a prompt in a conversation that had no records chosen yet.",
    "memory_relevance": "Mean similarity of shown records and message in 30 days, all processes; aim for more than .6.",
    "memory_budget_utilization": "Share of the records' budget used if any were found, likewise; aim for .5 to .9.",
    "memory_refresh_rate": "Share of turns whose records were chosen anew, but first ones, likewise; aim for < .3.",
    "memory_recall_precision": "Share of shown records that replies used, by words, likewise; aim for more than .4.",
    "memory_cold_start_mean_seconds": "Mean time of the prompts of memory_cold_start_seconds, likewise; aim for < .5.",
    "memory_growth_per_day": "Records added a day, likewise.",
    "memory_confirmation_rate": "Facts confirmed per fact added, likewise; aim for more than .2.",
    "turns_marked_total": "Marks that people put on replies, changed and took back, by what they are then.",
    "errors_total": "Events of the level error, by event.",
    "connector_up": "1 for the state that a connector is in.",
    "store_up": "1 for the state that a store is in.",
    "model_up": "1 for the state in which the first model was left by its last call.",
    "gpu_memory_bytes": "Graphics memory by card and kind (total, used, free).",
    "gpu_throttled": "1 if a card is slowed down by heat or a weak power supply.",
    "machine_memory_free_bytes": "Working memory that may still be taken on the machine, or in the container.",
    "machine_low_power": "1 if power is saved.",
    "prompts_condensed_total": "Prompts of which traces were taken out to save memory, by where the model runs.",
    "dead_letters": "Turns that failed for good and that nobody has dealt with, in all workspaces.",
    "conversations_waiting": "Conversations with messages that are not answered yet.",
    "events_dropped_total": "Events that were dropped because the store was away too long.",
}


@dataclass(frozen=True, slots=True)
class Gauge:
    """The present value of a figure; ``name`` without `PREFIX`."""

    name: str
    value: float
    labels: Labels = ()


class Metrics:
    """Sums over the events that it observes. Any thread may call it."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], float] = defaultdict(float)
        self._histograms: dict[str, _Histogram] = defaultdict(_Histogram)
        self._lock = threading.Lock()

    def observe(self, event: Mapping[str, Any]) -> None:
        """Count *event*; unknown events and missing fields count nothing. Never raises."""
        with self._lock:
            name = str(event.get("event"))
            for counter, labels, amount in _COUNTERS.get(name, ()):
                by = 1.0 if amount is None else _amount(event, amount)
                self._count(counter, by, **{label: _text(event, label) for label in labels})
            if (observe := _OBSERVERS.get(name)) is not None:
                observe(self, event)
            if event.get("level") in ("error", "critical"):
                self._count("errors_total", event=name)

    def exposition(self, gauges: Iterable[Gauge] = ()) -> str:
        """Return all figures so far, and *gauges*, as Prometheus reads them."""
        lines: list[str] = []
        with self._lock:
            counters = sorted(self._counters.items())
            histograms = sorted(self._histograms.items())
        previous = ""
        for (name, labels), value in counters:
            previous = _head(lines, name, "counter", previous)
            lines.append(f"{PREFIX}{name}{_labels(labels)} {_number(value)}")
        for name, histogram in histograms:
            _head(lines, name, "histogram", "")
            lines += _buckets(name, histogram)
        for gauge in sorted(gauges, key=lambda gauge: (gauge.name, gauge.labels)):
            kind = "counter" if gauge.name.endswith("_total") else "gauge"
            previous = _head(lines, gauge.name, kind, previous)
            lines.append(f"{PREFIX}{gauge.name}{_labels(gauge.labels)} {_number(gauge.value)}")
        return "\n".join(lines) + "\n"

    def _count(self, name: str, by: float = 1, **labels: str) -> None:
        self._counters[name, tuple(sorted(labels.items()))] += by

    def _time(self, name: str, milliseconds: Any) -> None:
        if _is_number(milliseconds):
            self._histograms[name].add(milliseconds / 1000)

    def _answered(self, event: Mapping[str, Any]) -> None:
        self._count("turns_total", strategy=_text(event, "strategy"), outcome="answered")
        self._time("turn_seconds", event.get("latency_ms"))
        self._time("turn_overhead_seconds", event.get("overhead_ms"))
        self._time("first_token_seconds", event.get("first_token_ms"))
        for kind in ("prompt", "cached", "completion"):
            self._count("tokens_total", _amount(event, f"tokens_{kind}"), kind=kind)
        self._count("cost_usd_total", _amount(event, "cost_usd"))
        if shown := _amount(event, "records_shown"):
            self._count("records_shown_total", shown)
            self._count("records_used_total", _amount(event, "records_used"))

    def _failed(self, event: Mapping[str, Any]) -> None:
        self._count("turns_total", strategy=_text(event, "strategy"), outcome="failed")

    def _grounded(self, event: Mapping[str, Any]) -> None:
        self._time("grounding_seconds", event.get("duration_ms"))
        degraded = event.get("degraded")
        for part in degraded if isinstance(degraded, list | tuple) else ():
            if isinstance(part, Mapping):
                self._count("degraded_blocks_total", block=_text(part, "block"))
        if mode := _text(event, "codex_mode"):
            self._count("codex_turns_total", mode=mode, why=_text(event, "codex_why"))
        if why := _text(event, "records_why"):
            self._count("context_builds_total", why=why)
            if why == "cold":
                self._time("memory_cold_start_seconds", event.get("duration_ms"))

    def _message(self, event: Mapping[str, Any]) -> None:
        outcome = str(event["event"]).partition(".")[2]
        self._count("messages_total", connector=_text(event, "connector"), outcome=outcome)

    def _tool_called(self, event: Mapping[str, Any]) -> None:
        self._count("tool_calls_total", tool=_text(event, "tool"), ok=str(event.get("ok") is True).lower())
        self._time("tool_seconds", event.get("duration_ms"))

    def _record_changed(self, event: Mapping[str, Any]) -> None:
        if event.get("why") == "added":
            self._count("records_added_total", type=_text(event, "type"))
        if is_new_fact_confirmed(event):
            self._count("facts_confirmed_total")


_COUNTERS: Mapping[str, tuple[tuple[str, tuple[str, ...], str | None], ...]] = {
    "turn.failed": (("turn_failures_total", ("why",), None),),
    "prompt.condensed": (("prompts_condensed_total", ("where",), None),),
    "reply.delivered": (("reply_parts_total", ("connector",), "parts"),),
    "reply.retried": (("reply_retries_total", ("connector",), None),),
    "tool.refused": (("tool_refusals_total", ("why",), None),),
    "access.refused": (("access_refused_total", ("why",), None),),
    "budget.exceeded": (("budget_exceeded_total", ("scope", "what", "period"), None),),
    "summary.refreshed": (("summaries_refreshed_total", (), None),),
    "summary.kept": (("summaries_kept_total", ("kind",), None),),
    "index.updated": (
        ("index_documents_total", (), "documents"),
        ("index_chunks_embedded_total", (), "chunks_embedded"),
    ),
    "index.deepened": (("index_chunks_deepened_total", (), "chunks"),),
    "query.translated": (("queries_translated_total", ("language", "into"), None),),
    "query.untranslated": (("queries_untranslated_total", ("why",), None),),
    "censor.acted": (("censors_acted_total", ("severity", "where"), None),),
    "turn.marked": (("turns_marked_total", ("mark",), None),),
}
"""By event: counters, the fields that become their labels, and the field to add (None: 1)."""
_OBSERVERS: Mapping[str, Callable[[Metrics, Mapping[str, Any]], None]] = {
    "turn.answered": Metrics._answered,
    "turn.failed": Metrics._failed,
    "grounding.assembled": Metrics._grounded,
    "message.accepted": Metrics._message,
    "message.ignored": Metrics._message,
    "message.duplicate": Metrics._message,
    "tool.called": Metrics._tool_called,
    "record.changed": Metrics._record_changed,
}
COUNTED_EVENTS = frozenset({*_COUNTERS, *_OBSERVERS})


@dataclass
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


def _text(event: Mapping[str, Any], name: str) -> str:
    return str(event.get(name, ""))


def _amount(event: Mapping[str, Any], name: str) -> float:
    value = event.get(name)
    return float(value) if value is not None and _is_number(value) else 0.0


def _is_number(value: Any) -> bool:
    """Return whether a counter may add *value*: no counter falls, and no sum becomes infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _head(lines: list[str], name: str, kind: str, previous: str) -> str:
    if name != previous:
        lines += [f"# HELP {PREFIX}{name} {_HELP[name]}", f"# TYPE {PREFIX}{name} {kind}"]
    return name


def _buckets(name: str, histogram: _Histogram) -> list[str]:
    lines, so_far = [], 0
    for bound, count in zip((*map(_number, SECONDS), "+Inf"), histogram.counts, strict=True):
        so_far += count
        lines.append(f'{PREFIX}{name}_bucket{{le="{bound}"}} {so_far}')
    return [*lines, f"{PREFIX}{name}_sum {_number(histogram.total)}", f"{PREFIX}{name}_count {so_far}"]


def _labels(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    # Only a line feed ends a line of the format, but readers split at other separators, too.
    text = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in value)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
