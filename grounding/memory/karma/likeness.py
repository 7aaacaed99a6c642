"""Measure how similar good exchanges are to a message, by meaning and by words, as for earlier turns."""

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
"""Exchanges that are embedded for one message. In a workspace with more, the others follow with later messages and are
compared by words until then."""
_REMEMBERED = 5000
LONGEST_QUERY_CHARACTERS = 2000
FEW_TERMS = 1
"""A message of at most this many terms ("and why?") is compared together with the question before."""


class Likeness:
    """Rates exchanges by the floor for earlier turns (`grounding.documents.relevance`), measured for the same question:
    is a turn relevant to a message? Vectors and terms are cached in memory.

    *embedder* returns the configured model; it raises `IndexUnavailable` and `EmbedderUnavailable` while there is none.
    """

    def __init__(self, embedder: Callable[[], Awaitable[Embedder]]) -> None:
        self._embedder = embedder
        self._vectors: dict[tuple[str, str], Array] = {}
        """By model and text."""
        self._terms: dict[str, frozenset[str]] = {}
        """By text. Searches cache fewer."""

    async def of(
        self, query: str, good: Sequence[Marked], earlier: Sequence[str] = ()
    ) -> tuple[dict[str, float], float]:
        """Return the likeness of *good* to *query*, said after *earlier*, by turn, and the minimum for relevance.

        If nothing can be embedded, words alone decide.
        """
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
        """Return the likeness by turn, and the minimum.

        Exchanges with a cosine are rated by *floor*, the others by their words, shifted to the scale of *floor* so that
        the same minimum applies.
        """
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
    """Return both sides of an exchange as the text to compare, as for a recalled turn."""
    return f"{marked.exchange.asked}\n{marked.exchange.answered}" if marked.exchange else ""


def _arrays(vectors: Sequence[Sequence[float]]) -> list[Array]:
    import numpy as np

    return [np.asarray(one, dtype=np.float32) for one in vectors]


def _cosines(asked: Sequence[float], found: dict[str, Array]) -> dict[str, float]:
    """Return the cosines of unit vectors."""
    if not found:
        return {}
    import numpy as np

    products = np.stack(list(found.values())) @ np.asarray(asked, dtype=np.float32)
    return dict(zip(found, map(float, products), strict=True))
