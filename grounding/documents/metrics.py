"""Figures of a ranking against what should have been found. Pure; relevance is binary."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass


def recall_at(ranking: Sequence[str], gold: Collection[str], k: int) -> float:
    """The share of *gold* among the first *k*."""
    return len(set(ranking[:k]) & set(gold)) / len(set(gold))


def ndcg_at(ranking: Sequence[str], gold: Collection[str], k: int) -> float:
    """Normalised discounted cumulative gain (Järvelin and Kekäläinen, 2002) of the first *k*."""
    gain = sum(1 / math.log2(rank + 2) for rank, item in enumerate(ranking[:k]) if item in gold)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(k, len(set(gold)))))


def reciprocal_rank(ranking: Sequence[str], gold: Collection[str]) -> float:
    """One over the rank of the first that is gold; 0 where none is."""
    return next((1 / rank for rank, item in enumerate(ranking, start=1) if item in gold), 0.0)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of *values* that at least *share* (0 to 1) of them do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)] if values else 0.0


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over all questions; latency in milliseconds, the embedding of the question included."""

    questions: int
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    mrr: float
    p50_ms: float
    p95_ms: float


def score(rankings: Sequence[tuple[Sequence[str], Collection[str]]], latencies_ms: Sequence[float]) -> Scores:
    """The figures of *rankings*, pairs of what was found (without repetitions) and what should have been.

    Raises `ValueError` where there is nothing to score, or a question without anything to find.
    """
    if not rankings or any(not gold for _, gold in rankings):
        raise ValueError("every question needs at least one expected document, and there must be a question")
    count = len(rankings)
    return Scores(
        questions=count,
        recall_at_5=sum(recall_at(found, gold, 5) for found, gold in rankings) / count,
        recall_at_10=sum(recall_at(found, gold, 10) for found, gold in rankings) / count,
        ndcg_at_10=sum(ndcg_at(found, gold, 10) for found, gold in rankings) / count,
        mrr=sum(reciprocal_rank(found, gold) for found, gold in rankings) / count,
        p50_ms=percentile(latencies_ms, 0.5),
        p95_ms=percentile(latencies_ms, 0.95),
    )
