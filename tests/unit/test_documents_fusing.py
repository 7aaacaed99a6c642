"""Fusion by scores where few passages have any of the words."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.retrieval import Kind
from grounding.retrieval.index import CANDIDATES
from grounding.retrieval.ranking import best_first, fuse_by_scores, words_find_few

SCORES = st.dictionaries(st.integers(0, 60), st.floats(-1, 1, allow_nan=False), max_size=60)
WORDS = st.dictionaries(st.integers(0, 60), st.floats(0, 30, allow_nan=False), max_size=20)


def test_the_only_passage_with_a_rare_word_is_the_best() -> None:
    near = {number: 0.5 - number / 1000 for number in range(300)}
    assert fuse_by_scores(near, {777: 9.0}, 1)[0][0] == 777


def test_the_more_passages_have_a_word_the_less_it_says() -> None:
    near = {number: 1 / (number + 1) for number in range(300)}
    few = dict(fuse_by_scores(near, dict.fromkeys(range(400, 403), 5.0), 400))
    many = dict(fuse_by_scores(near, dict.fromkeys(range(400, 600), 5.0), 500))
    assert few[400] > many[400]


def test_scores_are_summed_on_scales_of_six_standard_deviations() -> None:
    """Passages without any of the words count with a score of 0."""
    near, worded = {1: 0.9, 2: 0.5, 3: 0.4, 4: 0.2}, {2: 3.0, 5: 1.0}
    expected = dict.fromkeys((1, 2, 3, 4, 5), 0.0)
    for scores, zeros in ((near, 0), (worded, 2)):
        of_all = [*scores.values(), *[0.0] * zeros]
        for point in expected:
            if zeros or point in scores:
                mean, deviation = statistics.mean(of_all), statistics.stdev(of_all)
                expected[point] += (scores.get(point, 0.0) - mean) / (6 * deviation) + 0.5
    assert dict(fuse_by_scores(near, worded, 9)) == pytest.approx(expected)


def test_what_both_arms_found_stands_before_what_only_one_found_as_well() -> None:
    near = {number: 0.5 - number / 1000 for number in range(100)}
    ranked = [point for point, _ in fuse_by_scores(near, {5: 4.0, 500: 4.0}, 10)]
    assert ranked.index(5) < ranked.index(500)


@given(SCORES, WORDS, st.integers(1, 100))
def test_each_point_that_was_found_stands_once_and_the_best_first(
    near: dict[int, float], worded: dict[int, float], top_k: int
) -> None:
    best = fuse_by_scores(near, worded, top_k)
    assert len(best) == min(top_k, len({*near, *worded}))
    assert len({point for point, _ in best}) == len(best)
    assert [score for _, score in best] == sorted((score for _, score in best), reverse=True)


@given(SCORES, WORDS)
def test_the_order_of_what_was_found_decides_nothing(near: dict[int, float], worded: dict[int, float]) -> None:
    turned = dict(reversed(near.items())), dict(reversed(worded.items()))
    ours, theirs = fuse_by_scores(near, worded, 200), fuse_by_scores(*turned, 200)
    assert [(point, round(score, 6)) for point, score in ours] == [(point, round(score, 6)) for point, score in theirs]


def test_only_documents_with_a_short_ranking_by_words_count_those_without() -> None:
    assert words_find_few(Kind.DOCUMENT, 1)
    assert not words_find_few(Kind.DOCUMENT, 0)
    assert not words_find_few(Kind.DOCUMENT, CANDIDATES)
    assert not words_find_few(Kind.TURN, 1)


@given(st.dictionaries(st.integers(0, 40), st.sampled_from([0.1, 0.2, 0.2000001, 0.3, 0.9])), st.integers(0, 50))
def test_the_best_of_some_are_the_first_of_all(scores: dict[int, float], most: int) -> None:
    assert best_first(scores, most) == best_first(scores)[:most]
