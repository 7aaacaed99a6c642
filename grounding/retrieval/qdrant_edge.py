"""The passage index in this machine's files: one Qdrant Edge shard for each embedding model.

The shard's folder lies in DATA_DIR and has the name of the collection (`stored.collection_name`). The engine blocks and
holds the interpreter's lock, so each index calls it on one thread of its own, one call after the other. That also makes
a replacement atomic for readers, unless a search awaits the question's deeper vector in between. ``optimize()`` is
never called: it would hold the lock for seconds (docs/decisions/10).

A damaged shard is set aside: its folder is renamed to ``<collection>.damaged-<letters>``, and an empty shard takes its
place, which is filled like any empty index when the process starts.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import qdrant_edge as edge
import structlog

from connectors.message import Scope
from grounding.retrieval import stored
from grounding.retrieval.bm25 import SparseVector
from grounding.retrieval.embedding import Vector
from grounding.retrieval.index import AskDeep, Fusion, Hit, IndexEntry, IndexUnavailable, Kind, Passage, Source
from grounding.retrieval.ranking import (
    FEEDBACK_PASSAGES,
    SAMPLE,
    Centre,
    Centres,
    Question,
    add_feedback,
    blend_neighbours,
    centre_of,
    fuse_arms,
    hits_of,
    second_look,
    subtract_centre,
)
from grounding.retrieval.stored import DEEP, PLACE_FIELDS, Where, place_of

T = TypeVar("T")
log = structlog.get_logger()

UPSERT_BATCH = 32
"""So many passages are stored in one call, during which the engine holds the interpreter's lock for about 2 ms."""
EVERY = 10_000_000
"""The limit of a request for all points."""
OPENING_SECONDS = 300.0
"""The time limit for opening a shard: 100,000 passages take 1.6 s of processor time."""
LEAST_FREE_BYTES = 16_000_000
"""Every change needs so much free disk. The engine writes into files with holes, and the system kills the process if
the disk has no room for a page of them."""
CONFIGURATION = "edge_config.json"
"""The file that every shard has."""

FIELDS: dict[str, Any] = {
    "tenant": edge.KeywordIndexParams(is_tenant=True),
    **dict.fromkeys(stored.KEYWORD_FIELDS, edge.KeywordIndexParams()),
    **dict.fromkeys(stored.INTEGER_FIELDS, edge.IntegerIndexParams(lookup=True, range=False)),
}
"""The indexed fields of a payload, and the kind of index."""
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
Ranking = list[tuple[UUID, float]]
"""Points with their scores, best first."""
ArmScores = dict[str, dict[UUID, float]]
"""The raw scores of the points that each arm found, best first."""


class EmbeddedIndex:
    """`PassageIndex` over a Qdrant Edge shard in *folder*, for one embedding model. An index with an earlier *version*
    of payloads can only be dropped."""

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
        self._timeout_seconds = timeout_seconds
        self._fusion = fusion or Fusion()
        self.deepens, self.too_old = deep_dimensions is not None, ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qdrant-edge")
        self._shard: Any = None
        self._closed = False
        self._centres = Centres()

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
            if (self._path / "own").exists():
                # Earlier versions kept large workspaces in shards of their own below this folder.
                log.warning("store.degraded", store="qdrant", why=f"{self._path} has an earlier layout: it is emptied")
                self._remove()
            try:
                shard = open_shard(self._path, self._dimensions, self._deep_dimensions)
            except BaseException as error:
                if not _is_of_engine(error) or _find(PASSING_ERRORS, error):
                    raise
                self._set_aside(error)
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

    async def upsert(self, scope: Scope, entries: Sequence[IndexEntry]) -> None:
        for kind in {entry.passage.kind for entry in entries}:
            stored.tenant(scope, kind)  # raises ValueError for a scope that may not hold these
        for batch in _batches([(scope, entry) for entry in entries]):
            await self._run(partial(self._upsert, entries=batch))
        for kind, count in Counter(entry.passage.kind for entry in entries).items():
            self._centres.count_changes(stored.tenant(scope, kind), count)

    async def replace(self, sources: Sequence[Source]) -> None:
        if not sources:
            return
        for one in sources:
            stored.tenant(one.scope, one.kind)  # raises ValueError for a scope that may not hold these
        # All batches but the last come first. So the last step, which readers cannot see halfway, is short.
        *batches, last = _batches([(one.scope, entry) for one in sources for entry in one.entries]) or [[]]
        for batch in batches:
            await self._run(partial(self._upsert, entries=batch))

        def finish(shard: Any) -> None:
            if last:
                self._upsert(shard, last)
            keep = {UUID(stored.point_id(one.scope, entry.passage)) for one in sources for entry in one.entries}
            for one in sources:
                found = scroll(shard, stored.where(one.scope, one.kind, source=one.name))
                if stale := [record.id for record in found if record.id not in keep]:
                    self._update(shard, edge.UpdateOperation.delete_points(stale))

        await self._run(finish)
        for one in sources:
            self._centres.count_changes(stored.tenant(one.scope, one.kind), max(len(one.entries), 1))

    async def delete(
        self, scope: Scope, kind: Kind, *, source: str | None = None, ids: Sequence[str] | None = None
    ) -> None:
        tenant = stored.tenant(scope, kind)
        operation = edge.UpdateOperation.delete_points_by_filter(filter_of(stored.where(scope, kind, source=source)))
        if ids is not None:
            operation = edge.UpdateOperation.delete_points([*stored.point_ids(scope, kind, ids)])
        await self._run(partial(self._update, operation=operation))
        if ids is None and source is None:
            self._centres.forget(tenant)
        else:
            self._centres.count_changes(tenant, 1 if ids is None else len(ids))

    async def drop_workspace(self, scope: Scope) -> None:
        operation = edge.UpdateOperation.delete_points_by_filter(filter_of(stored.whole_workspace(scope)))
        await self._run(partial(self._update, operation=operation))
        self._centres.clear()

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        tenant = stored.tenant(scope, kind)
        if not self.deepens:
            return 0
        points = zip(map(UUID, stored.point_ids(scope, kind, vectors)), vectors.values(), strict=True)

        def store_vectors(shard: Any, batch: Mapping[UUID, Vector]) -> int:
            existing = shard.retrieve([*batch], with_payload=False, with_vector=False)
            if existing:
                changes = [edge.PointVectors(record.id, {DEEP: batch[record.id]}) for record in existing]
                self._update(shard, edge.UpdateOperation.update_vectors(changes))
            return len(existing)

        count = sum([await self._run(partial(store_vectors, batch=dict(batch))) for batch in _batches([*points])])
        self._centres.count_changes(tenant, count, [DEEP])
        return count

    def _upsert(self, shard: Any, entries: Sequence[tuple[Scope, IndexEntry]]) -> None:
        self._update(shard, edge.UpdateOperation.upsert_points([point_of(*one) for one in entries]))

    def _update(self, shard: Any, operation: edge.UpdateOperation) -> None:
        ensure_room(self._path)
        shard.update(operation)

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
        question = Question(
            scope,
            kind,
            dense,
            sparse,
            top_k,
            self._fusion,
            explain,
            scores,
            compared,
            only_sources,
            deep if self.deepens else None,
        )
        stored.tenant(scope, kind)  # raises ValueError for a scope that may not hold these
        if not question.arms:
            return []
        if question.deep is None or not question.looks_again:
            return await self._run(lambda shard: self._hits(shard, question, self._ask_arms(shard, question)))
        arms = await self._run(lambda shard: self._ask_arms(shard, question))
        vector = await question.deep()
        return await self._run(lambda shard: self._hits(shard, question, arms, vector))

    def _ask_arms(self, shard: Any, question: Question) -> ArmScores:
        """Ask each arm for its candidates."""
        wanted = filter_of(stored.seen(question.scope, question.kind, only=question.only_sources))

        def request(arm: str) -> edge.QueryRequest:
            query, params = self._query(shard, question, arm)
            return edge.QueryRequest(
                limit=question.candidates,
                query=query,
                filter=wanted,
                params=params,
                with_payload=False,
                with_vector=False,
            )

        answers = shard.query_batch(edge.QueryBatchRequest([request(arm) for arm in question.arms]))
        return {arm: scores_of(points) for arm, points in zip(question.arms, answers, strict=True)}

    def _query(self, shard: Any, question: Question, arm: str) -> tuple[Any, Any]:
        dense, sparse = question.dense, question.sparse
        if arm == "sparse":
            assert sparse is not None
            words = edge.SparseVector(list(sparse.indices), list(sparse.values))
            # How rare a word is, is counted within the searched scopes: the documents of others have no say in it.
            rarity = edge.IdfParams(corpus=filter_of(stored.seen(question.scope, question.kind)))
            return edge.Query.Nearest(words, using="sparse"), edge.SearchParams(idf=rarity)
        assert dense is not None
        if arm == "near" and self._fusion.centring:
            dense = subtract_centre(dense, self._centre(shard, question, "dense"), self._fusion.centring)
        return edge.Query.Nearest(dense, using="dense"), BY_CODES

    def _hits(self, shard: Any, question: Question, arms: ArmScores, vector: Vector | None = None) -> list[Hit]:
        """Rank what the arms found and read the passages of the best; *vector* is the question's deeper one."""
        ranking = fuse_arms(question, arms)
        if vector is not None:
            ranking = self._look_again(shard, question, arms, ranking, vector)
        ranking = ranking[: question.limit]
        points = [point for point, _ in ranking]
        records = shard.retrieve(points, with_payload=True, with_vector=False)
        passages = {record.id: stored.passage_of(record.payload) for record in records}
        cosines: dict[UUID, float] = {}
        if question.dense is not None and question.wants_cosines:
            cosines = scores_of(compare(shard, "dense", question.dense, points))
        return hits_of(question, ranking, passages, arms, cosines)

    def _look_again(self, shard: Any, question: Question, arms: ArmScores, ranking: Ranking, vector: Vector) -> Ranking:
        """Order the best of *ranking* anew by their deeper vectors."""
        most = self._fusion.looked_again
        points = [point for point, _ in ranking[:most]]
        best = shard.retrieve(points[:FEEDBACK_PASSAGES], with_payload=False, with_vector=[DEEP])
        centre = self._centre(shard, question, DEEP)
        moved = subtract_centre(add_feedback(vector, _vectors_of(best, DEEP)), centre, self._fusion.centring)
        compared = compare(shard, DEEP, moved, points, with_payload=[*PLACE_FIELDS])
        if question.explain:
            arms[DEEP] = scores_of(compare(shard, DEEP, vector, points))
        cosines = blend_neighbours(scores_of(compared), {point.id: place_of(point.payload) for point in compared})
        return second_look(ranking, arms["near"], arms["sparse"], cosines, most)

    def _centre(self, shard: Any, question: Question, name: str) -> Centre:
        """Find the centre of the vectors *name* that a search may find, which is remembered for a while."""
        tenant = stored.tenant(question.scope, question.kind)
        known = self._centres.get(tenant, name)
        if known is None:
            corpus = filter_of(stored.seen(question.scope, question.kind))
            sample = edge.ScrollRequest(limit=SAMPLE, filter=corpus, with_payload=False, with_vector=[name])
            known = centre_of(_vectors_of(shard.scroll(sample)[0], name))
            self._centres.put(tenant, name, known)
        return known

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        conditions = {
            source: stored.where(scope, kind, source=source, ordinals=ordinals)
            for source, ordinals in wanted.items()
            if ordinals
        }
        records = await self._read([*conditions.values()], True)
        found = dict(zip(conditions, records, strict=True))
        return {source: stored.in_reading_order(found.get(source, ())) for source in wanted}

    async def neighbours(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        records = await self._read(stored.where_neighbours(scope, kind, sources, followed), True)
        return [stored.passage_of(one.payload) for some in records for one in some]

    async def _read(self, conditions: Sequence[Where], fields: bool | list[str]) -> list[list[Any]]:
        """Read these payload *fields* of all points that meet each of *conditions*."""
        if not conditions:
            return []
        return await self._run(lambda shard: [scroll(shard, one, fields) for one in conditions])

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        if not ids or (deep and not self.deepens):
            return {}
        name = DEEP if deep else "dense"
        points = dict(zip(map(UUID, stored.point_ids(scope, kind, ids)), ids, strict=True))

        records = await self._run(lambda shard: shard.retrieve([*points], with_payload=False, with_vector=[name]))
        return {points[one.id]: vector[name] for one in records if name in (vector := one.vector or {})}

    async def shallow(self, scope: Scope, kind: Kind, limit: int) -> list[Passage]:
        condition = stored.shallow(scope, kind)
        if not self.deepens or limit < 1:
            return []
        found = await self._run(lambda shard: scroll(shard, condition, True, limit))
        return [stored.passage_of(record.payload) for record in found]

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        return await self._count(stored.shallow(scope, kind), exact=True) if self.deepens else 0

    async def ids(self, scope: Scope, kind: Kind) -> list[str]:
        (found,) = await self._read([stored.where(scope, kind)], ["id"])
        return sorted(record.payload["id"] for record in found)

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        wanted = filter_of(stored.where(scope, kind))
        request = edge.FacetRequest("source", limit=EVERY, exact=True, filter=wanted)
        return await self._run(lambda shard: {str(hit.value): hit.count for hit in shard.facet(request).hits})

    async def count(self, scope: Scope, kind: Kind) -> int:
        return await self._count(stored.where(scope, kind), exact=True)

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        return await self._count(stored.where(scope, kind), exact=False)

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
    shard = edge.EdgeShard.load(str(path))
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


def configuration(dimensions: int, deep_dimensions: int | None) -> edge.EdgeConfig:
    """Return the configuration of a new shard: vectors in files, whose often read pages the system holds in memory."""
    codes = edge.TurboQuantQuantizationConfig(memory=edge.Memory.Pinned)
    dense = edge.EdgeVectorParams(dimensions, edge.Distance.Cosine, memory=edge.Memory.Cold, quantization_config=codes)
    vectors = {"dense": dense}
    if deep_dimensions is not None:  # a search compares only a few of them: no codes
        vectors[DEEP] = edge.EdgeVectorParams(deep_dimensions, edge.Distance.Cosine, memory=edge.Memory.Cold)
    return edge.EdgeConfig(
        vectors=vectors,
        sparse_vectors={"sparse": edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)},
        max_search_threads=1,  # all passages are in one segment, which one thread looks through
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


def point_of(scope: Scope, entry: IndexEntry) -> edge.Point:
    """Return the point of a passage."""
    words = entry.sparse
    vectors: dict[str, Any] = {
        "dense": entry.dense,
        "sparse": edge.SparseVector(list(words.indices), list(words.values)),
    }
    if entry.deep is not None:
        vectors[DEEP] = entry.deep
    return edge.Point(stored.point_id(scope, entry.passage), vectors, stored.payload(scope, entry.passage))


def filter_of(condition: Where) -> edge.Filter:
    """Return the engine's form of *condition*. It checks a single value faster than a set."""

    def match(values: Sequence[Any]) -> Any:
        return edge.MatchValue(values[0]) if len(values) == 1 else edge.MatchAny(list(values))

    must: list[Any] = [edge.FieldCondition(one.key, match=match(one.values)) for one in condition.must]
    lacks: list[Any] = [edge.HasVectorCondition(DEEP)] if condition.is_shallow else []
    return edge.Filter(must=must, must_not=lacks)


def compare(
    shard: Any, name: str, vector: Vector, points: Sequence[UUID], *, with_payload: bool | list[str] = False
) -> list[Any]:
    """Return the *points* whose vector *name* exists and is not zeros, with its cosine to *vector*, best first."""
    if not points:
        return []
    request = edge.QueryRequest(
        limit=len(points),
        query=edge.Query.Nearest(vector, using=name),
        filter=edge.Filter(must=[edge.HasIdCondition(set(points))]),
        params=BY_CODES,
        with_payload=with_payload,
        with_vector=False,
    )
    return [one for one in shard.query(request) if one.score]


def scroll(shard: Any, condition: Where, fields: bool | list[str] = False, limit: int = EVERY) -> list[Any]:
    """Read the first *limit* points that meet *condition*, by their ids, with these payload *fields*."""
    wanted = filter_of(condition)
    request = edge.ScrollRequest(limit=limit, filter=wanted, with_payload=fields, with_vector=False)
    return list(shard.scroll(request)[0])


def scores_of(points: Iterable[Any]) -> dict[UUID, float]:
    """Return the scores of the engine's *points*, in their order."""
    return {one.id: one.score for one in points}


def _vectors_of(records: Iterable[Any], name: str) -> list[Vector]:
    """Return the vectors *name* of those of *records* that have one, without deeper ones of zeros, which stand for
    none."""
    vectors = ((record.vector or {}).get(name) for record in records)
    return [vector for vector in vectors if vector is not None and (name != DEEP or any(vector))]


def _batches(items: list[T]) -> list[list[T]]:
    return [items[start : start + UPSERT_BATCH] for start in range(0, len(items), UPSERT_BATCH)]
