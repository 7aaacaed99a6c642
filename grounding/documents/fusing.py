"""Fusion by scores where the words of a question are in few passages. Pure.

Distribution-based fusion puts each arm's scores on the scale of its own candidates. Of one to a few hundred candidates
by words that scale says nothing: the only passage with a rare word is its own average, and falls behind what is merely
nearest by meaning. Here passages without any of the words count as well, with their score of 0, as many as the other
arm offers; so the fewer hold a word, the more it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

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


def by_scores(dense: Mapping[Id, float], sparse: Mapping[Id, float], top_k: int) -> list[tuple[Id, float]]:
    """The best *top_k* points by the sum of both arms' scores, each on its own scale, with that sum; equal ones in the
    order of their ids. *sparse* is all that has any of the words, at most as many as *dense* offers count beside it."""
    missing = max(0, len(dense) - len(sparse))
    near = scale_of([*dense.values()])
    worded = scale_of([*sparse.values(), *[0.0] * missing])
    without = worded(0.0) if missing else 0.0
    summed = {
        point: (near(dense[point]) if point in dense else 0.0) + (worded(sparse[point]) if point in sparse else without)
        for point in {*dense, *sparse}
    }
    # UUIDs as numbers have the order that they have as words: ties are the same with every adapter.
    return sorted(summed.items(), key=lambda one: (-one[1], cast("Any", one[0])))[:top_k]


def by_ranks(dense: Sequence[Id], sparse: Sequence[Id], fusion: Fusion, top_k: int) -> list[tuple[Id, float]]:
    """The best *top_k* points by weighted reciprocal ranks of both arms, which are best first; as the engine's own."""
    summed: dict[Id, float] = {}
    for arm, weight in ((dense, fusion.dense), (sparse, fusion.sparse)):
        for rank, point in enumerate(arm if weight > 0 else (), start=1):
            summed[point] = summed.get(point, 0.0) + 1 / (fusion.k - 1 + rank / weight)
    return sorted(summed.items(), key=lambda one: (-one[1], cast("Any", one[0])))[:top_k]


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


def scale_of(scores: Sequence[float]) -> Callable[[float], float]:
    """What makes one of *scores* a number on their scale: from three standard deviations below their mean, which is 0,
    to three above it, which is 1."""
    mean = math.fsum(scores) / len(scores) if scores else 0.0  # the same in every order
    spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / max(1, len(scores) - 1))
    if spread == 0:
        return lambda score: 0.5
    return lambda score: (score - mean + DEVIATIONS * spread) / (2 * DEVIATIONS * spread)
