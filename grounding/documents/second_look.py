"""The second look: of what words and vectors found the best are compared once more, by a deeper model's vectors.

Those come some time after a passage can be found. So there may be passages with and without them in one ranking, and
nothing else is found than without them: what is found is put into another order. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar, cast

from grounding.documents.fusing import scale_of

Id = TypeVar("Id", bound=Hashable)
WEIGHT = 1.5
"""What the deeper cosine counts beside the words, each on its own scale."""


def looked_again(
    fused: Sequence[tuple[Id, float]],
    near: Mapping[Id, float],
    worded: Mapping[Id, float],
    cosines: Mapping[Id, float],
) -> list[tuple[Id, float]]:
    """The points of *fused*, with their scores, best first, in the order of their words and *cosines*; equal ones in
    the order of their ids. *near* and *worded* are all that each arm found, with its raw scores.

    Where a deeper vector was looked at it stands for the quick one; a point that was looked at and has none is judged
    by the quick one, on the scale of the others that were. Points behind the last one with a cosine stay behind.
    """
    if not cosines:
        return list(fused)
    last = max(place for place, (point, _) in enumerate(fused) if point in cosines)
    looked, behind = [point for point, _ in fused[: last + 1]], fused[last + 1 :]
    missing = max(0, len(near) - len(worded))
    words = scale_of([*worded.values(), *[0.0] * missing])
    deep, quick = scale_of([*cosines.values()]), scale_of([near.get(point, 0.0) for point in looked])

    def again(point: Id) -> float:
        meaning = deep(cosines[point]) if point in cosines else quick(near.get(point, 0.0))
        return words(worded.get(point, 0.0)) + WEIGHT * meaning

    ranked = sorted(((point, again(point)) for point in looked), key=lambda one: (-one[1], cast("Any", one[0])))
    least = ranked[-1][1]
    # Scores fall along the list, or whoever sorts by them again would mix both parts.
    most = max((score for _, score in behind), default=0.0)
    return [*ranked, *((point, score - most + least - 1e-5) for point, score in behind)]
