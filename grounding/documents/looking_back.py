"""One look back into a conversation: what was said in it that bears on a question, found and judged.

All that it asks the index follows from what was found before, so it is made where the index is: whoever asks an index
of another process has one way there and back, and is given what is told instead of all that was found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import Hit, Kind, Passage, PassageIndex
from grounding.documents.recollection import Recollection, met_first, recollect
from grounding.documents.relevance import TurnFloor
from grounding.documents.sparse import SparseVector

T = TypeVar("T")

POOL = 100
"""Parts of turns that a search brings, of which the order is made. With 150 nothing measured was better."""
UNASKED_POOL = 40
"""The same for what nobody asked for, of which less is told: as much of the evidence is among it as with 100."""
COMPARED = 16
"""The best of the pool, whose own vectors are compared with the question's."""
SHOWN_MOSTLY = 24
"""Parts of turns that a search brings besides, in the place of those that the prompt shows anyway. A long text that was
pasted has up to `grounding.documents.turns.TURN_MAX_PARTS`: then it is searched again, for more."""
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
    """A part of a turn that is told; ``said_at`` as in `grounding.documents.index.Passage`."""

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
