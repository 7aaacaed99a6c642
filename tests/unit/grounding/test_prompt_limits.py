"""What holds for every prompt, whatever is put into it: its window, its characters, whole turns, and what is kept word
for word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from config.load import load
from grounding.prompt import ContextTooLarge, last_turns, record_line
from grounding.prompt.session_prefix import split_turns
from grounding.prompt_input import (
    WINDOW_SAFETY,
    AttachedText,
    CodexFile,
    CodexInput,
    ContextLine,
    Prompt,
    PromptLimits,
    Query,
    Section,
    TailEntry,
)
from tests.emulators.prompts import BUDGETS, SELECTION, TEXT, TOKENS, build, everything, exchange, record

NOTHING_ELSE: dict[str, Any] = {"summary": None, "tail": (), "recalled": (), "hint": "", "passages": ()}
NOTHING_ELSE |= {"wants_documents": False}


def assert_within(prompt: Prompt, window: int, characters: int) -> None:
    sent = TOKENS.count(prompt.system) + prompt.tokens_total
    assert sent * WINDOW_SAFETY <= window - BUDGETS.output_tokens
    assert len(prompt.system) + len(prompt.user) <= characters
    prompt.user.encode("utf-8")


@given(
    text=TEXT,
    query=TEXT,
    window=st.integers(1100, 12_000),
    characters=st.integers(10, 30_000),
    pinned=st.integers(0, 6),
    others=st.sampled_from([0, 3, 200]),
    layout=st.sampled_from(["user_first", "prefix_stable"]),
)
@settings(max_examples=60, deadline=None)
def test_a_prompt_keeps_every_limit_with_all_that_is_kept_word_for_word_or_there_is_none(
    text: str, query: str, window: int, characters: int, pinned: int, others: int, layout: Any
) -> None:
    kept = tuple(record(f"v{number}", f"Never round price {number}", verbatim=True) for number in range(pinned))
    found = tuple(record(f"r{number}", text[:500] or "x") for number in range(others))
    limits = BUDGETS.model_copy(update={"window_tokens": window, "prompt_characters": characters})
    try:
        prompt = build(budgets=limits, layout=layout, **everything(text, found + kept, query))
    except ContextTooLarge as refused:
        event(f"refused for {refused.block}")
        return
    assert_within(prompt, window, characters)
    for one in kept:
        assert record_line(one, with_id=False) in prompt.user.splitlines()


def test_what_is_kept_word_for_word_outlives_everything_else_and_its_own_budget() -> None:
    kept = tuple(
        record(f"v{number}", f"Price {number} is never rounded, not even once", verbatim=True) for number in range(30)
    )
    alone = build(query=Query(text="why?"), selection=SELECTION, records=kept, **NOTHING_ELSE)
    tight = BUDGETS.model_copy(update={"context_tokens": alone.tokens_total, "records_tokens": 1})
    prompt = build(**everything("word " * 300, kept, "why?"), budgets=tight)
    assert prompt.user == alone.user
    assert all(one.text in prompt.user for one in kept)


@pytest.mark.parametrize(
    ("limits", "changes", "block", "says"),
    [
        ({"window_tokens": 2000}, {"query": Query(text="word " * 600)}, "query", "Your message is too long"),
        (
            {"context_tokens": 500},
            {"records": (record("v", "word " * 600, verbatim=True),)},
            "records",
            "word for word",
        ),
        ({"window_tokens": 3000}, {"identity": "word " * 1200}, "identity", "My instructions are too long"),
        ({"prompt_characters": 400}, {"identity": "word " * 80}, "identity", "400 characters"),
        ({"prompt_characters": 60}, {"query": Query(text="word " * 20)}, "query", "60 characters"),
    ],
)
def test_what_does_not_fit_is_named_with_its_size_and_nothing_is_cut(
    limits: dict[str, int], changes: dict[str, Any], block: str, says: str
) -> None:
    with pytest.raises(ContextTooLarge) as refused:
        build(budgets=BUDGETS.model_copy(update=limits), **changes)
    assert refused.value.block == block
    assert says in refused.value.user_text
    assert f"{refused.value.tokens} of {refused.value.window}" in refused.value.user_text


@pytest.mark.parametrize("said", ["고객님의 주문을 확인했습니다. ", "ฉันต้องการข้อมูลเพิ่มเติม "])
def test_of_two_messages_the_shorter_is_not_refused_where_the_longer_is_answered(said: str) -> None:
    lines = tuple(ContextLine(number=number, content=said * 3) for number in range(15))
    for part in (0.2, 0.3, 0.4, 0.5):
        identity = said * int(8192 / WINDOW_SAFETY * part / TOKENS.count(said))
        answered = []
        for times in (1, 2, 3, 5, 8, 12, 20, 40):
            try:
                prompt = build(identity=identity, global_context=lines, query=Query(text=said * times))
                assert_within(prompt, 8192, BUDGETS.prompt_characters)
                answered.append(True)
            except ContextTooLarge:
                answered.append(False)
        assert answered == sorted(answered, reverse=True)


def test_what_yields_is_never_named_and_gives_its_room_to_what_is_kept_word_for_word() -> None:
    lines = tuple(ContextLine(number=number, content="a wish of long standing " * 8) for number in range(40))

    def asked(times: int) -> Prompt:
        kept = (record("v", "word " * times, verbatim=True),)
        small = BUDGETS.model_copy(update={"window_tokens": 3600})
        return build(budgets=small, global_context=lines, records=kept, query=Query(text="why is that? " * 80))

    prompt = asked(700)
    known = prompt.block("global_context")
    assert known is not None
    assert 0 < known.tokens < 700
    assert "word " * 699 in prompt.user
    with pytest.raises(ContextTooLarge) as refused:
        asked(1400)
    assert refused.value.block == "records"


@pytest.mark.parametrize(("bounds", "fits"), [(False, True), (True, False)])
def test_material_counts_among_the_characters_only_where_somebody_set_how_many_there_may_be(
    bounds: bool, fits: bool
) -> None:
    files = (CodexFile(path="a.md", text="a word of it " * 400),)
    material = CodexInput(mode="whole", why="below_line", tokens=1700, weight=2000, limit=5000, count=1, files=files)
    limits = BUDGETS.model_copy(update={"prompt_characters": 3000, "bounds_material": bounds})

    def asked() -> Prompt:
        return build(budgets=limits, codex=material, query=Query(text="why? " * 100))

    if not fits:
        with pytest.raises(ContextTooLarge) as refused:
            asked()
        assert refused.value.block == "codex"
        return
    prompt = asked()
    assert files[0].text.strip() in prompt.system
    block = prompt.block("codex")
    assert block is not None
    assert len(prompt.system) + len(prompt.user) - len(block.text) <= 3000


def test_how_many_characters_there_may_be_is_known_and_counts_material_once_somebody_set_it() -> None:
    unset, given = load({}).settings, load({"AGENT_RUNTIME_PROMPT_MAX_CHARACTERS": "96000"}).settings
    budgets = [PromptLimits.from_settings(one, window_tokens=32_768) for one in (unset, given)]
    assert [one.prompt_characters for one in budgets] == [96_000, 96_000]
    assert [one.bounds_material for one in budgets] == [False, True]


def test_the_text_of_a_file_is_cut_before_a_message_is_refused_and_the_words_stay() -> None:
    small = BUDGETS.model_copy(update={"window_tokens": 1600})
    asked = Query(
        text="What does the contract say about the harbour?",
        attachments=("contract.pdf",),
        files=(AttachedText(name="contract.pdf", text="clause and clause " * 900, note="2 pages could not be read"),),
    )
    prompt = build(budgets=small, query=asked)
    assert asked.text in prompt.user
    assert "2 pages could not be read" in prompt.user
    assert "> clause and" in prompt.user
    assert prompt.user.count("clause") < 300
    assert_within(prompt, 1600, small.prompt_characters)


def test_a_small_window_leaves_the_message_what_it_needs_before_it_shows_what_is_always_known() -> None:
    lines = tuple(ContextLine(number=number, content="a wish of long standing " * 8) for number in range(40))
    small = BUDGETS.model_copy(update={"window_tokens": 2200, "output_tokens": 1000})
    prompt = build(budgets=small, global_context=lines, query=Query(text="word " * 300))
    query = prompt.block("query")
    assert query is not None
    assert query.text.count("word") == 300
    assert "more lines do not fit" in prompt.system


def test_what_is_said_never_moves_what_is_always_known() -> None:
    lines = tuple(ContextLine(number=number, content="a wish of long standing " * 8) for number in range(40))
    small = BUDGETS.model_copy(update={"window_tokens": 2200, "output_tokens": 1000})
    systems = {build(budgets=small, global_context=lines, query=Query(text="w " * n)).system for n in (1, 40, 250)}
    assert len(systems) == 1


TURNS = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=12)


@given(turns=TURNS, most=st.integers(1, 6), has_ids=st.booleans(), begins_with_half=st.booleans())
def test_the_window_of_turns_holds_whole_pairs_of_request_and_reply(
    turns: list[tuple[int, bool]], most: int, has_ids: bool, begins_with_half: bool
) -> None:
    entries: list[TailEntry] = []
    for number, (asked, is_answered) in enumerate(turns):
        name = f"t{number}" if has_ids else ""
        entries += [TailEntry(speaker="Lena", text=f"{number}.{part}?", turn_id=name) for part in range(asked)]
        if is_answered or not has_ids:
            entries.append(TailEntry(speaker="assistant", text=f"{number}!", turn_id=name))
    if begins_with_half and entries:
        entries.insert(0, TailEntry(speaker="assistant", text="half", turn_id="t-1" if has_ids else ""))

    kept = last_turns(entries, most)

    assert [entry.text for entry in kept] == [entry.text for entry in entries][len(entries) - len(kept) :]
    assert len(split_turns(kept)) == min(most, len(turns))
    assert all(turn[0].speaker != "assistant" for turn in split_turns(kept))


def test_more_turns_than_the_window_holds_are_not_shown_however_short_they_are() -> None:
    said = tuple(
        entry for number in range(8) for entry in exchange(f"t{number}", f"question {number}", f"answer {number}")
    )
    prompt = build(tail=said, budgets=BUDGETS.model_copy(update={"history_turns": 3}))
    assert "answer 4" not in prompt.user
    assert "Lena: question 5\nassistant: answer 5" in prompt.user


class Counting:
    """Counts tokens, and how often it was asked to."""

    def __init__(self) -> None:
        self.asked = 0

    def count(self, text: str) -> int:
        self.asked += 1
        return TOKENS.count(text)

    def fits(self, text: str, limit: int) -> bool:
        self.asked += 1
        return TOKENS.fits(text, limit)


def test_a_line_whose_tokens_are_long_is_cut_to_its_bytes_without_trying_each_number_of_tokens() -> None:
    counting = Counting()
    text = Section("<summary>", ("=" * 20_000,), "</summary>", cut="only").fit(counting, 380, 8000)
    assert 7900 < len(text) <= 8000
    assert counting.asked < 100
