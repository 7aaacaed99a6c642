"""Questions and conditions in the words of a Qdrant server's client. Pure, but for `version_told`; imported by
`qdrant_server` alone, because the client's import is slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from connectors.message import Scope
from grounding.documents import stored
from grounding.documents.embedding import Vector
from grounding.documents.index import Entry, Fusion, Source
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import Where

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
