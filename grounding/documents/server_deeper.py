"""The deeper vectors of a Qdrant server's passages. Each function asks the server once or twice and raises what its
client does. Imported by `qdrant_server` alone, because the client's import is slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from grounding.documents.arms import TIES
from grounding.documents.centre import Centre, off_centre
from grounding.documents.embedding import Vector
from grounding.documents.fusing import Fused, both, merged
from grounding.documents.index import AskDeep, Fusion
from grounding.documents.second_look import BEST, among_neighbours, looked_again, towards
from grounding.documents.server_queries import among, dense_of
from grounding.documents.stored import DEEP, PLACE_FIELDS, place_of

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
