"""What the two arms found becomes one order: fusion, the second look by deeper vectors, ties, and the centre."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.retrieval import Hit, Kind, Passage, PassageQuery
from grounding.retrieval.ranking import (
    LEAST_COSINES,
    MAX_AGE_SECONDS,
    TRUSTED,
    Centre,
    Centres,
    add_feedback,
    best_first,
    blend_neighbours,
    centre_of,
    fuse_by_scores,
    hits_of,
    second_look,
    subtract_centre,
)
from grounding.retrieval.stored import Place

NEAR_ALL = st.dictionaries(st.integers(0, 60), st.floats(-1, 1, allow_nan=False), max_size=60)
WORDED_SOME = st.dictionaries(st.integers(0, 60), st.floats(0, 30, allow_nan=False), max_size=20)


def test_the_more_passages_have_a_word_the_less_it_says() -> None:
    near = {number: 1 / (number + 1) for number in range(300)}
    few = dict(fuse_by_scores(near, dict.fromkeys(range(400, 403), 5.0), 400))
    many = dict(fuse_by_scores(near, dict.fromkeys(range(400, 600), 5.0), 500))
    assert few[400] > many[400]


def test_what_both_arms_found_stands_before_what_only_one_found_as_well() -> None:
    near = {number: 0.5 - number / 1000 for number in range(100)}
    ranked = [point for point, _ in fuse_by_scores(near, {5: 4.0, 500: 4.0}, 10)]
    assert ranked.index(5) < ranked.index(500)


@given(NEAR_ALL, WORDED_SOME, st.integers(1, 100))
def test_each_point_that_was_found_stands_once_and_the_best_first_whatever_the_order_of_what_was_found(
    near: dict[int, float], worded: dict[int, float], top_k: int
) -> None:
    best = fuse_by_scores(near, worded, top_k)
    assert len(best) == min(top_k, len({*near, *worded}))
    assert len({point for point, _ in best}) == len(best)
    assert [score for _, score in best] == sorted((score for _, score in best), reverse=True)
    ours = fuse_by_scores(near, worded, 200)
    theirs = fuse_by_scores(dict(reversed(near.items())), dict(reversed(worded.items())), 200)
    assert [(point, round(score, 6)) for point, score in ours] == [(point, round(score, 6)) for point, score in theirs]


@given(st.dictionaries(st.integers(0, 40), st.sampled_from([0.1, 0.2, 0.2000001, 0.3, 0.9])), st.integers(0, 50))
def test_the_best_of_some_are_the_first_of_all(scores: dict[int, float], most: int) -> None:
    assert best_first(scores, most) == best_first(scores)[:most]


PASSAGES = {
    number: Passage(f"p{number}", Kind.DOCUMENT, f"source{number % 3}.md", "text", ordinal=number % 5)
    for number in range(13)
}
NEARLY = st.dictionaries(st.integers(0, 12), st.integers(0, 40).map(lambda number: 0.5 + number * 3e-7), max_size=12)


@given(NEARLY, st.integers(1, 6))
def test_scores_that_are_equal_to_six_places_leave_the_order_to_where_passages_stand(
    fused: dict[int, float], top_k: int
) -> None:
    asked = PassageQuery(Scope("acme"), Kind.DOCUMENT, [1.0], None, top_k)
    ordered = sorted(
        fused, key=lambda one: (-round(fused[one], 6), PASSAGES[one].source, PASSAGES[one].ordinal, f"p{one}")
    )
    gone = [(99, 9.0)]  # a point that was deleted by now is left out
    assert hits_of(asked, [*gone, *best_first(fused)], PASSAGES, {}, {}) == [
        Hit(PASSAGES[one], fused[one]) for one in ordered[:top_k]
    ]


SCORES = st.dictionaries(st.integers(0, 29), st.floats(0, 3), max_size=30)
COSINES = st.dictionaries(st.integers(0, 29), st.floats(-1, 1))
NEAR = {"a": 0.5, "b": 0.5, "c": 0.5}
WORDED = {"a": 2.0, "b": 2.0, "c": 2.0}
EQUAL = [("a", 0.5), ("b", 0.5), ("c", 0.5)]
MANY = {number: 0.9 - number / 50 for number in range(3 * LEAST_COSINES)}
"""The cosines of many passages, best first."""


@pytest.mark.parametrize(
    ("worded", "cosines"),
    [
        (WORDED, {"a": 0.1, "b": 0.2, "c": 0.3}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.2, "b": 0.2, "c": 0.2}),
    ],
)
def test_a_second_look_puts_larger_cosines_first_and_words_decide_where_they_are_equal(
    worded: dict[str, float], cosines: dict[str, float]
) -> None:
    assert [point for point, _ in second_look(EQUAL, NEAR, worded, cosines, 10)] == ["c", "b", "a"]
    assert second_look(EQUAL, NEAR, worded, {}, 10) == EQUAL


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
def test_a_second_look_finds_nothing_more_and_loses_nothing(
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
    assert moved[0] > moved[1] > 0
    assert math.hypot(*moved) == pytest.approx(1)
    assert add_feedback([1.0, 0.0], []) == [1.0, 0.0]


PLACES = st.builds(Place, st.sampled_from(["a", "b"]), st.integers(0, 20))


@given(COSINES, st.lists(PLACES, unique=True, min_size=30, max_size=30))
def test_neighbours_take_no_cosine_out_of_the_range_of_all(cosines: dict[int, float], stand: list[Place]) -> None:
    found = blend_neighbours(cosines, dict(enumerate(stand)))
    assert found.keys() == cosines.keys()
    for cosine in found.values():
        assert min(cosines.values()) - 1e-9 <= cosine <= max(cosines.values()) + 1e-9


def test_half_of_what_passages_share_is_taken_where_the_sample_is_as_small_as_its_mean_is_trusted() -> None:
    assert subtract_centre([1.0, 0.0], Centre((1.0, 1.0), TRUSTED), 0.5) == [0.75, -0.25]


def test_nothing_is_taken_from_text_without_words_without_passages_or_without_share() -> None:
    centre = Centre((0.6, 0.8), 100)
    assert subtract_centre([0.0, 0.0], centre, 1.0) == [0.0, 0.0]
    assert subtract_centre([1.0, 0.0], centre_of([]), 1.0) == [1.0, 0.0]
    assert subtract_centre([1.0, 0.0], centre, 0.0) == [1.0, 0.0]


numbers = st.floats(-1, 1, allow_nan=False, width=32)
vectors = st.lists(st.tuples(numbers, numbers, numbers), max_size=50)


@given(vectors, st.tuples(numbers, numbers, numbers), st.floats(0, 1))
def test_a_question_always_keeps_a_direction(
    sample: list[tuple[float, ...]], asked: tuple[float, ...], share: float
) -> None:
    moved = subtract_centre(list(asked), centre_of(sample), share)
    assert len(moved) == 3
    assert all(math.isfinite(value) for value in moved)
    assert any(moved) == any(asked)


def test_a_centre_grows_old_because_others_write_too() -> None:
    clock = [5.0]
    centres = Centres(lambda: clock[0])
    centres.put("a", "dense", Centre((1.0,), 100))
    clock[0] += MAX_AGE_SECONDS
    assert centres.get("a", "dense") is not None
    clock[0] += 1
    assert centres.get("a", "dense") is None
