"""What of a prompt stood in the one before it, and what is known for the next."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import load
from grounding.prompt import (
    UNKNOWN,
    Prefix,
    Shown,
    next_session_state,
    session_input,
    shared_prefix,
)
from grounding.prompt.layers import TAIL_FOOT, TailLimits
from grounding.prompt.session_prefix import tokens_between, visible_history
from grounding.prompt_input import (
    PLACES,
    WINDOW_SAFETY,
    Censor,
    CodexFile,
    CodexInput,
    ContextLine,
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
from tests.unit.test_assemble import ANY_TEXT, TOKENS, build, context, record

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


def test_with_the_message_first_the_message_breaks_the_prefix() -> None:
    first, second = build(), build(query=Query(text="and then?"))

    assert shared_prefix(first.fingerprints, second) == Prefix("query", first.blocks[0].tokens)


def test_material_that_is_not_given_whole_any_more_is_named_itself() -> None:
    files = (CodexFile(path="a.md", text="a word of it"),)
    material = CodexInput(mode="whole", why="below_line", tokens=9, weight=9, limit=5000, count=1, files=files)
    searched = material.model_copy(update={"mode": "search", "why": "over_line", "files": ()})
    censors = (Censor(id="c", severity="block", text="Never name a price."),)
    before = build(**STABLE, codex=material, censors=censors)

    broken = shared_prefix(before.fingerprints, build(**STABLE, codex=searched, censors=censors))

    assert broken.broken_by == "codex"


def test_of_a_shorter_prompt_the_block_is_named_that_is_missing() -> None:
    assert shared_prefix(build(**STABLE).fingerprints, build(**STABLE, small_talk=True)).broken_by == "query"
    assert shared_prefix((), build()) == UNKNOWN


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


def test_a_tail_that_grows_takes_nothing_off_the_document_before_it() -> None:
    """There is room for only half of a long document beside a full tail."""
    document = SummaryInput(text="## Facts\n" + "- a fact about boats\n" * 200, turns=3, version=1)
    budgets = PromptLimits.from_settings(load({}).settings, window_tokens=2900)
    said = tuple(TailEntry(speaker="Lena", text="so " * 30, turn_id=f"t{number}") for number in range(8))

    def shown(turns: int) -> Prompt:
        return build(**STABLE, summary=document, tail=said[:turns], budgets=budgets, wants_documents=False)

    summaries = {block.text for turns in range(9) if (block := shown(turns).block("summary"))}

    assert len(summaries) == 1
    assert "boats" in summaries.pop()
    full = shown(8).block("tail")
    assert full is not None
    assert full.text.count("Lena:") == len(said)


def test_one_character_of_the_codex_moves_the_prefix() -> None:
    def with_codex(text: str) -> Prompt:
        files = (CodexFile(path="a.py", text=text),)
        budgets = context().budgets.model_copy(update={"codex_tokens": 100})
        codex = CodexInput(mode="whole", why="fits", tokens=5, weight=5, count=1, limit=100, files=files)
        return build(**STABLE, codex=codex, budgets=budgets)

    one, other = with_codex("x = 1"), with_codex("x = 2")

    assert one.prefix_digest != other.prefix_digest
    assert shared_prefix(one.fingerprints, other).broken_by == "codex"


TURNS = st.tuples(st.text(alphabet="ab 漢🙂\n", min_size=1, max_size=200), ANY_TEXT, ANY_TEXT)


@given(st.lists(TURNS, min_size=2, max_size=10))
def test_between_compactions_a_prompt_starts_with_the_one_before_up_to_the_end_of_its_tail(
    turns: list[tuple[str, str, str]],
) -> None:
    limits, said = TailLimits.of(context().budgets), list[TailEntry]()
    before, begins = "", ""
    for number, (text, query, found) in enumerate(turns):
        shown = visible_history(said, begins, "t9999", limits, TOKENS)
        prompt = build(
            **STABLE,
            tail=shown.entries,
            query=Query(text=query),
            passages=(Passage(source="a.md", heading="h", text=found, score=1.0),),
            records=(record("r", found),),
        )
        if not shown.compacted:
            assert (prompt.system + prompt.user).startswith(before)
        before, begins = before_boundary(prompt).removesuffix("\n" + TAIL_FOOT), shown.begins
        said += [TailEntry(speaker=by, text=text, turn_id=f"t{number}") for by in ("Lena", "assistant")]


def test_what_stands_between_two_blocks_is_counted_up_to_the_boundary() -> None:
    blocks = build(**STABLE).fingerprints
    tokens = {block.name: block.tokens for block in blocks}

    assert tokens_between(blocks, "summary") == tokens["summary"] + tokens["tail"]
    assert tokens_between(blocks, "identity", ("summary", "tail")) == tokens["identity"]
    assert tokens_between(build().fingerprints, "summary") == 0
    assert tokens_between(build(**STABLE, summary=None).fingerprints, "summary") == tokens["tail"]


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
