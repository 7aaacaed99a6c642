"""What was found is put in order once more, by the cosines of deeper vectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.fusing import both
from grounding.documents.index import Fusion
from grounding.documents.second_look import ENOUGH, FEEDBACK, looked_again, towards

SCORES = st.dictionaries(st.integers(0, 29), st.floats(0, 3), max_size=30)
COSINES = st.dictionaries(st.integers(0, 29), st.floats(-1, 1))
NEAR = {"a": 0.5, "b": 0.5, "c": 0.5}
WORDED = {"a": 2.0, "b": 2.0, "c": 2.0}
EQUAL = [("a", 0.5), ("b", 0.5), ("c", 0.5)]
MANY = {number: 0.9 - number / 50 for number in range(3 * ENOUGH)}
"""The cosines of many passages, best first."""


def test_without_any_cosine_everything_stays_as_it_is() -> None:
    assert looked_again([("a", 0.9), ("b", 0.4)], NEAR, WORDED, {}, 10) == [("a", 0.9), ("b", 0.4)]


def test_a_larger_cosine_goes_before_a_smaller_one_of_the_same_words() -> None:
    found = looked_again(EQUAL, NEAR, WORDED, {"a": 0.1, "b": 0.2, "c": 0.3}, 10)
    assert [point for point, _ in found] == ["c", "b", "a"]


def test_words_decide_where_cosines_are_equal() -> None:
    worded = {"a": 1.0, "b": 2.0, "c": 3.0}
    found = looked_again(EQUAL, NEAR, worded, {"a": 0.2, "b": 0.2, "c": 0.2}, 10)
    assert [point for point, _ in found] == ["c", "b", "a"]


def test_a_few_cosines_among_many_passages_change_nothing() -> None:
    fused = both(MANY, {}, Fusion(), 100)
    few = {number: 1 - MANY[number] for number in range(ENOUGH - 1)}
    assert looked_again(fused, MANY, {}, few, 100) == fused
    one_more = few | {ENOUGH: 0.0}
    assert looked_again(fused, MANY, {}, one_more, 100) != fused


@given(st.sets(st.integers(0, len(MANY) - 1), max_size=len(MANY) - ENOUGH))
def test_a_passage_without_a_deeper_vector_keeps_its_place(lacking: set[int]) -> None:
    """Where both vectors say the same of the others, nothing moves, whichever lack theirs."""
    fused = both(MANY, {}, Fusion(), 100)
    cosines = {number: 2 * cosine - 0.5 for number, cosine in MANY.items() if number not in lacking}
    assert [point for point, _ in looked_again(fused, MANY, {}, cosines, 100)] == [*MANY]


@given(SCORES, SCORES, COSINES, st.sampled_from(["dbsf", "rrf"]), st.integers(1, 40), st.integers(1, 40))
def test_nothing_is_found_beside_and_nothing_lost(
    near: dict[int, float], worded: dict[int, float], cosines: dict[int, float], method: str, top_k: int, most: int
) -> None:
    near, worded = (dict(sorted(arm.items(), key=lambda one: -one[1])) for arm in (near, worded))
    fused = both(near, worded, Fusion("rrf" if method == "rrf" else "dbsf"), top_k)
    known = {point: cosine for point, cosine in cosines.items() if point in dict(fused[:most])}
    found = looked_again(fused, near, worded, known, most)
    assert {point for point, _ in found} == {point for point, _ in fused}
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert [point for point, _ in found[most:]] == [point for point, _ in fused[most:]]


def test_a_question_goes_a_little_towards_the_best_passages() -> None:
    moved = towards([1.0, 0.0], [[0.0, 1.0], [0.0, 1.0]])
    assert moved == pytest.approx([1 / (1 + FEEDBACK**2) ** 0.5, FEEDBACK / (1 + FEEDBACK**2) ** 0.5])
    assert towards([1.0, 0.0], []) == [1.0, 0.0]
