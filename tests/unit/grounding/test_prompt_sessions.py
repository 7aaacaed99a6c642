"""What a session's prompts keep of the one before, and how a turn is told what has changed since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import load
from grounding.memory.context_document import ContextDocument
from grounding.prompt import (
    Prefix,
    PrefixPolicy,
    SessionContinuity,
    Shown,
    ShownState,
    next_session_state,
    session_input,
    shared_prefix,
)
from grounding.prompt_input import (
    PLACES,
    WINDOW_SAFETY,
    BlockFingerprint,
    Censor,
    CodexFile,
    CodexInput,
    ContextLine,
    Layout,
    LineByLine,
    Passage,
    Prompt,
    PromptLimits,
    Query,
    SessionInput,
    SummaryInput,
    TailEntry,
    Trace,
    Volatility,
)
from grounding.transcript import Reach
from tests.emulators.prompts import ANY_TEXT, BUDGETS, TOKENS, build, context, record

LINES_TOKENS = LineByLine(TOKENS)
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


def continuing(layout: Layout = "prefix_stable") -> SessionContinuity:
    """Sessions of which nothing has to be read."""
    return SessionContinuity(cast("Any", None), PrefixPolicy(LINES_TOKENS, layout))


def settled(
    before: Shown | None = BEFORE, layout: Layout = "prefix_stable", audience: str | None = None, **there: Any
) -> ShownState:
    now: dict[str, Any] = {"lines": LINES, "latest": SHOWN, "shown": SHOWN, "entries": said(2, 3, 4)} | there
    documents = (now["latest"], now["shown"])
    state = continuing(layout).go_on(before, now["lines"], documents, now["entries"], audience, BUDGETS, TODAY)
    return state.settled


def test_a_newer_document_waits_for_as_long_as_the_tail_covers_what_is_new_in_it() -> None:
    newer = document(2, TEXT + "\n## Timeline\n- met\n", turn_ids=("t4",))

    assert settled(latest=newer) == ShownState(LINES, SHOWN, said(3, 4))


def test_a_fact_that_was_corrected_is_told_at_once() -> None:
    """The summary that stays would contradict what was just said."""
    newer = document(2, TEXT.replace("blue", "red").replace("buy", "sell"), turn_ids=("t4",))

    assert settled(latest=newer) == ShownState(
        LINES, SHOWN, said(3, 4), ("Corrected in the summary, Facts: boat: red",)
    )


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


def test_one_persons_lines_are_never_shown_to_another() -> None:
    lines = (ContextLine(number=0, content="nothing of Lena's"),)

    assert settled(BEFORE.model_copy(update={"audience": "slack:U1"}), audience="slack:U2", lines=lines) == ShownState(
        lines, SHOWN, said(3, 4)
    )


def test_small_talk_has_no_place_to_tell_what_changed_and_shows_it() -> None:
    lines = (*LINES, ContextLine(number=2, content="new"))

    for now, shown in ((LINES, LINES), (lines, lines), (None, None)):
        assert continuing().small_talk(BEFORE, now, None).settled.global_context == shown


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
        now = build(today=TODAY, deltas=shown.deltas).block("now")
        assert now is not None
        assert now.tokens <= BUDGETS.now_tokens
        assert all(delta in now.text for delta in shown.deltas)


STABLE: dict[str, Any] = {"layout": "prefix_stable", "today": "2026-11-22"}
NEXT = TailEntry(speaker="assistant", text="hi, what is it?", turn_id="t0")


def before_boundary(prompt: Prompt) -> str:
    """The bytes of *prompt* up to the end of its tail, whose closing tag stands behind what will be added."""
    shown = [
        block.text
        for block in prompt.blocks
        if block.text and PLACES[block.name].message == "user" and PLACES[block.name].volatility is not Volatility.TURN
    ]
    assert prompt.user.startswith("\n\n".join(shown))
    return prompt.system + "\n\n".join(shown)


def test_what_only_grew_is_kept_and_the_block_behind_it_named() -> None:
    first = build(**STABLE)
    second = build(**STABLE, tail=(*context().tail, NEXT), query=Query(text="and then?"))

    prefix = shared_prefix(first.fingerprints, second)

    kept = [block.tokens for block in first.blocks if block.name in ("identity", "summary", "tail")]
    assert prefix == Prefix("records", sum(kept))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"identity": "Another helper."}, "identity"),
        ({"global_context": (ContextLine(number=0, content="likes tea"),)}, "global_context"),
        ({"summary": None}, "tail"),
        ({"summary": SummaryInput(text="## Facts\n- none\n", turns=4, version=2)}, "summary"),
        ({"tail": ()}, "records"),
        ({"tail": (NEXT,)}, "tail"),
        ({"tail": (NEXT, *context().tail)}, "tail"),
        ({"query": Query(text="something else")}, "query"),
        ({}, ""),
    ],
)
def test_the_first_block_that_differs_is_named(changes: dict[str, Any], name: str) -> None:
    assert shared_prefix(build(**STABLE).fingerprints, build(**(STABLE | changes))).broken_by == name


def test_material_that_is_not_given_whole_any_more_is_named_itself() -> None:
    files = (CodexFile(path="a.md", text="a word of it"),)
    material = CodexInput(mode="whole", why="below_line", tokens=9, weight=9, limit=5000, count=1, files=files)
    searched = material.model_copy(update={"mode": "search", "why": "over_line", "files": ()})
    censors = (Censor(id="c", severity="block", text="Never name a price."),)
    before = build(**STABLE, codex=material, censors=censors)

    broken = shared_prefix(before.fingerprints, build(**STABLE, codex=searched, censors=censors))

    assert broken.broken_by == "codex"


@given(
    query=ANY_TEXT,
    passages=st.lists(ANY_TEXT, max_size=4),
    records=st.lists(ANY_TEXT, max_size=4),
    karma=st.lists(ANY_TEXT, max_size=3),
    deltas=st.lists(ANY_TEXT, max_size=3),
)
def test_nothing_behind_the_boundary_moves_the_bytes_before_it(
    query: str, passages: list[str], records: list[str], karma: list[str], deltas: list[str]
) -> None:
    prompt = build(
        **STABLE,
        query=Query(text=query),
        passages=tuple(Passage(source="a.md", heading="h", text=text, score=1.0) for text in passages),
        records=tuple(record(str(number), text) for number, text in enumerate(records)),
        karma=tuple(Trace(turn_id="t", asked=text, answered=text, marked_on="2026-11-20", good=1) for text in karma),
        deltas=tuple(deltas),
    )

    assert before_boundary(prompt) == before_boundary(build(**STABLE))
    assert prompt.prefix_digest == build(**STABLE).prefix_digest


@pytest.mark.parametrize("words", [10, 1_000, 200_000])
@pytest.mark.parametrize("word", ["a", "aaaaaaaa", "漢", "🙂", "\t \n", "word "])
def test_a_message_of_any_size_leaves_what_stands_before_it(word: str, words: int) -> None:
    """The document fills its budget, the tail its own: there is least room for the message."""
    full: dict[str, Any] = {
        "summary": SummaryInput(text="## Facts\n" + "- a fact about boats\n" * 200, turns=3, version=1),
        "tail": tuple(TailEntry(speaker="Lena", text="x" * 250, turn_id=f"t{n}") for n in range(6)),
    }

    assert before_boundary(build(**STABLE, **full, query=Query(text=word * words))) == before_boundary(
        build(**STABLE, **full)
    )


@pytest.mark.parametrize("said", ["고객님의 주문을 확인했습니다. ", "ฉันต้องการข้อมูลเพิ่มเติม ", "27182818 "])
@pytest.mark.parametrize("window", [4096, 6000, 8192])
def test_no_usual_message_moves_what_stands_before_it_where_all_of_it_takes_more_of_a_model_than_of_our_tokens(
    said: str, window: int
) -> None:
    """Each message had the window narrowed by what it took itself: no two shared a beginning, and some were refused
    that were shorter than others that were answered."""
    full: dict[str, Any] = {
        "identity": said * int(window / WINDOW_SAFETY * 0.3 / TOKENS.count(said)),
        "global_context": tuple(ContextLine(number=number, content=said * 3) for number in range(15)),
        "summary": SummaryInput(text="## Facts\n" + f"- {said}\n" * 30, turns=3, version=1),
        "tail": tuple(TailEntry(speaker="Lena", text=said * 3, turn_id=f"t{n}") for n in range(12)),
        "budgets": PromptLimits.from_settings(load({}).settings, window_tokens=window),
        "layout": "prefix_stable",
    }
    found = (Passage(source="a.md", heading="h", text=said * 60, score=1.0),)

    prompts = [
        build(**full, query=Query(text=said * times), passages=passages)
        for times in (1, 3, 6, 9)
        for passages in ((), found)
    ]

    assert len({before_boundary(prompt) for prompt in prompts}) == 1
    assert "recent_conversation" in before_boundary(prompts[0])


def test_a_session_counts_its_turns_and_an_interrupted_one_once() -> None:
    first = context(turn_id="t1", session=session_input(None, "t1", "2026-11-22"))
    kept = next_session_state(first, build(), None, None)
    assert kept is not None
    assert (kept.id, kept.turns) == ("t1", 1)

    assert session_input(kept, "t1", "2026-11-23") == SessionInput(id="t1", began_on="2026-11-22", turns=0)
    assert session_input(kept, "t2", "2026-11-23") == SessionInput(id="t1", began_on="2026-11-22", turns=1)
    assert session_input(None, "", "2026-11-22") is None


def test_a_dry_run_leaves_nothing_for_the_next_turn() -> None:
    dry = context(turn_id="", session=SessionInput(id="t1", began_on="2026-11-22", turns=3))

    assert next_session_state(dry, build(), None, None) is None


def test_small_talk_leaves_what_was_shown_before_it_for_the_next_turn() -> None:
    here = SessionInput(id="t1", began_on="2026-11-22", turns=1)
    summary = SummaryInput(text="## Facts\n- boat: blue\n", turns=3, version=1, id="5-0")
    talked = build(**STABLE, summary=summary)
    before = next_session_state(context(session=here, summary=summary), talked, None, None)
    assert before is not None

    greeting = context(**STABLE, session=here, turn_id="t2", small_talk=True, summary=None, tail=())
    kept = next_session_state(greeting, build(**STABLE, small_talk=True), before, None)

    assert kept is not None
    assert (kept.begins, kept.document, kept.blocks) == ("t0", "5-0", before.blocks)
    moved = next_session_state(greeting, build(**STABLE, small_talk=True, identity="Other."), before, None)
    assert moved is not None
    assert [block.name for block in moved.blocks] == ["identity"]


def test_what_is_known_holds_no_words_of_the_conversation() -> None:
    kept = next_session_state(
        context(session=SessionInput(id="t1", began_on="2026-11-22", turns=0)), build(), None, None
    )
    assert kept is not None

    stored = kept.model_dump_json()

    assert Shown.model_validate_json(stored) == kept
    assert "hello" not in stored
    assert "pricing" not in stored
