"""Searching a workspace's documents.

`Search.search` returns the ranked hits, for people; `Search.passages` the passages for a prompt: what reaches the
relevance floor, with its neighbours, packed into the prompt's room. `Vocabulary` asks how relevant the best document is
to a message, for the strategy. `ContextField` searches one conversation's context document.

The score (`grounding.retrieval.ranking`) orders hits. Of the first ``top_k * CANDIDATES_PER_PASSAGE``, the relevance
(`grounding.retrieval.relevance`) decides which a prompt shows.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
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
from grounding.retrieval.packing import Room, Run, choose, neighbours_wanted, pack
from grounding.retrieval.query import (
    deep_query_vector,
    encode_question,
    query_vectors,
    shorten,
    spell_out,
    used_turns,
)
from grounding.retrieval.ranking import Reranker, RerankUnavailable, rerank
from grounding.retrieval.relevance import Floor, floor_for, floor_for_hits, question_terms
from grounding.retrieval.stored import searched

_log = structlog.get_logger()

CANDIDATES_PER_PASSAGE = 3
"""So many hits are searched for each passage of a prompt: some are duplicates, some join into one."""


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
        floor: Floor | None = None,
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
        self._floor = floor or floor_for(embedder.name)
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

        With *explain* hits have each arm's rank and raw score, with *scores* the raw scores alone. *earlier* is what
        people said before *query* in the same conversation, the oldest first.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        if not query.strip():
            return []
        dense, sparse = await query_vectors(self._embedder, query, earlier, words_alone=bool(self._words_alone))
        if dense is None and lost is not None:
            lost.append(DegradedBlock(block="retrieved", why=self._words_alone))
        deep = await self._deep_vector(query, earlier, lost) if dense is not None and sparse.indices else None
        wanted = max(top_k, self._reranker.candidates) if self._reranker else top_k
        hits = await self._index.search(
            PassageQuery(scope, self._kind, dense, sparse, wanted, explain=explain, scores=scores, deep=deep)
        )
        if self._reranker is not None:
            hits = await self._rerank(self._reranker, scope, _spelled_out(query, earlier) or query, hits, lost)
        return hits[:top_k]

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

    async def _rerank(
        self, reranker: Reranker, scope: Scope, query: str, hits: list[Hit], lost: list[DegradedBlock] | None
    ) -> list[Hit]:
        try:
            return await rerank(reranker, scope, query, hits)
        except RerankUnavailable as error:
            _log.warning("rerank.failed", workspace_id=scope.workspace_id, model=reranker.name, why=error.why)
            if lost is not None:
                lost.append(DegradedBlock(block="rerank", why=error.why))
            return hits

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
        """Return at most *top_k* passages of at most *max_bytes* bytes each, best first, which with their labels have
        at most *max_tokens* tokens together. The list is empty if nothing is relevant. *earlier* as in `search`.

        Raises `IndexUnavailable` and `EmbedderUnavailable`: an outage never poses as "no such document".
        """
        query = shorten(query)
        hits = await self.search(scope, query, top_k * CANDIDATES_PER_PASSAGE, scores=True, lost=lost, earlier=earlier)
        if not hits:
            return []
        owners = searched(scope, self._kind)
        size = sum([await self._index.count(owner, self._kind, exact=False) for owner in owners])
        # In a thread: the words of many passages take milliseconds.
        runs = await asyncio.to_thread(self._choose, query, _spelled_out(query, earlier), hits, size, top_k)
        if not runs:
            return []
        wanted: dict[str, set[int]] = defaultdict(set)
        for run in runs:
            wanted[run.source].update(neighbours_wanted(run))
        around: dict[str, dict[int, Passage]] = defaultdict(dict)
        for owner in owners:  # no two owners have a source of one name
            for source, found in (await self._index.read(owner, self._kind, wanted)).items():
                around[source].update({passage.ordinal: passage for passage in found})
        room = Room(top_k, max_bytes, max_tokens if self._count else None, self._count or len)
        # In a thread: counting tokens and cutting long passages takes milliseconds.
        return await asyncio.to_thread(pack, runs, around, query, room)

    def _choose(self, query: str, spelled_out: str, hits: Sequence[Hit], size: int, top_k: int) -> list[Run]:
        """Return at most *top_k* runs of the hits that reach the floor; if none does, of those that reach it for the
        query *spelled_out* with earlier turns."""
        floor = floor_for_hits(self._floor, hits)
        relevant = floor.keep(query, hits, size)
        if not relevant and spelled_out:
            relevant = floor.keep(spelled_out, hits, size)
        return choose(relevant, top_k)


def _spelled_out(query: str, earlier: Sequence[str]) -> str:
    """Return *query* after *earlier* turns if it says too little by itself; else an empty text."""
    turns = used_turns(query, earlier)
    spelled_out = spell_out(query, turns, len(question_terms(query))) if turns else query
    return spelled_out if spelled_out != query else ""


# The vocabulary of a workspace: whether its documents speak of what a message says. It is the search itself, for a few
# passages: nothing has to be kept in step with the documents, and a match in other words counts too.


JUDGED = 5
"""So many passages are judged; with ten the relevance changes for hardly any message."""
VOCABULARY_NOTHING = -math.inf
"""The relevance if there is no passage at all."""


class Match(NamedTuple):
    """The log-odds that the best passage found answers a message, or `VOCABULARY_NOTHING`, and the approximate number
    of passages that were searched."""

    relevance: float
    passages: int


class Vocabulary:
    """Finds the document that matches a message best."""

    def __init__(self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None) -> None:
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)

    async def awake(self, scope: Scope) -> None:
        """Return at once: it is always ready."""

    async def best_match(self, scope: Scope, text: str) -> Match:
        """Return how relevant the best passage of the scope's workspace is to *text*.

        If the floor does not weigh cosines, nothing is embedded: with a paid model every message would cost a call.
        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        text = shorten(text)
        size = await self._index.count(scope, Kind.DOCUMENT, exact=False)
        hits = await self.hits(scope, text)
        if not hits:
            return Match(VOCABULARY_NOTHING, size)
        return Match(max(await asyncio.to_thread(self._floor.relevances, text, hits, size)), size)

    async def hits(self, scope: Scope, text: str) -> list[Hit]:
        """Return the passages that are judged, with their raw scores."""
        sparse = await encode_question(text)
        if not sparse.indices:
            return []
        dense = await self._embedder.embed_query(text) if self._floor.dense_weight else None
        return await self._index.search(PassageQuery(scope, Kind.DOCUMENT, dense, sparse, JUDGED, scores=True))


# The context document of each conversation: one passage that can be searched from inside its own context only. Only the
# latest version is there.


HEADING = "Context document"
EMBEDDED_CHARACTERS = 8000
"""So much of the document is embedded: models take some thousand tokens. All its words are indexed."""


class ContextField:
    """Puts context documents into the index and finds them. Scopes must name a context."""

    def __init__(
        self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None, words_alone: bool = False
    ) -> None:
        """If *words_alone*, a question that cannot be embedded is searched by its words."""
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
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

        The document is added if it holds a word of the query, or is above the relevance floor. Scores of two searches
        cannot be compared: each is on the scale of its own candidates, and this search has one candidate. So the
        document stands before the first hit that is less relevant by `Floor.relevance`, with that hit's score. Hits
        need their arms. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        dense, sparse = await query_vectors(self._embedder, query, words_alone=self._words_alone)
        found = await self._index.search(
            PassageQuery(scope, Kind.CONTEXT, dense, sparse, 1, explain=explain, scores=True)
        )
        floor = floor_for_hits(self._floor, found)
        if not found or not (found[0].sparse or floor.keep(query, found, 1)):
            return list(hits)
        corpus_size = await self._index.count(scope, Kind.DOCUMENT, exact=False)
        return await asyncio.to_thread(_insert, floor, found[0], query, hits, top_k, corpus_size)


def _insert(floor: Floor, own: Hit, query: str, hits: Sequence[Hit], top_k: int, corpus_size: int) -> list[Hit]:
    relevance = floor.relevance(query, own, 1)
    lower = (place for place, hit in enumerate(hits) if floor.relevance(query, hit, corpus_size) < relevance)
    before = next(lower, len(hits))
    neighbour = hits[min(before, len(hits) - 1)] if hits else own
    return [*hits[:before], own._replace(score=neighbour.score), *hits[before:]][:top_k]
