"""One search in the words of the embedded engine: made where it is asked, answered on the engine's thread.

All that a search needs is done there and in one way there and back, what is made of the engine's points included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import qdrant_edge as edge

from connectors.message import Scope
from grounding.documents import stored
from grounding.documents.arms import TIES, hits_of
from grounding.documents.centre import SAMPLE, Centre, Centres, centre_of, off_centre
from grounding.documents.edge_queries import dense_query, filter_of, fusion_query, nearest, sparse_query
from grounding.documents.embedding import Vector
from grounding.documents.fusing import absent, by_scores, may_say_little, merged, says_little
from grounding.documents.index import Fusion, Hit, Kind, cosines_to
from grounding.documents.sparse import SparseVector

Arm = tuple[Any, Any]
"""A question to one of the two vectors, and its parameters."""


@dataclass(frozen=True)
class EdgeSearch:
    """What `grounding.documents.index.PassageIndex.search` is given."""

    scope: Scope
    kind: Kind
    dense: Vector | None
    sparse: SparseVector | None
    top_k: int
    explain: bool
    scores: bool
    compared: int
    only_sources: Sequence[str]
    fusion: Fusion

    @cached_property
    def corpus(self) -> Any:
        """All that may be found."""
        return filter_of(stored.seen(self.scope, self.kind))

    @cached_property
    def wanted(self) -> Any:
        """What of it is looked for."""
        only = self.only_sources
        return filter_of(stored.seen(self.scope, self.kind, only=only)) if only else self.corpus

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """What is asked of each vector that was given."""
        arms = {"dense": dense_query(self.dense), "sparse": sparse_query(self.sparse, self.corpus)}
        return {name: arm for name, arm in arms.items() if arm is not None}

    @property
    def is_judged(self) -> bool:
        """Whether it depends on what words alone find how the arms are fused."""
        return len(self.arms) == 2 and may_say_little(self.fusion, self.kind)

    @property
    def takes_cosines(self) -> bool:
        """Whether the cosines are those of the stored vectors, which then are read."""
        return (self.scores or self.compared > 0) and not self.explain and self.dense is not None

    @property
    def is_near_alone(self) -> bool:
        """Whether the score itself is the cosine: of the stored vectors, as codes only choose the candidates."""
        return self.dense is not None and len(self.arms) == 1

    def answered(self, shard: Any, centres: Centres) -> list[Hit]:
        """The hits, with what *centres* knows of the scope's vectors."""
        apart = [name for name in self.arms if self.explain or (name == "sparse" and (self.scores or self.is_judged))]
        fused = self._off_centre(shard, centres)
        size = centres.known_size(stored.tenant(self.scope, self.kind))
        found: list[Any] = []
        if self.is_judged and not self.explain and size < self.fusion.candidates:
            found = self._small(shard, fused)
        if not found:
            found = self._found(shard, fused, apart)
        told = dict(zip(apart, found[1:], strict=True)) if self.explain or self.scores else {}
        cosine_of = None
        if self.dense is not None and self.takes_cosines:
            near = None if self.is_near_alone else cosines_to(self.dense)

            def cosine_of(point: Any) -> float:
                return float(point.score if near is None else near(point.vector["dense"]))

        most = None if self.scores else self.compared
        return hits_of(found[0], told, self.top_k, explain=self.explain, cosine_of=cosine_of, compared=most)

    def _off_centre(self, shard: Any, centres: Centres) -> dict[str, Arm]:
        """The arms as they are fused: the dense one from the centre of what may be found."""
        if self.dense is None or "sparse" not in self.arms or not self.fusion.centring:
            return self.arms
        tenant = stored.tenant(self.scope, self.kind)
        centre = centres.of(tenant)
        if centre is None:
            centre = _centre(shard, self.corpus)
            centres.put(tenant, centre)
        return self.arms | {"dense": nearest(off_centre(self.dense, centre, self.fusion.centring))}

    def _small(self, shard: Any, arms: Mapping[str, Arm]) -> list[Any]:
        """As `_found`, of fewer passages than an arm offers: each arm is asked once. Nothing where no passage has any
        of the words."""
        requests = [self._bare(arms["dense"]), self._bare(self.arms["sparse"])]
        near, worded = shard.query_batch(edge.QueryBatchRequest(requests))
        return [self._by_scores(shard, near, worded, ()), worded] if worded else []

    def _found(self, shard: Any, fused: Mapping[str, Arm], apart: Sequence[str]) -> list[Any]:
        """The best points of all arms together, and those of each arm *apart*."""
        requests = [self._request([*fused.values()]), *(self._bare(self.arms[name]) for name in apart)]
        found: list[Any] = shard.query_batch(edge.QueryBatchRequest(requests))
        if self.is_judged and says_little(self.fusion, self.kind, len(found[-1])):
            near = shard.query(self._bare(fused["dense"]))
            found[0] = self._by_scores(shard, near, found[-1], found[0])
        return found

    def _by_scores(self, shard: Any, near: Sequence[Any], worded: Sequence[Any], there: Sequence[Any]) -> Sequence[Any]:
        """The best points where few have any of the words; see `grounding.documents.fusing`."""
        best = by_scores({one.id: one.score for one in near}, {one.id: one.score for one in worded}, self.top_k + TIES)
        missing = absent(best, there)
        more = shard.retrieve(missing, with_payload=True, with_vector=self._vectors) if missing else ()
        return merged(best, there, more)

    @property
    def _vectors(self) -> list[str] | bool:
        return ["dense"] if self.takes_cosines and not self.is_near_alone else False

    def _bare(self, arm: Arm) -> Any:
        """All candidates of *arm*, by their ids and scores."""
        query, params = arm
        return edge.QueryRequest(
            limit=self.fusion.candidates, query=query, filter=self.wanted, params=params,
            with_payload=False, with_vector=False,
        )  # fmt: skip

    def _request(self, arms: Sequence[Arm]) -> Any:
        """The best points of *arms*, with all that is read of them."""
        limit = self.top_k + TIES
        shown: dict[str, Any] = {"with_payload": True, "with_vector": self._vectors}
        if len(arms) == 1:
            query, params = arms[0]
            return edge.QueryRequest(limit=limit, query=query, filter=self.wanted, params=params, **shown)
        candidates = max(self.fusion.candidates, limit)
        return edge.QueryRequest(
            limit=limit,
            query=fusion_query(self.fusion),
            prefetches=[
                edge.Prefetch(limit=candidates, query=query, filter=self.wanted, params=params)
                for query, params in arms
            ],
            **shown,
        )


def _centre(shard: Any, corpus: Any) -> Centre:
    request = edge.ScrollRequest(limit=SAMPLE, filter=corpus, with_payload=False, with_vector=["dense"])
    records, _ = shard.scroll(request)
    return centre_of([record.vector["dense"] for record in records])
