"""Select the records that a prompt shows: relevance, score, budgets; censors and standing rules."""

from grounding.memory.selection.censors import triggered_censors
from grounding.memory.selection.relevance import Floor, floor_for
from grounding.memory.selection.rules import RULES_TOKENS, RuleSelector, rules_for
from grounding.memory.selection.selection import (
    LastSelections,
    Level,
    RecordLookup,
    RecordSelector,
    ScopeState,
    Selected,
    Standing,
    StoredRecords,
    as_selected,
)

__all__ = [
    "RULES_TOKENS",
    "Floor",
    "LastSelections",
    "Level",
    "RecordLookup",
    "RecordSelector",
    "RuleSelector",
    "ScopeState",
    "Selected",
    "Standing",
    "StoredRecords",
    "as_selected",
    "floor_for",
    "rules_for",
    "triggered_censors",
]
