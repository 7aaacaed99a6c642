"""What Prometheus reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cli.commands.metrics import figures
from runtime.observability import Gauge, Metrics

LABELS = r'(\{([a-zA-Z_]\w*="([^"\\\n]|\\["\\n])*",?)*\})?'
VALUE = r"([+-]?(\d+(\.\d+)?(e[+-]?\d+)?|Inf)|NaN)"
LINE = re.compile(rf"^[a-zA-Z_:][a-zA-Z0-9_:]*{LABELS} {VALUE}$")


def test_turns_with_material_count_by_how_it_was_given_and_why() -> None:
    metrics = Metrics()
    for why in ("over_line", "over_line", "near_line"):
        metrics.observe({"event": "grounding.assembled", "codex_mode": "search", "codex_why": why})
    metrics.observe({"event": "grounding.assembled"})
    text = metrics.exposition()
    assert 'agent_runtime_codex_turns_total{mode="search",why="over_line"} 2\n' in text
    assert 'agent_runtime_codex_turns_total{mode="search",why="near_line"} 1\n' in text
    assert text.count("codex_turns_total{") == 2


def test_an_answered_turn_counts_by_strategy_with_its_times_and_tokens() -> None:
    """One turn.answered moves the counter, the histogram and the tokens."""
    metrics = Metrics()
    metrics.observe(
        {
            "event": "turn.answered",
            "level": "info",
            "strategy": "qmd",
            "latency_ms": 300.0,
            "overhead_ms": 9.0,
            "first_token_ms": None,
            "tokens_prompt": 100,
            "tokens_cached": 60,
            "tokens_completion": 7,
            "cost_usd": 0.25,
        }
    )
    text = metrics.exposition()
    assert 'agent_runtime_turns_total{outcome="answered",strategy="qmd"} 1\n' in text
    assert 'agent_runtime_turn_seconds_bucket{le="0.25"} 0\n' in text
    assert 'agent_runtime_turn_seconds_bucket{le="0.5"} 1\n' in text
    assert 'agent_runtime_turn_seconds_bucket{le="+Inf"} 1\n' in text
    assert "agent_runtime_turn_seconds_sum 0.3\n" in text
    assert 'agent_runtime_tokens_total{kind="cached"} 60\n' in text
    assert "agent_runtime_cost_usd_total 0.25\n" in text
    assert "first_token" not in text


def test_a_failed_turn_counts_as_failed_with_its_reason() -> None:
    """turn.failed is an outcome, a reason and an error."""
    metrics = Metrics()
    metrics.observe({"event": "turn.failed", "level": "error", "why": "timeout"})
    text = metrics.exposition()
    assert 'agent_runtime_turns_total{outcome="failed",strategy=""} 1\n' in text
    assert 'agent_runtime_turn_failures_total{why="timeout"} 1\n' in text
    assert 'agent_runtime_errors_total{event="turn.failed"} 1\n' in text


def test_tool_calls_count_by_tool_and_what_came_of_them() -> None:
    """tool.called moves a counter and a histogram, tool.refused a counter by its reason."""
    metrics = Metrics()
    for ok in (True, True, False):
        metrics.observe({"event": "tool.called", "tool": "search_documents", "round": 0, "duration_ms": 20, "ok": ok})
    metrics.observe({"event": "tool.refused", "tool": "burn", "why": "scope"})
    text = metrics.exposition()
    assert 'agent_runtime_tool_calls_total{ok="true",tool="search_documents"} 2\n' in text
    assert 'agent_runtime_tool_calls_total{ok="false",tool="search_documents"} 1\n' in text
    assert 'agent_runtime_tool_seconds_bucket{le="0.025"} 3\n' in text
    assert 'agent_runtime_tool_refusals_total{why="scope"} 1\n' in text


def test_degraded_blocks_count_by_block() -> None:
    """Each block that a turn did without counts once."""
    metrics = Metrics()
    degraded = [{"block": "retrieved", "why": "index_unavailable"}, {"block": "summary", "why": "timeout"}]
    for _ in range(2):
        metrics.observe({"event": "grounding.assembled", "duration_ms": 5, "degraded": degraded})
    text = metrics.exposition()
    assert 'agent_runtime_degraded_blocks_total{block="retrieved"} 2\n' in text
    assert 'agent_runtime_degraded_blocks_total{block="summary"} 2\n' in text


@pytest.mark.parametrize(
    "fields",
    [{"degraded": True}, {"degraded": 7}, {"degraded": "tail"}, {"duration_ms": 10**400}, {"duration_ms": 1e308}],
)
def test_a_field_of_another_kind_is_passed_over(fields: dict[str, Any]) -> None:
    """An event that is not as it should be costs its number, not the process."""
    metrics = Metrics()
    for _ in range(3):
        metrics.observe({"event": "grounding.assembled", **fields})
    assert "degraded_blocks_total{" not in metrics.exposition()
    assert "inf" not in metrics.exposition().casefold().replace("+inf", "")


def test_unknown_events_count_nothing() -> None:
    """Nothing is made up for events that have no number."""
    metrics = Metrics()
    metrics.observe({"event": "http.listening", "level": "info"})
    metrics.observe({})
    assert metrics.exposition() == "\n"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["turn.answered", "turn.failed", "grounding.assembled", "message.ignored", "reply.delivered"])


@given(
    st.lists(
        st.tuples(
            NAMES,
            st.dictionaries(
                st.sampled_from(["why", "strategy", "connector", "latency_ms", "degraded", "tokens_prompt", "parts"]),
                ANYTHING,
            ),
        ),
        max_size=6,
    )
)
def test_whatever_events_hold_every_line_can_be_read(shown: list[tuple[str, dict[str, Any]]]) -> None:
    """No field of an event breaks the format, and nothing raises."""
    metrics = Metrics()
    for name, fields in shown:
        metrics.observe({**fields, "event": name})
    for line in metrics.exposition([Gauge("store_up", 1, (("store", 'a"b\\c\nd'),))]).splitlines():
        assert not line or line.startswith("# ") or LINE.match(line), line


@given(st.lists(st.floats(min_value=0, max_value=120_000), max_size=20))
def test_buckets_never_fall_and_the_last_one_holds_all(milliseconds: list[float]) -> None:
    """A histogram is cumulative, and its count is the number of turns."""
    metrics = Metrics()
    for one in milliseconds:
        metrics.observe({"event": "turn.answered", "latency_ms": one})
    counts = [
        int(line.rpartition(" ")[2])
        for line in metrics.exposition().splitlines()
        if line.startswith("agent_runtime_turn_seconds_bucket")
    ]
    assert counts == sorted(counts)
    assert counts[-1:] == ([len(milliseconds)] if milliseconds else [])


def test_the_command_reads_the_figures_of_the_memory_from_the_exposition() -> None:
    gauges = [Gauge("memory_relevance", 0.5), Gauge("memory_cold_start_mean_seconds", 0.04)]
    metrics = Metrics()
    metrics.observe({"event": "grounding.assembled", "records_why": "cold", "duration_ms": 40.0})
    metrics.observe({"event": "record.changed", "type": "fact", "why": "added", "from_state": ""})
    metrics.observe({"event": "censor.acted", "severity": "block", "where": "reply"})
    text = metrics.exposition(gauges)

    assert 'agent_runtime_censors_acted_total{severity="block",where="reply"} 1\n' in text
    assert "agent_runtime_memory_cold_start_seconds_count 1\n" in text
    assert 'agent_runtime_context_builds_total{why="cold"} 1\n' in text
    assert 'agent_runtime_records_added_total{type="fact"} 1\n' in text
    assert all(LINE.match(line) for line in text.splitlines() if line and not line.startswith("#"))
    read = figures(text)
    assert (read["relevance"], read["cold_start_seconds"], read["refresh_rate"]) == (0.5, 0.04, None)
    assert set(figures(Metrics().exposition()).values()) == {None}
