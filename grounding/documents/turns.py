"""The earlier turns of one conversation, as passages that can be found again.

The scope's context is a condition inside every query, so that no turn is ever found from another place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from connectors.message import Scope
from grounding.documents import followup
from grounding.documents.embedding import Embedder, Vector
from grounding.documents.index import Entry, Kind, Passage, PassageIndex, Source
from grounding.documents.relevance import Floor, floor_for
from grounding.documents.search import SHORT_QUERY_CHARACTERS, encoded
from grounding.documents.sparse import TURN_AVERAGE_TERMS, encode_document, term_set
from grounding.run_context import RecalledTurn

PART_MAX_CHARACTERS = 1500
"""Longer turns are stored in parts; each is found by itself, and recalled with its turn's id."""
TURN_MAX_PARTS = 40
"""Beyond 60,000 characters a turn's end is not searchable: nobody said that, somebody pasted it."""

FEW_TERMS = 1
"""A message such as "what did we say about that?" says nothing that could be found; all others are searched for as they
are: what was said last is in the prompt already, and finds mostly what is like itself."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said in a turn, and when (with a time zone)."""

    scope: Scope
    turn_id: str
    text: str
    said_at: datetime


class Turns:
    """Remembers and recalls what was said in a conversation. Scopes must name a context."""

    def __init__(self, index: PassageIndex, embedder: Embedder, *, floor: Floor | None = None) -> None:
        self._index = index
        self._embedder = embedder
        self._floor = floor or floor_for(embedder.name, Kind.TURN)

    async def remember(self, memories: Sequence[Memory]) -> None:
        """Make *memories* findable; the same turn again replaces the former.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, and `ValueError` for a scope without context.
        """
        passages = [_passages(memory) for memory in memories]
        vectors = iter(await self._embedder.embed_documents([one.text for parts in passages for one in parts]))

        def sources() -> list[Source]:
            return [
                Source(memory.scope, Kind.TURN, memory.turn_id, [_entry(part, next(vectors)) for part in parts])
                for memory, parts in zip(memories, passages, strict=True)
            ]

        await self._index.replace(await asyncio.to_thread(sources))

    async def recall(
        self, scope: Scope, query: str, top_k: int, exclude: Iterable[str] = (), *, earlier: Sequence[str] = ()
    ) -> list[RecalledTurn]:
        """At most *top_k* parts of earlier turns, but for those of *exclude*, that *query* speaks of, best first; none
        below the floor. Their day is UTC's. *earlier*, what people said just before (the oldest first), is searched for
        too where *query* has at most `FEW_TERMS` terms of its own.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, and `ValueError` for a scope without context.
        """
        if earlier and len(query) <= SHORT_QUERY_CHARACTERS:
            query = followup.spelled_out(query, earlier, len(term_set(query)), FEW_TERMS)
        sparse = await encoded(query)
        if not sparse.indices:
            return []
        dense = await self._embedder.embed_query(query)
        hits, size = await asyncio.gather(
            self._index.search(
                scope, Kind.TURN, dense, sparse, top_k, scores=True, exclude_sources=sorted(set(exclude))
            ),
            self._index.estimate(scope, Kind.TURN),
        )
        if len(query) <= SHORT_QUERY_CHARACTERS:
            hits = self._floor.keep(query, hits, size)
        else:
            hits = await asyncio.to_thread(self._floor.keep, query, hits, size)
        return [
            RecalledTurn(
                turn_id=hit.passage.source, said_on=hit.passage.said_at[:10], text=hit.passage.text, score=hit.score
            )
            for hit in hits
        ]

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None:
        """Forget *turn_ids*, or all turns of the scope's context. Raises `IndexUnavailable`."""
        if turn_ids is None:
            await self._index.delete(scope, Kind.TURN)
            return
        for turn_id in turn_ids:
            await self._index.delete(scope, Kind.TURN, source=turn_id)

    async def known(self, scope: Scope) -> set[str]:
        """The turns of the scope's context that can be found. Raises `IndexUnavailable`."""
        return set(await self._index.sources(scope, Kind.TURN))


def _passages(memory: Memory) -> list[Passage]:
    stamp = memory.said_at.astimezone(UTC).isoformat()
    return [
        Passage(f"{memory.turn_id}:{number}", Kind.TURN, memory.turn_id, part, ordinal=number, said_at=stamp)
        for number, part in enumerate(split_turn(memory.text))
    ]


def _entry(passage: Passage, vector: Vector) -> Entry:
    return Entry(passage, vector, encode_document(passage.text, TURN_AVERAGE_TERMS))


def split_turn(text: str) -> list[str]:
    """*text* in parts of at most `PART_MAX_CHARACTERS`, cut at spaces where there are any; blank text has none."""
    parts: list[str] = []
    rest = text.strip()
    while rest and len(parts) < TURN_MAX_PARTS:
        end = len(rest)
        if end > PART_MAX_CHARACTERS:
            space = max(rest.rfind(mark, PART_MAX_CHARACTERS // 2, PART_MAX_CHARACTERS) for mark in ("\n", " "))
            end = space if space > 0 else PART_MAX_CHARACTERS
        parts.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return parts
