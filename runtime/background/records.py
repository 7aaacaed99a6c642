"""What typed records need as time passes: the sweep, and an index that follows once it answers again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from connectors.message import AgentRuntimeError, Scope, StoreUnavailable
from grounding.memory.records import FollowsRecords, Provenance, Records, RecordStore, Rules
from grounding.prompt_input import Tokens
from runtime.turns import Manifests
from runtime.workspaces import Workspaces

SWEEP_SECONDS = 3600.0
LOOK_SECONDS = 5.0
_log = structlog.get_logger()


class RecordKeeping:
    """A duty of one process for all."""

    def __init__(
        self,
        records: Records,
        store: RecordStore,
        workspaces: Workspaces,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._records = records
        self._store = store
        self._workspaces = workspaces
        self._sleep = sleep

    async def run(self) -> None:
        """Look at all workspaces at first and every hour, and every few seconds at those that are said to be behind,
        until cancelled."""
        passed = SWEEP_SECONDS
        while True:
            try:
                if passed >= SWEEP_SECONDS:
                    passed = 0.0
                    await self.all()
                else:
                    await self.behind()
            except StoreUnavailable as error:
                _log.warning("records.sweep_failed", why=str(error))
            await self._sleep(LOOK_SECONDS)
            passed += LOOK_SECONDS

    async def all(self) -> None:
        """Sweep all workspaces, and let the index catch up. Raises `StoreUnavailable`."""
        for workspace in await self._workspaces.all():
            await self._look(workspace.id)

    async def behind(self) -> None:
        """The same for those workspaces that need it soon. Raises `StoreUnavailable`."""
        for workspace_id in await self._store.behind():
            await self._store.is_in_step(workspace_id)  # first: what falls behind meanwhile says so again
            if await self._workspaces.exists(workspace_id):
                await self._look(workspace_id)

    async def _look(self, workspace_id: str) -> None:
        scope = Scope(workspace_id)
        try:
            count = await self._records.sweep(scope)
            await self._records.catch_up(scope)
        except StoreUnavailable:
            raise
        except AgentRuntimeError as error:  # a record that cannot be read: the other workspaces' can
            _log.warning("records.sweep_failed", workspace_id=workspace_id, why=str(error))
            return
        if count:
            _log.info("records.swept", workspace_id=workspace_id, records=count)


# ---- erasing ----
#
# Records that are erased leave the manifests of turns too, which hold what each turn was shown.


class ErasedEverywhere(Records):
    """Records as `Records` keeps them; what is erased is cut out of *manifests*, also of those of turns that were being
    answered meanwhile: they are kept before a model is asked. A turn that read a record just before it was erased, and
    is kept just after, is kept without it."""

    def __init__(
        self, store: RecordStore, tokens: Tokens, index: FollowsRecords, rules: Rules, *, manifests: Manifests
    ) -> None:
        super().__init__(store, tokens, index, rules)
        self._manifests = manifests

    async def erase(self, scope: Scope, record_id: str, by: Provenance) -> None:
        """See `WritesRecords.erase`."""
        await super().erase(scope, record_id, by)
        await self._manifests.cut_records(scope, [record_id])

    async def forget(self, scope: Scope) -> int:
        """See `WritesRecords.forget`. They are cut out before, too: asked again after an interruption nobody would know
        their ids."""
        ids = await self._store.all_ids(scope)
        await self._manifests.cut_records(scope, ids)
        count = await super().forget(scope)
        await self._manifests.cut_records(scope, ids)
        return count

    async def forget_said(self, scope: Scope, turn_ids: Collection[str] | None = None) -> int:
        """See `ForgetsRecords.forget_said`."""
        ids = await self._store.came_of(scope)
        count = await super().forget_said(scope, turn_ids)
        left = {record.id for record in await self._store.read(scope, ids, own=True)}
        await self._manifests.cut_records(scope, [one for one in ids if one not in left])
        return count
