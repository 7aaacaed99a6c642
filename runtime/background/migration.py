"""Switches each workspace to the collection of another embedding model once that has everything, and drops the former.

One of several processes does this (`runtime.coordination.leadership`). The decisions are in
`grounding.documents.ledger`, where other processes read them. Others fill the collection (`runtime.search.sync`,
`runtime.background.rebuild`); this module checks whether anything is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from connectors.message import Scope, StoreUnavailable
from grounding.documents import Identity
from runtime.background.rebuild import IndexRebuilder
from runtime.search import Knowledge, log_index_error
from runtime.workspaces import Workspaces

BUSY_SECONDS = 1.0
"""Between looks while a workspace is still to be switched."""
QUIET_SECONDS = 30.0
"""Between looks otherwise."""
SETTLE_SECONDS = 5.0
"""The shortest time that a former collection is kept: other processes notice a switch only after a second."""
DAY_SECONDS = 24 * 3600.0
_REST = 4.0
"""The pause after a look, in multiples of its duration: looking through many documents is work."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """A workspace that the collection of a former model answers: both models, how many documents the new collection
    has, and whether it has all turns."""

    answered_by: str
    filling: str
    documents: int
    turns: bool


class ModelMigration:
    """Sees to all workspaces. *keep_seconds* is how long a collection is kept that answers none any more."""

    def __init__(
        self,
        knowledge: Knowledge,
        rebuilding: IndexRebuilder,
        workspaces: Workspaces,
        keep_seconds: float,
        now: Callable[[], float] = time.time,
        *,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._knowledge = knowledge
        self._catalogue = knowledge.catalogue
        self._rebuilding = rebuilding
        self._workspaces = workspaces
        self._keep_seconds = max(keep_seconds, SETTLE_SECONDS)
        self._now = now
        self._busy_seconds = busy_seconds

    async def run(self) -> None:
        """Repeat `step` until cancelled."""
        await self._knowledge.opened()
        clock = asyncio.get_running_loop().time
        while True:
            busy, began = True, clock()
            try:
                busy = await self.step()
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                log_index_error(error)
            least = self._busy_seconds if busy else QUIET_SECONDS
            await asyncio.sleep(max(least, _REST * (clock() - began)))

    async def step(self) -> bool:
        """Switch what can be switched and drop what is over; return whether there is more to do soon.

        Raises `IndexUnavailable` and `StoreUnavailable`.
        """
        target = (await self._knowledge.ready()).identity
        scopes = [Scope(workspace.id) for workspace in await self._workspaces.all()]
        waiting: set[str] = set()
        for scope, name in zip(scopes, await self._catalogue.currents(scopes), strict=True):
            if not name:
                await self._catalogue.claim(scope, target.name)
            elif name != target.name and not await self._try_to_switch(scope, name, target):
                waiting.add(name)
        await self._knowledge.collections.close_unused(waiting)
        known = await self._catalogue.known()
        is_dropping = await self._drop_former(known, {target.name, *waiting}, scopes)
        return bool(waiting) or is_dropping

    async def _try_to_switch(self, scope: Scope, former: str, target: Identity) -> bool:
        try:
            return await self._switch(scope, former, target)
        except Exception as error:  # noqa: BLE001 - the former collection goes on answering, others may be ready
            log_index_error(error, workspace_id=scope.workspace_id)
            return False

    async def _switch(self, scope: Scope, former: str, target: Identity) -> bool:
        """Let *target* answer if it has all documents, material, turns and records."""
        if not await self._has_documents(scope) or not await self._has_material(scope):
            return False
        await self._rebuilding.fill_workspace(scope)
        if not await self._has_documents(scope):  # filling may have taken long
            return False
        await self._catalogue.switch(scope, target.name)
        self._knowledge.collections.switched(scope)
        known = await self._catalogue.known()
        was = known[former].model if former in known else ""
        _log.info("index.switched", workspace_id=scope.workspace_id, former=was, model=target.model)
        return True

    async def _has_documents(self, scope: Scope) -> bool:
        """Return whether all documents are indexed as they are stored; if not, index what nobody else sees to."""
        missing: set[str] | None = await self._knowledge.unindexed(scope)
        if not missing:
            if await self._knowledge.is_whole(scope):
                return True
            missing = None
        if self._knowledge.is_followed:  # before that, all documents are being looked through
            await self._knowledge.index(scope, missing)
        return False

    async def _has_material(self, scope: Scope) -> bool:
        """Return the same for material; `runtime.turns.material.MaterialIndexer` fills in what is missing."""
        held = await self._knowledge.material.all_totals(scope)
        material = (await self._knowledge.ready()).material
        return not await material.is_behind(scope, {owner: one.revision for owner, one in held.items()})

    async def _drop_former(self, known: Mapping[str, Identity], used: set[str], scopes: Sequence[Scope]) -> bool:
        """Drop what has answered nobody for long enough; return whether something is due soon."""
        soon = False
        for name, identity in known.items():
            if name in used:
                await self._catalogue.mark_used(name)
                continue
            now = self._now()
            due = await self._catalogue.idle_since(name, now) + self._keep_seconds
            if now < due:
                soon = soon or due - now < QUIET_SECONDS
                continue
            for scope in scopes:  # first: the records must never promise more than there is
                await self._catalogue.forget(scope, name)
            await self._knowledge.collections.drop(identity)
            await self._catalogue.remove(name)
            _log.info("index.dropped", model=identity.model, collection=name)
        return soon


async def migration_status(knowledge: Knowledge, scope: Scope) -> MigrationStatus | None:
    """Return how far the collection of the model that is set is filled; None if it answers the workspace.

    Raises `StoreUnavailable` and `IndexUnavailable`.
    """
    target, catalogue = (await knowledge.ready()).identity, knowledge.catalogue
    name = await catalogue.current(scope)
    former = (await catalogue.known()).get(name) if name not in ("", target.name) else None
    if former is None:
        return None
    documents, turns = await catalogue.documents(scope, target.name), await catalogue.is_complete(scope, target.name)
    return MigrationStatus(former.model, target.model, documents, turns)


async def idle_collections(knowledge: Knowledge) -> dict[str, float]:
    """Return the models whose collections answer nobody and are not dropped yet, and since when, in seconds since the
    epoch; nothing if Redis is away."""
    with suppress(StoreUnavailable):
        known, idle = await asyncio.gather(knowledge.catalogue.known(), knowledge.catalogue.idle())
        return {known[name].model: since for name, since in idle.items() if name in known}
    return {}
