"""Which turns the tail of a conversation's prompts shows, and how long messages are cut in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.memory.context_document import ContextDocument
from grounding.prompt import PrefixPolicy, SessionContinuity, Shown, last_turns
from grounding.prompt_input import LineByLine, TailEntry, load_tokens, utf8_length
from tests.emulators.prompts import BUDGETS, build

TODAY = "2026-11-22"
CONTINUING = SessionContinuity(cast("Any", None), PrefixPolicy(LineByLine(load_tokens()), "prefix_stable"))
WORDS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("aeio \n漢字🙂é<>/")), min_size=1, max_size=400
).filter(lambda text: bool(text.strip()))
SAID = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30)
SHORT = [(f"question number {n}?", f"The answer to that is {n} and a few words more.") for n in range(12)]


def turn(number: int, asked: str, answered: str) -> list[TailEntry]:
    name = f"t{number:04}"
    return [
        TailEntry(speaker="Lena", text=asked, turn_id=name, user="slack:U1"),
        TailEntry(speaker="assistant", text=answered, turn_id=name),
    ]


def tail(entries: list[TailEntry], begins: str = "", told: str = "", **limits: int) -> tuple[TailEntry, ...]:
    """The tail after one that began with the turn *begins*; the context document tells of all turns up to *told*."""
    before = Shown(id="t", began_on=TODAY, turns=1, turn_id="t", begins=begins) if begins else None
    document = ContextDocument("## Facts\n- a", 1, 1, 2, "model", TODAY, (told,), id="1-0") if told else None
    budgets = BUDGETS.model_copy(update=limits)
    newest = tuple(entries[-budgets.tail_lines - 1 :])
    return CONTINUING.go_on(before, None, (document, None), newest, None, budgets, TODAY).settled.tail


def text(shown: tuple[TailEntry, ...]) -> str:
    block = build(tail=shown, layout="prefix_stable").block("tail")
    assert block is not None
    return block.text


@given(SAID, st.integers(1, 6))
def test_no_ceiling_of_the_tail_is_exceeded_and_no_turn_halved_while_it_grows(
    said: list[tuple[str, str]], turns: int
) -> None:
    entries: list[TailEntry] = []
    shown: tuple[TailEntry, ...] = ()
    for number, (asked, answered) in enumerate(said, start=1):
        entries += turn(number, asked, answered)
        shown = tail(entries, shown[0].turn_id if shown else "", "t0000", history_turns=turns)
        ids = [entry.turn_id for entry in shown]
        assert ids[::2] == ids[1::2] == sorted({*ids})
        assert ids[-1] == f"t{number:04}"
        assert len(ids) <= 2 * turns
        assert utf8_length(text(shown)) <= BUDGETS.tail_bytes


def test_the_tail_grows_at_its_end_and_is_compacted_only_now_and_then() -> None:
    entries: list[TailEntry] = []
    begins: list[str] = []
    for number in range(1, 61):
        entries += turn(number, *SHORT[number % 12])
        begins.append(tail(entries, begins[-1] if begins else "", "t9999")[0].turn_id)

    compacted = [at for at, (one, other) in enumerate(pairwise(begins)) if one != other]
    assert len(compacted) > 3
    assert all(later - earlier >= 4 for earlier, later in pairwise(compacted))


def test_which_turns_are_told_goes_by_their_order_and_not_by_the_clocks_of_who_answered_them() -> None:
    entries = [entry for number, one in enumerate(SHORT) for entry in turn(number, *one)]
    skewed = {f"t{number:04}": f"t{number + 50 * (number % 2):04}" for number in range(12)}
    moved = [one.model_copy(update={"turn_id": skewed[one.turn_id]}) for one in entries]

    for told in skewed:
        as_it_was, shown = tail(entries, told=told), tail(moved, told=skewed[told])
        assert [one.text for one in shown] == [one.text for one in as_it_was]


@given(WORDS, WORDS)
def test_a_long_message_is_cut_the_same_wherever_it_stands(one: str, other: str) -> None:
    long = turn(2, one * 20, other)
    alone, behind, again = tail(long), tail([*turn(1, "hi", "ok"), *long]), tail(list(tail(long)))

    assert behind[-2:] == alone == again


def test_of_a_long_message_its_beginning_and_its_end_stay() -> None:
    said = "\n".join(f"line {number} of a long answer" for number in range(40))
    spoken = tail(turn(1, said, "ok"))[0].text.splitlines()

    assert spoken[0] == "line 0 of a long answer"
    assert spoken[-1] == "line 39 of a long answer"
    assert len(spoken) < 40


@pytest.mark.parametrize("line", ["ሰላም እንዴት ነህ ", "9f8a7c6e-1b2d-4e3f ", "👩‍👩‍👧‍👦"])
def test_a_line_of_many_tokens_takes_no_more_than_half_so_that_its_reply_is_shown_with_it(line: str) -> None:
    shown = text(tail(turn(1, line * 40, line * 40))).splitlines()[1:-1]

    assert [said.partition(":")[0] for said in shown] == ["Lena", "assistant"]
    assert all(said.partition(": ")[2].startswith(line.strip()) for said in shown)


@pytest.mark.parametrize("letter", ["a", "漢", "\n\n- x"])
def test_a_megabyte_in_one_message_keeps_the_ceilings(letter: str) -> None:
    fitted = text(tail(turn(1, letter * (1_000_000 // len(letter)), "ok")))

    assert load_tokens().count(fitted) <= BUDGETS.tail_tokens
    assert utf8_length(fitted) <= BUDGETS.tail_bytes
    assert len(fitted.splitlines()) <= BUDGETS.tail_lines + 2


def test_where_the_first_turn_of_the_tail_was_forgotten_it_begins_anew() -> None:
    entries = [entry for number in range(1, 4) for entry in turn(number, "and now?", "That.")]

    assert tail(entries, "t0000")[0].turn_id == "t0001"


def test_messages_without_turns_are_paired_by_who_speaks() -> None:
    said = [TailEntry(speaker=by, text=by, turn_id="") for by in ("user", "user", "assistant", "user", "assistant")]

    assert last_turns(said, 1) == tuple(said[3:])
    assert last_turns(said, 2) == tuple(said)
