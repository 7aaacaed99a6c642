"""Earlier turns of one conversation, remembered as passages and recalled for a question.

The scope's context is a condition inside every query, so that no turn is ever found from another place. Which turns are
recalled, and in which order, is decided in `grounding.retrieval.turn_ranking`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from connectors.message import Scope
from grounding.prompt_input import DegradedBlock, RecalledTurn
from grounding.retrieval.bm25 import TURN_AVERAGE_TERMS, SparseVector, encode_document, term_set
from grounding.retrieval.embedding import (
    DEEP_VECTOR_LATE,
    DeepEmbedder,
    Embedder,
    EmbedderUnavailable,
    ModelLoading,
    Vector,
)
from grounding.retrieval.index import CONTINUED, Hit, IndexEntry, Kind, Passage, PassageIndex, PassageQuery, Source
from grounding.retrieval.query import SHORT_QUERY_CHARACTERS, deep_query_vector, encode_question, spell_out
from grounding.retrieval.ranking import DEEPEST
from grounding.retrieval.turn_ranking import (
    RankedPart,
    TurnFloor,
    rank_turns,
    searched_text,
    speakers,
    turn_floor_for,
    with_adjacent,
)

PART_MAX_CHARACTERS = 1500
"""Longer turns are stored in parts; each is found by itself, and recalled with its turn's id."""
TURN_MAX_PARTS = 40
"""Beyond 60,000 characters a turn's end is not searchable: nobody said that, somebody pasted it."""
TURN_INDEX_VERSION = "2"
"""The version of a turn's indexed form. If another one was stored, everything is indexed anew. 2: with its day and
the turn before it."""
FEW_TERMS = 1
"""A message of at most so many terms, such as "what did we say about that?", is searched with the turns before. All
others are searched alone: the last turns are in the prompt already, and mostly find what is like themselves."""
POOL = 100
"""So many parts of turns are ranked. With 150 nothing measured was better."""
UNASKED_POOL = 40
"""The same if nobody asked for it, because less is recalled then: as much of the evidence is among it as with 100."""
COMPARED = 16
"""So many of the best have their own vectors compared with the question's."""
SHOWN_MOSTLY = 24
"""So many parts more are searched, in place of those that the prompt shows anyway. A long pasted text has up to
`TURN_MAX_PARTS` parts: then the search is repeated with more."""
DEEPENED = 32
"""So many parts get their deeper vectors at once: about a second of a processor, if all are long."""
DEEP_SECONDS = 0.3
"""The longest wait for the deeper vector of a message that does not ask for earlier turns: it has half a second for all
of its recall, which must not be lost with that vector."""
LOOKED_BESIDE = 16
"""So many of the best have the turns around them read, which may not say the words themselves."""


@dataclass(frozen=True, slots=True)
class TurnText:
    """What was said in a turn, and when (with a time zone); ``previous`` is the turn before, if there was one."""

    scope: Scope
    turn_id: str
    text: str
    said_at: datetime
    previous: str = ""


class TurnIndex:
    """Remembers and recalls what was said in a conversation. Scopes must name a context."""

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        *,
        floor: TurnFloor | None = None,
        words_alone: str = "",
        deep: DeepEmbedder | None = None,
        deep_seconds: float = DEEP_SECONDS,
    ) -> None:
        """*words_alone* and *deep* as in `grounding.retrieval.search.Search`; *deep_seconds* as `DEEP_SECONDS`."""
        self._index = index
        self._embedder = embedder
        self._floor = floor or turn_floor_for(embedder.name)
        self._words_alone = words_alone
        self._deep = deep
        self._deep_seconds = deep_seconds

    async def remember(self, memories: Sequence[TurnText]) -> None:
        """Make *memories* findable; the same turn again replaces the former.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, and `ValueError` for a scope without context.
        """
        passages = [_passages(memory) for memory in memories]
        vectors = iter(await self._embedder.embed_documents([part.text for parts in passages for part in parts]))

        def sources() -> list[Source]:
            return [
                Source(memory.scope, Kind.TURN, memory.turn_id, [_entry(part, next(vectors)) for part in parts])
                for memory, parts in zip(memories, passages, strict=True)
            ]

        await self._index.replace(await asyncio.to_thread(sources))

    async def deepen(self, scope: Scope) -> int:
        """Give some turns of the scope's context that lack them their deeper vectors; return of how many parts, 0 if
        none lacks one.

        Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        if self._deep is None:
            return 0
        parts = await self._index.shallow(scope, Kind.TURN, DEEPENED)
        if parts:
            vectors = await self._deep.embed_documents([part.text for part in parts])
            by_id = {part.id: vector for part, vector in zip(parts, vectors, strict=True)}
            await self._index.deepen(scope, Kind.TURN, by_id)
        return len(parts)

    async def lacking(self, memories: Sequence[TurnText]) -> list[TurnText]:
        """Return those of *memories*, all of one scope, that cannot be found in their present form. Nothing is
        embedded.

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
        """Return at most *top_k* parts of earlier turns that bear on *query*, best first, without the turns *exclude*.

        Days are UTC's. *earlier* is what people said just before, the oldest first; it is used if *query* has at most
        `FEW_TERMS` terms of its own. If the message does not say that it is about the conversation (*asked_for*), turns
        have to reach more.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, and `ValueError` for a scope without context.
        """
        if earlier and len(query) <= SHORT_QUERY_CHARACTERS:
            query = spell_out(query, earlier, len(term_set(query)), FEW_TERMS)
        sparse = await encode_question(query)
        if not sparse.indices:
            return []
        dense = await self._vector(query, lost)
        wait = None if asked_for else self._deep_seconds
        deep = await self._deep_vector(query, wait, lost) if dense is not None else None
        floor, excluded = self._floor if dense is not None else turn_floor_for(""), frozenset(exclude)
        hits = await self._search(scope, dense, sparse, deep, excluded, POOL if asked_for else UNASKED_POOL)
        # In threads: the words of many turns take milliseconds.
        sure = await asyncio.to_thread(floor.sure_turns, query, hits, asked_for=asked_for)
        if not sure:
            return []
        neighbours = await self._neighbours(scope, hits, excluded)

        def rank() -> list[RankedPart]:
            chosen = with_adjacent(sure, [*(hit.passage for hit in hits), *neighbours])
            return rank_turns(query, hits, neighbours, chosen)

        ranked = await asyncio.to_thread(rank)
        return [
            RecalledTurn(turn_id=part.source, said_on=part.said_at[:10], text=part.text, score=score)
            for part, score in ranked[:top_k]
        ]

    async def _search(
        self,
        scope: Scope,
        dense: Vector | None,
        sparse: SparseVector,
        deep: Vector | None,
        excluded: frozenset[str],
        most: int,
    ) -> list[Hit]:
        """Return the best *most* hits without the excluded turns, however many parts these have among the best."""
        shown = SHOWN_MOSTLY
        while True:
            compared = COMPARED + shown
            found = await self._index.search(
                PassageQuery(scope, Kind.TURN, dense, sparse, most + shown, compared=compared, deep=deep)
            )
            crowding = sum(hit.passage.source in excluded for hit in found[:compared])
            if crowding <= shown or len(found) < compared:
                break
            shown *= 4
        hits = [hit for hit in found if hit.passage.source not in excluded]
        if len(hits) > most:  # the last are those that only deeper vectors found
            hits = [*hits[: most - DEEPEST], *hits[-DEEPEST:]] if deep is not None else hits[:most]
        # The floor judges the first by their plain cosines, all others by their words, and all by deeper cosines.
        return [*hits[:COMPARED], *(hit._replace(dense=None) for hit in hits[COMPARED:])]

    async def _neighbours(self, scope: Scope, hits: Sequence[Hit], excluded: frozenset[str]) -> list[Passage]:
        """Return the turns just before and after the best of *hits*."""
        best = list(dict.fromkeys(hit.passage.source for hit in hits))[:LOOKED_BESIDE]
        before = {hit.passage.previous for hit in hits[:LOOKED_BESIDE]} - {""}
        found = await self._index.neighbours(scope, Kind.TURN, before, best)
        return [passage for passage in found if passage.source not in excluded]

    async def _vector(self, query: str, lost: list[DegradedBlock] | None) -> Vector | None:
        try:
            return await self._embedder.embed_query(query)
        except EmbedderUnavailable:
            if not self._words_alone:
                raise
        if lost is not None:
            lost.append(DegradedBlock(block="records", why=self._words_alone))
        return None

    async def _deep_vector(self, query: str, seconds: float | None, lost: list[DegradedBlock] | None) -> Vector | None:
        """Return the question's deeper vector; None if turns have none, or if it is not there in time."""
        if self._deep is None or not self._index.deepens:
            return None
        try:
            async with asyncio.timeout(seconds):
                return await deep_query_vector(self._deep, query, ())
        except ModelLoading:
            return None
        except (EmbedderUnavailable, TimeoutError):
            if lost is not None:
                lost.append(DegradedBlock(block="deep", why=DEEP_VECTOR_LATE))
            return None

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None:
        """Forget *turn_ids*, or all turns of the scope's context. Raises `IndexUnavailable`."""
        if turn_ids is None:
            await self._index.delete(scope, Kind.TURN)
            return
        for turn_id in turn_ids:
            await self._index.delete(scope, Kind.TURN, source=turn_id)

    async def count(self, scope: Scope) -> int:
        """Return how many passages of turns of the scope's context can be found. Raises `IndexUnavailable`."""
        return await self._index.count(scope, Kind.TURN)

    async def known(self, scope: Scope) -> set[str]:
        """Return the turns of the scope's context that can be found. Raises `IndexUnavailable`."""
        return set(await self._index.sources(scope, Kind.TURN))


def _passages(memory: TurnText) -> list[Passage]:
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


def _entry(passage: Passage, vector: Vector) -> IndexEntry:
    return IndexEntry(passage, vector, encode_document(searched_text(passage), TURN_AVERAGE_TERMS))


def split_turn(text: str) -> list[str]:
    """Return *text* in parts of at most `PART_MAX_CHARACTERS`, cut at spaces if there are any; none for blank text. A
    part that begins in the middle of what somebody says names the speaker again, so that nobody poses as another."""
    parts: list[str] = []
    rest, speaker = text.strip(), ""
    while rest and len(parts) < TURN_MAX_PARTS:
        room = PART_MAX_CHARACTERS - len(speaker)
        end = len(rest)
        if end > room:
            space = max(rest.rfind(mark, room // 2, room) for mark in ("\n", " "))
            end = space if space > 0 else room
        part, left = speaker + rest[:end].rstrip(), rest[end:]
        names = speakers(part)
        is_new_speaker = left.startswith("\n") and not left.startswith("\n ")
        speaker = "" if is_new_speaker or not names else f"{names[-1]}: {CONTINUED}"
        parts.append(part)
        rest = left.lstrip()
    return parts
