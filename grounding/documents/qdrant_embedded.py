"""The passage index inside this process: one Qdrant Edge shard per embedding model under DATA_DIR.

The engine's calls run one after the other, so that a replacement is atomic for our readers: on one thread of their own,
but for looks into few passages (`SHORT_PASSAGES`). ``optimize()`` is never called (docs/decisions/0030).
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import qdrant_edge as edge
import structlog

from connectors.message import Scope
from grounding.documents import edge_looking, stored
from grounding.documents.centre import Centres
from grounding.documents.edge_errors import unavailable
from grounding.documents.edge_held import Held, Tenant
from grounding.documents.edge_kept import Kept
from grounding.documents.edge_queries import filter_of, point_of
from grounding.documents.edge_search import SHORT_PASSAGES, EdgeSearch
from grounding.documents.edge_shard import deepen, ensure_fields, is_there, opened
from grounding.documents.embedding import Vector
from grounding.documents.index import AskDeep, Entry, Fusion, Hit, IndexUnavailable, Kind, Passage, Source
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import Where

T = TypeVar("T")
Call = Callable[[Any], T]
Here = Callable[[Tenant], T]
log = structlog.get_logger()

UPSERT_BATCH = 32
"""The engine holds the interpreter's lock while it stores a batch, and the event loop waits as long: 4 ms of processor
time for 64 passages, 2 for 32, which cost no more each (8 cost 1.5 times as much)."""
SCROLL_BATCH = 1000


class EmbeddedIndex:
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
    ) -> None:
        self._path = folder / stored.collection_name(model, dimensions, version)
        self._dimensions = dimensions
        self._deep_dimensions = deep_dimensions
        self.deepens, self.too_old = deep_dimensions is not None, ""
        self._timeout_seconds = timeout_seconds
        self._fusion = fusion or Fusion()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qdrant-edge")
        self._shard: Any = None
        self._closed = False
        self._centres = Centres()
        self._kept = Kept()
        self._held_whole = Held(dimensions)
        self._engine = threading.Lock()

    async def _look(
        self, seen: Where, call: Call[T], here: Here[T] | None = None, most: int | None = SHORT_PASSAGES
    ) -> T:
        """*call*, which only reads what meets *seen*: at once where that is at most about *most* passages (None for
        any number), and the engine has nothing else to do. Without the engine, by *here*, where *seen* is one tenant
        that is held whole."""
        if self._shard is not None and not self._closed and self._engine.acquire(blocking=False):
            try:
                tenant = str(seen.must[0].values[0])
                if here is not None and (held := self._held_whole.of(tenant)) is not None:
                    return here(held)
                if most is None:
                    return self._held(call, opens=False)
                wanted = filter_of(seen)
                count = self._held(partial(_count, seen=wanted), opens=False)
                if count <= most:
                    if here is not None:
                        self._held(partial(self._held_whole.ask, tenant, seen=wanted, count=count), opens=False)
                    return self._held(call, opens=False)
            finally:
                self._engine.release()
        return await self._run(call)

    async def _run(self, call: Callable[[Any], T], *, opens: bool = True) -> T:
        """*call* with the open shard, on the engine's thread; nothing at all where it is not open and may not be."""
        if self._closed:
            raise IndexUnavailable("the search index is closed")
        try:
            # No wait_for: before Python 3.12 it loses a cancellation that comes as the work ends.
            async with asyncio.timeout(self._timeout_seconds):
                return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, call, opens)
        except TimeoutError as error:
            raise IndexUnavailable(f"the search index took longer than {self._timeout_seconds} s") from error

    def _call(self, call: Callable[[Any], T], opens: bool) -> T:
        with self._engine:
            return self._held(call, opens)

    def _held(self, call: Callable[[Any], T], opens: bool) -> T:
        """*call*, while nobody else uses the engine."""
        try:
            if self._shard is None:
                if not opens:
                    return cast("T", None)
                self._shard = opened(self._path, self._dimensions, self._deep_dimensions)
            return call(self._shard)
        except (IndexUnavailable, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # The engine has no classes of errors; all of them go through the table. Where it panics over damaged
            # files, what it raises is not even an Exception, and would end the process.
            raise unavailable(error, self._path) from error

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
        if not sources:
            return
        anything = stored.where_any(sources)
        # All but the last batch come before, so that the last step, which readers cannot see halfway, is short.
        batches = list(_batches([(one.scope, entry) for one in sources for entry in one.entries]))
        for batch in batches[:-1]:
            await self._run(partial(self._upsert, entries=batch))

        def finish(shard: Any) -> None:
            if batches:
                self._upsert(shard, batches[-1])
            keep = {stored.point_id(one.scope, entry.passage) for one in sources for entry in one.entries}
            if keep.issuperset(_scroll_ids(shard, anything)):  # mostly they are new
                return
            for one in sources:
                condition = stored.where(one.scope, one.kind, source=one.name)
                stale = [point for point in _scroll_ids(shard, condition) if point not in keep]
                if stale:
                    self._delete(shard, stale, stored.tenant(one.scope, one.kind))

        await self._run(finish)
        for one in sources:
            self._centres.changed(stored.tenant(one.scope, one.kind), max(len(one.entries), 1))

    async def delete(self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] = ()) -> None:
        if ids:
            points = stored.point_ids(scope, kind, ids)
            await self._run(partial(self._delete, points=points, tenant=stored.tenant(scope, kind)))
        else:
            await self._delete_where(stored.where(scope, kind, source=source))
        if ids or source is not None:
            self._centres.changed(stored.tenant(scope, kind), max(len(ids), 1))
        else:
            self._centres.forget(stored.tenant(scope, kind))

    async def drop_workspace(self, scope: Scope) -> None:
        await self._delete_where(stored.whole_workspace(scope))
        self._centres.clear()

    async def _delete_where(self, condition: Where) -> None:
        delete = edge.UpdateOperation.delete_points_by_filter(filter_of(condition))
        first = condition.must[0]

        def deleted(shard: Any) -> None:
            self._kept.clear()
            self._held_whole.forget(map(str, first.values)) if first.key == "tenant" else self._held_whole.clear()
            shard.update(delete)

        await self._run(deleted)

    def _upsert(self, shard: Any, entries: Sequence[tuple[Scope, Entry]]) -> None:
        points = [point_of(scope, entry) for scope, entry in entries]
        ids = [point.id.int for point in points]
        self._kept.forget(ids)  # first: an update that fails may have done half
        tenants = (stored.tenant(scope, entry.passage.kind) for scope, entry in entries)
        with self._held_whole.storing(list(zip(tenants, ids, (entry for _, entry in entries), strict=True))):
            shard.update(edge.UpdateOperation.upsert_points(points))

    def _delete(self, shard: Any, points: Sequence[str], tenant: str) -> None:
        self._kept.forget([UUID(point).int for point in points])
        self._held_whole.forget([tenant])
        shard.update(edge.UpdateOperation.delete_points([*points]))

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
            most = given.short(self._centres)
            first = await self._look(seen, lambda shard: given.first_look(shard, self._centres, self._kept), most=most)
            await asyncio.sleep(0)  # else both looks are one hold of the loop where the vector is there already
            vector = await deep()
            # It takes 1 ms, however many there are, for a hundred are compared.
            return await self._look(seen, lambda shard: given.second_look(shard, first, vector, self._kept), most=None)
        is_here = edge_looking.is_answered_here(given)
        return await self._look(
            seen,
            lambda shard: given.answered(shard, self._centres, self._kept),
            (lambda held: edge_looking.answered(given, held, self._centres)) if is_here else None,
            given.short(self._centres),
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
        points = [[record.id.int for record in _scroll(shard, one, with_payload=False)] for one in conditions]
        known = self._kept.passages(shard, [*chain.from_iterable(points)])
        return [[known[point] for point in some if point in known] for some in points]

    async def beside(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        conditions = stored.where_beside(scope, kind, sources, followed)
        if not conditions:
            return []

        def found(shard: Any) -> list[Passage]:
            return [*chain.from_iterable(self._passages(shard, conditions))]

        return await self._look(stored.where(scope, kind), found, lambda held: held.beside(sources, followed))

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        if not ids or (deep and not self.deepens):
            return {}
        stored.where(scope, kind)  # a scope that may not hold these is refused here
        name = stored.DEEP if deep else "dense"

        def read(shard: Any) -> dict[str, Vector]:
            names = dict(zip(stored.point_ids(scope, kind, ids), ids, strict=True))
            records = shard.retrieve(list(names), with_payload=False, with_vector=[name])
            return {names[str(record.id)]: list(record.vector[name]) for record in records if name in record.vector}

        return await self._run(read)

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        if not self.deepens:
            return 0
        points = [*zip(stored.point_ids(scope, kind, vectors), vectors.values(), strict=True)]
        batches = [dict(points[start : start + UPSERT_BATCH]) for start in range(0, len(points), UPSERT_BATCH)]
        given = sum([await self._run(partial(deepen, vectors=batch)) for batch in batches])
        self._centres.deepened(stored.tenant(scope, kind), given)
        return given

    async def shallow(self, scope: Scope, kind: Kind, limit: int, *, source: str | None = None) -> list[Passage]:
        condition = stored.shallow(scope, kind, source)
        if not self.deepens or limit < 1:
            return []

        def found(shard: Any) -> list[Passage]:
            request = edge.ScrollRequest(limit=limit, filter=filter_of(condition), with_payload=True, with_vector=False)
            return [stored.passage_of(record.payload) for record in shard.scroll(request)[0]]

        return await self._run(found)

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        condition = stored.shallow(scope, kind)
        if not self.deepens:
            return 0
        request = edge.CountRequest(exact=True, filter=filter_of(condition))
        return int(await self._look(condition, lambda shard: shard.count(request)))

    async def ids(self, scope: Scope, kind: Kind, source: str | None = None) -> list[str]:
        condition = stored.where(scope, kind, source=source)
        records = await self._run(lambda shard: list(_scroll(shard, condition, with_payload=["id"])))
        return sorted(record.payload["id"] for record in records)

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        condition = stored.where(scope, kind)

        def found(shard: Any) -> dict[str, int]:
            records = list(_scroll(shard, condition, with_payload=[*stored.PLACE_FIELDS]))
            if kind is Kind.DOCUMENT:  # all are looked through at a start: no search has to read them again
                self._kept.put_places(records)
            return dict(Counter(record.payload["source"] for record in records))

        return await self._run(found)

    async def count(self, scope: Scope, kind: Kind) -> int:
        return await self._counted(scope, kind, exact=True)

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        if kind is Kind.RECORD:  # whoever asks wants to know whether they are still there
            return await self._counted(scope, kind, exact=False)
        tenant = stored.tenant(scope, kind)
        return await self._centres.size_of(tenant, lambda: self._counted(scope, kind, exact=False))

    async def _counted(self, scope: Scope, kind: Kind, *, exact: bool) -> int:
        condition = stored.where(scope, kind)
        request = edge.CountRequest(exact=exact, filter=filter_of(condition))
        return int(await self._look(condition, lambda shard: shard.count(request)))

    async def check(self) -> None:
        await self._run(lambda shard: shard.info())

    async def exists(self) -> bool:
        return self._shard is not None or await asyncio.to_thread(is_there, self._path)

    async def drop(self) -> None:
        await self.close()
        try:
            await asyncio.to_thread(self._remove)
        except OSError as error:
            raise unavailable(error, self._path) from error

    def _remove(self) -> None:
        """The folder first gets a name that nobody opens: half of a shard would be a damaged one."""
        leaving = self._path.with_name(f"{self._path.name}.dropped")
        for folder in (leaving, self._path):  # the first is what an interrupted removal left
            if folder.exists():
                folder.rename(leaving)
                shutil.rmtree(leaving)

    async def close(self) -> None:
        """Flush and close within the time-out; later calls raise `IndexUnavailable`. What was never opened is not
        opened for that."""
        if self._closed:
            return
        try:
            await self._run(lambda shard: (shard.flush(), shard.close()), opens=False)
        except IndexUnavailable as error:
            # Everything is in the write-ahead log already: the next start replays it.
            log.warning("store.degraded", store="qdrant", why=str(error))
        finally:
            self._closed, self._shard = True, None
            self._kept.clear()
            self._held_whole.clear()
            self._thread.shutdown(wait=False)


def _batches(entries: Sequence[tuple[Scope, Entry]]) -> Iterator[Sequence[tuple[Scope, Entry]]]:
    for start in range(0, len(entries), UPSERT_BATCH):
        yield entries[start : start + UPSERT_BATCH]


def _count(shard: Any, seen: Any) -> int:
    return int(shard.count(edge.CountRequest(exact=False, filter=seen)))


def _scroll(shard: Any, condition: Where, *, with_payload: bool | list[str]) -> Iterator[Any]:
    offset: Any = None
    wanted = filter_of(condition)
    while True:
        records, offset = shard.scroll(
            edge.ScrollRequest(
                offset=offset, limit=SCROLL_BATCH, filter=wanted, with_payload=with_payload, with_vector=False
            )
        )
        yield from records
        if offset is None:
            return


def _scroll_ids(shard: Any, condition: Where) -> list[str]:
    return [str(record.id) for record in _scroll(shard, condition, with_payload=False)]
