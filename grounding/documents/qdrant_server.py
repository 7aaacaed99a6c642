"""The passage index on a Qdrant server or cluster.

With `grounding.documents.server_queries`, `server_deeper` and `server_errors` the only module that imports
``qdrant_client``: its import takes more than half a second, and is paid only where ``QDRANT_URL`` is set. It is tested
against the client's own local mode, which has the same classes but no network, and against a refused connection; not
against a real server.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import structlog
from qdrant_client import AsyncQdrantClient, models

from connectors.message import Scope
from grounding.documents import stored
from grounding.documents.arms import TIES, hits_of
from grounding.documents.centre import SAMPLE, Centre, Centres, centre_of, deeper, off_centre
from grounding.documents.embedding import Vector
from grounding.documents.fusing import absent, by_scores, may_say_little, merged, says_little
from grounding.documents.index import AskDeep, Entry, Fusion, Hit, IndexUnavailable, Kind, Passage, Source, cosine
from grounding.documents.server_deeper import Look, deep_of, deepen, has_room, look_again
from grounding.documents.server_errors import ERRORS, unavailable
from grounding.documents.server_queries import (
    FIELDS,
    UPSERT_BATCH,
    best_of,
    dense_arm,
    dense_of,
    filter_of,
    in_batches,
    nearest,
    points_of,
    sparse_arm,
    stale,
    version_told,
)
from grounding.documents.server_version import cannot_be_used, too_old
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import Where

T = TypeVar("T")
log = structlog.get_logger()

SCROLL_BATCH = 1000


class ServerIndex:
    """`PassageIndex` over a Qdrant server; ``client`` is handed in by tests."""

    def __init__(
        self,
        url: str,
        model: str,
        dimensions: int,
        *,
        timeout_seconds: float,
        api_key: str | None = None,
        fusion: Fusion | None = None,
        version: int = stored.PAYLOAD_VERSION,
        deep_dimensions: int | None = None,
        client: AsyncQdrantClient | None = None,
    ) -> None:
        self._collection = stored.collection_name(model, dimensions, version)
        self._dimensions = dimensions
        self._deep_dimensions = deep_dimensions
        self.deepens, self.too_old = deep_dimensions is not None, ""
        self._place = url
        self._timeout_seconds = timeout_seconds
        self._fusion = fusion or Fusion()
        self._api_key = api_key
        self._made = client
        self._closed = False
        self._centres = Centres()

    async def _client(self) -> AsyncQdrantClient:
        """The client, made on first use in a thread: making it reads package metadata from disk."""
        if self._closed:
            raise IndexUnavailable("the search index is closed")
        if self._made is None:
            try:
                self._made = await asyncio.to_thread(
                    AsyncQdrantClient,
                    url=self._place,
                    api_key=self._api_key,
                    timeout=math.ceil(self._timeout_seconds),
                    check_compatibility=False,
                )
            except tuple(kind for kind, _, _ in ERRORS) as error:
                raise unavailable(error, self._place) from error
        return self._made

    async def _ask(self, answer: Awaitable[T]) -> T:
        try:
            # No wait_for: before Python 3.12 it loses a cancellation that comes as the answer does.
            async with asyncio.timeout(self._timeout_seconds):
                return await answer
        except tuple(kind for kind, _, _ in ERRORS) as error:
            raise unavailable(error, self._place) from error

    async def ensure(self) -> None:
        version = await self._ask(version_told(await self._client()))
        if why := cannot_be_used(version):
            raise IndexUnavailable(f"the Qdrant server at {self._place} {why}", retryable=False)
        self.too_old = too_old(version)
        if self.too_old:
            log.warning("store.degraded", store="qdrant", why=self.too_old)
        if not await self._ask((await self._client()).collection_exists(self._collection)):
            try:
                sizes = {"dense": self._dimensions, stored.DEEP: self._deep_dimensions}
                await self._ask(
                    (await self._client()).create_collection(
                        self._collection,
                        vectors_config={
                            name: models.VectorParams(size=size, distance=models.Distance.COSINE)
                            for name, size in sizes.items()
                            if size is not None
                        },
                        sparse_vectors_config={"sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)},
                    )
                )
            except IndexUnavailable:
                # Another process may have made it in between; if not, this was a real failure.
                if not await self._ask((await self._client()).collection_exists(self._collection)):
                    raise
        present = (await self._ask((await self._client()).get_collection(self._collection))).payload_schema
        for name, schema in FIELDS.items():
            if name not in present:
                await self._ask((await self._client()).create_payload_index(self._collection, name, schema))
        if self._deep_dimensions is not None:
            self.deepens = await self._ask(has_room(await self._client(), self._collection, self._deep_dimensions))

    async def upsert(self, scope: Scope, entries: Sequence[Entry]) -> None:
        for kind in {entry.passage.kind for entry in entries}:
            stored.where(scope, kind)  # A scope that may not hold these is refused before anything is stored.
        for batch in in_batches([(scope, entry) for entry in entries]):
            await self._ask((await self._client()).upsert(self._collection, points_of(batch), wait=True))
        for entry in entries:
            self._centres.changed(stored.tenant(scope, entry.passage.kind), 1)

    async def replace(self, sources: Sequence[Source]) -> None:
        """The new passages are stored before the old ones go, in one request where they fit in one batch:
        the sources are always found, and for an instant both versions may be."""
        if not sources:
            return
        deletions = [models.DeleteOperation(delete=models.FilterSelector(filter=stale(one))) for one in sources]
        batches = list(in_batches([(one.scope, entry) for one in sources for entry in one.entries]))
        for batch in batches[:-1]:
            await self._ask((await self._client()).upsert(self._collection, points_of(batch), wait=True))
        operations: list[Any] = [
            models.UpsertOperation(upsert=models.PointsList(points=points_of(batch))) for batch in batches[-1:]
        ]
        operations += deletions
        await self._ask((await self._client()).batch_update_points(self._collection, operations, wait=True))
        for one in sources:
            self._centres.changed(stored.tenant(one.scope, one.kind), max(len(one.entries), 1))

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        tenant = stored.tenant(scope, kind)
        selector: Any
        if ids is None:
            selector = models.FilterSelector(filter=filter_of(stored.where(scope, kind, source=source)))
        elif ids:
            selector = models.PointIdsList(points=[*stored.point_ids(scope, kind, ids)])
        else:
            return
        await self._ask((await self._client()).delete(self._collection, selector, wait=True))
        if ids or source is not None:
            self._centres.changed(tenant, 1 if ids is None else len(ids))
        else:
            self._centres.forget(tenant)

    async def drop_workspace(self, scope: Scope) -> None:
        selector = models.FilterSelector(filter=filter_of(stored.whole_workspace(scope)))
        await self._ask((await self._client()).delete(self._collection, selector, wait=True))
        self._centres.clear()

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
        condition = filter_of(stored.seen(scope, kind, only=only_sources))
        corpus = filter_of(stored.seen(scope, kind))
        arms = {
            name: arm
            for name, arm in (("dense", dense_arm(dense)), ("sparse", sparse_arm(sparse, corpus)))
            if arm is not None
        }
        if not arms or top_k < 1:
            return []
        is_judged = len(arms) == 2 and may_say_little(self._fusion, kind)  # by what words alone find
        apart = [name for name in arms if explain or (name == "sparse" and (scores or is_judged))]
        cosines = dense if (scores or compared) and not explain else None
        fused_arms = dict(arms)
        if dense is not None and "sparse" in arms and self._fusion.centring:
            centre = await self._centre(stored.tenant(scope, kind), corpus)
            fused_arms["dense"] = nearest(off_centre(dense, centre, self._fusion.centring))
        near = None if cosines is None else lambda point: cosine(cosines, dense_of(point))
        most = None if scores else compared
        if deep is not None and self.deepens and len(arms) == 2:
            asked = {"near": fused_arms["dense"], **(arms if explain else {"sparse": arms["sparse"]})}
            centre = await self._centre(stored.tenant(scope, kind), corpus, stored.DEEP)
            look = Look(deep, centre, self._fusion, condition, top_k + TIES)
            best, every = await self._ask(
                look_again(await self._client(), self._collection, asked, look, tells=explain)
            )
            shown = {name: found for name, found in every.items() if name != "near" and (explain or scores)}
            return hits_of(best, shown, top_k, explain=explain, cosine_of=near, compared=most)
        requests = [
            best_of([*fused_arms.values()], self._fusion, condition, top_k + TIES, vector=cosines is not None),
            *(
                models.QueryRequest(**arms[name], filter=condition, limit=self._fusion.candidates, with_payload=False)
                for name in apart
            ),
        ]
        answers = await self._ask((await self._client()).query_batch_points(self._collection, requests))
        found: list[Sequence[Any]] = [answer.points for answer in answers]
        if is_judged and says_little(self._fusion, kind, len(found[-1])):
            found[0] = await self._fused(fused_arms["dense"], found[-1], found[0], condition, top_k + TIES)
        told = dict(zip(apart, found[1:], strict=True)) if explain or scores else {}
        return hits_of(found[0], told, top_k, explain=explain, cosine_of=near, compared=most)

    async def _fused(
        self,
        dense: dict[str, Any],
        worded: Sequence[Any],
        there: Sequence[Any],
        condition: models.Filter,
        top_k: int,
    ) -> Sequence[Any]:
        """The best points where few have any of the words; see `grounding.documents.fusing`."""
        client, most = await self._client(), self._fusion.candidates
        answer = await self._ask(
            client.query_points(self._collection, **dense, query_filter=condition, limit=most, with_payload=False)
        )
        best = by_scores({one.id: one.score for one in answer.points}, {one.id: one.score for one in worded}, top_k)
        missing = absent(best, there)
        more = (
            await self._ask(client.retrieve(self._collection, missing, with_payload=True, with_vectors=["dense"]))
            if missing
            else ()
        )
        return merged(best, there, more)

    async def _centre(self, tenant: str, corpus: models.Filter, vector: str = "dense") -> Centre:
        """The first request of a tenant's first search, and of one now and then; it is remembered."""
        name = tenant if vector == "dense" else deeper(tenant)
        known = self._centres.of(name)
        if known is None:
            records, _ = await self._ask(
                (await self._client()).scroll(
                    self._collection, scroll_filter=corpus, limit=SAMPLE, with_payload=False, with_vectors=[vector]
                )
            )
            vectors = deep_of(records) if vector == stored.DEEP else [dense_of(record) for record in records]
            known = await asyncio.to_thread(centre_of, vectors)
            self._centres.put(name, known)
        return known

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        async def found(source: str, ordinals: Collection[int]) -> list[Passage]:
            if not ordinals:
                return []
            condition = filter_of(stored.where(scope, kind, source=source, ordinals=ordinals))
            return stored.in_reading_order([record async for record in self._scroll(condition, True)])

        passages = await asyncio.gather(*(found(source, ordinals) for source, ordinals in wanted.items()))
        return dict(zip(wanted, passages, strict=True))

    async def beside(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        async def found(condition: Where) -> list[Passage]:
            return stored.in_reading_order([record async for record in self._scroll(filter_of(condition), True)])

        passages = await asyncio.gather(*map(found, stored.where_beside(scope, kind, sources, followed)))
        return [one for some in passages for one in some]

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        if not ids or (deep and not self.deepens):
            return {}
        name = stored.DEEP if deep else "dense"
        names = dict(zip(stored.point_ids(scope, kind, ids), ids, strict=True))
        records = await self._ask(
            (await self._client()).retrieve(self._collection, list(names), with_payload=False, with_vectors=[name])
        )
        return {names[str(record.id)]: dense_of(record, name) for record in records if name in (record.vector or {})}

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        points = [*zip(stored.point_ids(scope, kind, vectors), vectors.values(), strict=True)]
        if not self.deepens:
            return 0
        batches = [dict(points[start : start + UPSERT_BATCH]) for start in range(0, len(points), UPSERT_BATCH)]
        client = await self._client()
        given = sum([await self._ask(deepen(client, self._collection, batch)) for batch in batches])
        self._centres.deepened(stored.tenant(scope, kind), given)
        return given

    async def shallow(self, scope: Scope, kind: Kind, limit: int, *, source: str | None = None) -> list[Passage]:
        condition = filter_of(stored.shallow(scope, kind, source))
        if not self.deepens or limit < 1:
            return []
        records, _ = await self._ask(
            (await self._client()).scroll(
                self._collection, scroll_filter=condition, limit=limit, with_payload=True, with_vectors=False
            )
        )
        return [stored.passage_of(record.payload) for record in records]

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        condition = filter_of(stored.shallow(scope, kind))
        if not self.deepens:
            return 0
        return (await self._ask((await self._client()).count(self._collection, count_filter=condition))).count

    async def ids(self, scope: Scope, kind: Kind, source: str | None = None) -> list[str]:
        condition = filter_of(stored.where(scope, kind, source=source))
        return sorted([(record.payload or {})["id"] async for record in self._scroll(condition, ["id"])])

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        condition = filter_of(stored.where(scope, kind))
        return dict(Counter([(record.payload or {})["source"] async for record in self._scroll(condition, ["source"])]))

    async def _scroll(self, condition: models.Filter, with_payload: bool | list[str]) -> AsyncIterator[models.Record]:
        offset: Any = None
        while True:
            records, offset = await self._ask(
                (await self._client()).scroll(
                    self._collection,
                    scroll_filter=condition,
                    limit=SCROLL_BATCH,
                    offset=offset,
                    with_payload=with_payload,
                    with_vectors=False,
                )
            )
            for record in records:
                yield record
            if offset is None:
                return

    async def count(self, scope: Scope, kind: Kind) -> int:
        return await self._counted(scope, kind, exact=True)

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        if kind is Kind.RECORD:  # whoever asks wants to know whether they are still there
            return await self._counted(scope, kind, exact=False)
        tenant = stored.tenant(scope, kind)
        return await self._centres.size_of(tenant, lambda: self._counted(scope, kind, exact=False))

    async def _counted(self, scope: Scope, kind: Kind, *, exact: bool) -> int:
        wanted = filter_of(stored.where(scope, kind))
        return (await self._ask((await self._client()).count(self._collection, count_filter=wanted, exact=exact))).count

    async def check(self) -> None:
        await self._ask((await self._client()).get_collection(self._collection))

    async def exists(self) -> bool:
        return bool(await self._ask((await self._client()).collection_exists(self._collection)))

    async def drop(self) -> None:
        if await self.exists():
            await self._ask((await self._client()).delete_collection(self._collection))
        await self.close()

    async def close(self) -> None:
        if self._closed:
            return
        try:
            if self._made is not None:
                await self._ask((await self._client()).close())
        except IndexUnavailable as error:
            log.warning("store.degraded", store="qdrant", why=str(error))
        finally:
            self._closed, self._made = True, None
