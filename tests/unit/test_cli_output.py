"""What commands print for people."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.console import neutralise
from connectors.message import ConversationKey, Degraded, Source, Usage
from grounding.strategy import Reason, Strategy, choose
from runtime.cli.commands.chat import EXAMPLES, answer, greeting
from runtime.cli.commands.search import excerpt
from runtime.cli.output import count, dollars, json_text, milliseconds, plain_table
from runtime.observability import format_event
from runtime.turns.manifest import REASONS, STRATEGIES


def test_a_plain_table_cuts_nothing_and_aligns_numbers_to_the_right() -> None:
    lines = plain_table(["name", "tokens"], [["query", "7"], ["a very long name", "1200"]], ["tokens"])
    assert lines == ["name              tokens", "query                  7", "a very long name    1200"]


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=5))
def test_every_row_of_a_plain_table_is_one_line(rows: list[tuple[str, str]]) -> None:
    assert all(len(line.splitlines()) <= 1 for line in plain_table(["a", "b"], rows))


@given(st.text(max_size=700), st.integers(2, 400))
def test_an_excerpt_is_one_line_within_its_limit(text: str, limit: int) -> None:
    shown = excerpt(text, limit)
    assert len(shown) <= limit
    assert len(shown.splitlines()) <= 1


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(1, "document"), "1 document"),
        (count(0, "document"), "0 documents"),
        (milliseconds(None), "–"),
        (milliseconds(254), "254 ms"),
        (milliseconds(3720), "3.7 s"),
        (dollars(0), "$0.00"),
        (dollars(12.5), "$12.50"),
        (dollars(0.00042), "$0.00042"),
    ],
)
def test_figures_read_as_people_write_them(shown: str, expected: str) -> None:
    assert shown == expected


def test_every_reason_and_strategy_is_explained_in_words() -> None:
    assert set(get_args(Reason)) <= set(REASONS)
    assert {strategy.value for strategy in Strategy} == set(STRATEGIES)


@pytest.mark.parametrize("question", EXAMPLES)
def test_the_questions_of_the_first_screen_are_looked_up_in_the_documents(question: str) -> None:
    assert choose(question).strategy is Strategy.QMD


def test_the_first_screen_says_plainly_that_answers_are_quotations() -> None:
    shown = " ".join(greeting("sample", 11, None, remote=False, width=80).split())
    assert "No language model is set" in shown
    assert "quotations" in shown
    assert "agent-runtime setup" in shown
    assert all(question in shown for question in EXAMPLES)


def test_the_first_screen_of_another_workspace_offers_no_questions_of_the_sample() -> None:
    shown = greeting("acme", 3, "openai/gpt", remote=False, width=80)
    assert "openai/gpt" in shown
    assert not any(question in shown for question in EXAMPLES)
    assert "quotations" not in shown


@given(st.integers(30, 200), st.sampled_from([None, 0, 1, 11]), st.sampled_from([None, "openai/gpt"]), st.booleans())
def test_the_first_screen_fits_the_terminal(width: int, documents: int | None, model: str | None, remote: bool) -> None:
    shown = greeting("sample", documents, model, remote=remote, width=width)
    assert max(map(len, shown.splitlines())) <= width


def test_an_event_is_one_readable_line_without_what_did_not_happen() -> None:
    event = {
        "event": "grounding.assembled",
        "level": "info",
        "timestamp": "2026-11-21T23:33:09.774Z",
        "workspace_id": "sample",
        "context_id": "console:default",
        "turn_id": "t1",
        "strategy": "qmd",
        "used_tail": False,
        "tokens_tail": 0,
        "why": "two words",
        "prefix_digest": "a" * 64,
    }
    assert format_event(event) == "23:33:09  grounding.assembled   sample/console:default  strategy qmd: two words"


def test_an_answer_over_http_is_shown_like_one_of_this_process() -> None:
    key = ConversationKey("sample", "console", "default")
    data = {
        "turn_id": "t1",
        "text": "hi",
        "sources": [{"source": "a.md", "heading": "A"}],
        "strategy": "qmd",
        "reason": "workspace_retrieval_cue",
        "degraded": [{"block": "tail", "why": "timeout"}],
        "usage": {"prompt": 5, "cached": 1, "completion": 2, "cost_usd": 0.5},
    }
    message = answer(key, ("m1",), data)
    assert message.answers == ("m1",)
    assert message.sources == (Source("a.md", "A"),)
    assert message.degraded == (Degraded("tail", "timeout"),)
    assert message.usage == Usage(5, 1, 2, 0.5)


@given(st.dictionaries(st.text(max_size=5), st.text(st.characters(), max_size=20)))
def test_json_says_the_same_and_moves_no_terminal(value: dict[str, str]) -> None:
    """A C1 control such as U+009B begins an escape sequence like ESC [ does; half a surrogate pair has no bytes."""
    text = json_text(value)

    assert json.loads(text) == value
    assert neutralise(text) == text
    text.encode()


def test_an_event_stays_on_its_line_whatever_its_place_is_called() -> None:
    shown = format_event({"event": "turn.answered", "workspace_id": "acme", "context_id": "http:a\n12:00:00 forged"})
    assert "\n" not in shown
