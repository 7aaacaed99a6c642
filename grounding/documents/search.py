"""Searching a workspace's documents: for people, and for prompts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from connectors.message import Scope
from grounding.documents import followup
from grounding.documents.deeper import BLOCK, LATE, Deeper, NotYet
from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.documents.excerpts import utf8
from grounding.documents.index import AskDeep, Hit, Kind, Passage, PassageIndex
from grounding.documents.judging import Judging
from grounding.documents.looking_up import Chosen, LooksUp, LookUp, chosen_of, looked_up, size_of
from grounding.documents.packing import Retrieved, Room, pack
from grounding.documents.relevance import Floor, asked_terms, floor_for
from grounding.documents.rerank import Reranker, RerankUnavailable, rerank
from grounding.documents.sparse import SparseVector, encode_query, term_set
from grounding.recent import Recent
from grounding.run_context import DegradedBlock
from grounding.run_context import Passage as PromptPassage

_log = structlog.get_logger()

SHORT_QUERY_CHARACTERS = 400
QUERY_MAX_CHARACTERS = 4000
"""What of a question is searched with; the beginning and the end of longer ones."""
COUNTS_REMEMBERED = 1024
"""Passages and labels of which it is known how many tokens they are: some 200 bytes each."""
COUNTED_AT_ONCE = 1000
"""Characters whose tokens are counted on the loop, in up to half a millisecond; to hand them over takes as long."""


class Search:
    """Hybrid search over the passages of one embedding model, reranked where there is a *reranker*.

    Where that fails the fused order stands, and ``lost``, if it is given, names it.
    """

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        *,
        floor: Floor | None = None,
        count: Callable[[str], int] | None = None,
        reranker: Reranker | None = None,
        words_alone: str = "",
        kind: Kind = Kind.DOCUMENT,
        deep: Deeper | None = None,
    ) -> None:
        """*kind* is what is searched: no other is ever found. *count* gives the tokens of a text; without it passages
        are bound by their bytes alone. *words_alone*, where given, names in ``lost`` a search by words alone, which is
        made where the question cannot be embedded. *deep* is the model of the passages' deeper vectors; a search that
        goes without because its question is not embedded in time is named in ``lost``, too."""
        self._index = index
        self._look_up = index.look_up if isinstance(index, LooksUp) else partial(looked_up, index)
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
        self._counts = _Counts(count) if count else None
        self._reranker = reranker
        self._words_alone = words_alone
        self._kind = kind
        self._judging = Judging()
        self._deep = deep

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        scores: bool = False,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[Hit]:
        """The best *top_k* chunks, best first, without any floor; with *explain* each arm's rank and raw score, with
        *scores* the raw scores alone. *earlier* is what people said before *query* in the same conversation, the oldest
        first.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        if not query.strip():
            return []
        dense, sparse = await self._vectors(query, earlier, lost)
        deep = self._again(query, earlier, lost, dense, sparse)
        wanted = max(top_k, self._reranker.candidates) if self._reranker else top_k
        hits = await self._index.search(
            scope, self._kind, dense, sparse, wanted, explain=explain, scores=scores, deep=deep
        )
        if self._reranker is not None:
            query = _spelled_out(query, earlier) or query
        return (await self._reranked(scope, query, hits, lost))[:top_k]

    async def _vectors(
        self, query: str, earlier: Sequence[str], lost: list[DegradedBlock] | None
    ) -> tuple[Vector | None, SparseVector]:
        try:
            return await query_vectors(self._embedder, query, earlier)
        except EmbedderUnavailable:
            if not self._words_alone:
                raise
        if lost is not None:
            lost.append(DegradedBlock(block="retrieved", why=self._words_alone))
        return None, await query_terms(query, earlier)

    def _again(
        self,
        query: str,
        earlier: Sequence[str],
        lost: list[DegradedBlock] | None,
        dense: Vector | None,
        sparse: SparseVector,
    ) -> AskDeep | None:
        """What gives the question's deeper vector, where there is a second look."""
        looks_again = self._deep is not None and self._index.deepens and dense is not None and bool(sparse.indices)
        return partial(self._deep_vector, query, earlier, lost) if looks_again else None

    async def _deep_vector(self, query: str, earlier: Sequence[str], lost: list[DegradedBlock] | None) -> Vector | None:
        """The question's deeper vector, which is mixed as the quick one is; None where there is none in time, or where
        the model cannot read the question: what was said before it would say then what is found."""
        if self._deep is None:
            return None
        try:
            own, *turns = await _asked(self._deep, query, earlier)
            return _mixed(query, own, turns) if any(own) else None
        except NotYet:
            return None
        except EmbedderUnavailable:
            if lost is not None:
                lost.append(DegradedBlock(block=BLOCK, why=LATE))
            return None

    async def _reranked(self, scope: Scope, query: str, hits: list[Hit], lost: list[DegradedBlock] | None) -> list[Hit]:
        if self._reranker is None:
            return hits
        try:
            return await rerank(self._reranker, scope, query, hits)
        except RerankUnavailable as error:
            _log.warning("rerank.failed", workspace_id=scope.workspace_id, model=self._reranker.name, why=error.why)
            if lost is not None:
                lost.append(DegradedBlock(block="rerank", why=error.why))
            return hits

    async def retrieve(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        max_bytes: int,
        max_tokens: int | None = None,
        *,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[Retrieved]:
        """At most *top_k* passages of at most *max_bytes* bytes each, with their labels of at most *max_tokens* tokens
        together, best first; an empty list where nothing is relevant. *earlier* as in `search`.

        Raises `IndexUnavailable` and `EmbedderUnavailable`: an outage never poses as "no such document".
        """
        query = shorten(query)
        if not query.strip():
            return []
        runs, found = await self._chosen(scope, query, top_k, lost, earlier)
        if not runs:
            return []
        around: dict[str, dict[int, Passage]] = defaultdict(dict)
        for passage in found:
            around[passage.source][passage.ordinal] = passage
        room = Room(top_k, max_bytes, max_tokens if self._counts else None, self._counts or len)
        if all(utf8(part.lead + part.text) <= max_bytes for run in runs for part in run.parts):
            texts = {part.lead + part.text for part in found}
            if self._counts is None or sum(map(len, self._counts.lacking(texts))) <= COUNTED_AT_ONCE:
                return pack(runs, around, query, room)
        # Counting what was not told lately, or choosing what to keep of a long passage, takes milliseconds: off the
        # loop.
        return await asyncio.to_thread(pack, runs, around, query, room)

    async def _chosen(
        self, scope: Scope, query: str, top_k: int, lost: list[DegradedBlock] | None, earlier: Sequence[str]
    ) -> Chosen:
        if self._reranker is None:
            dense, sparse = await self._vectors(query, earlier, lost)
            look = LookUp(query, dense, sparse, self._floor, top_k, _spelled_out(query, earlier))
            again = self._again(query, earlier, lost, look.dense, look.sparse)
            return await self._look_up(scope, self._kind, look, self._judging, again)
        size = await size_of(self._index, scope, self._kind)  # mostly known
        look = LookUp(query, None, SparseVector((), ()), self._floor, top_k, _spelled_out(query, earlier))
        hits = await self.search(scope, query, look.candidates, scores=True, lost=lost, earlier=earlier)
        return await chosen_of(self._index, scope, self._kind, look, hits, size, self._judging)

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int | None = None,
        *,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[PromptPassage]:
        """`retrieve`, in the form of a turn's input."""
        found = await self.retrieve(scope, query, top_k, excerpt_bytes, max_tokens, lost=lost, earlier=earlier)
        return [
            PromptPassage(source=item.source, heading=item.heading, text=item.text, score=item.score) for item in found
        ]


class _Counts:
    """*count*, of each of the last texts once: what is told in one turn is mostly told again."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._known: Recent[int] = Recent(COUNTS_REMEMBERED)
        self.lacking = self._known.lacking

    def __call__(self, text: str) -> int:
        return self._known.of(text, self._count)


async def query_vectors(embedder: Embedder, query: str, earlier: Sequence[str] = ()) -> tuple[Vector, SparseVector]:
    """What *query* is searched with, after what was said *earlier* (see `grounding.documents.followup`). A long one
    says itself what it is about.

    Raises `EmbedderUnavailable`.
    """
    sparse = await query_terms(query, earlier)
    own, *turns = await _asked(embedder, query, earlier)
    return _mixed(query, own, turns), sparse


async def _asked(embedder: Embedder | Deeper, query: str, earlier: Sequence[str]) -> list[Vector]:
    """The vectors of *query* and of what of *earlier* is used. Raises `EmbedderUnavailable`."""
    return await embedder.embed_queries([query, *_before(query, earlier)])


def _mixed(query: str, own: Vector, turns: Sequence[Vector]) -> Vector:
    return followup.mix_vectors(own, turns, len(term_set(query))) if turns else own


async def query_terms(query: str, earlier: Sequence[str] = ()) -> SparseVector:
    """The words of `query_vectors`."""
    sparse = await encoded(query)
    if before := _before(query, earlier):
        return followup.mix_terms(sparse, [encode_query(text) for text in before], len(term_set(query)))
    return sparse


def _before(query: str, earlier: Sequence[str]) -> Sequence[str]:
    return followup.recent(earlier) if len(query) <= SHORT_QUERY_CHARACTERS else ()


def _spelled_out(query: str, earlier: Sequence[str]) -> str:
    """*query* with what was said *earlier*, where it says too little by itself; else empty."""
    before = _before(query, earlier)
    spelled_out = followup.spelled_out(query, before, len(asked_terms(query))) if before else query
    return spelled_out if spelled_out != query else ""


async def encoded(query: str) -> SparseVector:
    """See `encode_query`. Of a short one that takes less than the way to a thread and back."""
    if len(query) <= SHORT_QUERY_CHARACTERS:
        return encode_query(query)
    return await asyncio.to_thread(encode_query, query)


def shorten(query: str) -> str:
    """*query*, or its beginning and end where it is longer than `QUERY_MAX_CHARACTERS`."""
    if len(query) <= QUERY_MAX_CHARACTERS:
        return query
    half = QUERY_MAX_CHARACTERS // 2
    return f"{query[:half]}\n{query[-half:]}"
