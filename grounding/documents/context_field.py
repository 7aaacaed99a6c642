"""The context document of each conversation as one field that can be searched, from inside its own context only.

The latest version alone is there: it takes the place of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from connectors.message import ConversationKey, Scope
from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.documents.index import Entry, Hit, Kind, Passage, PassageIndex, Source
from grounding.documents.relevance import Floor, fitting, floor_for
from grounding.documents.search import query_terms, query_vectors, shorten
from grounding.documents.sparse import SparseVector, encode_document

HEADING = "Context document"
EMBEDDED_CHARACTERS = 8000
"""What of a document is embedded: models take some thousand tokens. Its words are all indexed."""
_ID = "latest"


class ContextField:
    """Puts context documents into the index and finds them. Scopes must name a context."""

    def __init__(
        self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None, words_alone: bool = False
    ) -> None:
        """*words_alone* are searched where the question cannot be embedded."""
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
        self._words_alone = words_alone

    async def put(self, key: ConversationKey, text: str, at: str) -> None:
        """Make *text*, written *at* (RFC 3339), what is found of *key*'s document.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        (dense,) = await self._embedder.embed_documents([text[:EMBEDDED_CHARACTERS]])
        sparse = await asyncio.to_thread(encode_document, text)
        passage = Passage(_ID, Kind.CONTEXT, key.context_id, text, heading=HEADING, end=len(text), said_at=at)
        entries = [Entry(passage, dense, sparse)]
        await self._index.replace([Source(key.scope, Kind.CONTEXT, key.context_id, entries)])

    async def forget(self, key: ConversationKey) -> None:
        """Let nothing of *key*'s document be found. Raises `IndexUnavailable`."""
        await self._index.delete(key.scope, Kind.CONTEXT)

    async def among(self, scope: Scope, query: str, hits: Sequence[Hit], top_k: int, *, explain: bool) -> list[Hit]:
        """*hits*, documents of the workspace for *query*, with the scope's context document where it belongs.

        It is there if it holds a word of the query, or is above the relevance floor. Fused scores of two searches
        cannot be compared: it stands before the first hit that is less relevant by `Floor.relevance`, with that
        one's score.
        Hits need their arms. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        query = shorten(query)
        dense, sparse = await self._vectors(query)
        found = await self._index.search(scope, Kind.CONTEXT, dense, sparse, 1, explain=explain, scores=True)
        floor = fitting(self._floor, found)
        if not found or not (found[0].sparse or floor.keep(query, found, 1)):
            return list(hits)
        corpus = await self._index.estimate(scope, Kind.DOCUMENT)
        return await asyncio.to_thread(_placed, floor, found[0], query, hits, top_k, corpus)

    async def _vectors(self, query: str) -> tuple[Vector | None, SparseVector]:
        try:
            return await query_vectors(self._embedder, query)
        except EmbedderUnavailable:
            if not self._words_alone:
                raise
        return None, await query_terms(query)


def _placed(floor: Floor, own: Hit, query: str, hits: Sequence[Hit], top_k: int, corpus: int) -> list[Hit]:
    relevance = floor.relevance(query, own, 1)
    lower = (place for place, hit in enumerate(hits) if floor.relevance(query, hit, corpus) < relevance)
    before = next(lower, len(hits))
    neighbour = hits[min(before, len(hits) - 1)] if hits else own
    return [*hits[:before], own._replace(score=neighbour.score), *hits[before:]][:top_k]
