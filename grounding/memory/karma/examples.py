"""Use answers that people marked as good as examples in prompts.

A few examples stay for a whole session; others are chosen because they are like the message. `Karma` does both for a
turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from connectors.message import ConversationKey, Scope, may_see
from connectors.redis_calls import RedisCall
from grounding.memory.karma.marks import Marked
from grounding.memory.karma.store import MarkStore
from grounding.prompt_input import RecalledTurn, Trace
from grounding.retrieval import (
    Embedder,
    EmbedderUnavailable,
    IndexUnavailable,
    TurnFloor,
    spell_out,
    term_set,
    turn_floor_for,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]


_KNOWN_AT_MOST = 1000
STANDING_AT_MOST = 4
CHOSEN_AT_MOST = 4
"""More fit into no budget."""
ALIKE = 0.5
"""The share of common terms from which two questions have the same subject, so that one exchange represents both."""
MARKED_BONUS = 0.25
"""Added to the score of an earlier turn that is marked as good, in standard deviations of the scores found. It then
precedes an unmarked turn that fits as well, but none that fits clearly better."""
_PER_MARK = 0.02
"""Added to the likeness of an exchange for each further mark, up to five."""
EMBEDDED_AT_ONCE = 32
"""Exchanges that are embedded for one message. In a workspace with more, the others follow with later messages and are
compared by words until then."""
_REMEMBERED = 5000
LONGEST_QUERY_CHARACTERS = 2000
FEW_TERMS = 1
"""A message of at most this many terms ("and why?") is compared together with the question before."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The good exchanges for a message. ``floor`` are those that stay for the session; ``likeness`` is by turn."""

    floor: tuple[Trace, ...] = ()
    good: tuple[Marked, ...] = ()
    likeness: Mapping[str, float] = field(default_factory=dict)
    minimum: float = 0.0

    @property
    def turns(self) -> frozenset[str]:
        """The turns that people marked as good."""
        return frozenset(one.turn_id for one in self.good)

    def chosen(self, besides: Collection[str]) -> tuple[Trace, ...]:
        """Return those relevant to the message, the best first, without the turns in *besides*."""
        shown = {*besides, *(one.turn_id for one in self.floor)}
        return bearing(self.good, self.likeness, self.minimum, shown)


NOTHING = Examples()


@dataclass(slots=True)
class _Known:
    version: int
    marked: list[Marked]


class Karma:
    """Reads the marks of workspaces through a cache that is refreshed when a workspace's version changes."""

    def __init__(self, store: MarkStore, likeness: Likeness) -> None:
        self._store = store
        self._likeness = likeness
        self._known: dict[str, _Known] = {}

    def version_call(self, scope: Scope) -> RedisCall[int]:
        """Return the call that reads the version of the workspace's marks."""
        return self._store.version_call(scope)

    async def look(
        self,
        key: ConversationKey,
        audience: str | None,
        query: str = "",
        earlier: Sequence[str] = (),
        *,
        version: int,
        stood: Sequence[str] | None,
    ) -> Examples:
        """Return the good exchanges for *query*, said after *earlier*. An empty *query* gets only the standing ones.

        *audience* reads the answer. *version* is the result of `version_call`. *stood* are the standing turns of the
        session, None if it has just begun. Raises `connectors.message.StoreUnavailable`.
        """
        marked = await self._marked(key.scope, version)
        if not marked:
            return NOTHING
        good = good_ones(marked, audience)
        names = [one.turn_id for one in standing(good)] if stood is None else stood
        by_turn = {one.turn_id: one for one in good if may_stand(one)}
        floor = tuple(trace for name in names if name in by_turn and (trace := trace_of(by_turn[name])))
        likeness, minimum = await self._likeness.of(query, good, earlier) if query.strip() and good else ({}, 0.0)
        return Examples(floor, tuple(good), likeness, minimum)

    async def _marked(self, scope: Scope, version: int) -> list[Marked]:
        known = self._known.get(scope.workspace_id)
        if known is None or known.version != version:
            if len(self._known) >= _KNOWN_AT_MOST:
                self._known.clear()
            version, marked = await self._store.all(scope) if version else (0, [])
            known = self._known[scope.workspace_id] = _Known(version, marked)
        return known.marked


# The choice


def good_ones(marked: Iterable[Marked], audience: str | None) -> list[Marked]:
    """Return the exchanges that *audience* may see, the best first.

    They are ordered by the surplus of good over bad marks, then the newest day, then the turn.
    """
    seen = (one for one in marked if one.is_good and one.exchange and may_see(one.exchange.audience, audience))
    by_turn = sorted(seen, key=lambda one: one.turn_id)
    by_day = sorted(by_turn, key=lambda one: one.marked_on, reverse=True)
    return sorted(by_day, key=lambda one: one.bad - one.good)


def may_stand(marked: Marked) -> bool:
    """Say whether an exchange may be an example in the system message.

    It may not if it is made of others' words, or if it is for the whole workspace but only one member vouches for it.
    """
    exchange = marked.exchange
    return exchange is not None and not exchange.foreign and (bool(exchange.audience) or marked.is_vouched_for)


def standing(good: Sequence[Marked]) -> tuple[Marked, ...]:
    """Return the few of *good* (see `good_ones`) that the system message shows for any question, on different subjects.

    See `may_stand`.
    """
    chosen: list[Marked] = []
    for one in good:
        if len(chosen) == STANDING_AT_MOST:
            break
        if may_stand(one) and not any(_are_alike(one, other) for other in chosen):
            chosen.append(one)
    return tuple(chosen)


def bearing(
    good: Sequence[Marked], likeness: Mapping[str, float], minimum: float, besides: Collection[str]
) -> tuple[Trace, ...]:
    """Return those of *good* whose likeness to the message (by turn) reaches *minimum*, the best first.

    Turns in *besides*, which the prompt shows anyway, and repetitions are left out.
    """
    found = [
        (one, likeness[one.turn_id])
        for one in good
        if one.turn_id not in besides and likeness.get(one.turn_id, minimum - 1) >= minimum
    ]
    found.sort(key=lambda pair: -(pair[1] + _PER_MARK * min(pair[0].good - pair[0].bad, 5)))
    chosen: list[tuple[Marked, float]] = []
    for one, score in found:
        if len(chosen) < CHOSEN_AT_MOST and not any(_say_the_same(one, other) for other, _ in chosen):
            chosen.append((one, score))
    return tuple(trace for one, score in chosen if (trace := trace_of(one, score)))


def preferred(recalled: Sequence[RecalledTurn], good: Collection[str]) -> list[RecalledTurn]:
    """Return *recalled* (the best first) with the turns in *good* moved forward."""
    if not any(one.turn_id in good for one in recalled):
        return list(recalled)
    scored = [
        one.model_copy(update={"score": one.score + MARKED_BONUS}) if one.turn_id in good else one for one in recalled
    ]
    return sorted(scored, key=lambda one: -one.score)


def trace_of(marked: Marked, score: float = 0.0) -> Trace | None:
    """Return *marked* as a prompt shows it; None if it is no good example."""
    exchange = marked.exchange
    if exchange is None or not marked.is_good:
        return None
    return Trace(
        turn_id=marked.turn_id,
        asked=exchange.asked,
        answered=exchange.answered,
        marked_on=marked.marked_on,
        good=marked.good,
        score=round(score, 6),
        foreign=exchange.foreign,
        shared=not exchange.audience,
    )


def _are_alike(one: Marked, other: Marked) -> bool:
    left, right = _terms(one), _terms(other)
    return bool(left) and len(left & right) >= ALIKE * len(left | right)


def _say_the_same(one: Marked, other: Marked) -> bool:
    return _words(one) == _words(other)


def _terms(marked: Marked) -> frozenset[str]:
    return term_set(marked.exchange.asked) if marked.exchange else frozenset()


def _words(marked: Marked) -> tuple[str, str]:
    exchange = marked.exchange
    return (exchange.asked.casefold(), exchange.answered.casefold()) if exchange else ("", "")


# How like a message an exchange is


class Likeness:
    """Rates exchanges by the floor for earlier turns (`grounding.retrieval.turn_ranking`), measured for the same
    question: is a turn relevant to a message? Vectors are cached in memory.

    *embedder* returns the configured model; it raises `IndexUnavailable` and `EmbedderUnavailable` while there is none.
    """

    def __init__(self, embedder: Callable[[], Awaitable[Embedder]]) -> None:
        self._embedder = embedder
        self._vectors: dict[tuple[str, str], Array] = {}
        """By model and text."""

    async def of(
        self, query: str, good: Sequence[Marked], earlier: Sequence[str] = ()
    ) -> tuple[dict[str, float], float]:
        """Return the likeness of *good* to *query*, said after *earlier*, by turn, and the minimum for relevance.

        If nothing can be embedded, words alone decide.
        """
        query = query[:LONGEST_QUERY_CHARACTERS]
        query = spell_out(query, earlier, len(term_set(query)), FEW_TERMS)
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
        asked, by_words = term_set(query), turn_floor_for("")
        judged: dict[str, float] = {}
        for name, text in texts.items():
            said = term_set(text)
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
