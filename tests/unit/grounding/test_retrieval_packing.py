"""Hits become the passages of a prompt: what is relevant, joined and cut to the room."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from grounding.prompt_input import Passage as PromptPassage
from grounding.prompt_input import load_tokens
from grounding.retrieval import MEASURED_CHUNKS, Hit, Kind, Passage, Sizes, chunk_document
from grounding.retrieval.index import Arm
from grounding.retrieval.packing import (
    Room,
    beginning,
    choose,
    clip,
    drop_near_duplicates,
    join,
    neighbours_wanted,
    pack,
    without_bare_headings,
)
from grounding.retrieval.relevance import NAMED_LOG_ODDS, SHOWN_LOG_ODDS, Relevance, Weights, relevance_for

TOKENS = load_tokens()


def passage(text: str, ordinal: int = 0, source: str = "a.md", start: int = 0, lead: str = "") -> Passage:
    return Passage(
        f"{source}-{ordinal}", Kind.DOCUMENT, source, text, heading=f"H{ordinal}", ordinal=ordinal, start=start,
        end=start + len(text), lead=lead,
    )  # fmt: skip


def hit(text: str, score: float, ordinal: int = 0, source: str = "a.md", start: int = 0) -> Hit:
    return Hit(passage(text, ordinal, source, start), score)


def document(path: str, text: str, target: int = 60, overlap: int = 0) -> list[Passage]:
    """The passages of a whole document, as they are indexed; sizes in words."""
    chunks = chunk_document(path, text, lambda part: len(part.split()), Sizes(target, overlap))
    return [
        Passage(
            chunk.id, Kind.DOCUMENT, path, chunk.text, chunk.title, chunk.heading, chunk.lead, chunk.ordinal,
            chunk.start, chunk.end, chunk.first_line, chunk.last_line,
        )
        for chunk in chunks
    ]  # fmt: skip


def packed(found: Sequence[Passage], passages: Sequence[Passage], room: Room, query: str = "q") -> list[PromptPassage]:
    """What is told of *passages* when *found* are the hits, best first."""
    around: dict[str, dict[int, Passage]] = {}
    for one in passages:
        around.setdefault(one.source, {})[one.ordinal] = one
    hits = [Hit(one, 1 / (rank + 1)) for rank, one in enumerate(found)]
    runs = choose(hits, room.top_k)
    read = {(run.source, ordinal) for run in runs for ordinal in neighbours_wanted(run)}
    around = {path: {n: one for n, one in parts.items() if (path, n) in read} for path, parts in around.items()}
    return pack(runs, around, query, room)


def test_a_passage_that_says_the_same_as_a_better_one_goes_whatever_its_document() -> None:
    hits = [hit("refunds take thirty days", 2), hit("Refunds take thirty days!", 1, source="b.md"), hit("else", 0.5)]
    assert [item.score for item in drop_near_duplicates(hits)] == [2, 0.5]


def test_passages_that_differ_in_a_figure_or_a_negation_both_stay() -> None:
    said = "Customers of every plan may return what they bought in our shops within {} days of the purchase"
    hits = [hit(said.format(30), 3), hit(said.format(14), 2, source="old.md")]
    assert drop_near_duplicates(hits) == hits
    other = [hit(f"{said.format(30)} and it can be combined", 3), hit(f"{said.format(30)} and it can't be combined", 2)]
    assert drop_near_duplicates(other) == other


def test_hits_that_lie_close_together_become_one_passage_in_reading_order() -> None:
    parts = [passage(f"part {n} says its own", n, start=30 * n) for n in range(12)]
    far, third, second = parts[11], parts[3], parts[1]
    told = packed([third, far, second], parts, Room(3, 1000))
    assert ["part 11" in one.text for one in told] == [False, True]
    assert told[0].text.index("part 1") < told[0].text.index("part 2") < told[0].text.index("part 3")


def test_hits_of_one_passage_leave_room_for_those_of_other_documents() -> None:
    parts = [passage(f"part {n} says its own", n, start=30 * n) for n in range(3)]
    others = [passage(f"{word} speaks of something else", source=f"{word}.md") for word in ("b", "c", "d")]
    told = packed([*parts, *others], [*parts, *others], Room(3, 1000))
    assert [one.source for one in told] == ["a.md", "b.md", "c.md"]


def test_hits_that_one_passage_cannot_hold_become_two_that_stand_together_in_reading_order() -> None:
    parts = [passage(letter * 60, n, start=62 * n) for n, letter in enumerate("abcd")]
    other = passage("something else", source="b.md")
    told = packed([parts[3], other, parts[1]], [*parts, other], Room(3, 70))
    assert [(one.source, one.text[:1]) for one in told] == [("a.md", "b"), ("a.md", "d"), ("b.md", "s")]


def test_passages_with_a_gap_are_joined_by_white_space() -> None:
    assert join([passage("One.", 0, start=0), passage("Two.", 1, start=6)]) == "One.\n\nTwo."
    assert join([passage("- a", 0, start=0), passage("- b", 1, start=4)]) == "- a\n- b"


def test_a_cut_table_begins_with_its_header() -> None:
    assert join([passage("| 1 |", 2, lead="| n |\n|---|\n")]) == "| n |\n|---|\n| 1 |"


def test_rows_from_the_middle_of_a_long_table_come_with_its_header() -> None:
    rows = "\n".join(f"| row {n} | {'wanted' if n == 40 else 'other'} |" for n in range(60))
    long = passage(f"| name | value |\n|---|---|\n{rows}")
    (told,) = packed([long], [long], Room(1, 200), "wanted")
    assert told.text.startswith("| name | value |\n|---|---|\n| row")
    assert "wanted" in told.text
    assert len(told.text.encode()) <= 200


def test_a_passage_grows_by_its_own_section_before_any_other() -> None:
    text = (
        "# D\n\nBefore is one.\n\n## Own\n\nFirst of own.\n\nHit of own.\n\nLast of own.\n\n## Other\n\nOther is one."
    )
    parts = document("a.md", text, target=5)
    found = next(part for part in parts if "Hit" in part.text)
    own = packed([found], parts, Room(1, 56))[0].text
    assert own == "## Own\n\nFirst of own.\n\nHit of own.\n\nLast of own."
    assert packed([found], parts, Room(1, 1000))[0].text == text


def test_the_beginning_of_a_neighbour_fills_what_is_left_but_ends_with_a_sentence() -> None:
    following = " ".join(f"Sentence number {n} follows." for n in range(40))
    parts = [passage("The hit.", 0), passage(following, 1, start=10)]
    (told,) = packed([parts[0]], parts, Room(1, 400))
    assert 300 < len(told.text) <= 400
    assert told.text.endswith("follows.")


def test_a_passage_ends_with_no_heading_without_text() -> None:
    assert without_bare_headings("Said.\n\n## Next\n") == "Said."
    assert without_bare_headings("Said.\n\nNext\n====\n### Deeper") == "Said."
    assert without_bare_headings("# Alone") == ""
    assert without_bare_headings("Said. # no heading") == "Said. # no heading"


def test_code_that_would_be_cut_is_left_out() -> None:
    text = "It is done like this:\n\n```python\nfirst()\n\nsecond()\n\nthird()\n```\n"
    assert beginning(text, 50) == "It is done like this:"


def test_a_neighbour_that_another_passage_said_already_is_not_said_again() -> None:
    parts = [passage("The hit speaks.", 0), passage("A copied policy of refunds.", 1, start=17)]
    copy = passage("A copied policy of refunds!", source="b.md")
    told = packed([parts[0], copy], [*parts, copy], Room(2, 1000))
    assert [one.text for one in told] == ["The hit speaks.", "A copied policy of refunds!"]


def test_a_long_passage_keeps_the_stretch_that_answers() -> None:
    text = "\n".join(f"Line {n} speaks of nothing." for n in range(50)) + "\nRefund windows are thirty days.\nEnd."
    (told,) = packed([passage(text)], [passage(text)], Room(1, 200), "refund window")
    assert "Refund windows are thirty days." in told.text
    assert len(told.text.encode()) <= 200


def test_where_tokens_are_short_a_long_passage_leaves_some_to_the_others() -> None:
    long = [passage("言葉。" * 130, source=f"{n}.md") for n in "ab"]
    told = packed([long[0], passage("short and different", source="c.md")], long, Room(3, 1200, 200, TOKENS.count))
    assert [one.source for one in told] == ["a.md", "c.md"]
    assert sum(TOKENS.count(f"[{one.source}]\n{one.text}") for one in told) <= 200


@given(st.text(max_size=400), st.text(max_size=40), st.integers(1, 200))
def test_clipping_keeps_the_limit_and_whole_characters(text: str, query: str, max_bytes: int) -> None:
    clipped = clip(text, query, max_bytes)
    assert len(clipped.encode()) <= max_bytes
    assert clipped in text


def test_a_line_of_a_megabyte_is_clipped_to_the_limit() -> None:
    for long in ("word " * 200_000, "語" * 350_000, "👩‍👩‍👧" * 50_000):
        (told,) = packed([passage(long)], [passage(long)], Room(3, 1200, 840, TOKENS.count), "word")
        assert 0 < len(told.text.encode()) <= 1200
        assert told.text in long


BLOCK = st.one_of(
    st.sampled_from(["# Title", "## Sub", "### Deep", "```\ncode()\n\nmore()\n```", "| a | b |\n|---|---|\n| 1 | 2 |"]),
    st.integers(1, 60).map(lambda n: f"Sentence {n} of it. " * (n % 17 + 1)),
    st.text(st.sampled_from("日本語、。かな"), min_size=1, max_size=200),
    st.text(st.sampled_from("👩‍👩‍👧é e\u0301🏳️‍🌈\n"), min_size=1, max_size=80),
    st.integers(1, 20).map(lambda n: "\n".join(f"- item {i} of {n}" for i in range(n))),
)
TEXT = st.lists(BLOCK, min_size=1, max_size=25).map("\n\n".join)


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(
    st.lists(TEXT, min_size=1, max_size=3), st.integers(5, 80), st.integers(0, 10), st.randoms(use_true_random=False),
    st.integers(20, 1500), st.none() | st.integers(0, 900), st.integers(1, 4),
)  # fmt: skip
def test_passages_are_slices_of_their_documents_within_the_room(
    texts: list[str], target: int, overlap: int, dice: Random, max_bytes: int, max_tokens: int | None, top_k: int
) -> None:
    sources = {f"{n}.md": text for n, text in enumerate(texts)}
    passages = [one for path, text in sources.items() for one in document(path, text, target, overlap)]
    found = dice.sample(passages, min(len(passages), top_k * 3))
    told = packed(found, passages, Room(top_k, max_bytes, max_tokens, TOKENS.count), "item 3 sentence")
    assert len(told) <= top_k
    for one in told:
        assert len(one.text.encode()) <= max_bytes
        # The head of a table may stand before rows from its middle.
        body = one.text.partition("|---|---|")[2] or one.text
        assert squeezed(body) in squeezed(sources[one.source])
    if max_tokens is not None:
        shown = [f"[{one.source} › {one.heading}]\n{one.text}" for one in told]
        assert sum(map(TOKENS.count, shown)) <= max_tokens


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(8, 60), st.integers(0, 8),
    st.randoms(use_true_random=False), st.integers(30, 1500), st.integers(1, 4),
)  # fmt: skip
def test_nothing_is_said_twice_and_everything_in_reading_order(
    lengths: list[int], target: int, overlap: int, dice: Random, max_bytes: int, top_k: int
) -> None:
    number = count()
    text = "\n\n".join(" ".join(f"w{next(number)}." for _ in range(length)) for length in lengths)
    passages = document("a.md", text, target, overlap)
    found = dice.sample(passages, min(len(passages), top_k * 3))
    told = packed(found, passages, Room(top_k, max_bytes))
    said = [int(word) for one in told for word in re.findall(r"w(\d+)", one.text)]
    assert said
    assert said == sorted(set(said))


def test_what_the_question_is_about_is_shown_and_the_best_of_nothing_is_not() -> None:
    judge = Relevance(Weights(constant=SHOWN_LOG_ODDS - 0.45, dense=1.0, coverage=0.3, rarity=0.1))
    about = Hit(passage("Refunds take thirty days."), 1.0, Arm(1, 0.5), Arm(1, 5.0))
    nothing = Hit(passage("Rest of the world"), 1.0, Arm(1, 0.09), Arm(1, 4.5))
    for query, hit, shown in (("refund days", about, [about]), ("who won the world cup in 1998", nothing, [])):
        assert judge.shown(query, [hit], judge.of(query, [hit], 70)) == shown


def test_what_a_passage_of_few_reaches_counts_for_more_up_to_the_size_that_was_measured() -> None:
    judge = relevance_for("wordllama-l2-supercat")
    hit = Hit(passage("Refunds take thirty days."), 1.0, Arm(1, 0.3), None)
    sizes = (0, 74, MEASURED_CHUNKS, 10 * MEASURED_CHUNKS)
    few, some, measured, many = (judge.of("refund", [hit], size)[0] for size in sizes)
    assert few > some > measured == many


def test_a_passage_with_the_code_that_was_asked_for_is_relevant_whatever_its_meaning() -> None:
    judge = relevance_for("wordllama-l2-supercat")
    said = passage("E4711: the pump is dry. E47110 is another one.")
    hit = Hit(said, 1.0, Arm(1, -0.1), Arm(1, 5.0))
    assert judge.of("E4711?", [hit], 5000) == [NAMED_LOG_ODDS]
    assert judge.of("E471?", [hit], 5000)[0] < SHOWN_LOG_ODDS


def test_across_languages_a_model_that_knows_both_is_judged_by_its_cosine_alone() -> None:
    """That no word of a German question is in an English passage says nothing."""
    german, english = "Wie lange ist die Frist für eine Erstattung?", "How long is the window for a refund?"
    hit = Hit(passage("A refund is paid for thirty days after the delivery."), 1.0, Arm(1, 0.45))
    both, one = relevance_for("use-multilingual-v3"), relevance_for("wordllama-l2-supercat")
    assert both.of(german, [hit], 70)[0] > SHOWN_LOG_ODDS > both.of("Frist", [hit], 70)[0]
    assert both.of(english, [hit], 70)[0] > SHOWN_LOG_ODDS
    assert one.of(german, [hit], 70)[0] < SHOWN_LOG_ODDS < one.of(english, [hit], 70)[0]
    unlike = hit._replace(dense=Arm(1, 0.1))
    assert both.of(german, [unlike], 70)[0] < SHOWN_LOG_ODDS


def test_a_model_whose_cosines_nobody_measured_is_judged_by_words_alone() -> None:
    judge = relevance_for("some/model")
    likely, unlikely = (Hit(passage("Refunds"), 1.0, Arm(1, cosine), None) for cosine in (0.99, 0.0))
    assert judge.of("refund", [likely], 10) == judge.of("refund", [unlikely], 10)
    unrelated = Hit(passage("unrelated"), 1.0, Arm(1, 0.99), None)
    assert judge.of("refund", [unrelated], 10)[0] < SHOWN_LOG_ODDS


def test_the_deeper_cosine_decides_where_there_is_one() -> None:
    judge = relevance_for("wordllama-l2-supercat", "all-minilm-l6-v2-8bit")
    said = passage("Money comes back within a month.")
    near, far = (Hit(said, 1.0, Arm(1, 0.3), None, deep=Arm(1, cosine)) for cosine in (0.7, 0.1))
    by_near, by_far, quick = judge.of("when is a refund paid?", [near, far, near._replace(deep=None)], 3000)
    assert by_near > by_far
    assert quick == relevance_for("wordllama-l2-supercat").of("when is a refund paid?", [near], 3000)[0]


def test_a_passage_that_speaks_of_what_was_asked_before_is_more_relevant_to_a_follow_up() -> None:
    judge = relevance_for("wordllama-l2-supercat", "all-minilm-l6-v2-8bit")
    hit = Hit(passage("Students get the harbour ticket for half."), 1.0, Arm(1, 0.3), Arm(1, 3.0), deep=Arm(1, 0.3))
    (same,) = judge.of("and for students?", [hit], 3000, ["What does the harbour ticket cost?"])
    (other,) = judge.of("and for students?", [hit], 3000, ["Who repairs the printer?"])
    assert same > other
