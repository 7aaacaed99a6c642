"""The good exchanges of a workspace, for turns: those that stay for a session, and those relevant to a message."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from connectors.message import ConversationKey, Scope
from grounding.memory.karma.choosing import bearing, good_ones, may_stand, standing, trace_of
from grounding.memory.karma.likeness import Likeness
from grounding.memory.karma.marks import Marked
from grounding.memory.karma.store import MarkStore
from grounding.run_context import Trace

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
