"""The passage index in this machine's files: one Qdrant Edge shard for each embedding model.

The shard's folder lies in DATA_DIR and has the name of the collection (`stored.collection_name`). The engine blocks and
holds the interpreter's lock, so each index calls it on one thread of its own, one call after the other. A replacement
does not come between two calls of a search.

What is stored lies in one segment that can be changed, which takes 10 kB of memory a passage. When it is large, or when
a fifth of another segment is deleted, the engine rewrites them into segments that cannot be changed. Those are read
from their files, so that they take almost no memory of their own, and lack what was deleted (`_rewrite_segments`).

A damaged shard is set aside: its folder is renamed to ``<collection>.damaged-<letters>``, and an empty shard takes its
place, which is filled like any empty index when the process starts.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import qdrant_edge as edge
import structlog

from connectors.message import Scope
from grounding.retrieval import stored
from grounding.retrieval.bm25 import SparseVector
from grounding.retrieval.embedding import Vector
from grounding.retrieval.index import Hit, IndexEntry, IndexUnavailable, Kind, PassageQuery
from grounding.retrieval.qdrant import EVERY, Owned, QdrantIndex
from grounding.retrieval.stored import DEEP, Where

T = TypeVar("T")
log = structlog.get_logger()

OPENING_SECONDS = 300.0
"""The time limit for opening a shard: 100,000 passages take 1.6 s of processor time."""
LEAST_FREE_BYTES = 16_000_000
"""Every change needs so much free disk. The engine writes into files with holes, and the system kills the process if
the disk has no room for a page of them."""
REWRITING_FREE_BYTES = 500_000_000
"""Segments are rewritten only if so much disk is free: the new ones lie beside the old ones for a moment."""
CONFIGURATION = "edge_config.json"
"""The file that every shard has."""

FIELDS: dict[str, Any] = {
    "tenant": edge.KeywordIndexParams(is_tenant=True, memory=edge.Memory.Cold),
    "source": edge.KeywordIndexParams(memory=edge.Memory.Cold),
    "previous": edge.KeywordIndexParams(memory=edge.Memory.Cold),
}
"""The indexed fields of a payload, and the kind of index; each takes 5 MB. An ordinal is only asked for together with
one of them, and a workspace only if all of it is deleted."""
SEGMENTS = edge.EdgeOptimizersConfig(
    indexing_threshold=8_000,  # kB of vectors, so 3,200 passages with deeper vectors: .4 s of a processor
    max_segment_size=50_000,  # kB of vectors, so 20,000 such passages: 2 s of a processor
    default_segment_number=4,  # a search looks through each: with one more it takes .6 ms longer
    deleted_threshold=0.2,
    vacuum_min_vector_number=200,
)
"""When the engine rewrites segments. It answers nothing meanwhile, so a segment must not be too large."""
NO_GRAPH = edge.HnswIndexConfig(m=0, payload_m=0, ef_construct=4, full_scan_threshold=1_000_000_000)
"""All vectors of a tenant are compared, by their codes: building a graph takes .7 ms of a processor a passage."""
_ANOTHER_SIZE = "was made for vectors of another size: run `agent-runtime index --fresh`"
PASSING_ERRORS: tuple[tuple[str, bool, str], ...] = (
    ("WouldBlock", True, "is in use by another process: talk to the running `serve`, or set QDRANT_URL"),
    ("No space left", True, "has no space left on its disk"),
    ("Disk quota exceeded", True, "has no space left on its disk"),
    ("Permission denied", False, "may not be read or written by this user"),
    ("Too many open files", True, "has no file left to open: let this user open more"),
    ("Cannot allocate memory", True, "has no memory left"),
    ("Input/output error", True, "cannot be read or written now"),
    ("Vector dimension error", False, _ANOTHER_SIZE),
    ("already exists with different", False, _ANOTHER_SIZE),
    ("Not existing vector name", False, "was made by another version: run `agent-runtime index --fresh`"),
)
"""Part of the engine's message, whether the same call may succeed later, and what to say; the first match counts. The
engine raises plain ``Exception`` for everything, so only its words tell errors apart. These errors do not mean damage;
any other one while a shard is opened does."""
OTHER_ERRORS = (("Wrong input", False, "refused a request"), ("Bad request", False, "refused a request"))

BY_CODES = edge.SearchParams(quantization=edge.QuantizationSearchParams(rescore=True, oversampling=2.0))
"""The dense arm compares short codes (four bits a dimension) first, and then the vectors of twice as many points as are
wanted: 2 ms instead of 14 among 100,000. For 60 questions to 38,200 real passages the first ten were the same."""


class EmbeddedIndex(QdrantIndex):
    """`PassageIndex` over a Qdrant Edge shard in *folder*, for one embedding model. An index with an earlier *version*
    of payloads can only be dropped."""

    upsert_batch = 32  # the engine holds the interpreter's lock for about 2 ms

    def __init__(
        self,
        folder: Path,
        model: str,
        dimensions: int,
        *,
        timeout_seconds: float,
        version: int = stored.PAYLOAD_VERSION,
        deep_dimensions: int | None = None,
    ) -> None:
        super().__init__(model, dimensions, timeout_seconds, version, deep_dimensions)
        self._path = folder / self._collection
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qdrant-edge")
        self._searching = asyncio.Lock()
        self._shard: Any = None
        self._closed = False
        self.was_damaged = False
        """Set when damaged files are found; an empty shard takes their place."""

    async def ensure(self) -> None:
        await self.check()

    async def check(self) -> None:
        await self._run(lambda shard: shard.info())

    async def exists(self) -> bool:
        return self._shard is not None or await asyncio.to_thread((self._path / CONFIGURATION).exists)

    async def drop(self) -> None:
        await self.close()
        try:
            await asyncio.to_thread(self._remove)
        except OSError as error:
            raise unavailable(error, self._path) from error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._on_thread(self._shut, self._timeout_seconds)
        except IndexUnavailable as error:
            # Everything is in the engine's log already: the next start reads it again.
            log.warning("store.degraded", store="qdrant", why=str(error))
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[Any], T]) -> T:
        """Call *call* with the open shard on the engine's thread."""
        if self._closed:
            raise IndexUnavailable("the search index is closed")
        limit = OPENING_SECONDS if self._shard is None else self._timeout_seconds
        return await self._on_thread(lambda: call(self._get_shard()), limit)

    async def _on_thread(self, work: Callable[[], T], limit: float) -> T:
        """Do *work* on the engine's thread within *limit* seconds. Every error of the engine is `IndexUnavailable`."""

        def guarded() -> T:
            try:
                return work()
            except BaseException as error:
                if isinstance(error, IndexUnavailable) or not _is_of_engine(error):
                    raise
                raise unavailable(error, self._path) from error

        try:
            # No wait_for: before Python 3.12 it loses a cancellation that comes when the work ends.
            async with asyncio.timeout(limit):
                return await asyncio.get_running_loop().run_in_executor(self._thread, guarded)
        except TimeoutError as error:
            raise IndexUnavailable(f"the search index took longer than {limit} s") from error

    def _get_shard(self) -> Any:
        """Return the shard; open it first if it is not open."""
        if self._shard is None:
            ensure_room(self._path)  # the engine stores again what its log has
            try:
                shard = open_shard(self._path, self._dimensions, self._deep_dimensions)
            except BaseException as error:
                if not _is_of_engine(error) or _find(PASSING_ERRORS, error):
                    raise
                self._set_aside(error)
                self.was_damaged = True
                shard = open_shard(self._path, self._dimensions, self._deep_dimensions)
            self._shard = shard
        return self._shard

    def _set_aside(self, why: BaseException) -> None:
        """Rename the damaged folder, so that an empty shard can take its place."""
        aside = self._path.with_name(f"{self._path.name}.damaged-{uuid.uuid4().hex[:8]}")
        self._path.rename(aside)
        what = f"the search index in {self._path} is damaged ({why})"
        log.warning("store.degraded", store="qdrant", why=f"{what}: it was set aside as {aside.name} and is made anew")

    def _shut(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            shard.flush()
            shard.close()

    def _remove(self) -> None:
        """Remove the folder, after renaming it, because half a shard would look like a damaged one."""
        dropped = self._path.with_name(f"{self._path.name}.dropped")
        if dropped.exists():  # an interrupted removal left it
            shutil.rmtree(dropped)
        if self._path.exists():
            self._path.rename(dropped)
            shutil.rmtree(dropped)
        for aside in self._path.parent.glob(f"{self._path.name}.damaged-*"):
            shutil.rmtree(aside)

    async def search(self, query: PassageQuery) -> list[Hit]:
        async with self._searching:
            return await super().search(query)

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        wanted = filter_of(stored.where(scope, kind))
        request = edge.FacetRequest("source", limit=EVERY, exact=True, filter=wanted)
        return await self._run(lambda shard: {str(hit.value): hit.count for hit in shard.facet(request).hits})

    async def _upsert(self, entries: Sequence[Owned]) -> None:
        await self._update(storing(entries))

    async def _replace(self, entries: Sequence[Owned], stale: Sequence[Where]) -> None:
        async with self._searching:
            await self._update(*([storing(entries)] if entries else []), *map(deleting, stale))

    async def _delete(self, condition: Where) -> None:
        await self._update(deleting(condition))

    async def _update_vectors(self, vectors: Mapping[str, Vector]) -> int:
        def store_vectors(shard: Any) -> int:
            existing = shard.retrieve([*map(UUID, vectors)], with_payload=False, with_vector=False)
            changes = [edge.PointVectors(record.id, {DEEP: vectors[str(record.id)]}) for record in existing]
            if changes:
                self._change(shard, edge.UpdateOperation.update_vectors(changes))
            return len(changes)

        return await self._run(store_vectors)

    async def _update(self, *operations: edge.UpdateOperation) -> None:
        """Make changes that readers see all at once."""
        await self._run(lambda shard: self._change(shard, *operations))

    def _change(self, shard: Any, *operations: edge.UpdateOperation) -> None:
        ensure_room(self._path)
        for operation in operations:
            shard.update(operation)
        self._rewrite_segments(shard)

    def _rewrite_segments(self, shard: Any) -> None:
        """Let the engine rewrite segments, if any has to be (`SEGMENTS`); it sees in 15 µs that none has."""
        if shutil.disk_usage(self._path).free < REWRITING_FREE_BYTES:
            return
        try:
            if shard.optimize():
                shard.flush()  # removes the files of the old segments
        except BaseException as error:
            if not _is_of_engine(error):
                raise
            log.warning("store.degraded", store="qdrant", why=str(unavailable(error, self._path)))

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
        params = BY_CODES if corpus is None else edge.SearchParams(idf=edge.IdfParams(corpus=filter_of(corpus)))
        request = edge.QueryRequest(
            limit=limit,
            query=edge.Query.Nearest(sparse_or_dense(vector), using=name),
            filter=filter_of(condition),
            params=params,
            with_payload=fields,
            with_vector=False,
        )
        return await self._run(lambda shard: list(shard.query(request)))

    async def _retrieve(self, points: Sequence[Any], fields: bool, vectors: Sequence[str] = ()) -> Sequence[Any]:
        ids, names = uuids(points), [*vectors] or False
        return await self._run(lambda shard: list(shard.retrieve(ids, with_payload=fields, with_vector=names)))

    async def _scroll(
        self, condition: Where, fields: bool | list[str], limit: int = EVERY, vectors: Sequence[str] = ()
    ) -> Sequence[Any]:
        wanted, names = filter_of(condition), [*vectors] or False
        request = edge.ScrollRequest(limit=limit, filter=wanted, with_payload=fields, with_vector=names)
        return await self._run(lambda shard: list(shard.scroll(request)[0]))

    async def _count(self, condition: Where, *, exact: bool) -> int:
        request = edge.CountRequest(exact=exact, filter=filter_of(condition))
        return await self._run(lambda shard: int(shard.count(request)))


def open_shard(path: Path, dimensions: int, deep_dimensions: int | None) -> edge.EdgeShard:
    """Open the shard at *path*, or make an empty one, and read some of it.

    Passages get room for deeper vectors if *deep_dimensions* is given and they have none yet. Raises what the engine
    does, `OSError`, and `ValueError` for incomplete passages.
    """
    if not (path / CONFIGURATION).exists():
        if path.exists():  # without its configuration: a crash left it before anything was stored
            shutil.rmtree(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        edge.EdgeShard.create(str(path), configuration(dimensions, deep_dimensions)).close()
    shard = load_shard(path, configuration(dimensions, deep_dimensions))
    with ExitStack() as on_error:
        on_error.callback(shard.close)
        if deep_dimensions is not None:  # does nothing if there is room already
            shard.update(edge.UpdateOperation.create_dense_vector(DEEP, deep_dimensions, edge.Distance.Cosine))
        for name in FIELDS.keys() - shard.info().payload_schema.keys():
            shard.update(edge.UpdateOperation.create_field_index(name, FIELDS[name]))
        # The engine opens some damaged files without an error.
        records, _ = shard.scroll(edge.ScrollRequest(limit=32, with_payload=True, with_vector=["dense"]))
        if not all(record.payload and "dense" in (record.vector or ()) for record in records):
            raise ValueError("passages in it have no text or no vector")
        on_error.pop_all()
    return shard


def load_shard(path: Path, wanted: edge.EdgeConfig) -> edge.EdgeShard:
    """Open the shard at *path* as it is *wanted*, whatever an earlier version wrote into its configuration."""
    try:
        return edge.EdgeShard.load(str(path), wanted)
    except Exception as error:
        if "Incompatible configs" not in str(error):
            raise
        return edge.EdgeShard.load(str(path))  # it lacks deeper vectors, or has some that are not wanted


def configuration(dimensions: int, deep_dimensions: int | None) -> edge.EdgeConfig:
    """Return the configuration of a new shard: everything in files, whose often read pages the system holds in
    memory."""
    codes = edge.TurboQuantQuantizationConfig(memory=edge.Memory.Cold)
    dense = edge.EdgeVectorParams(dimensions, edge.Distance.Cosine, memory=edge.Memory.Cold, quantization_config=codes)
    vectors = {"dense": dense}
    if deep_dimensions is not None:  # a search compares only a few of them: no codes
        vectors[DEEP] = edge.EdgeVectorParams(deep_dimensions, edge.Distance.Cosine, memory=edge.Memory.Cold)
    return edge.EdgeConfig(
        vectors=vectors,
        sparse_vectors={"sparse": edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf, memory=edge.Memory.Cold)},
        optimizers=SEGMENTS,
        hnsw_config=NO_GRAPH,
        max_search_threads=1,
    )


def ensure_room(path: Path) -> None:
    """Raise `OSError` if the disk of *path* has less than `LEAST_FREE_BYTES` free."""
    while not path.exists():
        path = path.parent
    if shutil.disk_usage(path).free < LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def unavailable(error: BaseException, path: Path) -> IndexUnavailable:
    """Translate an *error* of the engine."""
    retryable, what = _find(PASSING_ERRORS, error) or _find(OTHER_ERRORS, error) or (True, "failed")
    return IndexUnavailable(f"the search index in {path} {what} ({error})", retryable=retryable)


def _find(table: Sequence[tuple[str, bool, str]], error: BaseException) -> tuple[bool, str] | None:
    return next(((retryable, what) for part, retryable, what in table if part in str(error)), None)


def _is_of_engine(error: BaseException) -> bool:
    """Return whether *error* is an ordinary one or a panic of the engine, which is no ``Exception``."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def storing(entries: Sequence[Owned]) -> edge.UpdateOperation:
    """Return the change that stores *entries*."""
    return edge.UpdateOperation.upsert_points([point_of(*one) for one in entries])


def deleting(condition: Where) -> edge.UpdateOperation:
    """Return the change that deletes what meets *condition*."""
    return edge.UpdateOperation.delete_points_by_filter(filter_of(condition))


def point_of(scope: Scope, entry: IndexEntry) -> edge.Point:
    """Return the point of a passage."""
    vectors: dict[str, Any] = {"dense": entry.dense, "sparse": sparse_or_dense(entry.sparse)}
    if entry.deep is not None:
        vectors[DEEP] = entry.deep
    return edge.Point(stored.point_id(scope, entry.passage), vectors, stored.payload(scope, entry.passage))


def sparse_or_dense(vector: Vector | SparseVector) -> Any:
    """Return the engine's form of *vector*."""
    return edge.SparseVector([*vector.indices], [*vector.values]) if isinstance(vector, SparseVector) else vector


def filter_of(condition: Where) -> edge.Filter:
    """Return the engine's form of *condition*. It checks a single value faster than a set."""

    def match(values: Sequence[Any]) -> Any:
        return edge.MatchValue(values[0]) if len(values) == 1 else edge.MatchAny(list(values))

    must: list[Any] = [edge.FieldCondition(one.key, match=match(one.values)) for one in condition.must]
    if condition.only is not None:
        must.append(edge.HasIdCondition({*uuids(condition.only)}))
    must_not: list[Any] = [edge.HasVectorCondition(DEEP)] if condition.is_shallow else []
    if condition.without:
        must_not.append(edge.HasIdCondition({*uuids(condition.without)}))
    return edge.Filter(must=must, must_not=must_not)


def uuids(points: Sequence[Any]) -> list[UUID]:
    """Return the engine's names of *points*, which are UUIDs or their text."""
    return [point if isinstance(point, UUID) else UUID(point) for point in points]
