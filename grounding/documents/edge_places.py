"""Where passages of the embedded engine stand, for more of them than could be kept as objects: in arrays, 24 bytes each
instead of 150, by their points' ids, UUIDs as numbers.

A look at a hundred of them costs .2 to .3 ms of processor time, where the engine takes 1 to 2 to hand over what it has
of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from grounding.documents.stored import Place

MOST_PLACES = 262_144
"""Places that are kept: 6 MB, and the names of their sources."""
YOUNG = 4096
"""What came last is kept as it came, and put in order when it is so many: 6 ms of processor time among the most."""
N = TypeVar("N", bound=np.generic)
_LOW = (1 << 64) - 1
_GONE = -1


class Places:
    """At most *most* and `YOUNG`; where they do not fit, some of the former go, by lot."""

    def __init__(self, most: int = MOST_PLACES, young: int = YOUNG) -> None:
        self._most = most
        self._most_young = young
        self.clear()

    def __len__(self) -> int:
        return len(self._young) + len(self._lows)

    def all(self, points: Iterable[int]) -> dict[int, Place | None]:
        """Of each of *points*, in their order; None where it is not kept."""
        found = {point: self._young.get(point) for point in points}
        missing = [point for point, place in found.items() if place is None]
        if missing and len(self._lows):
            rows, there = self._rows(missing)
            sources, ordinals = self._sources[rows].tolist(), self._ordinals[rows].tolist()
            for point, is_there, source, ordinal in zip(missing, there.tolist(), sources, ordinals, strict=True):
                if is_there:
                    found[point] = Place(self._names[source], ordinal)
        return found

    def put(self, places: Mapping[int, Place]) -> None:
        """Keep *places*."""
        self._young.update(places)
        if len(self._young) > self._most_young:
            self._put_in_order()

    def forget(self, points: Sequence[int]) -> None:
        """Keep those of *points* no more."""
        for point in points:
            self._young.pop(point, None)
        if len(points) and len(self._lows):
            rows, there = self._rows(points)
            self._ordinals[rows[there]] = _GONE

    def clear(self) -> None:
        """Keep nothing."""
        self._young: dict[int, Place] = {}
        self._lows = self._highs = np.zeros(0, np.uint64)
        self._sources = self._ordinals = np.zeros(0, np.int32)
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        """Each name's place among the names."""
        self._most_names = self._most_young

    def _rows(self, points: Sequence[int]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """The row of each of *points*, and whether it is kept there. Of two points with the same lower half, which one
        in many millions would be, one may not be found."""
        lows, highs = _halves(points)
        rows = np.minimum(np.searchsorted(self._lows, lows), len(self._lows) - 1)
        there = (self._lows[rows] == lows) & (self._highs[rows] == highs) & (self._ordinals[rows] != _GONE)
        return rows, there

    def _put_in_order(self) -> None:
        young, self._young = self._young, {}
        self.forget([*young])  # of what is known anew
        left = self._ordinals != _GONE
        over = int(left.sum()) + len(young) - self._most
        if over > 0:  # ids are as if drawn by lot, and so are their places in the order
            left[np.flatnonzero(left)[:over]] = False
            young = dict(islice(young.items(), max(self._most, 0)))
        if not left.all():
            self._lows, self._highs = self._lows[left], self._highs[left]
            self._sources, self._ordinals = self._sources[left], self._ordinals[left]
        lows, highs = _halves([*young])
        order = np.argsort(lows)
        new = np.searchsorted(self._lows, lows[order]) + np.arange(len(young))
        old = np.ones(len(self._lows) + len(young), bool)
        old[new] = False

        def merged(known: npt.NDArray[N], added: npt.NDArray[N]) -> npt.NDArray[N]:
            both = np.empty(len(old), known.dtype)
            both[old], both[new] = known, added[order]
            return both

        numbers = self._numbers
        sources = [numbers.setdefault(place.source, len(numbers)) for place in young.values()]
        self._lows, self._highs = merged(self._lows, lows), merged(self._highs, highs)
        self._sources = merged(self._sources, np.array(sources, np.int32))
        self._ordinals = merged(self._ordinals, np.array([place.ordinal for place in young.values()], np.int32))
        self._names = [*self._numbers]
        if len(self._names) > self._most_names:
            self._forget_names()

    def _forget_names(self) -> None:
        """Of sources of which nothing is kept; next when there are twice as many."""
        still, as_numbered = np.unique(self._sources, return_inverse=True)
        self._sources = as_numbered.astype(np.int32)
        self._names = [self._names[number] for number in still.tolist()]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._most_names = max(2 * len(self._names), self._most_young)


def _halves(points: Sequence[int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    lows = np.array([point & _LOW for point in points], np.uint64)
    return lows, np.array([point >> 64 for point in points], np.uint64)
