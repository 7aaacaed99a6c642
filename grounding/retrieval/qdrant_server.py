"""The passage index on a Qdrant server or cluster.

This is the only module that imports ``qdrant_client``: the import takes more than half a second, and is paid only if
``QDRANT_URL`` is set. The module is tested against the client's own local mode, which has the same classes but no
network, and against a refused connection; not against a real server.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import structlog
from pydantic import ValidationError
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

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

UPSERT_BATCH = 128
SCROLL_BATCH = 1000
DEEPEN_ATTEMPTS = 3
OLDEST = (1, 11)
"""Older servers have no indexes of tenants (release notes of 1.11)."""
WANTED = (1, 19)
"""Older servers count how rare a word is in the whole collection, and ignore the wish to count it in one scope
(https://github.com/qdrant/qdrant/pull/9661)."""
CANNOT = (400, 404, 405, 501)
"""HTTP statuses of a server that knows no such request."""
NO_SUCH_POINT = 404

FIELDS: dict[str, models.KeywordIndexParams | models.PayloadSchemaType] = {
    "tenant": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    **dict.fromkeys(stored.KEYWORD_FIELDS, models.PayloadSchemaType.KEYWORD),
    **dict.fromkeys(stored.INTEGER_FIELDS, models.PayloadSchemaType.INTEGER),
}
"""The indexed fields of a payload, and the kind of index."""

ERRORS: tuple[tuple[type[Exception], bool, str], ...] = (
    (ResourceExhaustedResponse, True, "asks for fewer requests"),
    (ResponseHandlingException, True, "gave an answer that was not understood"),
    (UnexpectedResponse, True, "refused a request"),
    (ApiException, True, "failed"),
    (QdrantException, True, "failed"),
    (TimeoutError, True, "took too long"),
    (httpx.HTTPError, True, "cannot be reached"),
    (httpx.InvalidURL, False, "has an address that is no URL: check QDRANT_URL"),
    (ValidationError, False, "was sent something that its client refuses"),
    (OSError, True, "cannot be reached"),
    (ValueError, False, "was sent something that its client refuses"),
    (RuntimeError, True, "is closed"),
)
"""Class of the client's error → may it succeed later, and what to say. The first match counts."""

STATUSES: dict[int, tuple[bool, str]] = {
    400: (False, "refused a request"),
    401: (False, "wants another key: check QDRANT_API_KEY"),
    403: (False, "forbids this: check the rights of QDRANT_API_KEY"),
    404: (True, "has no such collection: run `agent-runtime index --fresh`"),
    409: (True, "is changing this collection"),
    413: (False, "refused a request for its size"),
    422: (False, "refused a request"),
}
"""HTTP status → the same, if the status says more. Other statuses below 500 are final, the rest may pass."""

Ranking = list[tuple[models.ExtendedPointId, float]]
"""Points with their scores, best first."""
ArmScores = dict[str, dict[models.ExtendedPointId, float]]
"""The raw scores of the points that each arm found, best first."""


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
        self._opened = client
        self._closed = False
        self._centres = Centres()

    async def _client(self) -> AsyncQdrantClient:
        """Return the client. It is made on first use, in a thread, because it reads package metadata from disk."""
        if self._closed:
            raise IndexUnavailable("the search index is closed")
        if self._opened is None:
            try:
                self._opened = await asyncio.to_thread(
                    AsyncQdrantClient,
                    url=self._place,
                    api_key=self._api_key,
                    timeout=math.ceil(self._timeout_seconds),
                    check_compatibility=False,
                )
            except tuple(kind for kind, _, _ in ERRORS) as error:
                raise unavailable(error, self._place) from error
        return self._opened

    async def _ask(self, answer: Awaitable[T]) -> T:
        try:
            # No wait_for: before Python 3.12 it loses a cancellation that comes as the answer does.
            async with asyncio.timeout(self._timeout_seconds):
                return await answer
        except tuple(kind for kind, _, _ in ERRORS) as error:
            raise unavailable(error, self._place) from error

    async def ensure(self) -> None:
        client = await self._client()
        version = await self._ask(read_version(client))
        if why := cannot_be_used(version):
            raise IndexUnavailable(f"the Qdrant server at {self._place} {why}", retryable=False)
        self.too_old = too_old(version)
        if self.too_old:
            log.warning("store.degraded", store="qdrant", why=self.too_old)
        if not await self.exists():
            try:
                await self._create()
            except IndexUnavailable:
                # Another process may have made it in between; if not, this was a real failure.
                if not await self.exists():
                    raise
        present = (await self._ask(client.get_collection(self._collection))).payload_schema
        for name, schema in FIELDS.items():
            if name not in present:
                await self._ask(client.create_payload_index(self._collection, name, schema))
        if self._deep_dimensions is not None:
            self.deepens = await self._ask(add_deep_vectors(client, self._collection, self._deep_dimensions))

    async def _create(self) -> None:
        sizes = {"dense": self._dimensions, DEEP: self._deep_dimensions}
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
            if self._opened is not None:
                await self._ask(self._opened.close())
        except IndexUnavailable as error:
            log.warning("store.degraded", store="qdrant", why=str(error))
        finally:
            self._closed, self._opened = True, None

    async def upsert(self, scope: Scope, entries: Sequence[IndexEntry]) -> None:
        for kind in {entry.passage.kind for entry in entries}:
            stored.tenant(scope, kind)  # raises ValueError for a scope that may not hold these
        for batch in in_batches([(scope, entry) for entry in entries]):
            await self._ask((await self._client()).upsert(self._collection, points_of(batch), wait=True))
        for kind, count in Counter(entry.passage.kind for entry in entries).items():
            self._centres.count_changes(stored.tenant(scope, kind), count)

    async def replace(self, sources: Sequence[Source]) -> None:
        """The new passages are stored before the old ones go, in one request if they fit in one batch."""
        if not sources:
            return
        deletions = [models.DeleteOperation(delete=models.FilterSelector(filter=stale(one))) for one in sources]
        batches = list(in_batches([(one.scope, entry) for one in sources for entry in one.entries]))
        client = await self._client()
        for batch in batches[:-1]:
            await self._ask(client.upsert(self._collection, points_of(batch), wait=True))
        operations: list[Any] = [
            models.UpsertOperation(upsert=models.PointsList(points=points_of(batch))) for batch in batches[-1:]
        ]
        await self._ask(client.batch_update_points(self._collection, [*operations, *deletions], wait=True))
        for one in sources:
            self._centres.count_changes(stored.tenant(one.scope, one.kind), max(len(one.entries), 1))

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
        if ids is None and source is None:
            self._centres.forget(tenant)
        else:
            self._centres.count_changes(tenant, 1 if ids is None else len(ids))

    async def drop_workspace(self, scope: Scope) -> None:
        selector = models.FilterSelector(filter=filter_of(stored.whole_workspace(scope)))
        await self._ask((await self._client()).delete(self._collection, selector, wait=True))
        self._centres.clear()

    async def deepen(self, scope: Scope, kind: Kind, vectors: Mapping[str, Vector]) -> int:
        tenant = stored.tenant(scope, kind)
        if not self.deepens:
            return 0
        points = [*zip(stored.point_ids(scope, kind, vectors), vectors.values(), strict=True)]
        client = await self._client()
        count = 0
        for batch in in_batches(points):
            count += await self._ask(store_deep_vectors(client, self._collection, dict(batch)))
        self._centres.count_changes(tenant, count, [DEEP])
        return count

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
        arms = await self._ask_arms(question)
        ranking = fuse_arms(question, arms)
        if question.deep is not None and question.looks_again and (vector := await question.deep()) is not None:
            ranking = await self._look_again(question, arms, ranking, vector)
        ranking = ranking[: question.limit]
        points = [point for point, _ in ranking]
        passages = {record.id: stored.passage_of(record.payload) for record in await self._retrieve(points, True)}
        cosines: dict[models.ExtendedPointId, float] = {}
        if question.dense is not None and question.wants_cosines:
            cosines = scores_of(await self._compare("dense", question.dense, points))
        return hits_of(question, ranking, passages, arms, cosines)

    async def _ask_arms(self, question: Question) -> ArmScores:
        """Ask each arm for its candidates."""
        wanted = filter_of(stored.seen(question.scope, question.kind, only=question.only_sources))
        requests = [
            models.QueryRequest(
                **await self._query(question, arm), filter=wanted, limit=question.candidates, with_payload=False
            )
            for arm in question.arms
        ]
        answers = await self._ask((await self._client()).query_batch_points(self._collection, requests))
        return {arm: scores_of(answer.points) for arm, answer in zip(question.arms, answers, strict=True)}

    async def _query(self, question: Question, arm: str) -> dict[str, Any]:
        dense, sparse = question.dense, question.sparse
        if arm == "sparse":
            assert sparse is not None
            # How rare a word is, is counted within the searched scopes: the documents of others have no say in it.
            rarity = models.IdfCorpusParams(corpus=filter_of(stored.seen(question.scope, question.kind)))
            query = models.NearestQuery(nearest=sparse_vector(sparse))
            return {"query": query, "using": "sparse", "params": models.SearchParams(idf=rarity)}
        assert dense is not None
        if arm == "near" and self._fusion.centring:
            dense = subtract_centre(dense, await self._centre(question, "dense"), self._fusion.centring)
        return {"query": models.NearestQuery(nearest=dense), "using": "dense"}

    async def _look_again(self, question: Question, arms: ArmScores, ranking: Ranking, vector: Vector) -> Ranking:
        """Order the best of *ranking* anew by their deeper vectors; *vector* is the question's."""
        most = self._fusion.looked_again
        points = [point for point, _ in ranking[:most]]
        best = vectors_of(await self._retrieve(points[:FEEDBACK_PASSAGES], False, [DEEP]), DEEP)
        centre = await self._centre(question, DEEP)
        moved = subtract_centre(add_feedback(vector, best), centre, self._fusion.centring)
        compared = await self._compare(DEEP, moved, points, with_payload=[*PLACE_FIELDS])
        if question.explain:
            arms[DEEP] = scores_of(await self._compare(DEEP, vector, points))
        cosines = blend_neighbours(scores_of(compared), {one.id: place_of(one.payload or {}) for one in compared})
        return second_look(ranking, arms["near"], arms["sparse"], cosines, most)

    async def _compare(
        self,
        name: str,
        vector: Vector,
        points: Sequence[models.ExtendedPointId],
        *,
        with_payload: bool | list[str] = False,
    ) -> list[models.ScoredPoint]:
        """Return the *points* whose vector *name* exists and is not zeros, with its cosine to *vector*, best first."""
        if not points:
            return []
        answer = await self._ask(
            (await self._client()).query_points(
                self._collection,
                query=models.NearestQuery(nearest=vector),
                using=name,
                query_filter=models.Filter(must=[models.HasIdCondition(has_id=[*points])]),
                limit=len(points),
                with_payload=with_payload,
            )
        )
        return [point for point in answer.points if point.score]

    async def _retrieve(
        self, points: Sequence[models.ExtendedPointId], with_payload: bool, vectors: Sequence[str] = ()
    ) -> list[models.Record]:
        if not points:
            return []
        client = await self._client()
        return await self._ask(
            client.retrieve(self._collection, points, with_payload=with_payload, with_vectors=[*vectors] or False)
        )

    async def _centre(self, question: Question, name: str) -> Centre:
        """Find the centre of the vectors *name* that a search may find, which is remembered for a while."""
        tenant = stored.tenant(question.scope, question.kind)
        known = self._centres.get(tenant, name)
        if known is None:
            records, _ = await self._ask(
                (await self._client()).scroll(
                    self._collection,
                    scroll_filter=filter_of(stored.seen(question.scope, question.kind)),
                    limit=SAMPLE,
                    with_payload=False,
                    with_vectors=[name],
                )
            )
            known = await asyncio.to_thread(centre_of, vectors_of(records, name))
            self._centres.put(tenant, name, known)
        return known

    async def read(self, scope: Scope, kind: Kind, wanted: Mapping[str, Collection[int]]) -> dict[str, list[Passage]]:
        async def read_source(source: str, ordinals: Collection[int]) -> list[Passage]:
            return await self._read(stored.where(scope, kind, source=source, ordinals=ordinals)) if ordinals else []

        passages = await asyncio.gather(*(read_source(source, ordinals) for source, ordinals in wanted.items()))
        return dict(zip(wanted, passages, strict=True))

    async def neighbours(
        self, scope: Scope, kind: Kind, sources: Collection[str], followed: Collection[str]
    ) -> list[Passage]:
        conditions = stored.where_neighbours(scope, kind, sources, followed)
        return [passage for found in await asyncio.gather(*map(self._read, conditions)) for passage in found]

    async def _read(self, condition: Where) -> list[Passage]:
        return stored.in_reading_order([record async for record in self._scroll(condition, True)])

    async def vectors(self, scope: Scope, kind: Kind, ids: Sequence[str], *, deep: bool = False) -> dict[str, Vector]:
        if not ids or (deep and not self.deepens):
            return {}
        name = DEEP if deep else "dense"
        names = dict(zip(stored.point_ids(scope, kind, ids), ids, strict=True))
        records = await self._retrieve([*names], False, [name])
        return {names[str(record.id)]: vector_of(record, name) for record in records if name in (record.vector or {})}

    async def shallow(self, scope: Scope, kind: Kind, limit: int) -> list[Passage]:
        condition = filter_of(stored.shallow(scope, kind))
        if not self.deepens or limit < 1:
            return []
        records, _ = await self._ask(
            (await self._client()).scroll(
                self._collection, scroll_filter=condition, limit=limit, with_payload=True, with_vectors=False
            )
        )
        return [stored.passage_of(record.payload) for record in records]

    async def count_shallow(self, scope: Scope, kind: Kind) -> int:
        return await self._count(stored.shallow(scope, kind), exact=True) if self.deepens else 0

    async def ids(self, scope: Scope, kind: Kind) -> list[str]:
        condition = stored.where(scope, kind)
        return sorted([(record.payload or {})["id"] async for record in self._scroll(condition, ["id"])])

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        condition = stored.where(scope, kind)
        return dict(Counter([(record.payload or {})["source"] async for record in self._scroll(condition, ["source"])]))

    async def count(self, scope: Scope, kind: Kind) -> int:
        return await self._count(stored.where(scope, kind), exact=True)

    async def estimate(self, scope: Scope, kind: Kind) -> int:
        return await self._count(stored.where(scope, kind), exact=False)

    async def _count(self, condition: Where, *, exact: bool) -> int:
        client, wanted = await self._client(), filter_of(condition)
        return (await self._ask(client.count(self._collection, count_filter=wanted, exact=exact))).count

    async def _scroll(self, condition: Where, with_payload: bool | list[str]) -> AsyncIterator[models.Record]:
        wanted = filter_of(condition)
        offset: Any = None
        while True:
            records, offset = await self._ask(
                (await self._client()).scroll(
                    self._collection,
                    scroll_filter=wanted,
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


# Points, vectors and filters in the client's words


def points_of(entries: Sequence[tuple[Scope, IndexEntry]]) -> list[models.PointStruct]:
    """Return the points of passages."""
    return [
        models.PointStruct(
            id=stored.point_id(scope, entry.passage),
            vector={
                "dense": entry.dense,
                "sparse": sparse_vector(entry.sparse),
                **({} if entry.deep is None else {DEEP: entry.deep}),
            },
            payload=stored.payload(scope, entry.passage),
        )
        for scope, entry in entries
    ]


def sparse_vector(vector: SparseVector) -> models.SparseVector:
    return models.SparseVector(indices=list(vector.indices), values=list(vector.values))


def vector_of(record: models.Record, name: str) -> Vector:
    """Return the vector *name* of *record*, which must have it."""
    assert isinstance(record.vector, dict)
    vector = record.vector[name]
    assert isinstance(vector, list)
    return [float(number) for number in vector if isinstance(number, int | float)]


def vectors_of(records: Iterable[models.Record], name: str) -> list[Vector]:
    """Return the vectors *name* of those of *records* that have one; deeper ones of zeros, which stand for none, are
    left out."""
    vectors = [vector_of(record, name) for record in records if name in (record.vector or {})]
    return [vector for vector in vectors if name != DEEP or any(vector)]


def scores_of(points: Iterable[models.ScoredPoint]) -> dict[models.ExtendedPointId, float]:
    """Return the scores of *points*, in their order."""
    return {point.id: point.score for point in points}


def filter_of(condition: Where) -> models.Filter:
    """Return the client's form of *condition*. An engine checks a single value faster than a set."""

    def match(values: Sequence[Any]) -> models.MatchValue | models.MatchAny:
        return models.MatchValue(value=values[0]) if len(values) == 1 else models.MatchAny(any=list(values))

    must: list[models.Condition] = [
        models.FieldCondition(key=wanted.key, match=match(wanted.values)) for wanted in condition.must
    ]
    lacks: list[models.Condition] = [models.HasVectorCondition(has_vector=DEEP)]
    return models.Filter(must=must, must_not=lacks if condition.is_shallow else None)


def stale(source: Source) -> models.Filter:
    """Return the condition for what is stored of *source* but is not among its entries."""
    keep: list[models.ExtendedPointId] = [stored.point_id(source.scope, entry.passage) for entry in source.entries]
    found = filter_of(stored.where(source.scope, source.kind, source=source.name))
    if keep:
        found.must_not = [models.HasIdCondition(has_id=keep)]
    return found


def in_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield *items*, at most `UPSERT_BATCH` at a time."""
    for start in range(0, len(items), UPSERT_BATCH):
        yield items[start : start + UPSERT_BATCH]


# Deeper vectors


async def add_deep_vectors(client: AsyncQdrantClient, collection: str, dimensions: int) -> bool:
    """Let the passages of *collection* have deeper vectors if they cannot yet. Return False if the server is too old to
    add a vector to an existing collection."""
    if await _has_deep_vectors(client, collection):
        return True
    config = models.DenseVectorNameConfig(
        dense=models.DenseVectorConfig(size=dimensions, distance=models.Distance.COSINE)
    )
    try:
        await client.create_vector_name(collection, DEEP, config)
    except UnexpectedResponse as error:
        if await _has_deep_vectors(client, collection):  # another process was faster
            return True
        if error.status_code not in CANNOT:
            raise
        why = f"the server cannot add a vector to a collection (HTTP {error.status_code}): none is searched more deeply"
        log.warning("store.degraded", store="qdrant", why=why)
        return False
    return True


async def _has_deep_vectors(client: AsyncQdrantClient, collection: str) -> bool:
    vectors = (await client.get_collection(collection)).config.params.vectors
    return isinstance(vectors, dict) and DEEP in vectors


async def store_deep_vectors(client: AsyncQdrantClient, collection: str, vectors: Mapping[str, Vector]) -> int:
    """Give the points of *vectors* deeper ones, and return how many of them exist."""
    for attempt in range(DEEPEN_ATTEMPTS):
        existing = await client.retrieve(collection, list(vectors), with_payload=False, with_vectors=False)
        points = [models.PointVectors(id=one.id, vector={DEEP: vectors[str(one.id)]}) for one in existing]
        try:
            if points:
                await client.update_vectors(collection, points, wait=True)
            return len(points)
        except UnexpectedResponse as error:  # the server refuses all if one was deleted in between
            if error.status_code != NO_SUCH_POINT or attempt == DEEPEN_ATTEMPTS - 1:
                raise
    return 0


# The server's version


async def read_version(client: AsyncQdrantClient) -> str:
    """Return the version that the server reports; empty if a proxy in front of it does not let the request through."""
    try:
        return (await client.info()).version
    except (UnexpectedResponse, ValidationError):
        return ""


def version_of(reported: str) -> tuple[int, int] | None:
    """Return major and minor of a version as a server reports it (``1.19.2``); None if it is not one."""
    found = re.match(r"v?(\d+)\.(\d+)", reported)
    return (int(found[1]), int(found[2])) if found else None


def cannot_be_used(reported: str) -> str:
    """Return why a server of that version cannot be used, as a person reads it; empty if it can."""
    version = version_of(reported)
    wanted = ".".join(map(str, WANTED))
    return f"is of version {reported}: upgrade it to {wanted} or later" if version and version < OLDEST else ""


def too_old(reported: str) -> str:
    """Return what a server of that version does differently than asked, as a person reads it; empty if nothing."""
    version = version_of(reported)
    if version is None or version >= WANTED:
        return ""
    return (
        f"the Qdrant server is of version {reported}: how rare a word is, it counts over all workspaces; "
        f"from {'.'.join(map(str, WANTED))} on, in the one that is searched"
    )


# Errors


def unavailable(error: Exception, place: str) -> IndexUnavailable:
    """Translate an *error* of the client."""
    # The client reports a call that never arrived as an answer that it cannot read, with the real error inside.
    if isinstance(error, ResponseHandlingException) and isinstance(error.source, httpx.HTTPError):
        error = error.source
    retryable, what = next((again, what) for kind, again, what in ERRORS if isinstance(error, kind))
    if isinstance(error, UnexpectedResponse) and error.status_code is not None:
        default = (error.status_code >= 500 or error.status_code in (408, 425, 429), what)
        retryable, what = STATUSES.get(error.status_code, default)
        what = f"{what} (HTTP {error.status_code})"
    return IndexUnavailable(f"the Qdrant server at {place} {what}: {type(error).__name__}", retryable=retryable)
