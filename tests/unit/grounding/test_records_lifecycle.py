"""The life of records, whatever happens to them in whatever order, and their short forms."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.memory.records import (
    HIDDEN,
    STATES,
    NewRecord,
    Provenance,
    Record,
    RecordRefused,
    Rules,
    State,
    Type,
    lifecycle,
    records,
)
from grounding.memory.records.model import MICRO_TOKENS, SUMMARY_TOKENS, with_short_forms
from grounding.prompt_input import load_tokens

RULES = Rules()
BORN = "2026-01-01T00:00:00.000Z"
PERSON, READ = Provenance(author="slack:U1"), Provenance(origin="retrieved")
Event = Callable[[Record, str], Record]


def born(type_: Type, **fields: Any) -> Record:
    return records.build_record(NewRecord(type_, "It is so. And more.", **fields), "r1", "", PERSON, BORN)


def later(days: float) -> str:
    return records.stamp(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=days))


def _said(state: State) -> Event:
    return lambda one, at: records.apply_changes(one, {"state": state}, RULES, at)


def _taken_back(what: str) -> Event:
    return lambda one, at: records.apply_changes(one, {"take_back": what}, RULES, at)


EVENTS: dict[str, Event] = {
    "confirm": lambda one, at: lifecycle.confirm(one, RULES, at),
    "read somewhere": lambda one, at: lifecycle.confirm(one, RULES, at, is_trusted=False),
    "supersede": lambda one, at: lifecycle.supersede(one, "r2", at),
    "succeeds": lambda one, at: lifecycle.log_outcome(one, "success", RULES, at),
    "fails": lambda one, at: lifecycle.log_outcome(one, "failure", RULES, at),
    "waits": lambda one, at: lifecycle.log_outcome(one, "pending", RULES, at),
    "use": lambda one, at: lifecycle.use(one, RULES, at),
    "false positive": lambda one, at: lifecycle.report_false_positive(one, RULES, at),
    **{f"take back {what}": _taken_back(what) for what in ("confirm", "success", "failure", "false_positive")},
    "retire": lifecycle.retire,
    "warn": lambda one, at: records.apply_changes(one, {"severity": "warn"}, RULES, at),
    "block": lambda one, at: records.apply_changes(one, {"severity": "block"}, RULES, at),
    "verbatim": lambda one, at: lifecycle.mark_verbatim(one, True, at),
    "sweep": lambda one, at: lifecycle.sweep(one, RULES, at),
    **{f"is {state}": _said(state) for state in State},
}


@given(st.sampled_from(Type), st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 60)), max_size=30))
def test_whatever_happens_every_record_is_in_a_state_of_its_type_and_counts_its_changes(
    type_: Type, happened: list[tuple[str, int]]
) -> None:
    record, days = born(type_), 0
    for event, passed in happened:
        days += passed
        before = record
        try:
            record = EVENTS[event](before, later(days))
        except RecordRefused:
            continue
        assert record.state in STATES[type_]
        assert Record.model_validate_json(record.model_dump_json()) == record
        assert (record.version > before.version) == (record != before)
        if type_ is Type.DECISION:
            assert not record.is_hidden
            went_back = STATES[type_].index(record.state) < STATES[type_].index(before.state)
            assert not went_back or event.startswith("take back ")
        if before.state is State.SUPERSEDED and record.state is not State.SUPERSEDED:
            assert event.startswith("is ") or event == "retire"
        if before.state in HIDDEN and record.state not in HIDDEN:
            assert event.startswith("is ")
        if before.state is not State.CORE and record.state is State.CORE:
            assert event == "is core" or (event == "confirm" and record.confirmations >= RULES.core_confirmations)


def test_what_was_only_read_somewhere_makes_no_fact_core_until_somebody_says_it() -> None:
    fact = born(Type.FACT)
    for _ in range(5):
        fact = EVENTS["read somewhere"](fact, later(1))
    assert fact.state is State.CONFIRMED
    assert EVENTS["confirm"](fact, later(2)).state is State.CORE


def test_what_people_say_takes_the_place_of_what_was_read() -> None:
    new = NewRecord(Type.FACT, "It is so.")
    read = records.build_record(new, "r1", "", READ, BORN)

    assert records.confirm_record(read, new, PERSON, RULES, later(1)).provenance == PERSON
    assert records.confirm_record(born(Type.FACT), new, READ, RULES, later(1)).provenance == PERSON


@pytest.mark.parametrize(
    ("outcomes", "uses", "state"),
    [
        ("ss", 5, State.EFFECTIVE),
        ("ff", 5, State.INEFFECTIVE),
        ("sf", 5, State.ACTIVE),
        ("ss", 2, State.ACTIVE),
        ("sssss", 0, State.EFFECTIVE),
        ("", 9, State.ACTIVE),
    ],
)
def test_a_procedure_is_judged_by_its_outcomes_once_it_was_followed_five_times(
    outcomes: str, uses: int, state: State
) -> None:
    procedure = born(Type.PROCEDURE)
    for _ in range(uses):
        procedure = EVENTS["use"](procedure, later(1))
    for outcome in outcomes:
        procedure = EVENTS["succeeds" if outcome == "s" else "fails"](procedure, later(2))

    assert procedure.state is state


@pytest.mark.parametrize(
    ("type_", "uses", "event", "what"),
    [
        (Type.FACT, 0, "confirm", "confirm"),
        (Type.PROCEDURE, 6, "succeeds", "success"),
        (Type.PROCEDURE, 6, "fails", "failure"),
        (Type.CENSOR, 1, "false positive", "false_positive"),
    ],
)
def test_what_somebody_takes_back_is_as_if_they_had_not_said_it(type_: Type, uses: int, event: str, what: str) -> None:
    before = born(type_, trigger="push" if type_ is Type.CENSOR else "")
    for _ in range(uses):
        before = EVENTS["use"](before, later(1))

    after = EVENTS[f"take back {what}"](EVENTS[event](before, later(2)), later(3))

    counted = ("state", "confirmations", "successes", "failures", "false_positives", "activations")
    assert [getattr(after, name) for name in counted] == [getattr(before, name) for name in counted]


def test_what_is_core_and_what_is_retired_stays_so_when_somebody_takes_back_what_they_said() -> None:
    fact, censor = born(Type.FACT), born(Type.CENSOR, trigger="push")
    for _ in range(3):
        fact, censor = EVENTS["confirm"](fact, later(1)), EVENTS["false positive"](censor, later(1))
    assert (fact.state, censor.state) == (State.CORE, State.RETIRED)
    assert EVENTS["take back confirm"](fact, later(2)).state is State.CORE
    assert EVENTS["take back false_positive"](censor, later(2)).state is State.RETIRED


def test_what_a_censor_did_wrongly_does_not_bring_it_nearer_to_blocking() -> None:
    censor = born(Type.CENSOR, trigger="push")
    for event in ("use", "false positive", "use", "false positive", "use"):
        censor = EVENTS[event](censor, later(1))
    assert (censor.state, censor.severity) == (State.ACTIVE, "warn")


def test_a_censor_that_came_to_block_and_is_to_warn_counts_anew() -> None:
    censor = born(Type.CENSOR, trigger="push")
    for _ in range(4):
        censor = EVENTS["use"](censor, later(1))
    assert censor.severity == "block"

    censor = records.apply_changes(censor, {"severity": "warn"}, RULES, later(2))
    assert (censor.state, censor.severity, censor.activations) == (State.ACTIVE, "warn", 0)
    assert EVENTS["use"](censor, later(3)).severity == "warn"


def test_an_archived_episode_keeps_its_summary_unless_it_is_verbatim() -> None:
    long = born(Type.EPISODE).model_copy(update={"summary": "It is so."})

    assert lifecycle.sweep(long, RULES, later(99)).text == "It is so."
    kept = lifecycle.sweep(lifecycle.mark_verbatim(long, True, later(1)), RULES, later(99))
    assert (kept.state, kept.text) == (State.ARCHIVED, "It is so. And more.")


@given(st.text(min_size=1).filter(str.strip), st.sampled_from(["", " ", ".", "!", "\n"]))
def test_a_text_says_the_same_in_another_case_with_other_spaces_and_punctuation(text: str, more: str) -> None:
    def of(said: str) -> str:
        return records.digest(records.build_record(NewRecord(Type.FACT, said), "r1", "", PERSON, BORN))

    text = "so it is " + text.replace("\x00", "")
    assert of(text) == of(f"{more}{text}{more}")
    assert of(text) != of(text + " not")


@pytest.mark.parametrize(
    ("text", "other", "is_same"),
    [
        ("The offset is -5", "The offset is 5", False),
        ("The offset is −5.", "the offset is 5", False),
        ("Answer in < 200 ms", "Answer in > 200 ms", False),
        ("status != 200", "status = 200", False),
        ("The launch is 2026-11-27", "the launch is 2026 11 27!", True),
        ("Two things - tea, milk", "two things: tea/milk", True),
    ],
)
def test_signs_of_numbers_and_comparison_are_no_punctuation(text: str, other: str, is_same: bool) -> None:
    one, another = (
        records.digest(records.build_record(NewRecord(Type.FACT, said), "r1", "", PERSON, BORN))
        for said in (text, other)
    )
    assert (one == another) is is_same


TOKENS = load_tokens()
KEPT_AT = "2026-11-22T12:00:00.000Z"
LONG = (
    "Chose Postgres over ChromaDB for unified storage. It unifies structured and vector data. "
    "It is cloud-native, and there is one backup target. " + "Much more was said about it, for and against. " * 20
)


def kept(type_: Type, text: str, **fields: Any) -> Record:
    return with_short_forms(
        records.build_record(NewRecord(type_, text, **fields), "r1", "", Provenance(), KEPT_AT), TOKENS
    )


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
        made = kept(type_, text, outcome=outcome, confidence=confidence, reason=reason, due=due)
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
            kept(Type.DECISION, LONG, outcome="success", confidence=0.85),
            "Chose Postgres over ChromaDB for unified storage. [success, 0.85]",
        ),
        (kept(Type.FACT, "Tim prefers Celsius"), "Tim prefers Celsius"),
        (kept(Type.CENSOR, "Don't push directly to main"), "WARN: Don't push directly to main"),
        (kept(Type.ITEM, "Send the report", due="2026-11-27"), "Send the report [open, due 2026-11-27]"),
        (kept(Type.EPISODE, "Storage discussed with Tim."), "Storage discussed with Tim. [2026-11-22]"),
    ],
    ids=["decision", "fact", "censor", "item", "episode"],
)
def test_a_micro_is_the_first_sentence_with_how_it_stands(made: Record, micro: str) -> None:
    assert made.micro == micro
