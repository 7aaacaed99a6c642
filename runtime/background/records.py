"""Sweeps typed records as time passes, has long ones summed up, and cuts erased ones out of the manifests of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from connectors.message import AgentRuntimeError, Scope, StoreUnavailable
from grounding.memory.records import (
    Provenance,
    Record,
    Records,
    RecordSearch,
    RecordStore,
    Rules,
    accept_abstract,
    plan_abstract,
)
from grounding.prompt_input import Tokens
from runtime.billing import BudgetExceeded, Spending
from runtime.llm import ModelFailed
from runtime.turns import Manifests
from runtime.workspaces import Workspaces

SWEEP_SECONDS = 3600.0
"""Time between two sweeps of all workspaces."""
BEHIND_SECONDS = 5.0
"""Time between two looks for workspaces whose index is behind."""
_log = structlog.get_logger()


class RecordSweep:
    """Sweeps records, and indexes those that the index missed while it was away. Runs in one process for all."""

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
        """Sweep all workspaces at first and every hour, and those behind every few seconds, until cancelled."""
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
            await self._sleep(BEHIND_SECONDS)
            passed += BEHIND_SECONDS

    async def all(self) -> None:
        """Sweep all workspaces, and update their index. Raises `StoreUnavailable`."""
        for workspace in await self._workspaces.all():
            await self._sweep(workspace.id)

    async def behind(self) -> None:
        """Do the same for the workspaces whose index is behind. Raises `StoreUnavailable`."""
        for workspace_id in await self._store.behind():
            await self._store.unmark_behind(
                workspace_id
            )  # before the work, so that records that fall behind meanwhile are noted again
            if await self._workspaces.exists(workspace_id):
                await self._sweep(workspace_id)

    async def _sweep(self, workspace_id: str) -> None:
        scope = Scope(workspace_id)
        try:
            await self._records.catch_up(scope)  # first: a model that sums up records takes its time
            count = await self._records.sweep(scope)
        except StoreUnavailable:
            raise
        except AgentRuntimeError as error:  # a record cannot be read; go on with the other workspaces
            _log.warning("records.sweep_failed", workspace_id=workspace_id, why=str(error))
            return
        if count:
            _log.info("records.swept", workspace_id=workspace_id, records=count)


class RecordSummaries:
    """Asks the model to sum up long records. The workspace pays, as for other calls in the background."""

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    async def __call__(self, scope: Scope, record: Record) -> str | None:
        """Return what a model makes of *record*, or its beginning if that cannot be used; None if the model or the
        budget does not allow it now."""
        try:
            completion = await self._spending.ask(Scope(scope.workspace_id), "record", plan_abstract(record))
        except (BudgetExceeded, ModelFailed) as error:
            why = "budget" if isinstance(error, BudgetExceeded) else error.why
            _log.warning("records.unsummarised", workspace_id=scope.workspace_id, record_id=record.id, why=why)
            return None
        return accept_abstract(completion.text, record)


class RecordsAndManifests(Records):
    """The records, which are also cut out of *manifests* when they are erased: these hold what each turn was shown.

    A manifest is stored before the model is asked, so this includes turns that are being answered. A turn that read a
    record just before it was erased is stored without it.
    """

    def __init__(
        self,
        store: RecordStore,
        tokens: Tokens,
        index: RecordSearch,
        rules: Rules,
        *,
        manifests: Manifests,
        summarise: RecordSummaries | None = None,
    ) -> None:
        super().__init__(store, tokens, index, rules, summarise=summarise)
        self._manifests = manifests

    async def erase(self, scope: Scope, record_id: str, by: Provenance) -> None:
        """See `Records.erase`."""
        await super().erase(scope, record_id, by)
        await self._manifests.cut_records(scope, [record_id])

    async def forget(self, scope: Scope) -> int:
        """See `Records.forget`. Cuts before too: after an interruption nobody would know the ids any more."""
        ids = await self._store.all_ids(scope)
        await self._manifests.cut_records(scope, ids)
        count = await super().forget(scope)
        await self._manifests.cut_records(scope, ids)
        return count

    async def forget_said(self, scope: Scope, turn_ids: Collection[str] | None = None) -> int:
        """See `Records.forget_said`."""
        ids = await self._store.ids_from_context(scope)
        count = await super().forget_said(scope, turn_ids)
        left = {record.id for record in await self._store.read(scope, ids, own=True)}
        await self._manifests.cut_records(scope, [record_id for record_id in ids if record_id not in left])
        return count
