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
from collections.abc import Awaitable, Mapping, Sequence
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
from grounding.retrieval.index import IndexUnavailable, Kind
from grounding.retrieval.qdrant import EVERY, Owned, QdrantIndex
from grounding.retrieval.stored import DEEP, Where

T = TypeVar("T")
log = structlog.get_logger()

SCROLL_BATCH = 1000
OLDEST = (1, 11)
"""Older servers have no indexes of tenants (release notes of 1.11)."""
WANTED = (1, 19)
"""Older servers count how rare a word is in the whole collection, and ignore the wish to count it in one scope
(https://github.com/qdrant/qdrant/pull/9661)."""
CANNOT = (400, 404, 405, 501)
"""HTTP statuses of a server that knows no such request."""

FIELDS: dict[str, models.KeywordIndexParams | models.PayloadSchemaType] = {
    "tenant": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    **dict.fromkeys(("workspace", "source", "previous"), models.PayloadSchemaType.KEYWORD),
    "ordinal": models.PayloadSchemaType.INTEGER,
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


class ServerIndex(QdrantIndex):
    """`PassageIndex` over a Qdrant server; ``client`` is handed in by tests."""

    upsert_batch = 128

    def __init__(
        self,
        url: str,
        model: str,
        dimensions: int,
        *,
        timeout_seconds: float,
        api_key: str | None = None,
        version: int = stored.PAYLOAD_VERSION,
        deep_dimensions: int | None = None,
        client: AsyncQdrantClient | None = None,
    ) -> None:
        super().__init__(model, dimensions, timeout_seconds, version, deep_dimensions)
        self._place = url
        self._api_key = api_key
        self._opened = client
        self._closed = False

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
        self._check_version(await self._ask(read_version(client)))
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

    def _check_version(self, reported: str) -> None:
        """Raise `IndexUnavailable` if a server of that version cannot be used; warn if its ranking is worse."""
        version = version_of(reported)
        if version is None or version >= WANTED:
            return
        wanted = ".".join(map(str, WANTED))
        why = f"the Qdrant server at {self._place} is of version {reported}: upgrade it to {wanted} or later"
        if version < OLDEST:
            raise IndexUnavailable(why, retryable=False)
        why += "; until then, how rare a word is, is counted over all workspaces"
        log.warning("store.degraded", store="qdrant", why=why)

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

    async def sources(self, scope: Scope, kind: Kind) -> dict[str, int]:
        records = await self._scroll(stored.where(scope, kind), ["source"])
        return dict(Counter([record.payload["source"] for record in records]))

    async def _upsert(self, entries: Sequence[Owned]) -> None:
        await self._ask((await self._client()).upsert(self._collection, points_of(entries), wait=True))

    async def _replace(self, entries: Sequence[Owned], stale: Sequence[Where]) -> None:
        """The new passages are stored before the old ones go, in one request."""
        operations: list[Any] = [
            models.DeleteOperation(delete=models.FilterSelector(filter=filter_of(condition))) for condition in stale
        ]
        if entries:
            operations.insert(0, models.UpsertOperation(upsert=models.PointsList(points=points_of(entries))))
        await self._ask((await self._client()).batch_update_points(self._collection, operations, wait=True))

    async def _delete(self, condition: Where) -> None:
        selector = models.FilterSelector(filter=filter_of(condition))
        await self._ask((await self._client()).delete(self._collection, selector, wait=True))

    async def _update_vectors(self, vectors: Mapping[str, Vector]) -> int:
        """The server refuses all of *vectors* if a point is deleted in between; they are given again later."""
        existing = await self._retrieve([*vectors], False)
        points = [models.PointVectors(id=one.id, vector={DEEP: vectors[str(one.id)]}) for one in existing]
        if points:
            await self._ask((await self._client()).update_vectors(self._collection, points, wait=True))
        return len(points)

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
        rarity = models.SearchParams(idf=models.IdfCorpusParams(corpus=filter_of(corpus))) if corpus else None
        answer = await self._ask(
            (await self._client()).query_points(
                self._collection,
                query=models.NearestQuery(nearest=sparse_or_dense(vector)),
                using=name,
                query_filter=filter_of(condition),
                search_params=rarity,
                limit=limit,
                with_payload=fields,
            )
        )
        return answer.points

    async def _retrieve(self, points: Sequence[Any], fields: bool, vectors: Sequence[str] = ()) -> Sequence[Any]:
        if not points:
            return []
        return await self._ask(
            (await self._client()).retrieve(
                self._collection, points, with_payload=fields, with_vectors=[*vectors] or False
            )
        )

    async def _scroll(
        self, condition: Where, fields: bool | list[str], limit: int = EVERY, vectors: Sequence[str] = ()
    ) -> Sequence[Any]:
        records: list[Any] = []
        offset: Any = None
        while True:
            page, offset = await self._ask(
                (await self._client()).scroll(
                    self._collection,
                    scroll_filter=filter_of(condition),
                    limit=min(SCROLL_BATCH, limit - len(records)),
                    offset=offset,
                    with_payload=fields,
                    with_vectors=[*vectors] or False,
                )
            )
            records += page
            if offset is None or len(records) >= limit:
                return records

    async def _count(self, condition: Where, *, exact: bool) -> int:
        client, wanted = await self._client(), filter_of(condition)
        return (await self._ask(client.count(self._collection, count_filter=wanted, exact=exact))).count


# Points, vectors and filters in the client's words


def points_of(entries: Sequence[Owned]) -> list[models.PointStruct]:
    """Return the points of passages."""
    return [
        models.PointStruct(
            id=stored.point_id(scope, entry.passage),
            vector={
                "dense": entry.dense,
                "sparse": sparse_or_dense(entry.sparse),
                **({} if entry.deep is None else {DEEP: entry.deep}),
            },
            payload=stored.payload(scope, entry.passage),
        )
        for scope, entry in entries
    ]


def sparse_or_dense(vector: Vector | SparseVector) -> Any:
    """Return the client's form of *vector*."""
    if isinstance(vector, SparseVector):
        return models.SparseVector(indices=list(vector.indices), values=list(vector.values))
    return vector


def filter_of(condition: Where) -> models.Filter:
    """Return the client's form of *condition*. An engine checks a single value faster than a set."""

    def match(values: Sequence[Any]) -> models.MatchValue | models.MatchAny:
        return models.MatchValue(value=values[0]) if len(values) == 1 else models.MatchAny(any=list(values))

    must: list[models.Condition] = [
        models.FieldCondition(key=wanted.key, match=match(wanted.values)) for wanted in condition.must
    ]
    if condition.only is not None:
        must.append(models.HasIdCondition(has_id=[*condition.only]))
    must_not: list[models.Condition] = [models.HasVectorCondition(has_vector=DEEP)] if condition.is_shallow else []
    if condition.without:
        must_not.append(models.HasIdCondition(has_id=[*condition.without]))
    return models.Filter(must=must, must_not=must_not or None)


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
