"""Marked turns in Redis.

Keys (owner ``karma``, under the workspace's tag): ``kept`` is a hash of turns to their marks and exchanges. ``version``
grows with every change. ``said`` is a hash of messages (conversation and platform id) to the marked turn that they
asked for or are the reply of.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from connectors.message import AgentRuntimeError, ConversationKey, Scope, encode_id, redis_key
from grounding.memory.karma.karma import Marked, bearing, good_ones, may_stand, read, standing, trace_of
from grounding.prompt_input import Trace
from grounding.retrieval import (
    Embedder,
    EmbedderUnavailable,
    IndexUnavailable,
    TurnFloor,
    spell_out,
    term_set,
    turn_floor_for,
)
from grounding.transcript import UnknownFormat

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from redis.asyncio import Redis


_OWNER = "karma"
KEPT_AT_MOST = 1000
"""Most marked turns of a workspace. Turns without a counting mark are dropped first, then the oldest that are no
examples, then the oldest."""
_ATTEMPTS = 16
_MANY = 50
"""More turns than this are parsed in a thread."""

_WRITE = """
-- KEYS: kept, version, said. ARGV: turn, its stored value now or '', its new value or '', number of messages to remove
-- and these messages, then messages to add
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
local gone = tonumber(ARGV[4])
for at = 5, 4 + gone do redis.call('HDEL', KEYS[3], ARGV[at]) end
for at = 5 + gone, #ARGV do redis.call('HSET', KEYS[3], ARGV[at], ARGV[1]) end
local clock = redis.call('TIME')
local now, was = clock[1] * 1000000 + clock[2], tonumber(redis.call('GET', KEYS[2]) or '0')
redis.call('SET', KEYS[2], string.format('%.0f', math.max(now, was + 1)))
return 1
"""


class MarkBusy(AgentRuntimeError):
    """Many are marking the turn at this moment; try again."""

    retryable = True


class MarkStore:
    """The marked turns of all workspaces.

    Every method raises `connectors.message.StoreUnavailable` and `grounding.transcript.entry.UnknownFormat`.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(_WRITE)

    async def version(self, scope: Scope) -> int:
        """Return the version, which grows with every change; 0 if nothing was ever marked. One round trip.

        It is a time, so a workspace that was deleted and created again never returns to an old version.
        """
        return int(await self._redis.get(_key(scope, "version")) or 0)

    async def all(self, scope: Scope) -> tuple[int, list[Marked]]:
        """Return the version and all marked turns."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(_key(scope, "version"))
            pipe.hgetall(_key(scope, "kept"))
            version, kept = await pipe.execute()
        packed = [kept[turn_id] for turn_id in sorted(kept)]
        if len(packed) > _MANY:
            return int(version or 0), await asyncio.to_thread(lambda: [_read(one) for one in packed])
        return int(version or 0), [_read(one) for one in packed]

    async def get(self, scope: Scope, turn_id: str) -> Marked | None:
        """Return a marked turn, or None."""
        return (await self._read_turn(scope, turn_id))[1]

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """Return the marked turn of the platform's message *message_id*; empty if there is none."""
        return str(await self._redis.hget(_key(key.scope, "said"), _message(key, message_id)) or "")

    async def change(self, scope: Scope, turn_id: str, step: Callable[[Marked | None], Marked | None]) -> Marked | None:
        """Replace a stored turn by the result of *step* (None deletes it) and return that result.

        *step* may be called several times. Raises `MarkBusy`.
        """
        for _ in range(_ATTEMPTS):
            packed, before = await self._read_turn(scope, turn_id)
            after = step(before)
            if after == before:
                return before
            gone = _messages(before) - _messages(after)
            written = await self._write(
                keys=[_key(scope, name) for name in ("kept", "version", "said")],
                args=[
                    turn_id,
                    packed,
                    "" if after is None else after.model_dump_json(),
                    len(gone),
                    *sorted(gone),
                    *sorted(_messages(after)),
                ],
            )
            if written:
                if before is None:
                    await self._trim(scope)
                return after
        raise MarkBusy("this reply is being marked by many at once: try again")

    async def unsettled(self, scope: Scope) -> list[Marked]:
        """Return the turns whose audience an earlier version did not store."""
        kept: Any = await self._redis.hgetall(_key(scope, "kept"))
        return [_read(packed) for packed in kept.values() if '"reach":' in packed]

    async def settle(self, scope: Scope, marked: Marked, place: str) -> bool:
        """Set the audience of one of `unsettled` to *place*. Returns False if it no longer exists."""

        def settled(before: Marked | None) -> Marked | None:
            exchange = before.exchange if before else None
            if before is None or exchange is None:
                return before
            return before.model_copy(update={"exchange": exchange.model_copy(update={"audience": place})})

        return await self.change(scope, marked.turn_id, settled) is not None

    async def forget(self, scope: Scope, turn_ids: Iterable[str]) -> int:
        """Delete the marks of turns; return how many turns had some."""
        count = 0
        for turn_id in turn_ids:
            count += await self.get(scope, turn_id) is not None
            await self.change(scope, turn_id, lambda _: None)
        return count

    async def forget_conversation(self, key: ConversationKey) -> int:
        """Delete all marks of a conversation; return their number."""
        _, kept = await self.all(key.scope)
        return await self.forget(key.scope, [one.turn_id for one in kept if one.conversation == key.encoded])

    async def _read_turn(self, scope: Scope, turn_id: str) -> tuple[str, Marked | None]:
        """Return a turn in stored and in parsed form."""
        packed: Any = await self._redis.hget(_key(scope, "kept"), turn_id)
        return packed or "", None if packed is None else _read(packed)

    async def _trim(self, scope: Scope) -> None:
        if await self._redis.hlen(_key(scope, "kept")) <= KEPT_AT_MOST:
            return
        _, kept = await self.all(scope)
        kept.sort(key=lambda one: (one.is_marked, one.is_good, one.marked_on, one.turn_id))
        await self.forget(scope, [one.turn_id for one in kept[: len(kept) - KEPT_AT_MOST]])


def _messages(marked: Marked | None) -> set[str]:
    if marked is None:
        return set()
    asked_in = marked.exchange.asked_in if marked.exchange else ()
    return {_message(marked.key, one) for one in (*marked.messages, *asked_in)}


def _message(key: ConversationKey, message_id: str) -> str:
    return f"{key.encoded}/{encode_id(message_id)}"


def _key(scope: Scope, name: str) -> str:
    return redis_key(_OWNER, scope.tag, name)


def _read(packed: str) -> Marked:
    try:
        return read(packed)
    except ValidationError as error:
        version = json.loads(packed).get("v")
        if version == 1:
            raise
        raise UnknownFormat(f"a mark has version {version!r}; this runtime reads 1: upgrade it") from error


# Measure how similar good exchanges are to a message, by meaning and by words, as for earlier turns

if TYPE_CHECKING:
    Array = NDArray[np.float32]

EMBEDDED_AT_ONCE = 32
"""Exchanges that are embedded for one message. In a workspace with more, the others follow with later messages and are
compared by words until then."""
_REMEMBERED = 5000
LONGEST_QUERY_CHARACTERS = 2000
FEW_TERMS = 1
"""A message of at most this many terms ("and why?") is compared together with the question before."""


class Likeness:
    """Rates exchanges by the floor for earlier turns (`grounding.retrieval.relevance`), measured for the same question:
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


# The good exchanges of a workspace, for turns: those that stay for a session, and those relevant to a message

LOOK_SECONDS = 5.0
"""How long a workspace without marks is not read again, so that it costs its turns nothing."""
_KNOWN_AT_MOST = 1000


@dataclass(frozen=True, slots=True)
class Looked:
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


NOTHING = Looked()


@dataclass(slots=True)
class _Known:
    version: int
    marked: list[Marked]
    looked_at: float


class Karma:
    """Reads the marks of workspaces through a cache that is refreshed when a workspace's version changes."""

    def __init__(self, store: MarkStore, likeness: Likeness, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._likeness = likeness
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def look(
        self,
        key: ConversationKey,
        audience: str | None,
        query: str = "",
        earlier: Sequence[str] = (),
        *,
        stood: Callable[[], Awaitable[Sequence[str] | None]],
    ) -> Looked:
        """Return the good exchanges for *query*, said after *earlier*. An empty *query* gets only the standing ones.

        *audience* reads the answer. *stood* returns the standing turns of the session, None if it has just begun.
        Raises `connectors.message.StoreUnavailable`.
        """
        known = self._known.get(key.workspace_id)
        if known is not None and not known.marked and self._clock() < known.looked_at + LOOK_SECONDS:
            return NOTHING
        marked = await self._marked(key.scope, await self._store.version(key.scope))
        if not marked:
            return NOTHING
        good = good_ones(marked, audience)
        names = await stood()
        if names is None:
            names = [one.turn_id for one in standing(good)]
        by_turn = {one.turn_id: one for one in good if may_stand(one)}
        floor = tuple(trace for name in names if name in by_turn and (trace := trace_of(by_turn[name])))
        likeness, minimum = await self._likeness.of(query, good, earlier) if query.strip() and good else ({}, 0.0)
        return Looked(floor, tuple(good), likeness, minimum)

    def changed(self, scope: Scope) -> None:
        """Drop the cache of a workspace in which this process changed a mark."""
        self._known.pop(scope.workspace_id, None)

    async def _marked(self, scope: Scope, version: int) -> list[Marked]:
        known = self._known.get(scope.workspace_id)
        if known is None or known.version != version:
            if len(self._known) >= _KNOWN_AT_MOST:
                self._known.clear()
            version, marked = await self._store.all(scope) if version else (0, [])
            known = self._known[scope.workspace_id] = _Known(version, marked, 0.0)
        known.looked_at = self._clock()
        return known.marked
