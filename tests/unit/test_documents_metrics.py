"""The figures of an evaluation are the textbook's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.metrics import ndcg_at, percentile, recall_at, reciprocal_rank, score

RANKING = ["a", "b", "c", "d"]


def test_recall_counts_gold_among_the_first() -> None:
    assert recall_at(RANKING, {"b", "d", "x"}, 3) == pytest.approx(1 / 3)


def test_ndcg_discounts_by_rank() -> None:
    expected = (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert ndcg_at(RANKING, {"b", "d"}, 10) == pytest.approx(expected)


def test_reciprocal_rank_is_that_of_the_first_gold() -> None:
    assert reciprocal_rank(RANKING, {"c", "d"}) == pytest.approx(1 / 3)
    assert reciprocal_rank(RANKING, {"x"}) == 0.0


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0


def test_scores_are_means_over_questions() -> None:
    scores = score([(["a"], {"a"}), (["b"], {"a"})], [1.0, 3.0])
    assert (scores.questions, scores.recall_at_5, scores.ndcg_at_10, scores.mrr) == (2, 0.5, 0.5, 0.5)


@pytest.mark.parametrize("rankings", [[], [(["a"], set())]])
def test_nothing_to_find_cannot_be_scored(rankings: list[tuple[list[str], set[str]]]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        score(rankings, [])


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_figures_lie_between_none_and_all(ranking: list[str], gold: set[str]) -> None:
    for figure in (recall_at(ranking, gold, 5), ndcg_at(ranking, gold, 10), reciprocal_rank(ranking, gold)):
        assert 0.0 <= figure <= 1.0 + 1e-9
    assert ndcg_at(sorted(gold), gold, 10) == pytest.approx(1.0)
