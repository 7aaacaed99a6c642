"""Small tenants of the embedded engine, held whole: a conversation's turns, a workspace's few documents.

A turn asks the engine some five times about the same few hundred passages. To look through them here takes a tenth of
what the engine needs to be asked; what is found is the same, for all of them are compared, by their own vectors. Like
`grounding.documents.edge_kept` only one thread at a time may use it, as the engine itself.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID
from weakref import ReferenceType, ref

import numpy as np
import numpy.typing as npt

from grounding.documents.centre import SAMPLE, Centre
from grounding.documents.edge_queries import points_of
from grounding.documents.index import Entry, Passage
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import passage_of

Scores = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MOST_HELD = 4096
"""Passages of all tenants: 17 MB where each is a turn of 440 characters and has 256 dimensions."""
MOST_OF_ONE = 1024
"""Of one tenant. Larger ones are the engine's."""
READ_AT_ONCE = 24
"""The engine hands a point over in some 30 us: so many are 0.8 ms, the rest is read with the next questions."""
IDLE_SECONDS = 60.0
"""Who was asked about within it gives way to nobody: else more tenants than there is room for would be read in turn."""
SPARE_ROWS = 2
"""Room for so many more passages, or a quarter of those that there are: most tenants have few, and each its own."""
UNSORTED = 16
"""Passages whose words stand in no order yet."""
_NO_WORDS = (np.zeros(0, np.uint32), np.zeros(0, np.intp), np.zeros(0, np.float32))
_NORMAL = 1e-6
"""How far from 1 the engine lets the square of a length be before it divides a vector by it."""


class Tenant:
    """All passages of one tenant, in rows: their ids, vectors and words."""

    def __init__(self, dimensions: int, missing: Sequence[int]) -> None:
        """*missing* are the points that are there, of which nothing was read yet."""
        self.used = 0.0
        self._centred: tuple[ReferenceType[Centre], Wide] | None = None
        self.passages: list[Passage] = []
        self.points: list[int] = []
        self.row_of: dict[int, int] = {}
        self.missing = list(missing)
        self._vectors: Scores = np.zeros((len(missing), dimensions), dtype=np.float32)
        self._first: dict[str, list[int]] = {}
        self._following: dict[str, list[int]] = {}
        self._words, self._worded, self._weights = _NO_WORDS
        self._fresh: dict[int, tuple[list[int], list[float]]] = {}
        """Of words the rows that stand in no order yet, and their weights."""
        self._unsorted = 0

    def __len__(self) -> int:
        return len(self.points) + len(self.missing)

    def read(self, shard: Any) -> None:
        """Read more of what is missing. Raises `grounding.documents.index.IndexUnavailable` for a stored format that
        is not known."""
        ids, self.missing = self.missing[:READ_AT_ONCE], self.missing[READ_AT_ONCE:]
        for record in shard.retrieve(
            [UUID(int=one) for one in ids], with_payload=True, with_vector=["dense", "sparse"]
        ):
            vectors = record.vector  # once: each time it is made anew, number by number
            words = vectors["sparse"]
            sparse = SparseVector(tuple(words.indices), tuple(words.values))
            self.add(record.id.int, passage_of(record.payload), vectors["dense"], sparse)
        if not self.missing:
            self.sort()

    def add(self, point: int, passage: Passage, dense: Sequence[float], sparse: SparseVector) -> None:
        """One more passage, with its vectors as they are stored or were given."""
        row = len(self.points)
        if row >= len(self._vectors):
            more = max(SPARE_ROWS, row // 4)
            self._vectors = np.concatenate([self._vectors, np.zeros((more, self._vectors.shape[1]), np.float32)])
        self._vectors[row] = _unit(dense)
        self.points.append(point)
        self.row_of[point] = row
        self.passages.append(passage)
        self._first.setdefault(passage.source, []).append(row)
        if passage.previous and not passage.ordinal:
            self._following.setdefault(passage.previous, []).append(row)
        for index, weight in zip(sparse.indices, sparse.values, strict=True):
            rows, weights = self._fresh.setdefault(index, ([], []))
            rows.append(row)
            weights.append(weight)
        self._unsorted += 1
        if self._unsorted > UNSORTED:
            self.sort()

    def sort(self) -> None:
        """Put the words of all passages in their order."""
        indices = [index for index, (rows, _) in self._fresh.items() for _ in rows]
        fresh_rows = [row for rows, _ in self._fresh.values() for row in rows]
        fresh_weights = [weight for _, weights in self._fresh.values() for weight in weights]
        words = np.concatenate([self._words, np.array(indices, np.uint32)])
        order = np.argsort(words, kind="stable")
        self._words = words[order]
        self._worded = np.concatenate([self._worded, np.array(fresh_rows, np.intp)])[order]
        self._weights = np.concatenate([self._weights, np.array(fresh_weights, np.float32)])[order]
        self._fresh, self._unsorted = {}, 0

    def near(self, to: Wide) -> Scores:
        """The cosine of each passage's vector and another one."""
        found: Scores = np.vecdot(self._vectors[: len(self.points)], _unit(to))
        return found

    def worded(self, query: SparseVector) -> tuple[Scores, Rows]:
        """How much of the words of *query* each passage has, by BM25, and which have any.

        How rare a word is: ln((N - n + 0.5) / (n + 0.5) + 1), as in the engine.
        """
        count = len(self.points)
        scores, has = np.zeros(count, np.float32), np.zeros(count, np.bool_)
        asked = np.array(query.indices, np.uint32)
        starts = self._words.searchsorted(asked, "left").tolist()
        ends = self._words.searchsorted(asked, "right").tolist()
        having: list[Rows] = []
        weights: list[Scores] = []
        rare: list[tuple[float, int]] = []
        new_rows: list[int] = []
        new_weights: list[float] = []
        new_rare: list[float] = []
        for index, weight, start, end in zip(query.indices, query.values, starts, ends, strict=True):
            more = self._fresh.get(index)
            found = end - start + (len(more[0]) if more else 0)
            if not found:
                continue
            factor = weight * math.log((count - found + 0.5) / (found + 0.5) + 1)
            if end > start:
                having.append(self._worded[start:end])
                weights.append(self._weights[start:end])
                rare.append((factor, end - start))
            if more:
                new_rows += more[0]
                new_weights += more[1]
                new_rare += [factor] * len(more[0])
        # One word after the other, so that those of each passage are summed in the order of the question's.
        if having:
            factors = np.repeat(np.array([factor for factor, _ in rare], np.float32), [many for _, many in rare])
            rows = np.concatenate(having)
            np.add.at(scores, rows, factors * np.concatenate(weights))
            has[rows] = True
        if new_rows:
            np.add.at(scores, new_rows, np.array(new_rare, np.float32) * np.array(new_weights, np.float32))
            has[new_rows] = True
        return scores, has.nonzero()[0]

    def cosines(self, to: Wide, rows: Sequence[int]) -> list[float]:
        """As `near`, of *rows* alone and exact: those that are weighed, not only put in order."""
        stored = self._vectors[rows].astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", stored, stored) * (to @ to))
        found = np.divide(stored @ to, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        return list(found.tolist())

    def centre(self) -> Centre:
        """See `grounding.documents.edge_kept.Kept.centre`: of the first by their ids."""
        rows = [self.row_of[point] for point in sorted(self.points)[:SAMPLE]]
        mean = self._vectors[rows].astype(np.float64).sum(axis=0) / len(rows) if rows else np.zeros(0)
        return Centre(tuple(mean.tolist()), len(rows))

    def mean_of(self, centre: Centre) -> Wide:
        """The mean of *centre*, which mostly is the one of before; it is not kept from being forgotten."""
        known = self._centred
        if known is None or known[0]() is not centre:
            self._centred = known = ref(centre), np.array(centre.mean, dtype=np.float64)
        return known[1]

    def beside(self, sources: Collection[str], followed: Collection[str]) -> list[Passage]:
        """See `grounding.documents.index.PassageIndex.beside`; each of both by the passages' ids."""
        named = [row for one in sources for row in self._first.get(one, ()) if not self.passages[row].ordinal]
        after = [row for one in followed for row in self._following.get(one, ())]
        return [self.passages[row] for rows in (named, after) for row in sorted(rows, key=self.points.__getitem__)]

    def of_source(self, source: str, ordinals: Collection[int]) -> list[Passage]:
        """The passages of *source* at *ordinals*, in reading order."""
        found = (self.passages[row] for row in self._first.get(source, ()))
        return sorted((one for one in found if one.ordinal in ordinals), key=lambda passage: passage.ordinal)


class Held:
    """The tenants that are held. Whoever changes the index says so."""

    def __init__(
        self,
        dimensions: int,
        most: int = MOST_HELD,
        most_of_one: int = MOST_OF_ONE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dimensions = dimensions
        self._most = most
        self._most_of_one = most_of_one
        self._now = now
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        """Whoever was asked about last stands last."""
        self._passages = 0
        """Of all of them."""

    def of(self, tenant: str) -> Tenant | None:
        """All passages of *tenant*, if they are here."""
        held = self._tenants.get(tenant)
        if held is None or held.missing:
            return None
        held.used = self._now()
        self._tenants.move_to_end(tenant)
        return held

    def ask(self, tenant: str, shard: Any, *, seen: Any, count: int) -> None:
        """*tenant*, about *count* passages of *shard* that meet *seen*, was asked about: read some more of it, if there
        is room. Raises what the engine does."""
        held = self._let_go(tenant)  # a reading that fails may have done half
        if held is None:
            if not 0 < count <= self._most_of_one or not self._makes_room(count):
                return
            held = Tenant(self._dimensions, points_of(shard, seen, self._most_of_one + 1))
            if len(held) > self._most_of_one:
                return
        if held.missing:
            held.read(shard)
        self._hold(tenant, held)

    def _hold(self, tenant: str, held: Tenant) -> None:
        held.used = self._now()
        self._tenants[tenant] = held
        self._passages += len(held)

    def _let_go(self, tenant: str) -> Tenant | None:
        held = self._tenants.pop(tenant, None)
        if held is not None:
            self._passages -= len(held)
        return held

    def _makes_room(self, count: int) -> bool:
        """Whether so many fit, when those have gone that nobody asks about."""
        least = self._now() - IDLE_SECONDS
        while self._passages + count > self._most and self._tenants:
            name, longest = next(iter(self._tenants.items()))
            if longest.used > least:
                return False
            self._let_go(name)
        return self._passages + count <= self._most

    @contextmanager
    def storing(self, entries: Sequence[tuple[str, int, Entry]]) -> Iterator[None]:
        """*entries* of tenants, with their points, are stored in this block. Until it ends well nobody knows what these
        tenants have: an update that fails may have done half."""
        points: dict[str, list[int]] = {}
        for tenant, point, _ in entries:
            points.setdefault(tenant, []).append(point)
        known = {tenant: held for tenant in points if (held := self._let_go(tenant)) is not None}
        growing = {tenant: held for tenant, held in known.items() if self._may_grow(held, points[tenant])}
        yield
        for tenant, point, entry in entries:
            if tenant in growing:
                growing[tenant].add(point, entry.passage, entry.dense, entry.sparse)
        for tenant, held in growing.items():
            self._hold(tenant, held)
        if not self._makes_room(0):
            self.forget(growing)

    def _may_grow(self, held: Tenant, points: Sequence[int]) -> bool:
        """Whether *points* are new. One of which some is still missing may grow, too: whoever talks faster than it is
        read would never have it whole."""
        is_new = held.row_of.keys().isdisjoint(points) and len(set(points)) == len(points)
        is_new = is_new and set(points).isdisjoint(held.missing)
        return is_new and len(held) + len(points) <= self._most_of_one

    def forget(self, tenants: Iterable[str]) -> None:
        """Nobody knows any more what *tenants* have."""
        for tenant in tenants:
            self._let_go(tenant)

    def clear(self) -> None:
        """Forget everything."""
        self._tenants.clear()
        self._passages = 0


def _unit(vector: Sequence[float] | Wide) -> Scores:
    """*vector* as the engine stores it: of length 1, or zero."""
    given = np.asarray(vector, dtype=np.float32)
    square = float(given @ given)
    if square == 0 or abs(square - 1) <= _NORMAL:
        return given
    return given / np.float32(math.sqrt(square))
