"""The prompt: the order of its blocks, their ceilings, and that the same input gives the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grounding.codex import size_of
from grounding.prompt import ContextTooLarge, build_prompt, codex_text, record_line, rounds_room
from grounding.prompt_input import (
    PLACES,
    SEPARATOR,
    WINDOW_SAFETY,
    Censor,
    CodexFile,
    CodexInput,
    ContextLine,
    DegradedBlock,
    Device,
    EnvironmentInput,
    FrameInput,
    Link,
    Passage,
    Query,
    QuotedMessage,
    RecalledTurn,
    RunContext,
    Selection,
    SigilInput,
    SummaryInput,
    TailEntry,
    Trace,
    utf8_length,
)
from tests.emulators.prompts import ANY_TEXT, BUDGETS, TOKENS, build, context, record


def test_the_day_of_recalled_turns_is_said_once_for_those_that_follow_each_other() -> None:
    said = [("t1", "2026-01-02", "Lena: blue"), ("t3", "2026-01-05", "Lena: red"), ("t2", "2026-01-02", "Ana: why?")]
    turns = tuple(RecalledTurn(turn_id=turn, said_on=day, text=text, score=1.0) for turn, day, text in said)

    block = build(recalled=turns).block("records")

    assert block is not None
    assert "[2026-01-02]\nLena: blue\nAna: why?\n[2026-01-05]\nLena: red\n" in block.text


def test_the_documented_order_is_user_summary_tail_retrieved_hint() -> None:
    prompt = build()

    places = [prompt.user.index(text) for text in ("Which file", "buying a boat", "Lena: hello", "basic plan", "Begin")]
    assert places == sorted(places)
    assert [block.name for block in prompt.blocks if block.text] == [
        "identity",
        "query",
        "summary",
        "tail",
        "records",
        "retrieved",
        "hint",
    ]


def test_one_system_and_one_user_message_are_sent() -> None:
    assert [message["role"] for message in build().messages] == ["system", "user"]


def test_a_search_that_found_nothing_says_so() -> None:
    assert "No document of the workspace speaks of this" in build(passages=()).user


def test_a_search_that_failed_does_not_pose_as_an_empty_one() -> None:
    prompt = build(passages=(), degraded=(DegradedBlock(block="retrieved", why="index_unavailable"),))

    assert "could not be searched" in prompt.user
    assert "No document" not in prompt.user


def test_passages_that_may_be_out_of_date_say_so() -> None:
    prompt = build(degraded=(DegradedBlock(block="retrieved", why="index_stale"),))
    assert "not all searched yet" in prompt.user
    assert "not all searched yet" not in build().user


def test_passages_are_cited_by_path_and_heading() -> None:
    assert "[pricing.md › Plans]\nThe basic plan costs 5." in build().user


@pytest.mark.parametrize("layout", ["user_first", "prefix_stable"])
@pytest.mark.parametrize("size", [120, 400, 1800])
def test_the_tail_with_its_head_and_foot_keeps_its_bytes(layout: Any, size: int) -> None:
    tail = tuple(TailEntry(speaker="s", text=f"word {number:03}", turn_id=str(number)) for number in range(300))
    budgets = BUDGETS.model_copy(
        update={"tail_bytes": size, "tail_lines": 300, "tail_tokens": 900, "history_turns": 300}
    )
    (block,) = (one for one in build(tail=tail, budgets=budgets, layout=layout).blocks if one.name == "tail")
    line = len("s: word 000\n")
    assert size - line < len(block.text.encode()) <= size
    assert "word 299" in block.text


def test_the_summary_keeps_whole_sections_in_their_order_of_worth() -> None:
    long = "\n".join(f"- event {n} happened at the harbour that day" for n in range(60))
    text = f"## Description\nA harbour.\n\n## Active Context\n- the blue boat\n\n## Timeline\n{long}\n"
    prompt = build(summary=SummaryInput(text=text, turns=3, version=1))

    assert "the blue boat" in prompt.user
    assert "event 1 " not in prompt.user


def test_room_is_taken_from_one_block_after_the_other_in_the_order_of_their_worth() -> None:
    changes: dict[str, Any] = {
        "query": Query(text="query " * 12),
        "summary": SummaryInput(text="## Facts\n" + "- summary " * 12, turns=3, version=1),
        "tail": (TailEntry(speaker="Lena", text="tail " * 12, turn_id="t0"),),
        "recalled": (RecalledTurn(turn_id="t-9", said_on="2026-01-02", text="records " * 12, score=1.0),),
        "passages": (Passage(source="a.md", heading="H", text="retrieved " * 12, score=1.0),),
        "hint": "hint " * 12,
        "frame": FrameInput(name="decision", description="frame " * 12),
        "karma": (Trace(turn_id="t-7", asked="why", answered="karma " * 12, marked_on="2026-01-02", good=1),),
        "today": "2026-11-22",
    }
    gone: list[str] = []
    for ceiling in range(build(**changes).tokens_total, 8, -1):
        prompt = build(**changes, budgets=BUDGETS.model_copy(update={"context_tokens": ceiling}))
        gone += [block.name for block in prompt.blocks if not block.text and block.name not in gone]

    assert gone == ["retrieved", "records", "karma", "summary", "tail", "hint", "now", "frame"]


def test_a_model_that_needs_more_tokens_than_are_counted_keeps_room_for_its_answer() -> None:
    small = BUDGETS.model_copy(update={"window_tokens": 2000, "output_tokens": 1000})
    prompt = build(budgets=small, query=Query(text="boat " * 500), summary=None)

    assert (prompt.tokens_total + prompt.blocks[0].tokens) * WINDOW_SAFETY <= 1000


def test_a_window_with_room_for_a_few_words_only_is_refused() -> None:
    with pytest.raises(ContextTooLarge):
        build(budgets=BUDGETS.model_copy(update={"window_tokens": BUDGETS.output_tokens + 60}), query=Query(text="hi"))


def test_of_more_passages_than_asked_for_the_best_are_shown() -> None:
    many = tuple(Passage(source=f"{n}.md", heading="", text=f"passage {n}", score=1.0 - n / 10) for n in range(5))
    shown = build(passages=many, budgets=BUDGETS.model_copy(update={"top_k": 2})).user

    assert "passage 1" in shown
    assert "passage 2" not in shown


def test_a_passage_is_left_out_rather_than_cut_to_a_few_words() -> None:
    first = Passage(source="a.md", heading="", text="The boat is blue.", score=1.0)
    second = Passage(source="b.md", heading="", text="harbour " * 200, score=0.5)
    alone = build(passages=(first,)).block("retrieved")
    assert alone is not None
    tight = BUDGETS.model_copy(update={"retrieved_tokens": alone.tokens + 8})

    shown = build(passages=(first, second), budgets=tight).block("retrieved")

    assert shown is not None
    assert shown.text == alone.text


def test_an_identity_that_fills_the_window_is_refused_by_name_and_size() -> None:
    with pytest.raises(ContextTooLarge) as refused:
        build(identity="word " * 9000)

    assert refused.value.block == "identity"
    assert refused.value.window == 8192
    assert refused.value.tokens > 8192


SMALL = st.integers(1, 400)


@given(
    query=ANY_TEXT,
    quote=ANY_TEXT,
    summary=ANY_TEXT,
    tail=st.lists(ANY_TEXT, max_size=8),
    passages=st.lists(ANY_TEXT, max_size=5),
    recalled=st.lists(ANY_TEXT, max_size=3),
    numbers=st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, st.integers(1, 1500)),
    layout=st.sampled_from(["user_first", "prefix_stable"]),
)
@settings(max_examples=150, deadline=None)
def test_no_ceiling_is_ever_exceeded(
    query: str,
    quote: str,
    summary: str,
    tail: list[str],
    passages: list[str],
    recalled: list[str],
    numbers: tuple[int, ...],
    layout: Any,
) -> None:
    total, of_query, of_summary, of_tail, of_retrieved, of_all, of_bytes = numbers
    budgets = BUDGETS.model_copy(
        update={
            "prompt_tokens": total,
            "query_tokens": of_query,
            "summary_tokens": of_summary,
            "tail_tokens": of_tail,
            "retrieved_tokens": of_retrieved,
            "prompt_bytes": of_bytes,
            "context_tokens": of_all,
        }
    )
    prompt = build(
        query=Query(text=query, quotes=(QuotedMessage(author="q", text=quote),)),
        summary=SummaryInput(text=summary, turns=1, version=1),
        tail=tuple(TailEntry(speaker="s", text=text, turn_id=str(n)) for n, text in enumerate(tail)),
        passages=tuple(Passage(source=f"{n}.md", heading="h", text=text, score=1.0) for n, text in enumerate(passages)),
        recalled=tuple(
            RecalledTurn(turn_id=str(n), said_on="2026-01-01", text=text, score=float(n))
            for n, text in enumerate(recalled)
        ),
        frame=FrameInput(name="decision", description=summary, questions=tuple(passages)),
        selection=Selection(why="cold", found=len(passages), budget=of_retrieved),
        records=tuple(record(str(n), text) for n, text in enumerate(passages)),
        budgets=budgets,
        layout=layout,
    )

    assert prompt.tokens_total == TOKENS.count(prompt.user)
    bounded = SEPARATOR.join(
        block.text
        for block in prompt.blocks
        if block.text and block.name in ("query", "summary", "tail", "retrieved", "hint")
    )
    assert TOKENS.count(bounded) <= total
    assert utf8_length(bounded) <= of_bytes
    assert prompt.tokens_total <= of_all
    for name, budget in (
        ("query", of_query),
        ("summary", of_summary),
        ("tail", of_tail),
        ("retrieved", of_retrieved),
        ("frame", budgets.frame_tokens),
        ("records", of_retrieved + budgets.records_tokens),
    ):
        block = prompt.block(name)
        assert block is not None
        assert block.tokens <= budget, name
    prompt.user.encode("utf-8")


@given(query=ANY_TEXT, passages=st.lists(ANY_TEXT, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_stored_run_context_rebuilds_the_same_bytes(query: str, passages: list[str]) -> None:
    found = tuple(Passage(source="a.md", heading="h", text=text, score=1.0) for text in passages)
    original = context(query=Query(text=query), passages=found)

    again = RunContext.model_validate_json(original.model_dump_json())

    assert build_prompt(again, TOKENS).sha256 == build_prompt(original, TOKENS).sha256


def test_small_talk_sends_the_text_alone_and_the_system_message_whole() -> None:
    talk: dict[str, Any] = {"query": Query(text="hi"), "small_talk": True, "strategy": "none", "reason": "small_talk"}
    known = (ContextLine(number=0, content="boat"),)
    prompt = build(**talk, karma=(TRACE,), today="2026-11-22", deltas=("2-- x",), global_context=known)

    assert prompt.user == "hi"
    assert prompt.system.startswith("You are a helper.")
    assert "0-- boat" in prompt.system


def test_a_megabyte_on_one_line_is_cut_to_its_budget() -> None:
    prompt = build(query=Query(text="x" * 1_000_000))

    query = prompt.block("query")
    assert query is not None
    assert 0 < query.tokens <= BUDGETS.query_tokens


CHOSEN = Selection(why="cold", found=4, budget=2000)


def test_records_stand_by_type_and_the_best_is_kept_longest() -> None:
    chosen = (
        record("r1", "Deploys happen on Tuesdays", made_on="2026-05-01"),
        record("r2", "Chose Redis over Memcached", "decision", state="superseded", made_on="2026-04-01"),
        record("r3", "Ship the release", "item", due="2026-06-01"),
    )
    whole = build(selection=CHOSEN, records=chosen).user
    small = build(
        selection=CHOSEN.model_copy(update={"budget": 70}), records=chosen, recalled=(), budgets=NO_RECALL
    ).user

    assert whole.index("- decision (2026-04-01, superseded): Chose Redis") < whole.index("- fact (2026-05-01): Deploys")
    assert "- item (due 2026-06-01): Ship the release" in whole
    assert "Deploys happen" in small
    assert "Ship the release" not in small
    assert "r1" not in whole
    assert "- fact r1 (" in build(selection=CHOSEN, records=chosen, tools=("expand",)).user


NO_RECALL = BUDGETS.model_copy(update={"records_tokens": 1})


def test_censors_stand_in_the_system_message_blocks_first_within_their_budget() -> None:
    many = tuple(Censor(id=str(n), severity="warn", text=f"Do not promise a date in case {n}") for n in range(80))
    prompt = build(censors=(*many, Censor(id="b", severity="block", text="Never push to main", reason="it broke once")))
    block = prompt.block("censors")

    assert block is not None
    assert block.text.index("- BLOCK: Never push to main — it broke once") < block.text.index("- WARN: ")
    assert block.text in prompt.system
    assert block.tokens <= BUDGETS.censors_tokens
    assert block.why == "81 in force; cut to fit"


def test_the_frame_is_told_and_conversation_says_nothing() -> None:
    told = build(frame=FrameInput(name="decision", description="Weigh it.", questions=("What did we decide?",)))
    silent = build(frame=FrameInput(name="conversation", description="Talking."))

    assert "Current approach: decision. Weigh it.\nConsider:\n- What did we decide?" in told.user
    assert "approach" not in silent.user


@given(st.integers(2800, 20_000), st.integers(0, 300), st.integers(0, 1500))
def test_prompt_tools_and_what_is_said_in_rounds_keep_within_the_window(window: int, tools: int, words: int) -> None:
    budgets = BUDGETS.model_copy(update={"window_tokens": window, "tools_tokens": tools})
    made = context(budgets=budgets, query=Query(text="word " * words))
    prompt = build_prompt(made, TOKENS)
    sent = TOKENS.count(prompt.system) + prompt.tokens_total + tools + rounds_room(made, prompt)

    assert sent * WINDOW_SAFETY <= window - BUDGETS.output_tokens


def test_what_is_kept_word_for_word_keeps_its_spaces_and_line_breaks() -> None:
    def told(text: str, *, verbatim: bool) -> str:
        kept = record("r1", text, "procedure", state="active", made_on="2026-11-22", verbatim=verbatim)
        return record_line(kept, with_id=False)

    text = "make build\n\tmake ship  --now"
    assert told(text, verbatim=True) == f"- procedure (2026-11-22):\n{text}"
    assert told("make ship  --now", verbatim=True) == "- procedure (2026-11-22): make ship  --now"
    assert told(text, verbatim=False) == "- procedure (2026-11-22): make build make ship --now"


TRACE = Trace(turn_id="t-7", asked="how do I log in?", answered="With the key.", marked_on="2026-01-02", good=2)


def whole(*files: tuple[str, str]) -> CodexInput:
    made = tuple(CodexFile(path=path, text=text) for path, text in files)
    size = size_of(codex_text(made), TOKENS)
    return CodexInput(
        mode="whole",
        why="below_line",
        tokens=size.tokens,
        weight=size.weight,
        limit=4000,
        count=len(made),
        files=made,
    )


def test_material_given_whole_stands_behind_the_global_context_by_path() -> None:
    prompt = build(codex=whole(("b.md", "second"), ("a.md", "first")), global_context=())
    names = [block.name for block in prompt.blocks if block.text]
    assert names[:3] == ["identity", "global_context", "codex"]
    assert prompt.system.index("=== a.md\nfirst") < prompt.system.index("=== b.md\nsecond")


def test_material_that_is_searched_takes_no_room() -> None:
    searched = CodexInput(mode="search", why="over_line", tokens=9000, weight=9000, limit=4000, count=2)
    block = build(codex=searched).block("codex")
    assert block is not None
    assert (block.text, block.tokens, block.why) == ("", 0, "2 files, search: over line")


def test_material_that_leaves_no_room_for_the_message_is_refused_by_name() -> None:
    with pytest.raises(ContextTooLarge) as refused:
        build(codex=whole(("a.md", "word " * 9000)))
    assert refused.value.block == "codex"


def test_the_environment_says_what_is_unusual_and_what_may_be_done() -> None:
    machine = EnvironmentInput(
        devices=(Device(name="A10", total_mib=24000, used_mib=20000, free_mib=4000, throttled=True),),
        links=(Link(name="qdrant", state="degraded"), Link(name="redis", state="connected")),
        power="battery",
        low_power=True,
    )
    block = build(environment=machine, sigil=SigilInput(name="member", scopes=("items:write", "documents:read")))
    said = block.system
    assert "Permissions (member): documents:read, items:write." in said
    assert "Not reached as usual: qdrant (degraded)." in said
    assert "Power: battery, low-power mode." in said
    assert "GPU A10: 20000 of 24000 MiB used, 4000 free, slowed down." in said


def test_what_changes_with_a_turn_stands_behind_what_does_not() -> None:
    prompt = build(
        layout="prefix_stable", karma=(TRACE,), today="2026-11-22", deltas=("2-- the blue boat",), karma_floor=(TRACE,)
    )
    names = [block.name for block in prompt.blocks]
    assert names == sorted(names, key=lambda name: PLACES[name].prefix_stable)
    assert prompt.user.index("<good_answers>") < prompt.user.index("Today is Sunday, 2026-11-22.\n2-- the blue boat")
    assert prompt.prefix_digest == build(layout="prefix_stable", karma_floor=(TRACE,)).prefix_digest


def test_good_answers_keep_their_own_budget() -> None:
    traces = tuple(TRACE.model_copy(update={"answered": f"{number} " * 40}) for number in range(30))
    prompt = build(karma=traces, karma_floor=traces)
    for name, budget in (("karma", BUDGETS.karma_tokens), ("karma_floor", BUDGETS.karma_floor_tokens)):
        block = prompt.block(name)
        assert block is not None
        assert 0 < block.tokens <= budget
