"""What was read of the embedded engine's points last: their passages, places and vectors, and where sources begin.

The engine finds points in a tenth of the time that it takes to hand them over: a payload becomes a dict, a vector a
list of numbers. What is found for one question is mostly found for the next one, too, so both are kept by the points'
ids, UUIDs as numbers; whoever changes or deletes points says so. Only one thread at a time may use it, as the
engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt

from grounding.documents.centre import Centre
from grounding.documents.edge_places import MOST_PLACES, Places
from grounding.documents.embedding import Vector
from grounding.documents.index import Passage
from grounding.documents.stored import PLACE_FIELDS, Place, passage_of, place_of

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Named = Literal["source", "previous"]
"""By which name the beginning of a source is known: its own, or that of the source before."""
Row = npt.NDArray[np.float32]
"""A stored vector: one kilobyte for 256 dimensions instead of eight as a list."""

MOST = 4096
"""Passages that are kept, and as many vectors: some 10 MB where each has a kilobyte of text."""


class _Lately(Generic[K, V]):
    """What was used last, mostly by points' ids; two generations, as in `grounding.recent`."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, point: K) -> V | None:
        known = self._young.get(point)
        if known is None and (known := self._old.get(point)) is not None:
            self.put(point, known)
        return known

    def put(self, point: K, value: V) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[point] = value

    def all(self, points: Iterable[K]) -> dict[K, V | None]:
        """As `get`, of each of *points*, for less where most of them are known."""
        found = {point: self._young.get(point) for point in points}
        for point in [point for point, value in found.items() if value is None]:
            found[point] = self.get(point)
        return found

    def forget(self, points: Iterable[K]) -> None:
        for point in points:
            self._young.pop(point, None)
            self._old.pop(point, None)

    def clear(self) -> None:
        self._young, self._old = {}, {}


class Kept:
    """At most *most* passages, as many vectors, and *places*. What is asked of points that are not in the shard is left
    out."""

    def __init__(self, most: int = MOST, places: int = MOST_PLACES) -> None:
        self._passages: _Lately[int, Passage] = _Lately(most)
        self._rows: _Lately[int, Row] = _Lately(most)
        self._begin: _Lately[tuple[str, Named, str], tuple[int, ...]] = _Lately(most)
        """The points that begin the sources of a tenant."""
        self._places = Places(places)

    def passages(self, shard: Any, points: Sequence[int]) -> dict[int, Passage]:
        """The passages of *points*, in their order.

        Raises `grounding.documents.index.IndexUnavailable` for a stored format that is not known.
        """
        known = self._passages.all(points)
        missing = [point for point, passage in known.items() if passage is None]
        if missing:
            for record in shard.retrieve(_ids(missing), with_payload=True, with_vector=False):
                point = record.id.int
                known[point] = passage = passage_of(record.payload)
                self._passages.put(point, passage)
        return {point: passage for point, passage in known.items() if passage is not None}

    def beginnings(
        self, shard: Any, tenant: str, by: Named, names: Collection[str], ask: Callable[[list[str]], list[int]]
    ) -> list[Passage]:
        """The passages of *tenant* that begin the sources of these *names*, in the order of their points. *ask* gives
        the points of those names that nobody asked for lately.

        Raises as `passages`.
        """
        known = self._begin.all([(tenant, by, name) for name in names])
        name_of = attrgetter(by)
        lacking: dict[str, list[int]] = {name: [] for (_, _, name), points in known.items() if points is None}
        asked = ask([*lacking]) if lacking else []
        points = sorted({*asked, *chain.from_iterable(points for points in known.values() if points)})
        passages = self.passages(shard, points)
        for point in asked:
            if point in passages:
                lacking[name_of(passages[point])].append(point)
        for name, found in lacking.items():
            self._begin.put((tenant, by, name), tuple(found))
        # What is stored anew under the same point may begin another source.
        return [one for one in passages.values() if not one.ordinal and name_of(one) in names]

    def begin_anew(self, passages: Iterable[tuple[str, Passage]]) -> None:
        """*passages* of tenants are stored: some of them begin sources."""
        for tenant, one in passages:
            if not one.ordinal:
                self._begin.forget([(tenant, "source", one.source), (tenant, "previous", one.previous)])

    def places(self, shard: Any, points: Sequence[int]) -> dict[int, Place]:
        """Where the passages of *points* stand."""
        known = self._places.all(points)
        missing = [point for point, place in known.items() if place is None]
        if missing:
            records = shard.retrieve(_ids(missing), with_payload=[*PLACE_FIELDS], with_vector=False)
            known |= self.put_places(records)
        return {point: place for point, place in known.items() if place is not None}

    def put_places(self, records: Iterable[Any]) -> dict[int, Place]:
        """Keep where the passages of *records* stand, which were read with `PLACE_FIELDS`; their places by point."""
        found = {}
        for record in records:
            found[record.id.int] = place_of(record.payload)
        self._places.put(found)
        return found

    def rows(self, shard: Any, points: Sequence[int]) -> dict[int, Row]:
        """The stored vectors of *points*, in their order."""
        known = self._rows.all(points)
        missing = [point for point, row in known.items() if row is None]
        if missing:
            for record in shard.retrieve(_ids(missing), with_payload=False, with_vector=["dense"]):
                point = record.id.int
                known[point] = row = np.array(record.vector["dense"], dtype=np.float32)
                self._rows.put(point, row)
        return {point: row for point, row in known.items() if row is not None}

    def cosines(self, shard: Any, to: Vector, points: Sequence[int]) -> dict[int, float]:
        """The cosines of the stored vectors of *points* and another one; 0 where one of both is zero."""
        rows = self.rows(shard, points)
        if not rows:
            return {}
        # Rows one after the other: to stack them takes five times as long.
        stored = np.concatenate([*rows.values()]).reshape(len(rows), -1).astype(np.float64)
        other = np.asarray(to, dtype=np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", stored, stored) * (other @ other))
        found = np.divide(stored @ other, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return dict(zip(rows, found.tolist(), strict=True))

    def centre(self, shard: Any, points: Sequence[int]) -> Centre:
        """`grounding.documents.centre.centre_of` the stored vectors of *points*, to the last bit."""
        rows = [*self.rows(shard, points).values()]
        mean = np.stack(rows).astype(np.float64).sum(axis=0) / len(rows) if rows else np.zeros(0)
        return Centre(tuple(mean.tolist()), len(rows))

    def forget(self, points: Sequence[int]) -> None:
        """*points* were changed or deleted."""
        for lately in (self._passages, self._rows, self._places):
            lately.forget(points)

    def clear(self) -> None:
        """Forget everything."""
        for lately in (self._passages, self._rows, self._places, self._begin):
            lately.clear()


def _ids(points: Sequence[int]) -> list[UUID]:
    return [UUID(int=point) for point in points]
