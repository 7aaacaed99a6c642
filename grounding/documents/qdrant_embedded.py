"""The passage index inside this process: one Qdrant Edge shard per embedding model under DATA_DIR, and one for each
large tenant.

How the engine is asked: `grounding.documents.edge_engine`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

import qdrant_edge as edge

from connectors.message import Scope
from grounding.documents import edge_looking, stored
from grounding.documents.centre import Centres
from grounding.documents.edge_engine import EdgeEngine
from grounding.documents.edge_held import Tenant
from grounding.documents.edge_kept import Named
from grounding.documents.edge_queries import (
    count_of,
    entry_of,
    filter_of,
    point_of,
    points_of,
    scroll,
    scroll_ids,
)
from grounding.documents.edge_search import EdgeSearch
from grounding.documents.edge_shard import LEAST_FREE_BYTES, LEAST_FREE_TO_DELETE_BYTES, ensure_fields, ensure_room
from grounding.documents.embedding import Vector
from grounding.documents.index import AskDeep, Entry, Fusion, Hit, Kind, Passage, Source
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import Where

UPSERT_BATCH = 32
"""The engine holds the interpreter's lock while it stores a batch, and the event loop waits as long: 4 ms of processor
time for 64 passages, 2 for 32, which cost no more each (8 cost 1.5 times as much)."""


class EmbeddedIndex(EdgeEngine):
    """`PassageIndex` over a Qdrant Edge shard in *folder*, for one embedding model (and, only to be dropped, of an
    earlier *version* of payloads)."""

    def __init__(
        self,
        folder: Path,
        model: str,
        dimensions: int,
        *,
        timeout_seconds: float,
        fusion: Fusion | None = None,
        version: int = stored.PAYLOAD_VERSION,
        deep_dimensions: int | None = None,
        holds: bool = True,
    ) -> None:
        """Without *holds* small tenants are not held in memory: whoever asks does that."""
        path = folder / stored.collection_name(model, dimensions, version)
        super().__init__(path, dimensions, deep_dimensions, timeout_seconds, holds=holds)
        self.deepens, self.too_old = deep_dimensions is not None, ""
        self._fusion = fusion or Fusion()
        self._centres = Centres()

    async def ensure(self) -> None:
        await self._run(ensure_fields)

    async def upsert(self, scope: Scope, entries: Sequence[Entry]) -> None:
        for kind in {entry.passage.kind for entry in entries}:
            stored.where(scope, kind)  # A scope that may not hold these is refused before anything is stored.
        for batch in _batches([(scope, entry) for entry in entries]):
            await self._run(partial(self._upsert, entries=batch))
        for kind, count in Counter(entry.passage.kind for entry in entries).items():
            self._centres.changed(stored.tenant(scope, kind), count)

    async def replace(self, sources: Sequence[Source]) -> None:
        await self.replaced(sources)

    async def replaced(self, sources: Sequence[Source]) -> set[str]:
        """As `replace`; the tenants of which passages were deleted by it."""
        if not sources:
            return set()
        stored.where_any(sources)  # a scope that may not hold these is refused here
        # All but the last batch come before, so that the last step, which readers cannot see halfway, is short.
        batches = list(_batches([(one.scope, entry) for one in sources for entry in one.entries]))
        for batch in batches[:-1]:
            await self._run(partial(self._upsert, entries=batch))

        def finish(shard: Any) -> set[str]:
            worn: set[str] = set()
            if batches:
                self._upsert(shard, batches[-1])
            keep = {stored.point_id(one.scope, entry.passage) for one in sources for entry in one.entries}
            shared = [one for one in sources if self._own.of(stored.tenant(one.scope, one.kind)) is None]
            apart = [one for one in sources if one not in shared]
            if shared and keep.issuperset(scroll_ids(shard, stored.where_any(shared))):  # mostly they are new
                shared = []
            for one in (*shared, *apart):
                condition = stored.where(one.scope, one.kind, source=one.name)
                tenant = stored.tenant(one.scope, one.kind)
                stale = [point for point in scroll_ids(self._own.of(tenant) or shard, condition) if point not in keep]
                if stale:
                    self._delete(shard, stale, tenant)
                    worn.add(tenant)
            return worn

        worn = await self._run(finish)
        for one in sources:
            self._centres.changed(stored.tenant(one.scope, one.kind), max(len(one.entries), 1))
        return worn

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        tenant = stored.tenant(scope, kind)
        if ids is None:
            await self._delete_where(stored.where(scope, kind, source=source))
        elif ids:
            await self._run(partial(self._delete, points=stored.point_ids(scope, kind, ids), tenant=tenant))
        else:
            return
        if ids or source is not None:
            self._centres.changed(tenant, 1 if ids is None else len(ids))
        else:
            self._centres.forget(tenant)

    async def drop_workspace(self, scope: Scope) -> None:
        await self._delete_where(stored.whole_workspace(scope))
        self._centres.clear()

    async def _delete_where(self, condition: Where) -> None:
        first = condition.must[0]

        def deleted(shard: Any) -> None:
            ensure_room(self._path, LEAST_FREE_TO_DELETE_BYTES)
            self._kept.clear()
            self._held_whole.forget(map(str, first.values)) if first.key == "tenant" else self._held_whole.clear()
            self._own.delete_where(shard, condition)

        await self._run(deleted)

    def _upsert(self, shard: Any, entries: Sequence[tuple[Scope, Entry]]) -> None:
        ensure_room(self._path, LEAST_FREE_BYTES)
        points = [point_of(scope, entry) for scope, entry in entries]
        ids = [point.id.int for point in points]
        self._kept.forget(ids)  # first: an update that fails may have done half
        tenants = [stored.tenant(scope, entry.passage.kind) for scope, entry in entries]
        self._kept.begin_anew(zip(tenants, (entry.passage for _, entry in entries), strict=True))
        with self._held_whole.storing(list(zip(tenants, ids, (entry for _, entry in entries), strict=True))):
            self._own.upsert(shard, list(zip(tenants, points, strict=True)))
        for tenant in dict.fromkeys(tenants):
            if self._own.has_grown(shard, tenant):
                self._move(tenant)

    def _delete(self, shard: Any, points: Sequence[str], tenant: str) -> None:
        ensure_room(self._path, LEAST_FREE_TO_DELETE_BYTES)
        ids = [UUID(point) for point in points]
        self._kept.forget([point.int for point in ids])
        self._held_whole.forget([tenant])
        self._own.delete(shard, tenant, ids)

    async def search(
        self,
        scope: Scope,
        kind: Kind,
        dense: Vector | None,
        sparse: SparseVector | None,
        top_k: int,
        *,
        explain: bool = False,
        scores: bool = False,
        compared: int = 0,
        only_sources: Sequence[str] = (),
        deep: AskDeep | None = None,
    ) -> list[Hit]:
        again = deep is not None and self.deepens and dense is not None and sparse is not None
        given = EdgeSearch(
            scope, kind, dense, sparse, top_k, explain, scores, compared, only_sources, self._fusion, again
        )
        if (dense is None and sparse is None) or top_k < 1:
            return []
        seen = stored.seen(scope, kind)
        if deep is not None and again:
            first = await self._look(
                seen,
                lambda shard: self._among(given, shard).first_look(shard, self._centres, self._kept),
                most=lambda: given.short(self._centres),
            )
            await asyncio.sleep(0)  # else both looks are one hold of the loop where the vector is there already
            vector = await deep()
            # It takes 1 ms, however many there are, for a hundred are compared.
            return await self._look(seen, lambda shard: given.second_look(shard, first, vector, self._kept), most=None)
        is_here = edge_looking.is_answered_here(given)
        return await self._look(
            seen,
            lambda shard: self._among(given, shard).answered(shard, self._centres, self._kept),
            (lambda held: edge_looking.answered(given, held, self._centres)) if is_here else None,
            lambda: given.short(self._centres),
        )

    def _among(self, given: EdgeSearch, shard: Any) -> EdgeSearch:
        """*given* as *shard*, which answers it, is to be asked."""
        return given.among(
            alone=shard is not self._shard, worn=self._own.is_worn(stored.tenant(given.scope, given.kind))
        )

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        conditions = {
            source: stored.where(scope, kind, source=source, ordinals=ordinals)
            for source, ordinals in wanted.items()
            if ordinals
        }

        def found(shard: Any) -> dict[str, list[Passage]]:
            return dict(zip(conditions, self._passages(shard, [*conditions.values()]), strict=True))

        def here(held: Tenant) -> dict[str, list[Passage]]:
            return {source: held.of_source(source, wanted[source]) for source in conditions}

        by_source = await self._look(stored.where(scope, kind), found, here) if conditions else {}
        return {source: sorted(by_source.get(source, ()), key=lambda passage: passage.ordinal) for source in wanted}

    def _passages(self, shard: Any, conditions: Iterable[Where]) -> list[list[Passage]]:
        """Those that meet each of *conditions*; what is not kept is read of all at once."""
        points = [[record.id.int for record in scroll(shard, one, with_payload=False)] for one in conditions]
        known = self._kept.passages(shard, [*chain.from_iterable(points)])
        return [[known[point] for point in some if point in known] for some in points]

    async def beside(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        seen, tenant = stored.where(scope, kind), stored.tenant(scope, kind)
        if not sources and not followed:
            return []

        def begin(shard: Any, by: Named, names: Collection[str]) -> list[Passage]:
            def ask(lacking: list[str]) -> list[int]:
                of = {"sources": lacking, "followed": ()} if by == "source" else {"sources": (), "followed": lacking}
                (condition,) = stored.where_beside(scope, kind, **of)
                return [record.id.int for record in scroll(shard, condition, with_payload=False)]

            return self._kept.beginnings(shard, tenant, by, names, ask)

        def found(shard: Any) -> list[Passage]:
            return [*begin(shard, "source", sources), *begin(shard, "previous", followed)]

        return await self._look(seen, found, lambda held: held.beside(sources, followed))

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        if not ids or (deep and not self.deepens):
            return {}
        stored.where(scope, kind)  # a scope that may not hold these is refused here
        name = stored.DEEP if deep else "dense"

        def read(shard: Any) -> dict[str, Vector]:
            names = dict(zip(stored.point_ids(scope, kind, ids), ids, strict=True))
            records = shard.retrieve(list(names), with_payload=False, with_vector=[name])
            return {names[str(record.id)]: list(record.vector[name]) for record in records if name in record.vector}

        return await self._run(read, stored.tenant(scope, kind))

    async def points(self, scope: Scope, kind: Kind, most: int) -> list[int]:
        """The points of the first *most* passages, UUIDs as numbers."""
        condition = stored.where(scope, kind)
        return await self._look(condition, lambda shard: points_of(shard, filter_of(condition), most))

    async def entries(self, scope: Scope, kind: Kind, points: Sequence[int]) -> list[tuple[int, Entry]]:
        """The passages at *points*, as far as they exist, with their quick vectors and words."""

        def read(shard: Any) -> list[tuple[int, Entry]]:
            ids = [UUID(int=point) for point in points]
            records = shard.retrieve(ids, with_payload=True, with_vector=["dense", "sparse"])
            return [(record.id.int, entry_of(record)) for record in records]

        return await self._look(stored.where(scope, kind), read)

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        if not self.deepens:
            return 0
        points = [*zip(stored.point_ids(scope, kind, vectors), vectors.values(), strict=True)]
        batches = [dict(points[start : start + UPSERT_BATCH]) for start in range(0, len(points), UPSERT_BATCH)]
        tenant = stored.tenant(scope, kind)

        def give(shard: Any, batch: Mapping[str, Vector]) -> int:
            ensure_room(self._path, LEAST_FREE_BYTES)
            return self._own.deepen(shard, tenant, batch)

        given = sum([await self._run(partial(give, batch=batch)) for batch in batches])
        self._centres.deepened(tenant, given)
        return given

    async def shallow(self, scope: Scope, kind: Kind, limit: int, *, source: str | None = None) -> list[Passage]:
        condition = stored.shallow(scope, kind, source)
        if not self.deepens or limit < 1:
            return []

        def found(shard: Any) -> list[Passage]:
            request = edge.ScrollRequest(limit=limit, filter=filter_of(condition), with_payload=True, with_vector=False)
            return [stored.passage_of(record.payload) for record in shard.scroll(request)[0]]

        return await self._run(found, stored.tenant(scope, kind))

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        condition = stored.shallow(scope, kind)
        if not self.deepens:
            return 0
        request = edge.CountRequest(exact=True, filter=filter_of(condition))
        return int(await self._look(condition, lambda shard: shard.count(request)))

    async def ids(self, scope: Scope, kind: Kind, source: str | None = None) -> list[str]:
        condition = stored.where(scope, kind, source=source)

        def found(shard: Any) -> list[str]:
            return sorted(record.payload["id"] for record in scroll(shard, condition, with_payload=["id"]))

        return await self._run(found, stored.tenant(scope, kind))

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        condition = stored.where(scope, kind)

        def found(shard: Any) -> dict[str, int]:
            records = list(scroll(shard, condition, with_payload=[*stored.PLACE_FIELDS]))
            if kind is Kind.DOCUMENT:  # all are looked through at a start: no search has to read them again
                self._kept.put_places(records)
            return dict(Counter(record.payload["source"] for record in records))

        return await self._run(found, stored.tenant(scope, kind))

    async def count(self, scope: Scope, kind: Kind) -> int:
        return await self._counted(scope, kind, exact=True)

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        if kind is Kind.RECORD:  # whoever asks wants to know whether they are still there
            return await self._counted(scope, kind, exact=False)
        tenant = stored.tenant(scope, kind)
        return await self._centres.size_of(tenant, lambda: self._counted(scope, kind, exact=False))

    async def _counted(self, scope: Scope, kind: Kind, *, exact: bool) -> int:
        condition = stored.where(scope, kind)
        wanted = filter_of(condition)

        def counted(shard: Any) -> int:
            if shard is not self._shard:  # one of its own: all is the tenant's, and how much that is the engine knows
                return count_of(shard, None)
            return int(shard.count(edge.CountRequest(exact=exact, filter=wanted)))

        return await self._look(condition, counted)

    async def check(self) -> None:
        await self._run(lambda shard: shard.info())


def _batches(entries: Sequence[tuple[Scope, Entry]]) -> Iterator[Sequence[tuple[Scope, Entry]]]:
    for start in range(0, len(entries), UPSERT_BATCH):
        yield entries[start : start + UPSERT_BATCH]
