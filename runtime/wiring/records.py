"""The typed records: their store, and the index, which opens later than they are needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from config.settings import Settings
from connectors.message import Scope
from grounding.memory.records.lifecycle import Rules
from grounding.memory.records.record import Type
from grounding.memory.records.records import Records
from grounding.memory.records.store import RecordStore
from grounding.tokens import Tokens
from runtime.erasing import ErasedEverywhere
from runtime.knowledge import Knowledge
from runtime.wiring.kept import Kept


class OpeningIndex:
    """`grounding.memory.records.records.FollowsRecords` over an index that may still be opening."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    async def find(
        self, scope: Scope, query: str, top_k: int, types: Collection[Type]
    ) -> Sequence[tuple[str, str, float, float]]:
        return await self._knowledge.finding.find_records(scope, query, top_k, types)

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        await (await self._knowledge.told_records()).follow(scope, ids)


def wire_records(settings: Settings, kept: Kept, knowledge: Knowledge, tokens: Tokens) -> Records:
    """By the numbers of *settings*."""
    rules = Rules(
        core_confirmations=settings.fact_core_confirmations,
        effectiveness_activations=settings.procedure_judged_activations,
        block_activations=settings.censor_block_activations,
        retired_false_positives=settings.censor_retired_false_positives,
        summarized_days=settings.episode_summarized_days,
        archived_days=settings.episode_archived_days,
    )
    store, index = RecordStore(kept.store.client), OpeningIndex(knowledge)
    return ErasedEverywhere(store, tokens, index, rules, manifests=kept.manifests)
