"""Whether a workspace's documents speak of what a message says: a cheap look into the index, for the strategy.

It is the search itself, for a few passages: nothing has to be kept in step with the documents, and what they speak of
in other words counts too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from connectors.message import Scope
from grounding.documents.embedding import Embedder
from grounding.documents.index import Hit, Kind, PassageIndex
from grounding.documents.judging import Judging
from grounding.documents.relevance import Floor, floor_for
from grounding.documents.search import encoded, shorten

CANDIDATES = 5
"""Passages looked at; with ten the relevance of hardly any message is another one."""
NOTHING = -math.inf
"""Where there is no passage at all."""


class Match(NamedTuple):
    """The log-odds that the best passage found answers a message, or `NOTHING`, and among about how many passages it
    was searched for."""

    relevance: float
    passages: int


class Vocabulary:
    """Looks messages up among the passages of one embedding model."""

    def __init__(self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None) -> None:
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name)
        self._judging = Judging()

    async def awake(self, scope: Scope) -> None:
        """It always is."""

    async def best_match(self, scope: Scope, text: str) -> Match:
        """How relevant the best passage of the scope's workspace is to *text*.

        Where the floor does not weigh cosines nothing is embedded: with a model that is paid for, every message would
        cost a call. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        text = shorten(text)
        size = await self._index.estimate(scope, Kind.DOCUMENT)  # mostly known
        hits = await self.hits(scope, text)
        if not hits:
            return Match(NOTHING, size)
        return Match(await self._judging.of(hits, lambda: max(self._floor.relevances(text, hits, size))), size)

    async def hits(self, scope: Scope, text: str) -> list[Hit]:
        """The passages that are looked at, with their raw scores."""
        sparse = await encoded(text)
        if not sparse.indices:
            return []
        dense = await self._embedder.embed_query(text) if self._floor.dense_weight else None
        return await self._index.search(scope, Kind.DOCUMENT, dense, sparse, CANDIDATES, scores=True)
