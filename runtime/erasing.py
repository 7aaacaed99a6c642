"""Records that are erased leave the manifests of turns too, which hold what each turn was shown."""

from __future__ import annotations

from collections.abc import Collection

from connectors.message import Scope
from grounding.memory.records.lifecycle import Rules
from grounding.memory.records.record import Provenance
from grounding.memory.records.records import FollowsRecords, Records
from grounding.memory.records.store import RecordStore
from grounding.tokens import Tokens
from runtime.turns import Manifests


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
