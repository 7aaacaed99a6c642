"""Gives what earlier versions kept an audience: all that was said in groups belonged to the whole workspace then.

Where it came from decides. What was said in a conversation is its place's, or the person's of a direct message, since
nothing says any more that a place was public. What has an author only is theirs. What programs and administrators wrote
stays the workspace's. Until this is done such records and lines are shown to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from connectors.message import EVERYONE, PLACE_PREFIX, Scope, place_audience
from grounding.memory.global_context import GlobalContexts
from grounding.memory.karma.store import MarkStore
from grounding.memory.records import making
from grounding.memory.records.store import RecordStore
from grounding.run_context import audience_of
from runtime.turns import Manifests

_THREADED = frozenset({"slack", "telegram"})
"""Their external ids are the place and, behind a slash, the thread."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Private:
    """How many records and lines of a workspace were everybody's in an earlier version, and are private now."""

    records: int
    lines: int


class Audiences:
    """Settles what is kept of all workspaces. Raises `connectors.message.StoreUnavailable`."""

    def __init__(self, records: RecordStore, lines: GlobalContexts, marks: MarkStore, manifests: Manifests) -> None:
        self._records = records
        self._lines = lines
        self._marks = marks
        self._manifests = manifests

    async def settle(self, scope: Scope) -> None:
        """Give what has no audience yet one. Done again it does no harm."""
        records = lines = marked = 0
        for record in await self._records.unsettled(scope):
            came = record.provenance
            audience = _place(came.context_id) if came.context_id else came.author
            fields = {"v": 2, "audience": audience, "version": record.version + 1}
            after = record.model_copy(update=fields)
            if await self._records.move(scope, record, after, making.digest(after)):
                await self._records.settle(scope, after)
                records += 1
        if records:
            await self._records.is_behind(scope)  # the index follows
        for line in await self._lines.unsettled(scope):
            known = await self._manifests.contexts(scope, [line.turn_id]) if line.turn_id else {}
            context = known.get(line.turn_id)
            said_to = audience_of(context) if context is not None else None
            whose = _of_thread(said_to) if said_to is not None else line.author
            lines += await self._lines.settle(Scope(scope.workspace_id, None, whose), line)
        for one in await self._marks.unsettled(scope):
            place = _place(one.key.context_id)  # without the thread
            if one.exchange and one.exchange.audience.startswith(PLACE_PREFIX) and one.exchange.audience != place:
                marked += await self._marks.settle(scope, one, place)
        if records or lines or marked:
            _log.info("audiences.settled", workspace_id=scope.workspace_id, records=records, lines=lines, marked=marked)

    async def private(self, scope: Scope) -> Private:
        """What `settle` made private, and nobody has shared, or taken away, since."""
        ids = await self._records.settled(scope)
        found = await self._records.read(Scope(scope.workspace_id, None, EVERYONE), ids)
        return Private(sum(bool(one.audience) for one in found), await self._lines.settled(scope))


def _place(context_id: str) -> str:
    connector, _, external_id = context_id.partition(":")
    external_id = external_id.partition("/")[0] if connector in _THREADED else external_id
    return place_audience(f"{connector}:{external_id}")


def _of_thread(audience: str) -> str:
    is_place = audience.startswith(PLACE_PREFIX)
    return _place(audience.removeprefix(PLACE_PREFIX)) if is_place else audience
