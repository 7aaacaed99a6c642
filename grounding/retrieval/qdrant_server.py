"""The passage index on a Qdrant server or cluster.

With `grounding.retrieval.qdrant_server`, `server_deeper` and `server_errors` the only module that imports
``qdrant_client``: its import takes more than half a second, and is paid only where ``QDRANT_URL`` is set. It is tested
against the client's own local mode, which has the same classes but no network, and against a refused connection; not
against a real server.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from grounding.retrieval.index import AskDeep, Entry, Fusion, Hit, IndexUnavailable, Kind, Passage, Source, cosine
from grounding.retrieval.ranking import (
    BEST,
    SAMPLE,
    TIES,
    Centre,
    Centres,
    Fused,
    absent,
    among_neighbours,
    both,
    by_scores,
    centre_of,
    deeper,
    hits_of,
    looked_again,
    may_say_little,
    merged,
    off_centre,
    says_little,
    towards,
)
from grounding.retrieval.stored import DEEP, PLACE_FIELDS, Where, place_of

# ---- server queries ----
#
# Questions and conditions in the words of a Qdrant server's client. Pure, but for `version_told`; imported by
# `qdrant_server` alone, because the client's import is slow.


UPSERT_BATCH = 128

FIELDS: dict[str, models.KeywordIndexParams | models.PayloadSchemaType] = {
    "tenant": models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    **dict.fromkeys(stored.KEYWORD_FIELDS, models.PayloadSchemaType.KEYWORD),
    **dict.fromkeys(stored.INTEGER_FIELDS, models.PayloadSchemaType.INTEGER),
}
"""What is indexed of a payload, and how."""


async def version_told(client: AsyncQdrantClient) -> str:
    """The version that the server tells of itself; empty where what stands in front of it does not let that through."""
    try:
        return (await client.info()).version
    except (UnexpectedResponse, ValidationError):
        return ""


def in_batches(entries: Sequence[tuple[Scope, Entry]]) -> Iterator[Sequence[tuple[Scope, Entry]]]:
    """*entries*, at most `UPSERT_BATCH` at a time."""
    for start in range(0, len(entries), UPSERT_BATCH):
        yield entries[start : start + UPSERT_BATCH]


def points_of(entries: Sequence[tuple[Scope, Entry]]) -> list[models.PointStruct]:
    """The points of passages."""
    return [
        models.PointStruct(
            id=stored.point_id(scope, entry.passage),
            vector={
                "dense": entry.dense,
                "sparse": sparse_vector(entry.sparse),
                **({} if entry.deep is None else {stored.DEEP: entry.deep}),
            },
            payload=stored.payload(scope, entry.passage),
        )
        for scope, entry in entries
    ]


def sparse_vector(vector: SparseVector) -> models.SparseVector:
    return models.SparseVector(indices=list(vector.indices), values=list(vector.values))


def dense_of(record: models.Record | models.ScoredPoint, name: str = "dense") -> Vector:
    assert isinstance(record.vector, dict)
    dense = record.vector[name]
    assert isinstance(dense, list)
    return [float(number) for number in dense if isinstance(number, int | float)]


def dense_arm(dense: Vector | None) -> dict[str, Any] | None:
    return None if dense is None else nearest(dense)


def nearest(dense: Vector) -> dict[str, Any]:
    return {"query": models.NearestQuery(nearest=dense), "using": "dense"}


def sparse_arm(sparse: SparseVector | None, corpus: models.Filter) -> dict[str, Any] | None:
    if sparse is None:
        return None
    # How rare a word is, is measured within the asker's own scope: others' documents have no say in it.
    params = models.SearchParams(idf=models.IdfCorpusParams(corpus=corpus))
    return {"query": models.NearestQuery(nearest=sparse_vector(sparse)), "using": "sparse", "params": params}


def fusion_query(fusion: Fusion) -> models.FusionQuery | models.RrfQuery:
    if fusion.method == "dbsf":
        return models.FusionQuery(fusion=models.Fusion.DBSF)
    return models.RrfQuery(rrf=models.Rrf(k=fusion.k, weights=[fusion.dense, fusion.sparse]))


def best_of(
    arms: Sequence[dict[str, Any]],
    fusion: Fusion,
    condition: models.Filter,
    limit: int,
    *,
    vector: bool,
) -> models.QueryRequest:
    """The best points of *arms*, with their payload and, if wanted, their dense *vector*."""
    shown: dict[str, Any] = {"with_payload": True, "with_vector": ["dense"] if vector else False}
    if len(arms) == 1:
        return models.QueryRequest(**arms[0], filter=condition, limit=limit, **shown)
    candidates = max(fusion.candidates, limit)
    return models.QueryRequest(
        prefetch=[models.Prefetch(**arm, filter=condition, limit=candidates) for arm in arms],
        query=fusion_query(fusion),
        limit=limit,
        **shown,
    )


def filter_of(condition: Where) -> models.Filter:
    def conditions(matches: Sequence[stored.Match]) -> list[models.Condition]:
        return [models.FieldCondition(key=match.key, match=_match(match.values)) for match in matches]

    lacks: list[models.Condition] = [models.HasVectorCondition(has_vector=stored.DEEP)]
    return models.Filter(must=conditions(condition.must), must_not=lacks if condition.is_shallow else None)


def among(points: Sequence[Any], condition: models.Filter) -> models.Filter:
    """Those of *points* that meet *condition*."""
    must = condition.must if isinstance(condition.must, list) else []
    return models.Filter(must=[*must, models.HasIdCondition(has_id=list(points))])


def stale(source: Source) -> models.Filter:
    """What is stored of *source* beside its entries."""
    keep: list[models.ExtendedPointId] = [stored.point_id(source.scope, entry.passage) for entry in source.entries]
    found = filter_of(stored.where(source.scope, source.kind, source=source.name))
    if keep:
        found.must_not = [models.HasIdCondition(has_id=keep)]
    return found


def _match(values: Sequence[Any]) -> models.MatchValue | models.MatchAny:
    """A single value has a condition of its own: an engine checks it faster than a set."""
    return models.MatchValue(value=values[0]) if len(values) == 1 else models.MatchAny(any=list(values))


# ---- server deeper ----
#
# The deeper vectors of a Qdrant server's passages. Each function asks the server once or twice and raises what its
# client does. Imported by `qdrant_server` alone, because the client's import is slow.


log = structlog.get_logger()

CANNOT = (400, 404, 405, 501)
"""HTTP statuses of a server that knows no such request."""

NO_SUCH_POINT = 404
ATTEMPTS = 3


async def has_room(client: AsyncQdrantClient, collection: str, dimensions: int) -> bool:
    """Let the passages of *collection* have deeper vectors, where they cannot yet; False where the server is too old to
    add a vector to a collection that it has."""
    if await _knows_deep(client, collection):
        return True
    config = models.DenseVectorNameConfig(
        dense=models.DenseVectorConfig(size=dimensions, distance=models.Distance.COSINE)
    )
    try:
        await client.create_vector_name(collection, DEEP, config)
    except UnexpectedResponse as error:
        if await _knows_deep(client, collection):  # another process was faster
            return True
        if error.status_code not in CANNOT:
            raise
        why = f"the server cannot add a vector to a collection (HTTP {error.status_code}): none is searched more deeply"
        log.warning("store.degraded", store="qdrant", why=why)
        return False
    return True


async def _knows_deep(client: AsyncQdrantClient, collection: str) -> bool:
    vectors = (await client.get_collection(collection)).config.params.vectors
    return isinstance(vectors, dict) and DEEP in vectors


async def deepen(client: AsyncQdrantClient, collection: str, vectors: Mapping[str, Vector]) -> int:
    """Give the points of *vectors*, as far as they exist, deeper ones; how many there were."""
    for attempt in range(ATTEMPTS):
        there = await client.retrieve(collection, list(vectors), with_payload=False, with_vectors=False)
        points = [models.PointVectors(id=one.id, vector={DEEP: vectors[str(one.id)]}) for one in there]
        try:
            if points:
                await client.update_vectors(collection, points, wait=True)
            return len(points)
        except UnexpectedResponse as error:  # a server refuses all where one was deleted in between
            if error.status_code != NO_SUCH_POINT or attempt == ATTEMPTS - 1:
                raise
    return 0


def deep_of(records: Iterable[Any]) -> list[Vector]:
    """The deeper vectors of those of *records* that have one."""
    found = [dense_of(one, DEEP) for one in records if DEEP in (one.vector or {})]
    return [vector for vector in found if any(vector)]


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked at again: the best of what meets *condition*, with the deeper vector that *question* gives when
    they are known, seen from the *centre* of deeper vectors; *top_k* points are wanted in the end."""

    question: AskDeep
    centre: Centre
    fusion: Fusion
    condition: models.Filter
    top_k: int


async def look_again(
    client: AsyncQdrantClient, collection: str, arms: Mapping[str, dict[str, Any]], look: Look, *, tells: bool
) -> tuple[list[Fused[Any]], dict[str, list[Any]]]:
    """The best points, with what they carry, after the best by ``near`` and ``sparse`` of *arms* were compared
    by their deeper vectors; and what each of *arms* found, best first, where it *tells* that also the cosines of the
    deeper vectors, as ``deep``."""
    fusion, condition = look.fusion, look.condition
    asked = [
        models.QueryRequest(**arm, filter=condition, limit=fusion.candidates, with_payload=False)
        for arm in arms.values()
    ]
    answers = await client.query_batch_points(collection, asked)
    told: dict[str, list[Any]] = {name: answer.points for name, answer in zip(arms, answers, strict=True)}
    near, worded = ({one.id: one.score for one in told[name]} for name in ("near", "sparse"))
    best = both(near, worded, fusion, max(look.top_k, fusion.looked_again + TIES))
    looked_at = [point for point, _ in best[: fusion.looked_again]]
    first = await client.retrieve(collection, looked_at[:BEST], with_payload=False, with_vectors=[DEEP])
    deep = deep_of(first)
    question = await look.question()
    moved = [] if question is None else [off_centre(towards(question, deep), look.centre, fusion.centring)]
    questions = [*moved, *([question] if question is not None and tells else [])]
    compared = [
        models.QueryRequest(
            query=question,
            using=DEEP,
            filter=among(looked_at, condition),
            limit=max(len(looked_at), 1),
            with_payload=[*PLACE_FIELDS],
        )
        for question in questions
    ]
    again = [answer.points for answer in await client.query_batch_points(collection, compared)] if compared else []
    if len(again) > 1:
        told[DEEP] = [one for one in again[1] if one.score]
    found = {one.id: one.score for one in (again or [[]])[0] if one.score}  # a vector of zeros is none
    stand = {one.id: place_of(one.payload or {}) for one in (again or [[]])[0]}
    cosines = among_neighbours(found, stand)
    ranked = looked_again(best, near, worded, cosines, fusion.looked_again)[: look.top_k]
    there = await client.retrieve(collection, [point for point, _ in ranked], with_payload=True, with_vectors=["dense"])
    return merged(ranked, there), told


# ---- server errors ----
#
# The errors of a Qdrant server's client, as ours: one table. Imported by `qdrant_server` alone, because the client's
# import is slow.


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
"""HTTP status → the same, where the status says more; others below 500 are final, the rest may pass."""


def unavailable(error: Exception, place: str) -> IndexUnavailable:
    """*error* of the client as ours."""
    # The client tells of a call that never arrived as of an answer that it cannot read, with the truth behind it.
    if isinstance(error, ResponseHandlingException) and isinstance(error.source, httpx.HTTPError):
        error = error.source
    retryable, what = next((again, what) for kind, again, what in ERRORS if isinstance(error, kind))
    if isinstance(error, UnexpectedResponse) and error.status_code is not None:
        default = (error.status_code >= 500 or error.status_code in (408, 425, 429), what)
        retryable, what = STATUSES.get(error.status_code, default)
        what = f"{what} (HTTP {error.status_code})"
    return IndexUnavailable(f"the Qdrant server at {place} {what}: {type(error).__name__}", retryable=retryable)


# ---- server version ----
#
# What a Qdrant server of which version can do. Pure.


OLDEST = (1, 11)
"""Before it there are neither queries fused by scores nor indexes of tenants (release notes of 1.10 and 1.11)."""
WANTED = (1, 19)
"""Before it how rare a word is, is counted in the whole collection: the server passes over what it is asked
(https://github.com/qdrant/qdrant/pull/9661)."""


def version_of(told: str) -> tuple[int, int] | None:
    """Major and minor of a version as a server tells it (``1.19.2``); None where it is not one."""
    found = re.match(r"v?(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else None


def cannot_be_used(told: str) -> str:
    """Why a server of that version cannot be used, as a person reads it; empty where it can."""
    version = version_of(told)
    return f"is of version {told}: upgrade it to {_named(WANTED)} or later" if version and version < OLDEST else ""


def too_old(told: str) -> str:
    """What a server of that version does otherwise than it is asked to, as a person reads it; empty where nothing."""
    version = version_of(told)
    if version is None or version >= WANTED:
        return ""
    return (
        f"the Qdrant server is of version {told}: how rare a word is, it counts over all workspaces; "
        f"from {_named(WANTED)} on, in the one that is searched"
    )


def _named(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# ---- qdrant server ----


T = TypeVar("T")

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
        """The best points where few have any of the words; see `grounding.retrieval.ranking`."""
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
