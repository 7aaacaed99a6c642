"""What both adapters of the passage index do alike: the steps of a search, and passages to points and back.

An adapter asks its engine; the methods below name what it must be able to do. Points are named by their UUIDs as text.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from connectors.message import Scope
from grounding.retrieval import stored
from grounding.retrieval.bm25 import SparseVector
from grounding.retrieval.embedding import Vector
from grounding.retrieval.index import TIES, Hit, IndexEntry, Kind, Passage, PassageQuery, Source
from grounding.retrieval.ranking import (
    CENTRING,
    DEEPEST,
    FEEDBACK_PASSAGES,
    LOOKED_AGAIN,
    SAMPLE,
    Centre,
    Centres,
    add_feedback,
    blend_neighbours,
    centre_of,
    fuse_arms,
    hits_of,
    second_look,
    subtract_centre,
    with_deepest,
)
from grounding.retrieval.stored import DEEP, PLACE_FIELDS, Where, continues_answer, place_of

T = TypeVar("T")

EVERY = 10_000_000
"""The limit of a request for all points."""
Owned = tuple[Scope, IndexEntry]
"""A passage with its vectors, and the scope that it belongs to."""
Ranking = list[tuple[Any, float]]
"""Points with their scores, best first."""
ArmScores = dict[str, dict[Any, float]]
"""The raw scores of the points that each arm found, best first."""


class QdrantIndex(ABC):
    """A `PassageIndex` under one embedding model, whose engine the subclass asks."""

    upsert_batch: int
    """So many passages are stored in one call."""

    def __init__(
        self, model: str, dimensions: int, timeout_seconds: float, version: int, deep_dimensions: int | None
    ) -> None:
        self._collection = stored.collection_name(model, dimensions, version)
        self._dimensions = dimensions
        self._deep_dimensions = deep_dimensions
        self._timeout_seconds = timeout_seconds
        self.deepens = deep_dimensions is not None
        self._centres = Centres()

    # What an adapter asks its engine. *fields* are those of the payload that are read: all, none, or some.

    @abstractmethod
    async def _upsert(self, entries: Sequence[Owned]) -> None:
        """Store at most ``upsert_batch`` passages."""

    @abstractmethod
    async def _replace(self, entries: Sequence[Owned], stale: Sequence[Where]) -> None:
        """Store at most ``upsert_batch`` passages and delete what is *stale*, in one step if the engine can."""

    @abstractmethod
    async def _delete(self, condition: Where) -> None:
        """Delete the points that meet *condition*."""

    @abstractmethod
    async def _update_vectors(self, vectors: Mapping[str, Vector]) -> int:
        """Give those points that exist a deeper vector, and return how many there are."""

    @abstractmethod
    async def _nearest(
        self,
        vector: Vector | SparseVector,
        name: str,
        condition: Where,
        limit: int,
        *,
        fields: bool | list[str] = False,
        corpus: Where | None = None,
    ) -> Sequence[Any]:
        """Return the points whose vector *name* is nearest to *vector*, best first. How rare a word is, is counted
        within *corpus*: the documents of others have no say in it."""

    @abstractmethod
    async def _retrieve(self, points: Sequence[Any], fields: bool, vectors: Sequence[str] = ()) -> Sequence[Any]:
        """Return those of *points* that exist."""

    @abstractmethod
    async def _scroll(
        self, condition: Where, fields: bool | list[str], limit: int = EVERY, vectors: Sequence[str] = ()
    ) -> Sequence[Any]:
        """Return the first *limit* points that meet *condition*, by their ids."""

    @abstractmethod
    async def _count(self, condition: Where, *, exact: bool) -> int:
        """Return how many points meet *condition*."""

    # The port

    async def upsert(self, scope: Scope, entries: Sequence[IndexEntry]) -> None:
        tenants = {stored.tenant(scope, entry.passage.kind) for entry in entries}
        for batch in self._batches([(scope, entry) for entry in entries]):
            await self._upsert(batch)
        self._forget_centres(tenants)

    async def replace(self, sources: Sequence[Source]) -> None:
        """All batches but the last come first, so that the last step, which readers cannot see halfway, is short."""
        if not sources:
            return
        tenants = {stored.tenant(one.scope, one.kind) for one in sources}
        *batches, last = self._batches([(one.scope, entry) for one in sources for entry in one.entries]) or [[]]
        for batch in batches:
            await self._upsert(batch)
        await self._replace(last, [stored.stale(one) for one in sources])
        self._forget_centres(tenants)

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        tenant, condition = stored.tenant(scope, kind), stored.where(scope, kind, source=source)
        if ids is not None:
            condition = Where(only=stored.point_ids(scope, kind, ids))
        if ids is None or ids:
            await self._delete(condition)
            self._forget_centres([tenant])

    async def drop_workspace(self, scope: Scope) -> None:
        await self._delete(stored.whole_workspace(scope))
        self._centres.clear()

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        tenant, count = stored.tenant(scope, kind), 0
        if self.deepens:
            for batch in self._batches([*zip(stored.point_ids(scope, kind, vectors), vectors.values(), strict=True)]):
                count += await self._update_vectors(dict(batch))
            self._forget_centres([tenant])
        return count

    async def search(self, query: PassageQuery) -> list[Hit]:
        stored.tenant(query.scope, query.kind)  # raises ValueError for a scope that may not hold these
        if not query.arms:
            return []
        if not self.deepens:
            query = replace(query, deep=None)
        found = await asyncio.gather(*(self._ask_arm(query, arm) for arm in query.arms))
        arms = {arm: scores_of(points) for arm, points in zip(query.arms, found, strict=True)}
        ranking = fuse_arms(query, arms)
        if query.deep is not None and query.looks_again:
            ranking = await self._look_again(query, arms, ranking, query.deep)
        ranking = ranking[: query.limit]
        if query.deep is not None and query.compared:
            nearest = scores_of(await self._nearest(query.deep, DEEP, seen(query), DEEPEST))
            ranking = with_deepest(ranking, nearest, query.top_k)
            arms[DEEP] = scores_of(await self._compare(DEEP, query.deep, [point for point, _ in ranking]))
        points = [point for point, _ in ranking]
        passages = {record.id: stored.passage_of(record.payload) for record in await self._retrieve(points, True)}
        cosines: dict[Any, float] = {}
        if query.dense is not None and query.wants_cosines:
            compared = points if query.scores else points[: query.compared + TIES]
            cosines = scores_of(await self._compare("dense", query.dense, compared))
        if query.has_both_arms and query.deep is not None and query.scores and not query.explain:
            arms[DEEP] = scores_of(await self._compare(DEEP, query.deep, points))
        return hits_of(query, ranking, passages, arms, cosines)

    async def _ask_arm(self, query: PassageQuery, arm: str) -> Sequence[Any]:
        """Ask an arm for its candidates."""
        corpus, condition = stored.seen(query.scope, query.kind), seen(query)
        if arm == "sparse":
            assert query.sparse is not None
            return await self._nearest(query.sparse, "sparse", condition, query.candidates, corpus=corpus)
        assert query.dense is not None
        dense = query.dense
        if arm == "near":
            dense = subtract_centre(dense, await self._centre(query, "dense"), CENTRING)
        return await self._nearest(dense, "dense", condition, query.candidates)

    async def _look_again(self, query: PassageQuery, arms: ArmScores, ranking: Ranking, vector: Vector) -> Ranking:
        """Order the best of *ranking* anew by their deeper vectors; *vector* is the question's."""
        points = [point for point, _ in ranking[:LOOKED_AGAIN]]
        best = vectors_of(await self._retrieve(points[:FEEDBACK_PASSAGES], False, [DEEP]), DEEP)
        moved = subtract_centre(add_feedback(vector, best), await self._centre(query, DEEP), CENTRING)
        compared = await self._compare(DEEP, moved, points, fields=[*PLACE_FIELDS])
        if query.explain:
            arms[DEEP] = scores_of(await self._compare(DEEP, vector, points))
        cosines = blend_neighbours(scores_of(compared), {one.id: place_of(one.payload) for one in compared})
        answers = {one.id for one in compared if continues_answer(one.payload)}
        return second_look(ranking, arms["near"], arms["sparse"], cosines, LOOKED_AGAIN, answers)

    async def _compare(
        self, name: str, vector: Vector, points: Sequence[Any], *, fields: bool | list[str] = False
    ) -> list[Any]:
        """Return the *points* whose vector *name* exists and is not zeros, with its cosine to *vector*, best first."""
        if not points:
            return []
        found = await self._nearest(vector, name, Where(only=points), len(points), fields=fields)
        return [point for point in found if point.score]

    async def _centre(self, query: PassageQuery, name: str) -> Centre:
        """Return the centre of the vectors *name* that a search may find, which is remembered for a while."""
        tenant = stored.tenant(query.scope, query.kind)
        known = self._centres.get(tenant, name)
        if known is None:
            sample = await self._scroll(stored.seen(query.scope, query.kind), False, SAMPLE, [name])
            known = await asyncio.to_thread(centre_of, vectors_of(sample, name))
            self._centres.put(tenant, name, known)
        return known

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        found: dict[str, list[Passage]] = {source: [] for source in wanted}
        for source, ordinals in wanted.items():
            if ordinals:
                condition = stored.where(scope, kind, source=source, ordinals=ordinals)
                passages = passages_of(await self._scroll(condition, True))
                found[source] = sorted(passages, key=lambda passage: passage.ordinal)
        return found

    async def neighbours(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        conditions = stored.where_neighbours(scope, kind, sources, followed)
        return [passage for one in conditions for passage in passages_of(await self._scroll(one, True))]

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        if not ids or (deep and not self.deepens):
            return {}
        name = DEEP if deep else "dense"
        names = dict(zip(stored.point_ids(scope, kind, ids), ids, strict=True))
        records = await self._retrieve([*names], False, [name])
        return {names[str(one.id)]: vector[name] for one in records if name in (vector := one.vector or {})}

    async def shallow(self, scope: Scope, kind: Kind, limit: int) -> list[Passage]:
        condition = stored.shallow(scope, kind)
        return passages_of(await self._scroll(condition, True, limit)) if self.deepens and limit > 0 else []

    async def ids(self, scope: Scope, kind: Kind) -> list[str]:
        return sorted([one.payload["id"] for one in await self._scroll(stored.where(scope, kind), ["id"])])

    async def count(self, scope: Scope, kind: Kind, *, shallow: bool = False, exact: bool = True) -> int:
        if shallow and not self.deepens:
            return 0
        condition = stored.shallow(scope, kind) if shallow else stored.where(scope, kind)
        return await self._count(condition, exact=exact)

    def _batches(self, items: Sequence[T]) -> list[Sequence[T]]:
        return [items[start : start + self.upsert_batch] for start in range(0, len(items), self.upsert_batch)]

    def _forget_centres(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            self._centres.forget(tenant)


def seen(query: PassageQuery) -> Where:
    """Return the condition for what *query* may find."""
    return stored.seen(query.scope, query.kind, only=query.only_sources)


def passages_of(records: Iterable[Any]) -> list[Passage]:
    """Return the passages of an engine's *records*, in their order."""
    return [stored.passage_of(record.payload) for record in records]


def scores_of(points: Iterable[Any]) -> dict[Any, float]:
    """Return the scores of an engine's *points*, in their order."""
    return {point.id: point.score for point in points}


def vectors_of(records: Iterable[Any], name: str) -> list[Vector]:
    """Return the vectors *name* of those of *records* that have one; deeper ones of zeros, which stand for none, are
    left out."""
    vectors = ((record.vector or {}).get(name) for record in records)
    return [vector for vector in vectors if vector is not None and (name != DEEP or any(vector))]
