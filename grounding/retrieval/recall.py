"""The earlier turns of one conversation, as passages that can be found again.

The scope's context is a condition inside every query, so that no turn is ever found from another place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from connectors.message import Scope
from grounding.prompt_input import DegradedBlock, RecalledTurn
from grounding.retrieval import search
from grounding.retrieval.bm25 import TURN_AVERAGE_TERMS, SparseVector, encode_document, term_set
from grounding.retrieval.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.retrieval.index import Entry, Hit, Kind, Passage, PassageIndex, Source
from grounding.retrieval.relevance import (
    Recollection,
    TurnFloor,
    met_first,
    recollect,
    searched_text,
    speakers,
    turn_floor_for,
)
from grounding.retrieval.search import SHORT_QUERY_CHARACTERS, encoded

# ---- looking back ----
#
# One look back into a conversation: what was said in it that bears on a question, found and judged.
#
# All that it asks the index follows from what was found before, so it is made where the index is: whoever asks an index
# of another process has one way there and back, and is given what is told instead of all that was found.


T = TypeVar("T")

POOL = 100
"""Parts of turns that a search brings, of which the order is made. With 150 nothing measured was better."""
UNASKED_POOL = 40
"""The same for what nobody asked for, of which less is told: as much of the evidence is among it as with 100."""
COMPARED = 16
"""The best of the pool, whose own vectors are compared with the question's."""
SHOWN_MOSTLY = 24
"""Parts of turns that a search brings besides, in the place of those that the prompt shows anyway. A long text that was
pasted has up to `grounding.retrieval.recall.TURN_MAX_PARTS`: then it is searched again, for more."""
NEAR = 16
"""The nearest by their vectors alone, by which is seen whether anything surely bears on what does not ask for it."""
LONG_CHARACTERS = 6_000
"""More text that is met for the first time is weighed off the loop: so much takes 6 ms."""
MOST_CHARACTERS = 60_000
"""The same of text that was weighed for a question before: so much takes 1 ms."""
LOOKED_BESIDE = 16
"""The best of the pool, beside which turns are looked for that do not say the words themselves."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is looked for: *query* with its vectors. At most *top_k* parts are told, none of the turns *excluded*. What
    is not *asked_for* has to reach more; *bears* says that something bore on what was said before."""

    query: str
    dense: Vector | None
    sparse: SparseVector
    excluded: frozenset[str]
    floor: TurnFloor
    top_k: int
    asked_for: bool
    bears: bool = False


class Part(NamedTuple):
    """A part of a turn that is told; ``said_at`` as in `grounding.retrieval.index.Passage`."""

    source: str
    said_at: str
    text: str
    score: float


@runtime_checkable
class LooksBack(Protocol):
    """A `PassageIndex` that another process has, where the look is made."""

    async def look_back(self, scope: Scope, look: Look) -> list[Part]:
        """See `looked_back`."""


async def looked_back(index: PassageIndex, scope: Scope, look: Look) -> list[Part]:
    """What *look* finds in *index* of the conversation that *scope* names, the best first.

    Raises `IndexUnavailable`, and `ValueError` for a scope without context.
    """
    hits = await _found(index, scope, look, POOL) if look.asked_for else await _bearing(index, scope, look)
    if not hits:
        return []
    beside = await _beside(index, scope, hits, look.excluded)
    recalled = await _chosen(look, hits, beside)
    return [
        Part(one.passage.source, one.passage.said_at, one.passage.text, one.score) for one in recalled[: look.top_k]
    ]


async def _bearing(index: PassageIndex, scope: Scope, look: Look) -> list[Hit]:
    """What surely bears on the question though that does not ask for it, and what was found with it; mostly nothing.

    Whether it is worth a whole search is seen by the nearest, for a third of its cost: what is near enough is among
    them, as words alone never are. Where something bore on what was said before, it mostly does so now; then that
    look, which in a long conversation costs half as much as the search, is left out."""
    if look.dense is not None and not look.bears:
        nearest = await _found(index, scope, look, NEAR, nearest=True)
        if not await _is_sure(look, nearest):
            return []
    hits = await _found(index, scope, look, UNASKED_POOL)
    return hits if await _is_sure(look, hits) else []


async def _found(index: PassageIndex, scope: Scope, look: Look, most: int, *, nearest: bool = False) -> list[Hit]:
    """The best *most* but for the turns excluded, however many parts these have among the best; the *nearest* by their
    vectors alone."""
    shown, sparse = SHOWN_MOSTLY, None if nearest else look.sparse
    while True:
        compared = COMPARED + shown
        found = await index.search(scope, Kind.TURN, look.dense, sparse, most + shown, compared=compared)
        crowding = sum(hit.passage.source in look.excluded for hit in found[:compared])
        if crowding <= shown or len(found) < compared:
            return _without(found, look.excluded, most)
        shown *= 4


async def _beside(index: PassageIndex, scope: Scope, hits: Sequence[Hit], excluded: frozenset[str]) -> list[Passage]:
    """What was said just before and after the best of *hits*."""
    best = list(dict.fromkeys(hit.passage.source for hit in hits))[:LOOKED_BESIDE]
    before = {hit.passage.previous for hit in hits[:LOOKED_BESIDE]} - {""}
    beside = await index.beside(scope, Kind.TURN, before, best)
    return [passage for passage in beside if passage.source not in excluded]


def _without(found: Sequence[Hit], excluded: frozenset[str], most: int) -> list[Hit]:
    """The best *most* of *found* but for the turns *excluded*; the floor weighs the cosines of the first alone."""
    hits = [hit for hit in found if hit.passage.source not in excluded][:most]
    return [*hits[:COMPARED], *(Hit(*hit[:2], None, *hit[3:]) if hit.dense else hit for hit in hits[COMPARED:])]


async def _is_sure(look: Look, hits: Sequence[Hit]) -> bool:
    """Whether one of *hits* is told though nobody asked for it; mostly none is, and nothing else has to be read."""
    could = look.floor.could_be_sure(look.query, hits)
    return await _weighed([hit.passage for hit in could], lambda: look.floor.is_sure(look.query, could))


async def _chosen(look: Look, hits: Sequence[Hit], beside: Sequence[Passage]) -> list[Recollection]:
    """What is told, the best first: what reaches the floor, and what stands beside that."""

    def chosen() -> list[Recollection]:
        told = look.floor.told(look.query, hits, beside, asked_for=look.asked_for)
        return recollect(look.query, hits, beside, told) if told else []

    return await _weighed([*(hit.passage for hit in hits), *beside], chosen)


async def _weighed(passages: Sequence[Passage], weigh: Callable[[], T]) -> T:
    """What *weigh* makes of *passages*, in a thread where there is much to read."""
    return await asyncio.to_thread(weigh) if _is_much(passages) else weigh()


def _is_much(passages: Sequence[Passage]) -> bool:
    texts = [passage.text for passage in passages]
    characters = sum(map(len, texts))
    if not LONG_CHARACTERS < characters <= MOST_CHARACTERS:
        return characters > MOST_CHARACTERS
    return sum(map(len, met_first(texts))) > LONG_CHARACTERS


# ---- turns ----


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
        """*words_alone* as in `grounding.retrieval.search.Search`."""
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
            query = search.spell_out(query, earlier, len(term_set(query)), FEW_TERMS)
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
