"""The second look: of what words and vectors found the best are compared once more, by a deeper model's vectors.

Those come some time after a passage can be found. So there may be passages with and without them in one ranking, and
nothing else is found than without them: what is found is put into another order. Pure. Figures, and what else was
compared: docs/decisions/0028.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

from grounding.documents.embedding import Vector
from grounding.documents.fusing import scale_of

Id = TypeVar("Id", bound=Hashable)
QUICK = 0.5
DEEPER = 2.5
"""What the quick cosine and the deeper one count beside the words, each on its own scale."""
FEEDBACK = 0.3
BEST = 3
"""To the question so much of the mean of the best passages' deeper vectors is added (pseudo relevance feedback:
Rocchio, 1971; with dense vectors: Li et al., "Pseudo Relevance Feedback with Deep Language Models", TOIS 2023)."""
ENOUGH = 10
"""Of fewer cosines nothing can be said about where their scale lies."""


def towards(question: Vector, best: Sequence[Vector]) -> Vector:
    """The unit vector *question* with a little of the *best* passages' vectors, as they stand before the second look;
    as it is where there are none."""
    if not best:
        return question
    means = [math.fsum(column) / len(best) for column in zip(*best, strict=True)]
    moved = [own + FEEDBACK * mean for own, mean in zip(question, means, strict=True)]
    length = math.hypot(*moved)
    return [one / length for one in moved] if length > 0 else question


def looked_again(
    fused: Sequence[tuple[Id, float]],
    near: Mapping[Id, float],
    worded: Mapping[Id, float],
    cosines: Mapping[Id, float],
    most: int,
) -> list[tuple[Id, float]]:
    """The points of *fused*, with their scores, best first, of which the first *most* were looked at: in the order of
    what words, quick and deeper vectors say together; equal ones in the order of their ids. *near* and *worded* are all
    that each arm found, with its raw scores, *cosines* those of the deeper vectors.

    A point that was looked at and has no deeper vector keeps its place: it is given what a point of its fused score
    has in the mean. Where some have none, and fewer than `ENOUGH` have one, all stay as they are. The others stay
    behind.
    """
    looked, behind = fused[:most], fused[most:]
    if not cosines or len(cosines) < min(ENOUGH, len(looked)):
        return list(fused)
    missing = max(0, len(near) - len(worded))
    words, quick, deep = (
        scale_of([*worded.values(), *[0.0] * missing]),
        scale_of([*near.values()]),
        scale_of([*cosines.values()]),
    )
    without = words(0.0) if missing else 0.0

    def again(point: Id) -> float:
        by_words = words(worded[point]) if point in worded else without
        by_meaning = quick(near[point]) if point in near else 0.0
        return by_words + QUICK * by_meaning + DEEPER * deep(cosines[point])

    known = {point: again(point) for point, _ in looked if point in cosines}
    place = _matched([score for point, score in looked if point in known], [*known.values()])
    scores = {point: known[point] if point in known else place(score) for point, score in looked}
    ranked = sorted(scores.items(), key=lambda one: (-one[1], cast("Any", one[0])))
    # Scores fall along the list, or whoever sorts by them again would mix both parts.
    last = ranked[-1][1] - looked[-1][1]
    return [*ranked, *((point, score + last) for point, score in behind)]


def _matched(before: Sequence[float], now: Sequence[float]) -> Callable[[float], float]:
    """What takes a score from the scale of *before* to that of *now*: mean to mean, deviation to deviation."""
    mean_before, mean_now = (math.fsum(scores) / len(scores) for scores in (before, now))
    spread = math.sqrt(math.fsum((score - mean_before) ** 2 for score in before))
    wider = math.sqrt(math.fsum((score - mean_now) ** 2 for score in now)) / spread if spread else 0.0
    return lambda score: mean_now + wider * (score - mean_before)
