"""Figures of a ranking against what should have been found. Pure; relevance is binary."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeVar

T = TypeVar("T")

BUDGET_TOKENS = 1000
RESAMPLES = 1000
"""So many samples are drawn for an interval: its ends then move by about a twentieth of its width."""
CONFIDENCE = 0.95


def recall_at(ranking: Sequence[str], gold: Collection[str], k: int) -> float:
    """Return the share of *gold* among the first *k*."""
    return len(set(ranking[:k]) & set(gold)) / len(set(gold))


def recall_within(priced: Iterable[tuple[str, int]], gold: Collection[str], tokens: int) -> float:
    """Return the share of *gold* from the top of *priced* (items with their tokens, best first; one item may come in
    several pieces) until the next would pass *tokens*."""
    return len(set(_affordable(priced, tokens)) & set(gold)) / len(set(gold))


def _affordable(priced: Iterable[tuple[str, int]], tokens: int) -> Iterator[str]:
    spent = 0
    for item, cost in priced:
        spent += cost
        if spent > tokens:
            return
        yield item


def ndcg_at(ranking: Sequence[str], gold: Collection[str], k: int) -> float:
    """Return the normalised discounted cumulative gain (Järvelin and Kekäläinen, 2002) of the first *k*."""
    gain = sum(1 / math.log2(rank + 2) for rank, item in enumerate(ranking[:k]) if item in gold)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(k, len(set(gold)))))


def reciprocal_rank(ranking: Sequence[str], gold: Collection[str]) -> float:
    """Return one over the rank of the first that is gold; 0 if none is."""
    return next((1 / rank for rank, item in enumerate(ranking, start=1) if item in gold), 0.0)


def area_under_curve(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the area under the ROC curve: how often one of *positive* is larger than one of *negative* (0 to 1; 0.5 by
    chance), a tie counting half. Raises `ValueError` if one of both is empty."""
    if not positive or not negative:
        raise ValueError("there must be values of both kinds")
    ordered = sorted(positive)
    lower = sum(bisect_left(ordered, value) + bisect_right(ordered, value) for value in negative)
    return 1 - lower / 2 / len(positive) / len(negative)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of *values* that at least *share* (0 to 1) of them do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)] if values else 0.0


class Interval(NamedTuple):
    """Both ends of a confidence interval."""

    low: float
    high: float


def bootstrap_intervals(sample: Sequence[T], figures_of: Callable[[Sequence[T]], Sequence[float]]) -> list[Interval]:
    """Return the `CONFIDENCE` interval of each of the figures that *figures_of* makes of *sample*.

    This is the percentile bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993): *sample*, such as
    the questions of a set, is drawn anew `RESAMPLES` times, with repetitions and always in the same way; the interval
    holds the middle 95 % of the figures. To compare two runs, take the differences of each question as *sample*.
    Raises `ValueError` for an empty sample.

    >>> bootstrap_intervals([0.0, 1.0, 1.0, 1.0], lambda found: [sum(found) / len(found)])
    [Interval(low=0.25, high=1.0)]
    """
    if not sample:
        raise ValueError("there must be something to draw from")
    drawing = random.Random(0)  # noqa: S311 - nothing secret
    drawn = [figures_of(drawing.choices(sample, k=len(sample))) for _ in range(RESAMPLES)]
    outside = (1 - CONFIDENCE) / 2
    return [
        Interval(percentile(column, outside), percentile(column, 1 - outside)) for column in zip(*drawn, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranking of one arm for one question, best first.

    ``documents`` and ``passages`` are pairs of a document's id and a cost in tokens: of each document once and whole,
    and of each passage. ``gold`` are the ids that should have been found. ``latency_ms`` is None if it was not
    measured.
    """

    documents: tuple[tuple[str, int], ...]
    passages: tuple[tuple[str, int], ...]
    gold: frozenset[str]
    latency_ms: float | None = None

    @property
    def found(self) -> list[str]:
        """The documents' ids."""
        return [document for document, _ in self.documents]


class Figures(NamedTuple):
    """The quality of one ranking, each from 0 to 1. Of the two within a thousand tokens, one counts whole documents, as
    question sets are compared, and one passages, as a prompt pays for them; they are equal if no document is longer
    than a passage."""

    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    mrr: float
    recall_at_1000_tokens: float
    recall_at_1000_tokens_of_passages: float


def figures(ranking: Ranking) -> Figures:
    """Return the figures of one ranking. Raises `ValueError` if nothing should have been found."""
    if not ranking.gold:
        raise ValueError("every question needs at least one expected document")
    found, gold = ranking.found, ranking.gold
    return Figures(
        recall_at(found, gold, 5),
        recall_at(found, gold, 10),
        ndcg_at(found, gold, 10),
        reciprocal_rank(found, gold),
        recall_within(ranking.documents, gold, BUDGET_TOKENS),
        recall_within(ranking.passages, gold, BUDGET_TOKENS),
    )


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over all questions; latency in milliseconds, the embedding of the question included, or None if it was not
    measured."""

    questions: int
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    mrr: float
    recall_at_1000_tokens: float
    recall_at_1000_tokens_of_passages: float
    p50_ms: float | None
    p95_ms: float | None


def score(rankings: Sequence[Ranking]) -> Scores:
    """Return the means of all *rankings*. Raises `ValueError` if there are none, or for one with nothing to find."""
    if not rankings:
        raise ValueError("there must be a question")
    means = Figures(*(fmean(column) for column in zip(*map(figures, rankings), strict=True)))
    took = [ranking.latency_ms for ranking in rankings if ranking.latency_ms is not None]
    return Scores(
        len(rankings),
        *means,
        p50_ms=percentile(took, 0.5) if took else None,
        p95_ms=percentile(took, 0.95) if took else None,
    )
