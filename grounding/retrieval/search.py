"""Searching a workspace's documents.

`Search.search` returns the ranked hits, for people. `Search.look` finds what a prompt may show for a message, and how
relevant it is: the strategy decides by that whether the message gets documents at all. `Search.pack` then packs what is
relevant enough, with its neighbours, into the prompt's room. `ContextField` searches one conversation's context
document.

The score (`grounding.retrieval.ranking`) orders hits. Of the first ``top_k * CANDIDATES_PER_PASSAGE``, the relevance
(`grounding.retrieval.relevance`) decides which a prompt shows.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from connectors.message import ConversationKey, Scope
from grounding.prompt_input import DegradedBlock
from grounding.prompt_input import Passage as PromptPassage
from grounding.retrieval.bm25 import encode_document
from grounding.retrieval.embedding import (
    DEEP_VECTOR_LATE,
    DeepEmbedder,
    Embedder,
    EmbedderUnavailable,
    ModelLoading,
    Vector,
)
from grounding.retrieval.index import Hit, IndexEntry, Kind, Passage, PassageIndex, PassageQuery, Source
from grounding.retrieval.languages import UNTRANSLATED, QueryTranslation
from grounding.retrieval.packing import Room, choose, neighbours_wanted, pack
from grounding.retrieval.query import (
    deep_query_vector,
    query_vectors,
    shorten,
    spell_out,
    used_turns,
)
from grounding.retrieval.ranking import Reranker, RerankUnavailable, rerank
from grounding.retrieval.relevance import Relevance, question_terms, relevance_for
from grounding.retrieval.stored import searched

_log = structlog.get_logger()

CANDIDATES_PER_PASSAGE = 3
"""So many hits are searched for each passage of a prompt: some are duplicates, some join into one."""
NEAREST = 5
"""So many passages tell in which language documents are."""
NOTHING = -math.inf
"""The relevance of nothing."""


class PassageRoom(NamedTuple):
    """The room of a prompt for passages: their number, the bytes of each, and the tokens of all with their labels; None
    if only bytes bind them."""

    top_k: int
    excerpt_bytes: int
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for ``query``, best first, each hit with its relevance (log-odds), among ``passages`` passages.

    ``earlier`` is what people said before. ``lost`` names the parts that could not be searched. ``translation`` says
    how the message was translated.
    """

    query: str
    earlier: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()
    relevances: tuple[float, ...] = ()
    passages: int = 0
    lost: tuple[DegradedBlock, ...] = ()
    translation: QueryTranslation = UNTRANSLATED

    @property
    def relevance(self) -> float:
        """That of the most relevant hit; `NOTHING` if there is none."""
        return max(self.relevances, default=NOTHING)


class Search:
    """Hybrid search over the passages of one embedding model, reranked if there is a *reranker*.

    Parts of a search that are lost (the reranker, the question's vectors) are named in the argument ``lost`` of its
    methods; the search goes on without them.
    """

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        *,
        relevance: Relevance | None = None,
        count: Callable[[str], int] | None = None,
        reranker: Reranker | None = None,
        words_alone: str = "",
        kind: Kind = Kind.DOCUMENT,
        deep: DeepEmbedder | None = None,
    ) -> None:
        """Search passages of *kind* and of no other.

        *count* gives the tokens of a text; without it passages are bound by their bytes alone. If the question cannot
        be embedded, it is searched by words alone, which ``lost`` calls *words_alone*; if that is empty,
        `EmbedderUnavailable` is raised. *deep* is the model of the passages' deeper vectors.
        """
        self._index = index
        self._embedder = embedder
        self._relevance = relevance or relevance_for(embedder.name, deep.name if deep else None)
        self._count = count
        self._reranker = reranker
        self._words_alone = words_alone
        self._kind = kind
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
        """Return the best *top_k* chunks, best first, without any floor.

        With *explain* hits have each arm's rank and raw score, and their relevance; with *scores* the raw scores alone.
        *earlier* is what people said before *query* in the same conversation, the oldest first.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query, wanted = shorten(query), self._offered(top_k)
        hits = await self._rank(scope, query, wanted, explain=explain, scores=scores, lost=lost, earlier=earlier)
        if explain:
            _, relevances = await self._judge(scope, query, hits, earlier)
            hits = [hit._replace(relevance=value) for hit, value in zip(hits, relevances, strict=True)]
        return (await self._reranked(scope, query, hits, lost, earlier))[:top_k]

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        """Return what a prompt of *top_k* passages may show for *query*, and how relevant that is. *earlier* as in
        `search`. Nothing is reranked, because most messages need no documents.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query, lost = shorten(query), list[DegradedBlock]()
        wanted = self._offered(top_k * CANDIDATES_PER_PASSAGE)
        hits = await self._rank(scope, query, wanted, scores=True, lost=lost, earlier=earlier)
        size, relevances = await self._judge(scope, query, hits, earlier)
        return Found(query, tuple(earlier), tuple(hits), tuple(relevances), size, tuple(lost))

    async def _judge(
        self, scope: Scope, query: str, hits: Sequence[Hit], earlier: Sequence[str]
    ) -> tuple[int, list[float]]:
        """Return the approximate number of passages that were searched, and the relevance of each of *hits*."""
        owners = searched(scope, self._kind)
        size = sum([await self._index.count(owner, self._kind, exact=False) for owner in owners])
        # In a thread: the words of many passages take milliseconds.
        return size, await asyncio.to_thread(self._relevance.of, query, hits, size, used_turns(query, earlier))

    async def nearest(self, scope: Scope, query: str) -> list[Hit]:
        """Return some of the passages that are nearest to *query*. Raises `IndexUnavailable` and
        `EmbedderUnavailable`."""
        return await self._rank(scope, shorten(query), NEAREST, lost=None, earlier=())

    def _offered(self, top_k: int) -> int:
        """Return how many hits are ranked if *top_k* are wanted: a reranker reads more."""
        return max(top_k, self._reranker.candidates) if self._reranker else top_k

    async def _rank(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        scores: bool = False,
        lost: list[DegradedBlock] | None,
        earlier: Sequence[str],
    ) -> list[Hit]:
        if not query.strip():
            return []
        dense, sparse = await query_vectors(self._embedder, query, earlier, words_alone=bool(self._words_alone))
        if dense is None and lost is not None:
            lost.append(DegradedBlock(block="retrieved", why=self._words_alone))
        deep = await self._deep_vector(query, earlier, lost) if dense is not None and sparse.indices else None
        return await self._index.search(
            PassageQuery(scope, self._kind, dense, sparse, top_k, explain=explain, scores=scores, deep=deep)
        )

    async def _deep_vector(self, query: str, earlier: Sequence[str], lost: list[DegradedBlock] | None) -> Vector | None:
        """Return the question's deeper vector; None if there is no second look, or if the vector is not there in
        time."""
        if self._deep is None or not self._index.deepens:
            return None
        try:
            return await deep_query_vector(self._deep, query, earlier)
        except ModelLoading:
            return None
        except EmbedderUnavailable:
            if lost is not None:
                lost.append(DegradedBlock(block="deep", why=DEEP_VECTOR_LATE))
            return None

    async def _reranked(
        self, scope: Scope, query: str, hits: list[Hit], lost: list[DegradedBlock] | None, earlier: Sequence[str]
    ) -> list[Hit]:
        if self._reranker is None:
            return hits
        try:
            return await rerank(self._reranker, scope, _spelled_out(query, earlier), hits)
        except RerankUnavailable as error:
            _log.warning("rerank.failed", workspace_id=scope.workspace_id, model=self._reranker.name, why=error.why)
            if lost is not None:
                lost.append(DegradedBlock(block="rerank", why=error.why))
            return hits

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock] | None = None
    ) -> list[PromptPassage]:
        """Return the relevant ones of *found*, best first, as passages that fit into *room*; none if nothing is
        relevant.

        Raises `IndexUnavailable`: an outage never poses as "no such document".
        """
        query, hits = found.query, list(found.hits)
        if lost is not None:
            lost += found.lost
        if not hits:
            return []
        relevance_of = dict(zip((_name(hit) for hit in hits), found.relevances, strict=True))
        hits = (await self._reranked(scope, query, hits, lost, found.earlier))[: room.top_k * CANDIDATES_PER_PASSAGE]
        relevances = [relevance_of[_name(hit)] for hit in hits]
        # In a thread: the words of many passages take milliseconds.
        relevant = await asyncio.to_thread(self._relevance.shown, query, hits, relevances)
        runs = await asyncio.to_thread(choose, relevant, room.top_k)
        if not runs:
            return []
        wanted: dict[str, set[int]] = defaultdict(set)
        for run in runs:
            wanted[run.source].update(neighbours_wanted(run))
        around: dict[str, dict[int, Passage]] = defaultdict(dict)
        for owner in searched(scope, self._kind):  # no two owners have a source of one name
            for source, read in (await self._index.read(owner, self._kind, wanted)).items():
                around[source].update({passage.ordinal: passage for passage in read})
        limits = Room(room.top_k, room.excerpt_bytes, room.tokens if self._count else None, self._count or len)
        # In a thread: counting tokens and cutting long passages takes milliseconds.
        return await asyncio.to_thread(pack, runs, around, query, limits)

    async def passages(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        max_bytes: int,
        max_tokens: int | None = None,
        *,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[PromptPassage]:
        """Return what `pack` makes of what `look` finds. Raises `IndexUnavailable` and `EmbedderUnavailable`."""
        found = await self.look(scope, query, top_k, earlier=earlier)
        return await self.pack(scope, found, PassageRoom(top_k, max_bytes, max_tokens), lost=lost)


def _name(hit: Hit) -> tuple[str, str]:
    return hit.passage.source, hit.passage.id


def _spelled_out(query: str, earlier: Sequence[str]) -> str:
    """Return *query*, after *earlier* turns if it says too little by itself."""
    turns = used_turns(query, earlier)
    return spell_out(query, turns, len(question_terms(query))) if turns else query


# The context document of each conversation: one passage that can be searched from inside its own context only. Only the
# latest version is there.


HEADING = "Context document"
EMBEDDED_CHARACTERS = 8000
"""So much of the document is embedded: models take some thousand tokens. All its words are indexed."""


class ContextField:
    """Puts context documents into the index and finds them. Scopes must name a context."""

    def __init__(
        self, index: PassageIndex, embedder: Embedder, *, relevance: Relevance | None = None, words_alone: bool = False
    ) -> None:
        """If *words_alone*, a question that cannot be embedded is searched by its words."""
        self._index = index
        self._embedder = embedder
        self._relevance = relevance or relevance_for(embedder.name)
        self._words_alone = words_alone

    async def put(self, key: ConversationKey, text: str, at: str) -> None:
        """Make *text*, written *at* (RFC 3339), the searchable document of *key*.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        (dense,) = await self._embedder.embed_documents([text[:EMBEDDED_CHARACTERS]])
        sparse = await asyncio.to_thread(encode_document, text)
        passage = Passage("latest", Kind.CONTEXT, key.context_id, text, heading=HEADING, end=len(text), said_at=at)
        await self._index.replace(
            [Source(key.scope, Kind.CONTEXT, key.context_id, [IndexEntry(passage, dense, sparse)])]
        )

    async def forget(self, key: ConversationKey) -> None:
        """Remove *key*'s document from the index. Raises `IndexUnavailable`."""
        await self._index.delete(key.scope, Kind.CONTEXT)

    async def among(self, scope: Scope, query: str, hits: Sequence[Hit], top_k: int, *, explain: bool) -> list[Hit]:
        """Return *hits*, documents of the workspace for *query*, with the scope's context document at its place.

        The document is added if it holds a word of the query, or is relevant enough to be shown. Scores of two searches
        cannot be compared: each is on the scale of its own candidates, and this search has one candidate. So the
        document stands before the first hit that is less relevant (`Relevance.of`), with that hit's score. Hits
        need their arms. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        dense, sparse = await query_vectors(self._embedder, query, words_alone=self._words_alone)
        found = await self._index.search(
            PassageQuery(scope, Kind.CONTEXT, dense, sparse, 1, explain=explain, scores=True)
        )
        (relevance,) = self._relevance.of(query, found, 1) or (NOTHING,)
        if not found or not (found[0].sparse or self._relevance.shown(query, found, [relevance])):
            return list(hits)
        corpus_size = await self._index.count(scope, Kind.DOCUMENT, exact=False)
        relevances = await asyncio.to_thread(self._relevance.of, query, hits, corpus_size)
        return _insert(found[0], relevance, hits, relevances, top_k)


def _insert(own: Hit, relevance: float, hits: Sequence[Hit], relevances: Sequence[float], top_k: int) -> list[Hit]:
    lower = (place for place, other in enumerate(relevances) if other < relevance)
    before = next(lower, len(hits))
    neighbour = hits[min(before, len(hits) - 1)] if hits else own
    return [*hits[:before], own._replace(score=neighbour.score), *hits[before:]][:top_k]
