"""Fusion by scores where the words of a question are in few passages. Pure.

Distribution-based fusion puts each arm's scores on the scale of its own candidates. Of one to a few hundred candidates
by words that scale says nothing: the only passage with a rare word is its own average, and falls behind what is merely
nearest by meaning. Here passages without any of the words count as well, with their score of 0, as many as the other
arm offers; so the fewer hold a word, the more it says.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

from grounding.documents.index import Fusion, Kind

Id = TypeVar("Id", bound=Hashable)
DEVIATIONS = 3
"""The scale's ends lie so many standard deviations below and above the mean, as in Qdrant."""


@dataclass(frozen=True, slots=True)
class Fused(Generic[Id]):
    """A passage's point: what an engine's point has, with the fused score."""

    id: Id
    score: float
    payload: Any
    vector: Any


def may_say_little(fusion: Fusion, kind: Kind) -> bool:
    """Whether it depends on how many candidates words find how passages of *kind* are fused. Turns of a conversation
    are always few, and judged by more than their score."""
    return fusion.method == "dbsf" and kind is Kind.DOCUMENT


def says_little(fusion: Fusion, kind: Kind, found: int) -> bool:
    """Whether *found* candidates by words are too few for the engine's own fusion."""
    return may_say_little(fusion, kind) and 0 < found < fusion.candidates


class Scale(NamedTuple):
    """Makes a score a number on the scale of all scores of an arm: ``factor`` × score + ``shift``."""

    factor: float
    shift: float

    def of(self, score: float) -> float:
        return self.factor * score + self.shift


def scale_of(scores: Collection[float], zeros: int = 0) -> Scale:
    """The scale from three standard deviations below the mean of *scores*, and of as many *zeros*, which is 0, to three
    above it, which is 1."""
    count = len(scores) + zeros
    mean = math.fsum(scores) / count if count else 0.0  # the same in every order
    squares = math.fsum([(score - mean) ** 2 for score in scores]) + zeros * mean**2
    width = 2 * DEVIATIONS * math.sqrt(squares / max(1, count - 1))
    return Scale(1 / width, 0.5 - mean / width) if width else Scale(0.0, 0.5)


def scales_of(
    dense: Mapping[Id, float], sparse: Mapping[Id, float], *, counts_absent: bool = True
) -> tuple[Scale, Scale, float]:
    """The scales of both arms, and what a passage without any of the words has on the second: nothing where words find
    as many as are asked for, or where those without do not count (*counts_absent*), as in Qdrant."""
    missing = max(0, len(dense) - len(sparse)) if counts_absent else 0
    words = scale_of(sparse.values(), missing)
    return scale_of(dense.values()), words, words.of(0.0) if missing else 0.0


def by_scores(
    dense: Mapping[Id, float], sparse: Mapping[Id, float], top_k: int, *, counts_absent: bool = True
) -> list[tuple[Id, float]]:
    """The best *top_k* points by the sum of both arms' scores, each on its own scale, with that sum; equal ones in the
    order of their ids. If *counts_absent*, *sparse* is all that has any of the words, and points without any count, as
    many as *dense* offers beside it; if not, the fusion is Qdrant's own."""
    (factor, shift), words, without = scales_of(dense, sparse, counts_absent=counts_absent)
    # Written out: a call for each point would take longer than all the rest.
    summed = {point: factor * score + shift + without for point, score in dense.items()}
    factor, shift = words
    for point, score in sparse.items():
        summed[point] = summed.get(point, without) - without + factor * score + shift
    return best_first(summed, top_k)


def best_first(scores: Mapping[Id, float], most: int | None = None) -> list[tuple[Id, float]]:
    """The points of *scores* with them, or the best *most* of them; equal ones in the order of their ids."""
    least = -math.inf
    if most is not None and 0 < most < len(scores):  # scores alone are sorted in a third of the time
        least = sorted(scores.values(), reverse=True)[most - 1]
    # UUIDs as numbers have the order that they have as words: ties are the same with every adapter.
    ranked = sorted([(-score, cast("Any", point)) for point, score in scores.items() if score >= least])
    return [(point, -score) for score, point in ranked[:most]]


def by_ranks(dense: Sequence[Id], sparse: Sequence[Id], fusion: Fusion, top_k: int) -> list[tuple[Id, float]]:
    """The best *top_k* points by weighted reciprocal ranks of both arms, which are best first; as the engine's own."""
    summed: dict[Id, float] = {}
    for arm, weight in ((dense, fusion.dense), (sparse, fusion.sparse)):
        for rank, point in enumerate(arm if weight > 0 else (), start=1):
            summed[point] = summed.get(point, 0.0) + 1 / (fusion.k - 1 + rank / weight)
    return best_first(summed, top_k)


def both(dense: Mapping[Id, float], sparse: Mapping[Id, float], fusion: Fusion, top_k: int) -> list[tuple[Id, float]]:
    """The best *top_k* points of both arms, which are best first, as *fusion* has it."""
    if fusion.method == "rrf":
        return by_ranks([*dense], [*sparse], fusion, top_k)
    return by_scores(dense, sparse, top_k)


def absent(best: Sequence[tuple[Id, float]], there: Collection[Any]) -> list[Id]:
    """The points of *best* that are not among *there* yet."""
    known = {point.id for point in there}
    return [point for point, _ in best if point not in known]


def merged(best: Sequence[tuple[Id, float]], *there: Collection[Any]) -> list[Fused[Id]]:
    """The points of *best* that are *there*, with what they carry; one that is not was deleted a moment ago."""
    points = {point.id: point for some in there for point in some}
    return [Fused(name, score, points[name].payload, points[name].vector) for name, score in best if name in points]
