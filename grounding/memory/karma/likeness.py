"""How like good exchanges are to a message: by what they mean and by their words, as earlier turns are judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from grounding.documents.embedding import Embedder, EmbedderUnavailable
from grounding.documents.followup import spelled_out
from grounding.documents.index import IndexUnavailable
from grounding.documents.relevance import TurnFloor, turn_floor_for
from grounding.documents.sparse import term_set
from grounding.memory.karma.marks import Marked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

EMBEDDED_AT_ONCE = 32
"""Exchanges that one message has embedded: of a workspace with many the others follow with the next messages, and are
compared by their words until then."""
_REMEMBERED = 5000
LONGEST_QUERY_CHARACTERS = 2000
FEW_TERMS = 1
"""A message of so many terms ("and why?") is compared together with what was asked before."""


class Likeness:
    """Judges exchanges by the floor of earlier turns (`grounding.documents.relevance`), which was measured for the same
    question: whether a turn bears on a message. Vectors and terms stay in memory, and are made anew after a start.

    *embedder* gives the model that is set; it raises `IndexUnavailable` and `EmbedderUnavailable` while there is none.
    """

    def __init__(self, embedder: Callable[[], Awaitable[Embedder]]) -> None:
        self._embedder = embedder
        self._vectors: dict[tuple[str, str], Array] = {}
        """By model and text."""
        self._terms: dict[str, frozenset[str]] = {}
        """By text: more than those that searches remember for each other."""

    async def of(
        self, query: str, good: Sequence[Marked], earlier: Sequence[str] = ()
    ) -> tuple[dict[str, float], float]:
        """The likeness of *good* to *query*, said after *earlier*, by turn, and the one from which an exchange bears on
        it. Where nothing can be embedded the words decide."""
        query = query[:LONGEST_QUERY_CHARACTERS]
        query = spelled_out(query, earlier, len(term_set(query)), FEW_TERMS)
        texts = {one.turn_id: text_of(one) for one in good}
        try:
            embedder = await self._embedder()
            await self._embed(embedder, list(texts.values()))
            asked = await embedder.embed_query(query)
        except (IndexUnavailable, EmbedderUnavailable):
            return await asyncio.to_thread(self._judged, turn_floor_for(""), query, texts, {})
        known = {name: self._vectors.get((embedder.name, text)) for name, text in texts.items()}
        found = {name: vector for name, vector in known.items() if vector is not None}
        floor = turn_floor_for(embedder.name)
        return await asyncio.to_thread(lambda: self._judged(floor, query, texts, _cosines(asked, found)))

    def _judged(
        self, floor: TurnFloor, query: str, texts: dict[str, str], cosines: dict[str, float]
    ) -> tuple[dict[str, float], float]:
        """Those that have a cosine by *floor*, the others by their words alone: on the scale of *floor*, what reaches
        the floor of words reaches this one. And what has to be reached."""
        if len(self._terms) > _REMEMBERED:
            self._terms.clear()
        asked, by_words = term_set(query), turn_floor_for("")
        judged: dict[str, float] = {}
        for name, text in texts.items():
            said = self._terms.get(text)
            if said is None:
                said = self._terms[text] = term_set(text)
            if name in cosines:
                judged[name] = floor.relevance(asked, said, cosines[name])
            else:
                judged[name] = by_words.relevance(asked, said, 0.0) - by_words.enough + floor.enough
        return judged, floor.enough

    async def _embed(self, embedder: Embedder, texts: Sequence[str]) -> None:
        lacking = [text for text in texts if (embedder.name, text) not in self._vectors][:EMBEDDED_AT_ONCE]
        if not lacking:
            return
        vectors = await embedder.embed_documents(lacking)
        arrays = await asyncio.to_thread(_arrays, vectors)
        if len(self._vectors) + len(arrays) > _REMEMBERED:
            self._vectors.clear()
        self._vectors.update(zip(((embedder.name, text) for text in lacking), arrays, strict=True))


def text_of(marked: Marked) -> str:
    """What of an exchange is compared: both sides of it, as of a turn that is recalled."""
    return f"{marked.exchange.asked}\n{marked.exchange.answered}" if marked.exchange else ""


def _arrays(vectors: Sequence[Sequence[float]]) -> list[Array]:
    import numpy as np

    return [np.asarray(one, dtype=np.float32) for one in vectors]


def _cosines(asked: Sequence[float], found: dict[str, Array]) -> dict[str, float]:
    """Of unit vectors."""
    if not found:
        return {}
    import numpy as np

    products = np.stack(list(found.values())) @ np.asarray(asked, dtype=np.float32)
    return dict(zip(found, map(float, products), strict=True))
