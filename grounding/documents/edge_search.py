"""One search in the words of the embedded engine: made where it is asked, answered on the engine's thread.

All that a search needs is done there and in one way there and back, what is made of the engine's points included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import qdrant_edge as edge

from connectors.message import Scope
from grounding.documents import stored
from grounding.documents.arms import TIES, hits_of
from grounding.documents.centre import SAMPLE, Centre, Centres, deeper, off_centre
from grounding.documents.edge_kept import Kept
from grounding.documents.edge_queries import count_of, dense_query, filter_of, fusion_query, nearest, sparse_query
from grounding.documents.edge_shard import deep_centre, deep_cosines, deep_vectors
from grounding.documents.embedding import Vector
from grounding.documents.fusing import both, by_scores, may_say_little, says_little
from grounding.documents.index import Fusion, Hit, Kind, Passage
from grounding.documents.second_look import BEST, among_neighbours, looked_again, towards
from grounding.documents.sparse import SparseVector
from grounding.documents.stored import Place

Arm = tuple[Any, Any]
"""A question to one of the two vectors, and its parameters."""
_BARE: dict[str, Any] = {"with_payload": False, "with_vector": False}
"""Points by their ids and scores: what they hold takes the engine far longer than to find them."""

SHORT_PASSAGES = 12_000
"""A look into so few takes some 2 ms (11,400 real passages), and is made where it is asked for: the way to a thread and
back takes 0.4 ms of processor time and, where others wait, several times as long. It would free nothing: the engine
holds the interpreter's lock while it searches."""
SHORT_CENTRE = 64
"""The same for a search that has to read vectors for their mean first: 3.5 ms of Python for 256 of them, between which
others have their turn on a thread."""


class Point(NamedTuple):
    """A point that was found."""

    id: int
    """Its UUID as a number, which a dict finds in a tenth of the time."""
    score: float


class First(NamedTuple):
    """What was found before the second look: by each arm, with its raw scores, and the best of both."""

    near: Mapping[int, float]
    worded: Mapping[int, float]
    best: list[tuple[int, float]]
    leading: list[Vector]
    """The deeper vectors of the first of the best."""
    places: Mapping[int, Place]
    """Where those of the best stand that are looked at again."""
    centre: Centre
    """Of deeper vectors."""
    told: dict[str, Iterable[Point]]


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
    looks_again: bool = False
    """Whether the best of both arms are compared by their deeper vectors: `first_look` and `second_look`."""
    is_alone: bool = False
    """Whether the shard that is asked holds nothing but what may be found; see `grounding.documents.edge_own`."""
    is_worn: bool = False
    """Whether so much of that shard was changed that it no longer knows how rare its words are."""

    def among(self, *, alone: bool, worn: bool) -> EdgeSearch:
        """The same search, for a shard that is such a one."""
        return replace(self, is_alone=True, is_worn=worn) if alone else self

    @cached_property
    def corpus(self) -> Any:
        """All that may be found."""
        return filter_of(stored.seen(self.scope, self.kind))

    @cached_property
    def wanted(self) -> Any:
        """What of it is looked for; None for all that is in the shard."""
        if only := self.only_sources:
            return filter_of(stored.seen(self.scope, self.kind, only=only))
        return None if self.is_alone else self.corpus

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """What is asked of each vector that was given."""
        population = None if self.is_alone and not self.is_worn else self.corpus
        arms = {"dense": dense_query(self.dense), "sparse": sparse_query(self.sparse, population)}
        return {name: arm for name, arm in arms.items() if arm is not None}

    @property
    def is_judged(self) -> bool:
        """Whether it depends on what words alone find how the arms are fused."""
        return len(self.arms) == 2 and may_say_little(self.fusion, self.kind)

    @property
    def needs_centre(self) -> bool:
        """Whether the question is asked from the centre of what may be found."""
        return len(self.arms) == 2 and self.fusion.centring > 0

    def short(self, centres: Centres) -> int:
        """Among how many passages it is made where it is asked for."""
        tenant = stored.tenant(self.scope, self.kind)
        needed = [tenant] * self.needs_centre + [deeper(tenant)] * self.looks_again
        return SHORT_CENTRE if any(centres.of(one) is None for one in needed) else SHORT_PASSAGES

    @property
    def takes_cosines(self) -> bool:
        """Whether the cosines are those of the stored vectors."""
        return (self.scores or self.compared > 0) and not self.explain and self.dense is not None

    @property
    def is_near_alone(self) -> bool:
        """Whether the score itself is the cosine: of the stored vectors, as codes only choose the candidates."""
        return self.dense is not None and len(self.arms) == 1

    def answered(self, shard: Any, centres: Centres, kept: Kept) -> list[Hit]:
        """The hits, with what *centres* knows of the scope's vectors. The engine is asked for ids and scores
        alone; what points hold is read of those that are among the best and not *kept*."""
        apart = [name for name in self.arms if self.explain or (name == "sparse" and (self.scores or self.is_judged))]
        fused = self._off_centre(shard, centres, kept)
        size = centres.known_size(stored.tenant(self.scope, self.kind))
        small = None
        if self.is_judged and not self.explain and size < self.fusion.candidates:
            small = self._small(shard, fused)
        best, *others = small or self._found(shard, fused, apart)
        told: dict[str, Iterable[Point]] = {}
        if self.explain or self.scores:
            told = {name: map(_point, arm) for name, arm in zip(apart, others, strict=True)}
        return self._hits(shard, best, told, kept)

    def first_look(self, shard: Any, centres: Centres, kept: Kept) -> First:
        """What both arms find, each asked once, and what is needed to look at the best of it again."""
        arms = self._off_centre(shard, centres, kept)
        requests = [self._bare(arm) for arm in (arms["dense"], self.arms["sparse"])]
        if self.explain:
            requests.append(self._bare(self.arms["dense"]))
        near, worded, *plain = shard.query_batch(edge.QueryBatchRequest(requests))
        by_meaning, by_words = ({one.id.int: one.score for one in arm} for arm in (near, worded))
        most = self.fusion.looked_again
        best = both(by_meaning, by_words, self.fusion, max(self.top_k, most) + TIES)
        looked_at = [point for point, _ in best[:most]]
        leading, places = deep_vectors(shard, looked_at[:BEST]), kept.places(shard, looked_at)
        told: dict[str, Iterable[Point]] = {}
        if self.explain or self.scores:
            told["sparse"] = (Point(*one) for one in by_words.items())
        if plain:
            told["dense"] = map(_point, plain[0])
        return First(by_meaning, by_words, best, leading, places, self._deep_centre(shard, centres), told)

    def second_look(self, shard: Any, first: First, deep: Vector | None, kept: Kept) -> list[Hit]:
        """The hits, after the best of the *first* look were compared by the question's *deep* vector, if it has one."""
        ranked, told = first.best, first.told
        looked_at = [point for point, _ in first.best[: self.fusion.looked_again]]
        if deep is not None and looked_at:
            asked = off_centre(towards(deep, first.leading), first.centre, self.fusion.centring)
            cosines = among_neighbours(deep_cosines(shard, asked, looked_at), first.places)
            ranked = looked_again(first.best, first.near, first.worded, cosines, self.fusion.looked_again)
            if self.explain:
                told[stored.DEEP] = (Point(*one) for one in deep_cosines(shard, deep, looked_at).items())
        return self._hits(shard, [Point(*one) for one in ranked], told, kept)

    def _deep_centre(self, shard: Any, centres: Centres) -> Centre:
        name = deeper(stored.tenant(self.scope, self.kind))
        centre = centres.of(name)
        if centre is None:
            centre = deep_centre(shard, self.corpus)
            centres.put(name, centre)  # what has such a vector may be few
        return centre

    def _hits(self, shard: Any, best: Sequence[Point], told: Mapping[str, Iterable[Point]], kept: Kept) -> list[Hit]:
        most = None if self.scores else self.compared

        def passages_of(points: Sequence[Point]) -> dict[int, Passage]:
            return kept.passages(shard, [one.id for one in points])

        # Of a second look far more points come than are wanted, and vectors that nobody asked for take longest to read.
        likely = best[: self.top_k if most is None else most]
        cosine_of = self._cosine_of(shard, kept, likely) if self.takes_cosines else None
        return hits_of(
            best, told, self.top_k, explain=self.explain, cosine_of=cosine_of, compared=most, passages_of=passages_of
        )

    def _cosine_of(self, shard: Any, kept: Kept, best: Sequence[Point]) -> Callable[[Point], float]:
        """The cosines of points, most of which are the *best*."""
        if self.is_near_alone:
            return lambda point: float(point.score)
        dense = self.dense or []
        known = kept.cosines(shard, dense, [one.id for one in best])

        def cosine_of(point: Point) -> float:
            if point.id not in known:  # one of the same score
                known.update(kept.cosines(shard, dense, [point.id]))
            return known[point.id]

        return cosine_of

    def _off_centre(self, shard: Any, centres: Centres, kept: Kept) -> dict[str, Arm]:
        """The arms as they are fused: the dense one from the centre of what may be found."""
        if not self.needs_centre:
            return self.arms
        tenant = stored.tenant(self.scope, self.kind)
        centre = centres.of(tenant)
        if centre is None:
            centre = _centre(shard, self.corpus, kept)
            centres.put(tenant, centre, count_of(shard, self.corpus))
        return self.arms | {"dense": nearest(off_centre(self.dense or [], centre, self.fusion.centring))}

    def _small(self, shard: Any, arms: Mapping[str, Arm]) -> list[Sequence[Any]] | None:
        """As `_found`, of fewer passages than an arm offers: each arm is asked once. Nothing where no passage has any
        of the words."""
        requests = [self._bare(arms["dense"]), self._bare(self.arms["sparse"])]
        near, worded = shard.query_batch(edge.QueryBatchRequest(requests))
        return [self._by_scores(near, worded), worded] if worded else None

    def _found(self, shard: Any, fused: Mapping[str, Arm], apart: Sequence[str]) -> list[Sequence[Any]]:
        """The best points of all arms together, and those of each arm *apart*."""
        requests = [self._request([*fused.values()]), *(self._bare(self.arms[name]) for name in apart)]
        found: list[Sequence[Any]] = shard.query_batch(edge.QueryBatchRequest(requests))
        if self.is_judged and says_little(self.fusion, self.kind, len(found[-1])):
            return [self._by_scores(shard.query(self._bare(fused["dense"])), found[-1]), *found[1:]]
        return [[_point(one) for one in found[0]], *found[1:]]

    def _by_scores(self, near: Sequence[Any], worded: Sequence[Any]) -> Sequence[Point]:
        """The best points where few have any of the words; see `grounding.documents.fusing`."""
        dense, sparse = ({one.id.int: one.score for one in arm} for arm in (near, worded))
        return [Point(*one) for one in by_scores(dense, sparse, self.top_k + TIES)]

    def _bare(self, arm: Arm) -> Any:
        """All candidates of *arm*."""
        query, params = arm
        return edge.QueryRequest(
            limit=self.fusion.candidates, query=query, filter=self.wanted, params=params, **_BARE
        )  # fmt: skip

    def _request(self, arms: Sequence[Arm]) -> Any:
        """The best points of *arms*."""
        limit = self.top_k + TIES
        if len(arms) == 1:
            query, params = arms[0]
            return edge.QueryRequest(limit=limit, query=query, filter=self.wanted, params=params, **_BARE)
        candidates = max(self.fusion.candidates, limit)
        return edge.QueryRequest(
            limit=limit,
            query=fusion_query(self.fusion),
            prefetches=[
                edge.Prefetch(limit=candidates, query=query, filter=self.wanted, params=params)
                for query, params in arms
            ],
            **_BARE,
        )


def _point(found: Any) -> Point:
    return Point(found.id.int, found.score)


def _centre(shard: Any, corpus: Any, kept: Kept) -> Centre:
    records, _ = shard.scroll(edge.ScrollRequest(limit=SAMPLE, filter=corpus, **_BARE))
    return kept.centre(shard, [record.id.int for record in records])
