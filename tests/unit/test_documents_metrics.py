"""The figures of an evaluation are the textbook's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.evaluation import score
from grounding.evaluation.metrics import (
    Ranking,
    figures,
    ndcg_at,
    percentile,
    recall_at,
    recall_within,
    reciprocal_rank,
)

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


def ranking(*found: str, gold: str, latency_ms: float | None = 1.0) -> Ranking:
    priced = tuple((one, 300) for one in found)
    return Ranking(priced, priced, frozenset(gold), latency_ms)


def test_a_budget_ends_before_the_item_that_would_pass_it() -> None:
    priced = [("a", 400), ("b", 600), ("c", 1)]
    assert recall_within(priced, {"b", "c"}, 1000) == 0.5
    assert recall_within(priced, {"b", "c"}, 1001) == 1.0
    assert recall_within(priced, {"a"}, 399) == 0.0


def test_an_item_is_found_with_the_first_of_its_pieces() -> None:
    found = figures(Ranking((("long", 9000), ("b", 10)), (("long", 90), ("long", 90), ("b", 10)), frozenset("b")))
    assert (found.recall_at_1000_tokens, found.recall_at_1000_tokens_of_passages) == (0.0, 1.0)


def test_scores_are_means_over_questions() -> None:
    scores = score([ranking("a", gold="a"), ranking("b", gold="a", latency_ms=3.0)])
    assert (scores.questions, scores.recall_at_5, scores.ndcg_at_10, scores.mrr) == (2, 0.5, 0.5, 0.5)
    assert (scores.recall_at_1000_tokens, scores.p50_ms, scores.p95_ms) == (0.5, 1.0, 3.0)


def test_what_was_not_timed_has_no_latency() -> None:
    assert score([ranking("a", gold="a", latency_ms=None)]).p95_ms is None


@pytest.mark.parametrize("rankings", [[], [ranking("a", gold="")]])
def test_nothing_to_find_cannot_be_scored(rankings: list[Ranking]) -> None:
    with pytest.raises(ValueError, match=r"there must be|at least one"):
        score(rankings)


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_figures_lie_between_none_and_all(ranking: list[str], gold: set[str]) -> None:
    for figure in (recall_at(ranking, gold, 5), ndcg_at(ranking, gold, 10), reciprocal_rank(ranking, gold)):
        assert 0.0 <= figure <= 1.0 + 1e-9
    assert ndcg_at(sorted(gold), gold, 10) == pytest.approx(1.0)
