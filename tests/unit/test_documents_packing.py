"""Hits become passages that are worth their place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.index import Arm, Hit, Kind, Passage
from grounding.documents.packing import clip, drop_near_duplicates, finish, group_runs, grow, join
from grounding.documents.relevance import Floor, floor_for


def passage(text: str, ordinal: int = 0, source: str = "a.md", start: int = 0, lead: str = "") -> Passage:
    return Passage(
        f"{source}-{ordinal}", Kind.DOCUMENT, source, text, heading=f"H{ordinal}", ordinal=ordinal, start=start,
        end=start + len(text), lead=lead,
    )  # fmt: skip


def hit(text: str, score: float, ordinal: int = 0, source: str = "a.md", start: int = 0) -> Hit:
    return Hit(passage(text, ordinal, source, start), score)


def test_a_passage_that_says_the_same_as_a_better_one_goes() -> None:
    hits = [hit("refunds take thirty days", 2), hit("Refunds take thirty days!", 1, source="b.md"), hit("else", 0.5)]
    assert [item.score for item in drop_near_duplicates(hits)] == [2, 0.5]


def test_touching_hits_of_one_document_become_one_run_in_reading_order() -> None:
    runs = group_runs([hit("third", 1, 3), hit("second", 3, 2), hit("far", 2, 9), hit("other", 2.5, 3, "b.md")])
    assert [(run.source, list(run.ordinals), run.heading) for run in runs] == [
        ("a.md", [2, 3], "H2"),
        ("b.md", [3], "H3"),
        ("a.md", [9], "H9"),
    ]


def test_overlapping_passages_are_joined_without_saying_anything_twice() -> None:
    whole = "One. Two. Three. Four."
    assert join([passage(whole[:16], 0, start=0), passage(whole[10:], 1, start=10)]) == whole


def test_passages_with_a_gap_are_joined_by_white_space() -> None:
    assert join([passage("One.", 0, start=0), passage("Two.", 1, start=6)]) == "One.\n\nTwo."
    assert join([passage("- a", 0, start=0), passage("- b", 1, start=4)]) == "- a\n- b"


def test_a_cut_table_begins_with_its_header() -> None:
    assert join([passage("| 1 |", 2, lead="| n |\n|---|\n")]) == "| n |\n|---|\n| 1 |"


def test_a_run_grows_by_what_follows_then_by_what_comes_before_while_bytes_last() -> None:
    (run,) = group_runs([hit("b" * 10, 1, 1, start=12)])
    around = {0: passage("a" * 10, 0), 2: passage("c" * 10, 2, start=24), 3: passage("d" * 10, 3, start=36)}
    grow(run, around, 36)
    assert list(run.ordinals) == [0, 1, 2]
    assert join(run.parts) == "a" * 10 + "\n\n" + "b" * 10 + "\n\n" + "c" * 10


def test_a_run_does_not_grow_into_another_one() -> None:
    (run,) = group_runs([hit("b", 1, 1, start=12)])
    grow(run, {2: passage("c", 2, start=24)}, 1000, taken={2})
    assert list(run.ordinals) == [1]


def test_a_long_passage_keeps_the_stretch_that_answers() -> None:
    text = "\n".join(f"Line {n} speaks of nothing." for n in range(50)) + "\nRefund windows are thirty days.\nEnd."
    (run,) = group_runs([hit(text, 1)])
    result = finish(run, "refund window", 200)
    assert "Refund windows are thirty days." in result.text
    assert len(result.text.encode()) <= 200


@given(st.text(max_size=400), st.text(max_size=40), st.integers(1, 200))
def test_clipping_keeps_the_limit_and_whole_characters(text: str, query: str, max_bytes: int) -> None:
    clipped = clip(text, query, max_bytes)
    assert len(clipped.encode()) <= max_bytes or clipped == text
    assert len(clipped.encode()) <= max_bytes
    assert clipped in text


def test_text_that_fits_is_left_alone() -> None:
    assert clip("  as it is  ", "x", 50) == "  as it is  "


def test_the_floor_keeps_what_the_question_is_about_and_drops_the_best_of_nothing() -> None:
    floor = Floor(0.45)
    about = Hit(passage("Refunds take thirty days."), 1.0, Arm(1, 0.5), Arm(1, 5.0))
    nothing = Hit(passage("Rest of the world"), 1.0, Arm(1, 0.09), Arm(1, 4.5))
    assert floor.keep("refund days", [about], 70) == [about]
    assert floor.keep("who won the world cup in 1998", [nothing], 70) == []


def test_a_model_whose_cosines_nobody_measured_is_judged_by_words_alone() -> None:
    floor = floor_for("some/model", Kind.DOCUMENT)
    assert floor.relevance("refund", Hit(passage("Refunds"), 1.0, Arm(1, 0.99), None), 10) == 0.3
    assert floor.keep("refund", [Hit(passage("unrelated"), 1.0, Arm(1, 0.99), None)], 10) == []
