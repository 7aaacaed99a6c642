"""How records come into prompts: what they weigh, and what they may take."""

from __future__ import annotations

from dataclasses import replace

from config.settings import Settings
from connectors.message import Scope
from grounding.layers.records import line
from grounding.memory.records.port import ReadsRecords
from grounding.memory.records.record import Record, Type
from grounding.memory.selection.filling import Level
from grounding.memory.selection.kept import KeptSelections
from grounding.memory.selection.relevance import Floor, floor_for
from grounding.memory.selection.scoring import Weights
from grounding.memory.selection.selecting import Selecting, as_shown
from grounding.remembering import Remembering
from grounding.tokens import Tokens
from runtime.knowledge import Knowledge


def wire_remembering(
    settings: Settings, records: ReadsRecords, kept: KeptSelections, knowledge: Knowledge, tokens: Tokens
) -> Remembering:
    """By the numbers of *settings*."""

    def costs(record: Record, level: Level) -> int:
        return tokens.count(line(as_shown(record, level), with_id=True)) + 1  # and the end of its line

    def floor(scope: Scope) -> Floor:
        measured = floor_for(knowledge.finding.answering_model(scope))
        minimum = settings.record_relevance_floor
        return measured if minimum is None else replace(measured, minimum=minimum)

    selecting = Selecting(
        records, kept, weights=_weights(settings), budgets=_budgets(settings), costs=costs, floor=floor
    )
    return Remembering(selecting)


def _weights(settings: Settings) -> Weights:
    return Weights(
        similarity=settings.record_weight_similarity,
        type=settings.record_weight_type,
        recency=settings.record_weight_recency,
        outcome=settings.record_weight_outcome,
        usage=settings.record_weight_usage,
        confidence=settings.record_weight_confidence,
    )


def _budgets(settings: Settings) -> dict[Type, int]:
    return {
        Type.DECISION: settings.records_decisions_max_tokens,
        Type.FACT: settings.records_facts_max_tokens,
        Type.PROCEDURE: settings.records_procedures_max_tokens,
        Type.EPISODE: settings.records_episodes_max_tokens,
        Type.ITEM: settings.records_items_max_tokens,
    }
