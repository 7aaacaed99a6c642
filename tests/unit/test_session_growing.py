"""Which turns the tail shows from one prompt to the next."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt.layers import GAP, TAIL_FOOT, TailLimits, shown_message, tail_section
from grounding.prompt.session_prefix import AFTER_COMPACTION, History, newest, split_turns, visible_history
from grounding.prompt_input import LineByLine, TailEntry, load_tokens, utf8_length

TOKENS = LineByLine(load_tokens())
LIMITS = TailLimits(tokens=300, lines=24, bytes=1800, turns=20)
HALF = LIMITS.share(1 / 2)
NO_LIMITS = TailLimits(tokens=9999, lines=9999, bytes=99_999, turns=9999)
WORDS = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("aeio \n漢字🙂é<>/")), min_size=1, max_size=400
).filter(lambda text: bool(text.strip()))
SAID = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30)


def turn(number: int, asked: str, answered: str) -> list[TailEntry]:
    name = f"t{number:04}"
    return [
        TailEntry(speaker="Lena", text=asked, turn_id=name, user="slack:U1"),
        TailEntry(speaker="assistant", text=answered, turn_id=name),
    ]


def shortened(entry: TailEntry) -> TailEntry:
    return shown_message(entry, entry.speaker, HALF, TOKENS).entry


def lines(entries: Sequence[TailEntry]) -> tuple[str, ...]:
    return tail_section(entries, NO_LIMITS).pieces


def prompts(said: list[tuple[str, str]], limits: TailLimits = LIMITS, told: str = "t0000") -> list[History]:
    """The history of each prompt of a conversation, from the second turn on."""
    shown: list[History] = []
    entries: list[TailEntry] = []
    for number, (asked, answered) in enumerate(said, start=1):
        entries += turn(number, asked, answered)
        begins = shown[-1].begins if shown else ""
        shown.append(visible_history(entries[-limits.lines - 1 :], begins, told, limits, TOKENS))
    return shown


def text(shown: History) -> str:
    return tail_section(shown.entries, LIMITS).fit(TOKENS, LIMITS.tokens, LIMITS.bytes * 2)


@given(SAID)
def test_between_compactions_the_tail_begins_with_the_bytes_of_the_one_before(said: list[tuple[str, str]]) -> None:
    for before, after in pairwise(prompts(said)):
        if not after.compacted:
            assert text(after).startswith(text(before).removesuffix("\n" + TAIL_FOOT))
            assert after.entries[: len(before.entries)] == before.entries


@given(SAID, st.integers(1, 6))
def test_no_ceiling_of_the_tail_is_exceeded_and_no_turn_halved(said: list[tuple[str, str]], turns: int) -> None:
    limits = TailLimits(tokens=300, lines=24, bytes=1800, turns=turns)
    for number, shown in enumerate(prompts(said, limits), start=1):
        kept = split_turns(shown.entries)
        assert len(kept) <= turns
        assert [len(one) for one in kept] == [2] * len(kept)
        assert kept[-1][0].turn_id == f"t{number:04}"
        if len(kept) > 1:
            assert limits.hold(lines(shown.entries), len(kept), TOKENS)


def test_the_tail_is_compacted_to_a_third_and_only_now_and_then() -> None:
    said = [(f"question number {n}?", f"The answer to that is {n} and a few words more.") for n in range(60)]
    shown = prompts(said, told="t9999")
    compactions = [at for at, one in enumerate(shown) if one.compacted and at]

    assert all(later - earlier >= 4 for earlier, later in pairwise(compactions))
    third = LIMITS.share(AFTER_COMPACTION)
    assert all(third.hold(lines(shown[at].entries), len(split_turns(shown[at].entries)), TOKENS) for at in compactions)


def test_turns_that_no_document_tells_of_are_kept_a_little_longer() -> None:
    said = [(f"question number {n}?", f"The answer to that is {n} and a few words more.") for n in range(12)]
    entries = [entry for number, one in enumerate(said) for entry in turn(number, *one)]

    told, untold = (visible_history(entries, "", at, LIMITS, TOKENS) for at in ("t0011", ""))

    assert len(untold.entries) > len(told.entries)
    assert untold.before == split_turns(entries)[-len(untold.entries) // 2 - 1][0].turn_id


def test_which_turns_are_told_goes_by_their_order_and_not_by_the_clocks_of_who_answered_them() -> None:
    said = [(f"question number {n}?", f"The answer to that is {n} and a few words more.") for n in range(12)]
    entries = [entry for number, one in enumerate(said) for entry in turn(number, *one)]
    skewed = {f"t{number:04}": f"t{number + 50 * (number % 2):04}" for number in range(12)}
    moved = [one.model_copy(update={"turn_id": skewed[one.turn_id]}) for one in entries]

    for told in skewed:
        as_it_was = visible_history(entries, "", told, LIMITS, TOKENS)
        shown = visible_history(moved, "", skewed[told], LIMITS, TOKENS)
        assert [one.text for one in shown.entries] == [one.text for one in as_it_was.entries]


@given(WORDS, WORDS)
def test_a_long_message_is_cut_the_same_wherever_it_stands(one: str, other: str) -> None:
    entry = turn(1, one * 20, other)[0]
    cut = shortened(entry)

    assert shortened(cut) == cut
    assert HALF.hold(lines([cut]), 1, TOKENS)


def test_of_a_long_message_its_beginning_and_its_end_stay() -> None:
    said = "\n".join(f"line {number} of a long answer" for number in range(40))
    cut = shortened(turn(1, said, "ok")[0])
    spoken = cut.text.splitlines()

    assert spoken[0] == "line 0 of a long answer"
    assert spoken[-1] == "line 39 of a long answer"
    assert spoken.count(GAP) == 1


@pytest.mark.parametrize("line", ["ሰላም እንዴት ነህ ", "9f8a7c6e-1b2d-4e3f ", "👩‍👩‍👧‍👦", "გამარჯობა როგორ ხარ "])
def test_a_line_of_many_tokens_takes_no_more_than_half_so_that_its_reply_is_shown_with_it(line: str) -> None:
    entries = turn(1, line * 40, line * 40)
    shown = text(visible_history(entries, "", "", LIMITS, TOKENS))

    assert [said.partition(":")[0] for said in shown.splitlines()[1:-1]] == ["Lena", "assistant"]
    assert all(said.partition(": ")[2].startswith(line.strip()) for said in shown.splitlines()[1:-1])


@pytest.mark.parametrize("letter", ["a", "漢", "🙂", "a b", "\n\n- x"])
def test_a_megabyte_in_one_message_keeps_the_ceilings(letter: str) -> None:
    entries = turn(1, letter * (1_000_000 // len(letter)), "ok")
    shown = visible_history(entries, "", "", LIMITS, TOKENS)
    fitted = tail_section(shown.entries, LIMITS).fit(TOKENS, LIMITS.tokens, LIMITS.bytes)

    assert TOKENS.count(fitted) <= LIMITS.tokens
    assert utf8_length(fitted) <= LIMITS.bytes
    assert len(fitted.splitlines()) <= LIMITS.lines + 2


def test_a_turn_that_was_forgotten_lets_the_tail_begin_anew() -> None:
    entries = [entry for number in range(1, 4) for entry in turn(number, "and now?", "That.")]

    shown = visible_history(entries, "t0000", "", LIMITS, TOKENS)

    assert shown.compacted
    assert shown.begins == "t0001"


def test_messages_without_turns_are_paired_by_who_speaks() -> None:
    said = [TailEntry(speaker=by, text=by, turn_id="") for by in ("user", "user", "assistant", "user", "assistant")]

    assert [len(one) for one in split_turns(said)] == [3, 2]
    assert newest(said, TailLimits(300, 24, 1800, 1), TOKENS) == tuple(said[3:])
