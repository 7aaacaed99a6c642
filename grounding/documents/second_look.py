"""The second look: of what words and vectors found the best are compared once more, by a deeper model's vectors.

Those come some time after a passage can be found. So there may be passages with and without them in one ranking, and
nothing else is found than without them: what is found is put into another order. Pure. Figures, and what else was
compared: docs/decisions/09.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from grounding.documents.embedding import Vector
from grounding.documents.fusing import Scale, best_first, scale_of, scales_of
from grounding.documents.stored import Place

Id = TypeVar("Id", bound=Hashable)
QUICK = 0.5
DEEPER = 2.5
"""What the quick cosine and the deeper one count beside the words, each on its own scale."""
FEEDBACK = 0.3
BEST = 3
"""To the question so much of the mean of the best passages' deeper vectors is added (pseudo relevance feedback:
Rocchio, 1971; with dense vectors: Li et al., "Pseudo Relevance Feedback with Deep Language Models", TOIS 2023)."""
BESIDE = 0.5
"""What the mean of its neighbours' deeper cosines counts beside a passage's own: of a long text about something else a
single passage may come near to a question by chance, the one that answers it mostly stands among others about it."""
ENOUGH = 10
"""Of fewer cosines nothing can be said about where their scale lies."""


def among_neighbours(cosines: Mapping[Id, float], places: Mapping[Id, Place]) -> dict[Id, float]:
    """The *cosines* of passages, each drawn a little towards those of the passages just before and after it in its
    source, as far as *cosines* has them; *places* says where passages stand."""
    at = {places[point]: cosine for point, cosine in cosines.items() if point in places}
    found = dict(cosines)
    for point, own in cosines.items():
        if point not in places:
            continue
        source, ordinal = places[point]
        beside = [at[place] for place in ((source, ordinal - 1), (source, ordinal + 1)) if place in at]
        if beside:
            found[point] = (own + BESIDE * sum(beside) / len(beside)) / (1 + BESIDE)
    return found


def towards(question: Vector, best: Sequence[Vector]) -> Vector:
    """The unit vector *question* with a little of the *best* passages' vectors, as they stand before the second look;
    as it is where there are none."""
    if not best:
        return question
    share = FEEDBACK / len(best)
    moved = [own + share * sum(column) for own, column in zip(question, zip(*best, strict=True), strict=True)]
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
    near_scale, words, without = scales_of(near, worded)
    quick, shift, (deep, level) = QUICK * near_scale.factor, QUICK * near_scale.shift, scale_of(cosines.values())

    def again(point: Id) -> float:
        by_words = words.of(worded[point]) if point in worded else without
        by_meaning = quick * near[point] + shift if point in near else 0.0
        return by_words + by_meaning + DEEPER * (deep * cosines[point] + level)

    known = {point: again(point) for point, _ in looked if point in cosines}
    if len(known) == len(looked):
        scores = known
    else:
        place = _matched([score for point, score in looked if point in known], [*known.values()])
        scores = {point: known[point] if point in known else place.of(score) for point, score in looked}
    ranked = best_first(scores)
    # Scores fall along the list, or whoever sorts by them again would mix both parts.
    last = ranked[-1][1] - looked[-1][1]
    return [*ranked, *((point, score + last) for point, score in behind)]


def _matched(before: Sequence[float], now: Sequence[float]) -> Scale:
    """What takes a score from the scale of *before* to that of *now*: mean to mean, deviation to deviation."""
    old, new = scale_of(before), scale_of(now)
    if not old.factor or not new.factor:
        return Scale(0.0, math.fsum(now) / len(now))
    return Scale(old.factor / new.factor, (old.shift - new.shift) / new.factor)
