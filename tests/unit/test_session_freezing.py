"""What stays as it was shown, and how a turn is told what has changed since."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import load
from grounding.memory.context_document import ContextDocument, DocumentLine
from grounding.prompt import PrefixPolicy, Shown, ShownState, layers
from grounding.prompt.session_prefix import Now
from grounding.prompt_input import (
    BlockFingerprint,
    ContextLine,
    Layout,
    LineByLine,
    PromptLimits,
    TailEntry,
    load_tokens,
)
from grounding.transcript import Reach

TOKENS = LineByLine(load_tokens())
BUDGETS = PromptLimits.from_settings(load({}).settings, window_tokens=8192)
TODAY = "2026-11-22"
TEXT = "## Facts\n- boat: blue\n\n## Decisions\n- buy the boat\n"
LINES = (ContextLine(number=0, content="prefers tea"), ContextLine(number=1, content="lives in Kiel"))
BLOCKS = tuple(
    BlockFingerprint(name=name, digest="d", characters=9, tokens=tokens, stays=name != "query")
    for name, tokens in (("identity", 700), ("global_context", 300), ("summary", 400), ("tail", 200), ("query", 20))
)


def document(version: int, text: str = TEXT, **changes: Any) -> ContextDocument:
    fields: dict[str, Any] = {"made_by": "model", "turn_ids": ("t3",), "id": f"{version}-0"}
    return ContextDocument(text, version, 3, 6, at="2026-11-22T10:00:00Z", **(fields | changes))


def said(*turns: int, words: int = 3) -> tuple[TailEntry, ...]:
    return tuple(TailEntry(speaker="Lena", text="so " * words, turn_id=f"t{turn}") for turn in turns)


SHOWN = document(1)
BEFORE = Shown(
    id="t1",
    began_on=TODAY,
    turns=4,
    turn_id="t4",
    begins="t3",
    document=SHOWN.id,
    global_context=LINES,
    blocks=BLOCKS,
)


def settled(
    before: Shown | None = BEFORE, layout: Layout = "prefix_stable", audience: str | None = None, **there: Any
) -> ShownState:
    fields: dict[str, Any] = {"lines": LINES, "latest": SHOWN, "shown": SHOWN, "entries": said(2, 3, 4)}
    return PrefixPolicy(TOKENS, layout).settle(before, Now(**(fields | there)), audience, BUDGETS, TODAY)


def test_where_nothing_changed_everything_stays_and_nothing_is_told() -> None:
    assert settled() == ShownState(LINES, SHOWN, said(3, 4))


def test_a_newer_document_waits_for_as_long_as_the_tail_covers_what_is_new_in_it() -> None:
    newer = document(2, TEXT + "\n## Timeline\n- met\n", turn_ids=("t4",))

    assert settled(latest=newer) == ShownState(LINES, SHOWN, said(3, 4))


def test_a_fact_that_was_corrected_is_told_at_once() -> None:
    """The summary that stays would contradict what was just said."""
    newer = document(2, TEXT.replace("blue", "red").replace("buy", "sell"), turn_ids=("t4",))

    assert settled(latest=newer) == ShownState(
        LINES, SHOWN, said(3, 4), ("Corrected in the summary, Facts: boat: red",)
    )


def test_of_several_facts_about_one_subject_none_corrects_another() -> None:
    earlier = document(1, "## Preferences\n- Lena: likes tea\n- Lena: likes boats\n")
    newer = document(2, "## Preferences\n- Lena: likes boats\n- Lena: likes tea\n", turn_ids=("t4",))

    assert settled(shown=earlier, latest=newer).deltas == ()


def test_what_the_same_person_says_besides_corrects_nothing() -> None:
    earlier = document(1, "## Decisions\n- Lena: we go by boat\n")
    newer = document(2, "## Decisions\n- Lena: we go by boat\n- Lena: we stay a week\n", turn_ids=("t4",))
    other = document(2, "## Decisions\n- Lena: we go by train\n", turn_ids=("t4",))

    assert settled(shown=earlier, latest=newer).deltas == ()
    assert settled(shown=earlier, latest=other).deltas == ("Corrected in the summary, Decisions: Lena: we go by train",)


def test_a_newer_document_is_shown_when_the_tail_is_compacted() -> None:
    newer = document(2, turn_ids=("t4",))
    long = said(3, 4, 5, 6, 7, 8, 9, words=200)

    shown = settled(latest=newer, entries=long)

    assert shown.document == newer
    assert shown.tail[0].turn_id != "t3"


def test_a_newer_document_is_shown_when_turns_would_be_told_nowhere() -> None:
    earlier = replace(SHOWN, turn_ids=("t1",))
    newer = document(2, "## Facts\n- boat: red\n", turn_ids=("t4",))

    assert settled(shown=earlier, latest=newer).document == newer
    assert settled(shown=earlier, latest=replace(newer, turn_ids=("t1",))).document == earlier


def test_what_the_tail_shows_only_a_part_of_is_told_by_the_newer_document() -> None:
    """The rest of a long message stands in no prompt but by the document that was made of it."""
    newer = document(2, "## Facts\n- port: 8443\n" + TEXT, turn_ids=("t4",))
    long = (*said(3), *said(4, words=200))

    shown = settled(latest=newer, entries=long)

    assert shown.partly == {"t4"}
    assert shown.deltas == ("In the summary, Facts: port: 8443",)
    assert settled(latest=replace(newer, turn_ids=("t3",)), entries=long).deltas == ()
    of_assistant = tuple(one.model_copy(update={"speaker": "assistant"}) for one in long[1:])
    assert settled(latest=newer, entries=(*long[:1], *said(4), *of_assistant)).deltas == ()


def test_what_a_person_added_to_the_document_is_told_at_once() -> None:
    edited = document(2, TEXT + "- and a trailer\n", made_by="person", put=Reach(4, 8))

    assert settled(latest=edited) == ShownState(LINES, SHOWN, said(3, 4), ("In the summary, Decisions: and a trailer",))


def test_what_a_person_added_is_told_though_the_document_was_made_anew_since() -> None:
    kept = (DocumentLine("Decisions", "- and a trailer"),)
    newer = document(3, TEXT + "- and a trailer\n", kept=kept, put=Reach(4, 8), turn_ids=("t4",))

    assert settled(latest=newer).deltas == ("In the summary, Decisions: and a trailer",)


def test_what_a_person_took_out_of_the_document_is_not_shown_any_more() -> None:
    edited = document(2, "## Facts\n- boat: blue\n", made_by="person", put=Reach(4, 8))

    assert settled(latest=edited) == ShownState(LINES, edited, said(3, 4))


def test_a_document_that_is_not_kept_any_more_gives_way_to_the_newest() -> None:
    newest = document(2)

    assert settled(latest=newest, shown=None) == ShownState(LINES, newest, said(3, 4))
    assert settled(latest=None, shown=None).document is None


def test_the_first_document_waits_while_the_tail_shows_the_whole_conversation() -> None:
    before = BEFORE.model_copy(update={"document": "", "begins": "t2"})

    assert settled(before, shown=None).document is None
    assert settled(before, shown=None, entries=said(1, 2, 3, 4)).deltas == (
        "In the summary, Facts: boat: blue",
        "In the summary, Decisions: buy the boat",
    )


def test_a_first_document_does_not_come_with_an_edit_of_something_else() -> None:
    """Where no summary stood, the tail is what would be read anew."""
    before = BEFORE.model_copy(
        update={"document": "", "begins": "t2", "blocks": tuple(one for one in BLOCKS if one.name != "summary")}
    )
    lines = (*LINES, ContextLine(number=2, content="has a boat"))

    shown = settled(before, shown=None, lines=lines)

    assert shown == ShownState(LINES, None, said(2, 3, 4), ("In the global context: 2-- has a boat",))


def test_behind_the_message_nothing_is_read_from_before_so_the_newest_document_is_shown() -> None:
    newer = document(2, turn_ids=("t4",))

    assert settled(layout="user_first", latest=newer).document == newer


def test_a_line_that_has_another_text_is_shown_in_its_place_and_not_beside_what_it_was() -> None:
    lines = (LINES[0], ContextLine(number=1, content="lives in Bremen", marked=True))

    assert settled(lines=lines) == ShownState(lines, SHOWN, said(3, 4))


def test_a_line_that_is_no_more_or_not_yet_approved_is_told_by_its_number_behind_the_boundary() -> None:
    lines = (LINES[0], ContextLine(number=1, content="lives in Kiel", marked=True))

    assert settled(lines=lines).deltas == ("In the global context: 1-- lives in Kiel (unverified)",)


def test_a_new_line_is_told_and_a_deleted_one_is_not_shown_any_more() -> None:
    new = ContextLine(number=2, content="has a boat")
    blank = ContextLine(number=1, content="")

    assert settled(lines=(*LINES, new)).deltas == ("In the global context: 2-- has a boat",)
    assert settled(lines=(LINES[0], blank)) == ShownState((LINES[0], blank), SHOWN, said(3, 4))
    assert settled(lines=(LINES[0],)).global_context == (LINES[0],)


def test_what_is_cheaper_to_show_than_to_tell_is_shown() -> None:
    """With few tokens behind it the block is read anew sooner than a change is told eight times."""
    lines = (*LINES, ContextLine(number=2, content="has a boat"))
    small = tuple(one.model_copy(update={"tokens": 4}) for one in BLOCKS)

    shown = settled(BEFORE.model_copy(update={"blocks": small}), lines=lines)

    assert shown == ShownState(lines, SHOWN, said(3, 4))


def test_changes_that_do_not_fit_are_shown_in_their_place() -> None:
    lines = tuple(ContextLine(number=number, content=f"a rather new line {number}") for number in range(40))

    shown = settled(lines=lines)

    assert shown.global_context == lines
    assert shown.deltas == ()


def test_a_change_of_the_document_yields_to_one_of_the_global_context() -> None:
    """Where both do not fit, the block that costs less to read again is shown as it is now."""
    lines = (*LINES, ContextLine(number=2, content="has a boat " * 10))
    edited = document(2, TEXT + f"- and {'a trailer ' * 30}\n", made_by="person", put=Reach(4, 8))

    large = tuple(one.model_copy(update={"tokens": 2000}) if one == BLOCKS[1] else one for one in BLOCKS)
    shown = settled(BEFORE.model_copy(update={"blocks": large}), lines=lines, latest=edited)

    assert shown.document == edited
    assert shown.global_context == LINES
    assert len(shown.deltas) == 1


def test_one_persons_lines_are_never_shown_to_another() -> None:
    lines = (ContextLine(number=0, content="nothing of Lena's"),)

    assert settled(BEFORE.model_copy(update={"audience": "slack:U1"}), audience="slack:U2", lines=lines) == ShownState(
        lines, SHOWN, said(3, 4)
    )


def test_the_first_turn_of_a_session_shows_what_there_is() -> None:
    assert settled(None) == ShownState(LINES, SHOWN, said(2, 3, 4))


def test_small_talk_has_no_place_to_tell_what_changed_and_shows_it() -> None:
    freezing, lines = PrefixPolicy(TOKENS, "prefix_stable"), (*LINES, ContextLine(number=2, content="new"))

    assert freezing.settle_small_talk(BEFORE, Now(LINES, None, None, None), None).global_context == LINES
    assert freezing.settle_small_talk(BEFORE, Now(lines, None, None, None), None).global_context == lines
    assert freezing.settle_small_talk(BEFORE, Now(None, None, None, None), None).global_context is None


@given(
    st.lists(st.sampled_from(["tea", "coffee " * 30, "", "漢字 " * 20]), max_size=30),
    st.sampled_from(["prefix_stable", "user_first"]),
    st.lists(st.integers(0, 3000), min_size=5, max_size=5),
)
def test_no_change_of_the_global_context_is_ever_lost(contents: list[str], layout: Layout, sizes: list[int]) -> None:
    lines = tuple(ContextLine(number=number, content=content) for number, content in enumerate(contents))
    blocks = tuple(one.model_copy(update={"tokens": size}) for one, size in zip(BLOCKS, sizes, strict=True))

    shown = settled(BEFORE.model_copy(update={"blocks": blocks}), layout, lines=lines)

    known = {line.number: line.content for line in shown.global_context or ()}
    for delta in shown.deltas:
        number, _, content = delta.removeprefix("In the global context: ").partition("-- ")
        known[int(number)] = content
    assert {number: content.split() for number, content in known.items() if content} == {
        number: content.split() for number, content in enumerate(contents) if content
    }
    if shown.deltas:
        assert TOKENS.fits(layers.now_section(TODAY, shown.deltas).whole, BUDGETS.now_tokens)


@pytest.mark.parametrize("layout", ["prefix_stable", "user_first"])
def test_without_deltas_the_same_is_shown_as_it_is_now(layout: Layout) -> None:
    lines = (*LINES, ContextLine(number=2, content="has a boat"))
    there = Now(lines, SHOWN, SHOWN, said(3, 4))
    shown = PrefixPolicy(TOKENS, layout).settle(BEFORE, there, None, BUDGETS, TODAY)

    assert shown.without_deltas(there) == ShownState(lines, SHOWN, said(3, 4))
