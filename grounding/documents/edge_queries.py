"""Questions and conditions in the words of the embedded engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import qdrant_edge as edge

from connectors.message import Scope
from grounding.documents import stored
from grounding.documents.embedding import Vector
from grounding.documents.index import Entry, Fusion
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import Where

_BY_CODES = edge.SearchParams(quantization=edge.QuantizationSearchParams(rescore=True, oversampling=2.0))
"""Without `optimize` there is no graph, and every vector is looked at: of 100,000 by codes of four bits a dimension in
2 ms instead of 14, then twice as many as wanted by the vectors themselves (minima on a loaded machine). Of 38,200 real
vectors, 100 wanted, the first ten were those of the whole scan for all of 60 questions."""


def point_of(scope: Scope, entry: Entry) -> Any:
    """The point of a passage."""
    return edge.Point(
        stored.point_id(scope, entry.passage),
        {
            "dense": entry.dense,
            "sparse": sparse_vector(entry.sparse),
            **({} if entry.deep is None else {stored.DEEP: entry.deep}),
        },
        stored.payload(scope, entry.passage),
    )


def entry_of(record: Any) -> Entry:
    """The passage of a point that was read with its vectors, but for the deeper one."""
    vectors = record.vector  # once: each time it is made anew, number by number
    words = vectors["sparse"]
    sparse = SparseVector(tuple(words.indices), tuple(words.values))
    return Entry(stored.passage_of(record.payload), vectors["dense"], sparse)


def sparse_vector(vector: SparseVector) -> Any:
    return edge.SparseVector(list(vector.indices), list(vector.values))


def dense_query(dense: Vector | None) -> tuple[Any, Any] | None:
    return None if dense is None else nearest(dense)


def nearest(dense: Vector) -> tuple[Any, Any]:
    return edge.Query.Nearest(dense, using="dense"), _BY_CODES


def sparse_query(sparse: SparseVector | None, corpus: Any) -> tuple[Any, Any] | None:
    """Where *corpus* is None the rarity of words is that of the whole shard."""
    if sparse is None:
        return None
    # How rare a word is, is measured within the asker's own scope: others' documents have no say in it.
    params = None if corpus is None else edge.SearchParams(idf=edge.IdfParams(corpus=corpus))
    return edge.Query.Nearest(sparse_vector(sparse), using="sparse"), params


def fusion_query(fusion: Fusion) -> Any:
    if fusion.method == "dbsf":
        return cast("Any", edge.Fusion.Dbsf)()
    return cast("Any", edge.Fusion.Rrf)(k=fusion.k, weights=[fusion.dense, fusion.sparse])


def _match(values: Sequence[Any]) -> Any:
    """A single value has a condition of its own: the engine checks it faster than a set."""
    return edge.MatchValue(values[0]) if len(values) == 1 else edge.MatchAny(list(values))


def filter_of(condition: Where) -> Any:
    def conditions(matches: Sequence[stored.Match]) -> list[Any]:
        return [edge.FieldCondition(key=match.key, match=_match(match.values)) for match in matches]

    if condition.is_shallow:
        lacks = cast("Any", edge.HasVectorCondition(stored.DEEP))
        return edge.Filter(must=conditions(condition.must), must_not=[lacks])
    return edge.Filter(must=conditions(condition.must))


def points_of(shard: Any, seen: Any, most: int) -> list[int]:
    """The first *most* points of *shard* that meet *seen*: their UUIDs as numbers, in their order."""
    request = edge.ScrollRequest(limit=most, filter=seen, with_payload=False, with_vector=False)
    return [record.id.int for record in shard.scroll(request)[0]]


SCROLL_BATCH = 1000


def count_of(shard: Any, seen: Any) -> int:
    """About how many points of *shard* meet *seen*; all of them where that is None."""
    return int(shard.count(edge.CountRequest(exact=False, filter=seen)))


def scroll(shard: Any, condition: Where | None, *, with_payload: bool | list[str]) -> Iterator[Any]:
    """All points of *shard* (that meet *condition*), without their vectors."""
    offset: Any = None
    wanted = None if condition is None else filter_of(condition)
    while True:
        records, offset = shard.scroll(
            edge.ScrollRequest(
                offset=offset, limit=SCROLL_BATCH, filter=wanted, with_payload=with_payload, with_vector=False
            )
        )
        yield from records
        if offset is None:
            return


def scroll_ids(shard: Any, condition: Where) -> list[str]:
    """Their ids alone."""
    return [str(record.id) for record in scroll(shard, condition, with_payload=False)]
