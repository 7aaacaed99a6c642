"""What prompts hold of records fits its room, whatever people write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.memory.records import STATES, NewRecord, Provenance, Record, RecordRefused, Type, in_words, records
from grounding.memory.records.model import MICRO_TOKENS, SUMMARY_TOKENS, indexed_text, with_short_forms
from grounding.prompt_input import load_tokens

TOKENS = load_tokens()
AT = "2026-11-22T12:00:00.000Z"
LONG = (
    "Chose Postgres over ChromaDB for unified storage. It unifies structured and vector data. "
    "It is cloud-native, and there is one backup target. " + "Much more was said about it, for and against. " * 20
)


def record(type_: Type, text: str, **fields: Any) -> Record:
    return with_short_forms(records.build_record(NewRecord(type_, text, **fields), "r1", "", Provenance(), AT), TOKENS)


@given(
    st.sampled_from(Type),
    st.one_of(st.text(min_size=1, max_size=300), st.text("ab. !?\n–漢字😀", min_size=1, max_size=900)).filter(
        str.strip
    ),
    st.sampled_from([None, "success", "failure"]),
    st.floats(0, 1),
    st.text(max_size=200),
    st.data(),
)
def test_micro_and_summary_fit(
    type_: Type, text: str, outcome: Any, confidence: float, reason: str, data: st.DataObject
) -> None:
    due = "2026-11-27T16:00:00+01:00" if type_ is Type.ITEM else ""
    try:
        made = record(type_, text, outcome=outcome, confidence=confidence, reason=reason, due=due)
    except RecordRefused:
        return  # control characters alone
    made = with_short_forms(made.model_copy(update={"state": data.draw(st.sampled_from(STATES[type_]))}), TOKENS)

    assert TOKENS.count(made.micro) <= MICRO_TOKENS
    assert TOKENS.count(made.summary) <= SUMMARY_TOKENS
    assert "\n" not in made.micro
    assert made.micro
    assert made.summary


@pytest.mark.parametrize(
    ("made", "micro"),
    [
        (
            record(Type.DECISION, LONG, outcome="success", confidence=0.85),
            "Chose Postgres over ChromaDB for unified storage. [success, 0.85]",
        ),
        (record(Type.FACT, "Tim prefers Celsius"), "Tim prefers Celsius"),
        (record(Type.CENSOR, "Don't push directly to main"), "WARN: Don't push directly to main"),
        (record(Type.ITEM, "Send the report", due="2026-11-27"), "Send the report [open, due 2026-11-27]"),
        (record(Type.EPISODE, "Storage discussed with Tim."), "Storage discussed with Tim. [2026-11-22]"),
    ],
    ids=["decision", "fact", "censor", "item", "episode"],
)
def test_a_micro_is_the_first_sentence_with_how_it_stands(made: Record, micro: str) -> None:
    assert made.micro == micro


def test_a_long_text_has_a_summary_of_whole_sentences_between_50_and_100_tokens() -> None:
    summary = record(Type.DECISION, LONG, outcome="success", confidence=0.85).summary

    assert summary.startswith("Decision: Chose Postgres over ChromaDB for unified storage. It unifies")
    assert summary.endswith("against.\nOutcome: success. Confidence: 0.85.")
    assert 50 <= TOKENS.count(summary) <= 100


def test_a_censors_summary_says_why() -> None:
    made = record(Type.CENSOR, "Don't push to main", severity="block", reason="it broke the build")
    assert made.summary == "BLOCK: Don't push to main — it broke the build"


@pytest.mark.parametrize(
    ("due", "words"),
    [
        ("", ""),
        ("2026-11-27", "Friday 27 November 2026"),
        ("2026-11-27T17:30:00+01:00", "Friday 27 November 2026 16:30 UTC"),
    ],
)
def test_days_are_searched_for_as_people_say_them(due: str, words: str) -> None:
    assert in_words(records.due_day(due)) == words
    assert words in indexed_text(record(Type.ITEM, "Send it", due=due))
