"""The earlier turns of one conversation, as passages that can be found again.

The scope's context is a condition inside every query, so that no turn is ever found from another place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from connectors.message import Scope
from grounding.documents import followup
from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.documents.index import Entry, Kind, Passage, PassageIndex, Source
from grounding.documents.looking_back import Look, LooksBack, looked_back
from grounding.documents.recollection import searched_text, speakers
from grounding.documents.relevance import TurnFloor, turn_floor_for
from grounding.documents.search import SHORT_QUERY_CHARACTERS, encoded
from grounding.documents.sparse import TURN_AVERAGE_TERMS, encode_document, term_set
from grounding.run_context import DegradedBlock, RecalledTurn

PART_MAX_CHARACTERS = 1500
"""Longer turns are stored in parts; each is found by itself, and recalled with its turn's id."""
CONTINUED = "… "
TURN_MAX_PARTS = 40
"""Beyond 60,000 characters a turn's end is not searchable: nobody said that, somebody pasted it."""

FORM = "2"
"""Of what is indexed of a turn. Where another one was remembered, everything that was said is remembered anew: with its
day and the turn before it since 2."""
FEW_TERMS = 1
"""A message such as "what did we say about that?" says nothing that could be found; all others are searched for as they
are: what was said last is in the prompt already, and finds mostly what is like itself."""

MOST_BEARING = 4096
"""Conversations of which it is known that something bore on what was said last."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said in a turn, and when (with a time zone); ``previous`` is the turn before, where there was one."""

    scope: Scope
    turn_id: str
    text: str
    said_at: datetime
    previous: str = ""


class Turns:
    """Remembers and recalls what was said in a conversation. Scopes must name a context."""

    def __init__(
        self, index: PassageIndex, embedder: Embedder, *, floor: TurnFloor | None = None, words_alone: str = ""
    ) -> None:
        """*words_alone* as in `grounding.documents.search.Search`."""
        self._index = index
        self._look_back = index.look_back if isinstance(index, LooksBack) else partial(looked_back, index)
        self._embedder = embedder
        self._floor = floor or turn_floor_for(embedder.name)
        self._words_alone = words_alone
        self._bearing: set[Scope] = set()

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

    async def lacking(self, memories: Sequence[Memory]) -> list[Memory]:
        """Those of *memories*, all of one scope, that cannot be found, or not as they are now. Nothing is embedded.

        Raises `IndexUnavailable`.
        """
        if not memories:
            return []
        wanted = {memory.turn_id: [passage.ordinal for passage in _passages(memory)] for memory in memories}
        found = await self._index.read(memories[0].scope, Kind.TURN, wanted)
        return [memory for memory in memories if found[memory.turn_id] != _passages(memory)]

    async def recall(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        exclude: Iterable[str] = (),
        *,
        earlier: Sequence[str] = (),
        lost: list[DegradedBlock] | None = None,
        asked_for: bool = True,
    ) -> list[RecalledTurn]:
        """At most *top_k* parts of earlier turns, but for those of *exclude*, that *query* speaks of, best first; none
        below the floor. Their day is UTC's. *earlier*, what people said just before (the oldest first), is searched for
        too where *query* has at most `FEW_TERMS` terms of its own. What is not *asked_for* has to reach more.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, and `ValueError` for a scope without context.
        """
        if earlier and len(query) <= SHORT_QUERY_CHARACTERS:
            query = followup.spelled_out(query, earlier, len(term_set(query)), FEW_TERMS)
        sparse = await encoded(query)
        if not sparse.indices:
            return []
        dense = await self._vector(query, lost)
        floor = self._floor if dense is not None else turn_floor_for("")
        bears = scope in self._bearing
        look = Look(query, dense, sparse, frozenset(exclude), floor, top_k, asked_for, bears)
        found = await self._look_back(scope, look)
        if not asked_for:
            self._note(scope, bool(found))
        return [
            RecalledTurn(turn_id=one.source, said_on=one.said_at[:10], text=one.text, score=one.score) for one in found
        ]

    def _note(self, scope: Scope, bears: bool) -> None:
        """Whether something *bears* on what was said last."""
        if not bears:
            self._bearing.discard(scope)
            return
        if len(self._bearing) >= MOST_BEARING:
            self._bearing.clear()
        self._bearing.add(scope)

    async def _vector(self, query: str, lost: list[DegradedBlock] | None) -> Vector | None:
        try:
            return await self._embedder.embed_query(query)
        except EmbedderUnavailable:
            if not self._words_alone:
                raise
        if lost is not None:
            lost.append(DegradedBlock(block="records", why=self._words_alone))
        return None

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None:
        """Forget *turn_ids*, or all turns of the scope's context. Raises `IndexUnavailable`."""
        if turn_ids is None:
            await self._index.delete(scope, Kind.TURN)
            return
        for turn_id in turn_ids:
            await self._index.delete(scope, Kind.TURN, source=turn_id)

    async def count(self, scope: Scope) -> int:
        """How many passages of turns of the scope's context can be found. Raises `IndexUnavailable`."""
        return await self._index.count(scope, Kind.TURN)

    async def known(self, scope: Scope) -> set[str]:
        """The turns of the scope's context that can be found. Raises `IndexUnavailable`."""
        return set(await self._index.sources(scope, Kind.TURN))


def _passages(memory: Memory) -> list[Passage]:
    stamp = memory.said_at.astimezone(UTC).isoformat()
    return [
        Passage(
            f"{memory.turn_id}:{number}",
            Kind.TURN,
            memory.turn_id,
            part,
            ordinal=number,
            said_at=stamp,
            previous=memory.previous,
        )
        for number, part in enumerate(split_turn(memory.text))
    ]


def _entry(passage: Passage, vector: Vector) -> Entry:
    return Entry(passage, vector, encode_document(searched_text(passage), TURN_AVERAGE_TERMS))


def split_turn(text: str) -> list[str]:
    """*text* in parts of at most `PART_MAX_CHARACTERS`, cut at spaces where there are any; blank text has none. Where
    somebody speaks, a part that begins in the middle of what they say names them again: nobody poses as another."""
    parts: list[str] = []
    rest, by = text.strip(), ""
    while rest and len(parts) < TURN_MAX_PARTS:
        room = PART_MAX_CHARACTERS - len(by)
        end = len(rest)
        if end > room:
            space = max(rest.rfind(mark, room // 2, room) for mark in ("\n", " "))
            end = space if space > 0 else room
        part, left = by + rest[:end].rstrip(), rest[end:]
        speaking = speakers(part)
        is_new_speaker = left.startswith("\n") and not left.startswith("\n ")
        by = "" if is_new_speaker or not speaking else f"{speaking[-1]}: {CONTINUED}"
        parts.append(part)
        rest = left.lstrip()
    return parts
