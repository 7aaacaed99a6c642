"""Gives records, lines and karma marks of earlier versions an audience.

In those versions everything that was said in a group belonged to the whole workspace. Now the source decides. What was
said in a conversation belongs to its place, or to the person of a direct message: nothing says any more whether a place
was public. What has only an author belongs to the author. What programs and administrators wrote stays the workspace's.
Until `Audiences.settle` has run, such records and lines are shown to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from connectors.message import EVERYONE, PLACE_PREFIX, Scope, place_audience
from grounding.memory.global_context import GlobalContexts
from grounding.memory.karma import MarkStore
from grounding.memory.records import RecordStore, digest
from grounding.prompt_input import audience_of
from runtime.turns import Manifests

_THREADED = frozenset({"slack", "telegram"})
"""Connectors that earlier versions had, whose external ids are the place and, after a slash, the thread."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PrivateCounts:
    """How many records and lines of a workspace belonged to everybody in an earlier version, and are private now."""

    records: int
    lines: int


class Audiences:
    """The upgrade of all stores. All methods raise `connectors.message.StoreUnavailable`."""

    def __init__(self, records: RecordStore, lines: GlobalContexts, marks: MarkStore, manifests: Manifests) -> None:
        self._records = records
        self._lines = lines
        self._marks = marks
        self._manifests = manifests

    async def settle(self, scope: Scope) -> None:
        """Give everything of a workspace that has no audience one. May be repeated."""
        records, lines, marks = (
            await self._settle_records(scope),
            await self._settle_lines(scope),
            await self._settle_marks(scope),
        )
        if records or lines or marks:
            _log.info("audiences.settled", workspace_id=scope.workspace_id, records=records, lines=lines, marked=marks)

    async def _settle_records(self, scope: Scope) -> int:
        settled = 0
        for record in await self._records.unsettled(scope):
            source = record.provenance
            audience = _place_audience(source.context_id) if source.context_id else source.author
            after = record.model_copy(update={"v": 2, "audience": audience, "version": record.version + 1})
            if await self._records.move(scope, record, after, digest(after)):
                await self._records.settle(scope, after)
                settled += 1
        if settled:
            await self._records.mark_behind(scope)  # has the index updated
        return settled

    async def _settle_lines(self, scope: Scope) -> int:
        settled = 0
        for line in await self._lines.unsettled(scope):
            contexts = await self._manifests.contexts(scope, [line.turn_id]) if line.turn_id else {}
            context = contexts.get(line.turn_id)
            audience = audience_of(context) if context is not None else None
            if audience is None:
                audience = line.author
            elif audience.startswith(PLACE_PREFIX):
                audience = _place_audience(audience.removeprefix(PLACE_PREFIX))
            settled += await self._lines.settle(Scope(scope.workspace_id, None, audience), line)
        return settled

    async def _settle_marks(self, scope: Scope) -> int:
        settled = 0
        for mark in await self._marks.unsettled(scope):
            place = _place_audience(mark.key.context_id)
            if mark.exchange and mark.exchange.audience.startswith(PLACE_PREFIX) and mark.exchange.audience != place:
                settled += await self._marks.settle(scope, mark, place)
        return settled

    async def private(self, scope: Scope) -> PrivateCounts:
        """Count what `settle` made private and nobody has shared or deleted since."""
        ids = await self._records.settled(scope)
        records = await self._records.read(Scope(scope.workspace_id, None, EVERYONE), ids)
        return PrivateCounts(sum(bool(record.audience) for record in records), await self._lines.settled(scope))


def _place_audience(context_id: str) -> str:
    """Return the audience of a place, without its thread."""
    connector, _, external_id = context_id.partition(":")
    if connector in _THREADED:
        external_id = external_id.partition("/")[0]
    return place_audience(f"{connector}:{external_id}")
