"""What was found is put in order once more, by the cosines of deeper vectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.retrieval.ranking import (
    FEEDBACK_WEIGHT,
    LEAST_COSINES,
    NEIGHBOUR_WEIGHT,
    add_feedback,
    blend_neighbours,
    fuse_by_scores,
    second_look,
)
from grounding.retrieval.stored import Place

SCORES = st.dictionaries(st.integers(0, 29), st.floats(0, 3), max_size=30)
COSINES = st.dictionaries(st.integers(0, 29), st.floats(-1, 1))
NEAR = {"a": 0.5, "b": 0.5, "c": 0.5}
WORDED = {"a": 2.0, "b": 2.0, "c": 2.0}
EQUAL = [("a", 0.5), ("b", 0.5), ("c", 0.5)]
MANY = {number: 0.9 - number / 50 for number in range(3 * LEAST_COSINES)}
"""The cosines of many passages, best first."""


def test_without_any_cosine_everything_stays_as_it_is() -> None:
    assert second_look([("a", 0.9), ("b", 0.4)], NEAR, WORDED, {}, 10) == [("a", 0.9), ("b", 0.4)]


def test_a_larger_cosine_goes_before_a_smaller_one_of_the_same_words() -> None:
    found = second_look(EQUAL, NEAR, WORDED, {"a": 0.1, "b": 0.2, "c": 0.3}, 10)
    assert [point for point, _ in found] == ["c", "b", "a"]


def test_words_decide_where_cosines_are_equal() -> None:
    worded = {"a": 1.0, "b": 2.0, "c": 3.0}
    found = second_look(EQUAL, NEAR, worded, {"a": 0.2, "b": 0.2, "c": 0.2}, 10)
    assert [point for point, _ in found] == ["c", "b", "a"]


def test_a_few_cosines_among_many_passages_change_nothing() -> None:
    fused = fuse_by_scores(MANY, {}, 100)
    few = {number: 1 - MANY[number] for number in range(LEAST_COSINES - 1)}
    assert second_look(fused, MANY, {}, few, 100) == fused
    one_more = few | {LEAST_COSINES: 0.0}
    assert second_look(fused, MANY, {}, one_more, 100) != fused


@given(st.sets(st.integers(0, len(MANY) - 1), max_size=len(MANY) - LEAST_COSINES))
def test_a_passage_without_a_deeper_vector_keeps_its_place(lacking: set[int]) -> None:
    """Where both vectors say the same of the others, nothing moves, whichever lack theirs."""
    fused = fuse_by_scores(MANY, {}, 100)
    cosines = {number: 2 * cosine - 0.5 for number, cosine in MANY.items() if number not in lacking}
    assert [point for point, _ in second_look(fused, MANY, {}, cosines, 100)] == [*MANY]


@given(SCORES, SCORES, COSINES, st.integers(1, 40), st.integers(1, 40))
def test_nothing_is_found_beside_and_nothing_lost(
    near: dict[int, float], worded: dict[int, float], cosines: dict[int, float], top_k: int, most: int
) -> None:
    near, worded = (dict(sorted(arm.items(), key=lambda one: -one[1])) for arm in (near, worded))
    fused = fuse_by_scores(near, worded, top_k)
    known = {point: cosine for point, cosine in cosines.items() if point in dict(fused[:most])}
    found = second_look(fused, near, worded, known, most)
    assert {point for point, _ in found} == {point for point, _ in fused}
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert [point for point, _ in found[most:]] == [point for point, _ in fused[most:]]


def test_a_question_goes_a_little_towards_the_best_passages() -> None:
    moved = add_feedback([1.0, 0.0], [[0.0, 1.0], [0.0, 1.0]])
    assert moved == pytest.approx(
        [1 / (1 + FEEDBACK_WEIGHT**2) ** 0.5, FEEDBACK_WEIGHT / (1 + FEEDBACK_WEIGHT**2) ** 0.5]
    )
    assert add_feedback([1.0, 0.0], []) == [1.0, 0.0]


def test_a_cosine_is_drawn_a_little_towards_those_of_the_passages_beside_it() -> None:
    cosines = {"first": 0.9, "second": 0.3, "third": 0.6, "elsewhere": 0.9, "unknown": 0.9}
    places = {"first": Place("a", 0), "second": Place("a", 1), "third": Place("a", 2), "elsewhere": Place("b", 1)}
    assert blend_neighbours(cosines, places) == {
        "first": pytest.approx((0.9 + NEIGHBOUR_WEIGHT * 0.3) / (1 + NEIGHBOUR_WEIGHT)),
        "second": pytest.approx((0.3 + NEIGHBOUR_WEIGHT * (0.9 + 0.6) / 2) / (1 + NEIGHBOUR_WEIGHT)),
        "third": pytest.approx((0.6 + NEIGHBOUR_WEIGHT * 0.3) / (1 + NEIGHBOUR_WEIGHT)),
        "elsewhere": 0.9,
        "unknown": 0.9,
    }


PLACES = st.builds(Place, st.sampled_from(["a", "b"]), st.integers(0, 20))


@given(COSINES, st.lists(PLACES, unique=True, min_size=30, max_size=30))
def test_neighbours_take_no_cosine_out_of_the_range_of_all(cosines: dict[int, float], stand: list[Place]) -> None:
    found = blend_neighbours(cosines, dict(enumerate(stand)))
    assert found.keys() == cosines.keys()
    for cosine in found.values():
        assert min(cosines.values()) - 1e-9 <= cosine <= max(cosines.values()) + 1e-9
