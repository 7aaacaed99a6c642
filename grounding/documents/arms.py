"""What a search's arms say of the passages that were found: the last step of both adapters. Pure.

An engine's point makes its id, payload and vectors only when it is asked for them, and that costs more than the search:
what is not needed is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from grounding.documents.index import Arm, Hit
from grounding.documents.stored import DEEP, passage_of

TIES = 8
"""How many passages more than wanted are asked for, so that the last places do not fall to chance."""
_CLOSE = 1.5e-6
"""Scores are equal if they are so to six places. Those that are further apart than this are not: to see that takes a
tenth of what rounding takes."""


def hits_of(
    fused: Sequence[Any],
    arms: Mapping[str, Iterable[Any]],
    top_k: int,
    *,
    explain: bool,
    cosine_of: Callable[[Any], float] | None,
    compared: int | None = None,
) -> list[Hit]:
    """The best *top_k* of the *fused* points, with what each of *arms* (``dense``, ``sparse``, ``deep``; all points are
    best first) says of them, in an order that is the same on every call: engines leave the order of equal scores to
    chance, here source, ordinal and id decide.

    With *explain* an arm tells ranks, too; *cosine_of* stands in for the dense one, of the best *compared*
    or of all. Raises `grounding.documents.index.IndexUnavailable` for a stored format that is not known.
    """
    near = [(one.id, one, passage_of(one.payload)) for one in _leading(fused, top_k)]
    scores = [one.score for _, one, _ in near]
    if any(before - after < _CLOSE for before, after in pairwise(scores)):  # mostly all stand in their order
        near.sort(key=lambda one: (-round(one[1].score, 6), one[2].source, one[2].ordinal, one[2].id))
    best = near[:top_k]
    wanted = {point for point, _, _ in best}
    arm_of = _ranked if explain else _scored
    told = {name: arm_of(((one.id, one.score) for one in points), wanted) for name, points in arms.items()}
    if cosine_of is not None:
        told["dense"] = {point: Arm(0, cosine_of(one)) for point, one, _ in best[:compared]}
    dense, sparse = told.get("dense", {}), told.get("sparse", {})
    deep = told.get(DEEP, {})
    if not sparse and not deep:  # mostly; what is the same for all need not be given
        return [Hit(passage, one.score, dense.get(point)) for point, one, passage in best]
    return [
        Hit(passage, one.score, dense.get(point), sparse.get(point), deep=deep.get(point))
        for point, one, passage in best
    ]


def _leading(fused: Sequence[Any], top_k: int) -> Sequence[Any]:
    """Those that can be among the best *top_k*: all others are behind by more than a tie."""
    if len(fused) <= top_k:
        return fused
    least = fused[top_k - 1].score - _CLOSE
    return [*fused[:top_k], *[point for point in fused[top_k:] if point.score > least]]


def _ranked(arm: Iterable[tuple[Hashable, float]], wanted: Collection[Hashable]) -> dict[Hashable, Arm]:
    return {point: Arm(rank, score) for rank, (point, score) in enumerate(arm, start=1) if point in wanted}


def _scored(arm: Iterable[tuple[Hashable, float]], wanted: Collection[Hashable]) -> dict[Hashable, Arm]:
    """Raw scores. An arm of hundreds is read as far as needed: what is wanted is mostly near its beginning."""
    found: dict[Hashable, Arm] = {}
    for point, score in arm:
        if point in wanted:
            found[point] = Arm(0, score)
            if len(found) == len(wanted):
                break
    return found
