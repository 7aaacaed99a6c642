"""Searching a workspace's documents: for people, and for prompts."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import structlog

from connectors.message import Scope
from grounding.documents.embedding import Embedder
from grounding.documents.index import Hit, Kind, PassageIndex
from grounding.documents.packing import (
    Retrieved,
    drop_near_duplicates,
    finish,
    group_runs,
    grow,
    join,
    neighbours_wanted,
)
from grounding.documents.relevance import Floor, floor_for
from grounding.documents.rerank import Reranker, RerankUnavailable, rerank
from grounding.documents.sparse import SparseVector, encode_query
from grounding.run_context import DegradedBlock
from grounding.run_context import Passage as PromptPassage

_log = structlog.get_logger()

CANDIDATES_PER_PASSAGE = 3
"""Hits looked at for each passage wanted: some are duplicates, some join into one."""
SHORT_QUERY_CHARACTERS = 400
QUERY_MAX_CHARACTERS = 4000
"""What of a question is searched with; the beginning and the end of longer ones."""


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
        reranker: Reranker | None = None,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name, Kind.DOCUMENT)
        self._reranker = reranker

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        lost: list[DegradedBlock] | None = None,
    ) -> list[Hit]:
        """The best *top_k* chunks, best first, without any floor; with *explain* each arm's rank and raw score.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        if not query.strip():
            return []
        sparse = await encoded(query)
        dense = await self._embedder.embed_query(query)
        wanted = max(top_k, self._reranker.candidates) if self._reranker else top_k
        hits = await self._index.search(scope, Kind.DOCUMENT, dense, sparse, wanted, explain=explain)
        return (await self._reranked(scope, query, hits, lost))[:top_k]

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
        self, scope: Scope, query: str, top_k: int, max_bytes: int, *, lost: list[DegradedBlock] | None = None
    ) -> list[Retrieved]:
        """At most *top_k* passages of at most *max_bytes* bytes each, best first; an empty list where nothing is
        relevant.

        Raises `IndexUnavailable` and `EmbedderUnavailable`: an outage never poses as "no such document".
        """
        query = shorten(query)
        hits = await self.search(scope, query, top_k * CANDIDATES_PER_PASSAGE, explain=True, lost=lost)
        if not hits:
            return []
        size = await self._index.estimate(scope, Kind.DOCUMENT)
        # The terms of passages are mostly remembered from the question before, so that this needs no thread.
        runs = group_runs(drop_near_duplicates(self._floor.keep(query, hits, size))[:top_k])
        taken: dict[str, set[int]] = defaultdict(set)
        wanted: dict[str, set[int]] = defaultdict(set)
        for run in runs:
            taken[run.source] |= set(run.ordinals)
            wanted[run.source] |= set(neighbours_wanted(run))
        found = await self._index.read(scope, Kind.DOCUMENT, wanted)
        for run in runs:
            neighbours = {passage.ordinal: passage for passage in found[run.source]}
            grow(run, neighbours, max_bytes, taken[run.source])
            taken[run.source] |= set(run.ordinals)
        if all(len(join(run.parts).encode("utf-8", "surrogatepass")) <= max_bytes for run in runs):
            return [finish(run, query, max_bytes) for run in runs]
        # Choosing what to keep of a long passage takes milliseconds: off the loop.
        return await asyncio.to_thread(lambda: [finish(run, query, max_bytes) for run in runs])

    async def passages(
        self, scope: Scope, query: str, top_k: int, excerpt_bytes: int, lost: list[DegradedBlock] | None = None
    ) -> list[PromptPassage]:
        """`retrieve`, in the form of a turn's input."""
        found = await self.retrieve(scope, query, top_k, excerpt_bytes, lost=lost)
        return [
            PromptPassage(source=item.source, heading=item.heading, text=item.text, score=item.score) for item in found
        ]


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
