"""Switches each workspace over to the index of another embedding model once that has everything, and drops the former.

One of several processes does this (`runtime.coordination.leadership`); what it decided is in
`grounding.documents.catalogue`, where
the others see it, and where the next one goes on. Filling the index is others' work (`runtime.search.sync`,
`runtime.background.rebuild`); here it is looked whether anything is left of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from connectors.message import Scope, StoreUnavailable
from grounding.documents import Identity, Lacks
from runtime.background.rebuild import Rebuilding
from runtime.search import Knowledge, tell_index_failed
from runtime.workspaces import Workspaces

BUSY_SECONDS = 1.0
"""Between looks while a workspace is still to be switched."""
QUIET_SECONDS = 30.0
"""The same, and while a former collection is still there. Without one there is nothing to look for."""
SETTLE_SECONDS = 5.0
"""A former collection is kept at least as long: other processes see only after a second that it answers no more."""
DAY_SECONDS = 24 * 3600.0
_REST = 4.0
"""How many times as long as a look took it rests at least: looking through many documents is work."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Underway:
    """A workspace that is answered from the collection of another model than the one that is set: both models, and how
    many documents, and whether all remembered turns, the new collection has."""

    answered_by: str
    filling: str
    documents: int
    turns: bool


class Changeover:
    """Of all workspaces. *keep_seconds* is how long a collection is kept that answers none any more."""

    def __init__(
        self,
        knowledge: Knowledge,
        rebuilding: Rebuilding,
        workspaces: Workspaces,
        keep_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._knowledge = knowledge
        self._catalogue = knowledge.catalogue
        self._rebuilding = rebuilding
        self._workspaces = workspaces
        self._keep_seconds = max(keep_seconds, SETTLE_SECONDS)
        self._now = now
        self._retry_at: dict[str, float] = {}
        """By workspace when a former collection that lacks documents is tried to be given them again."""

    async def run(self) -> None:
        """See to it, until cancelled. What fails is tried again."""
        await self._knowledge.opened()
        clock = asyncio.get_running_loop().time
        while True:
            busy, began = True, clock()
            try:
                busy = await self.step()
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                tell_index_failed(error)
            least = BUSY_SECONDS if busy else QUIET_SECONDS
            await asyncio.sleep(max(least, _REST * (clock() - began)))

    async def step(self) -> bool:
        """Look once; whether there is more to do soon. Raises `IndexUnavailable` and `StoreUnavailable`."""
        target = await self._knowledge.target()
        scopes = [Scope(workspace.id) for workspace in await self._workspaces.all()]
        answering = await self._catalogue.currents(scopes)
        left: set[str] = set()
        for scope, name in zip(scopes, answering, strict=True):
            if not name:
                await self._catalogue.claim(scope, target.name)
            elif name != target.name and not await self._tried_to_switch(scope, name, target):
                left.add(name)
        known = await self._catalogue.known()
        settling = await self._drop_former(known, {target.name, *left}, scopes)
        return bool(left) or settling

    async def _tried_to_switch(self, scope: Scope, former: str, target: Identity) -> bool:
        try:
            return await self._switch(scope, former, target)
        except Exception as error:  # noqa: BLE001 - see `tell_index_failed`; the former goes on answering, others may be ready
            tell_index_failed(error, workspace_id=scope.workspace_id)
            return False

    async def _switch(self, scope: Scope, former: str, target: Identity) -> bool:
        """Let *target* answer, if it has all documents, all material and all that was said."""
        await self._give_documents(scope, former)
        if not await self._has_documents(scope) or not await self._has_material(scope):
            return False
        await self._rebuilding.fill_workspace(scope)
        if not await self._has_documents(scope):  # that may have taken long
            return False
        await self._catalogue.switch(scope, former, target.name)
        self._knowledge.formers.switched(scope)
        known = await self._catalogue.known()
        was = known[former].model if former in known else ""
        _log.info("index.switched", workspace_id=scope.workspace_id, former=was, model=target.model)
        return True

    async def _has_documents(self, scope: Scope) -> bool:
        """Whether it does, as they are kept now. What others do not see to is indexed: it is looked again."""
        knowledge = self._knowledge
        missing: set[str] | None = await knowledge.unindexed(scope)
        if not missing:
            if await knowledge.is_whole(scope):
                return True
            missing = None
        if knowledge.is_followed:  # before, they are all being looked through
            await knowledge.index(scope, missing)
        return False

    async def _has_material(self, scope: Scope) -> bool:
        """The same of material; `runtime.turns.material.MaterialFollowing` sees to what is missing."""
        held = await self._knowledge.material.all_held(scope)
        collection = await self._knowledge.opening.ready()
        return not await collection.material.is_behind(scope, {owner: one.revision for owner, one in held.items()})

    async def _give_documents(self, scope: Scope, former: str) -> None:
        """What answers until then and could not be told of a change is told again, as soon as its model may be back."""
        now = self._now()
        if now < self._retry_at.get(scope.workspace_id, 0.0):
            return
        if await self._catalogue.is_behind(scope, former, Lacks.DOCUMENTS):
            self._retry_at[scope.workspace_id] = now + QUIET_SECONDS
            await self._knowledge.keep_answering(scope)

    async def _drop_former(self, known: Mapping[str, Identity], used: set[str], scopes: Sequence[Scope]) -> bool:
        """Drop what has answered nobody for long enough; whether something will be soon."""
        soon = False
        for name, identity in known.items():
            if name in used:
                await self._catalogue.is_answering_again(name)
                continue
            now = self._now()
            due = await self._catalogue.idle_since(name, now) + self._keep_seconds
            if now < due or await self._catalogue.is_kept(name):
                soon = soon or due - now < QUIET_SECONDS
                continue
            for scope in scopes:  # first: what is written down must never be more than there is
                await self._catalogue.forget(scope, name)
            if await self._knowledge.formers.drop(identity):
                await self._catalogue.remove(name)
                _log.info("index.dropped", model=identity.model, collection=name)
            else:
                soon = True
        return soon


async def underway(knowledge: Knowledge, scope: Scope) -> Underway | None:
    """How far the index of another model is; None where the one that is set answers the workspace. Raises
    `StoreUnavailable` and `IndexUnavailable`."""
    target, catalogue = await knowledge.target(), knowledge.catalogue
    name = await catalogue.current(scope)
    former = (await catalogue.known()).get(name) if name not in ("", target.name) else None
    if former is None:
        return None
    documents, turns = await catalogue.documents(scope, target.name), await catalogue.remembers(scope, target.name)
    return Underway(former.model, target.model, documents, turns)


async def former_collections(knowledge: Knowledge) -> dict[str, float]:
    """The models whose collections answer nobody any more and are not dropped yet, and since when, in seconds since
    the epoch; none where that cannot be asked."""
    with suppress(StoreUnavailable):
        known, idle = await asyncio.gather(knowledge.catalogue.known(), knowledge.catalogue.idle())
        return {known[name].model: since for name, since in idle.items() if name in known}
    return {}
