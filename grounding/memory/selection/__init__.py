"""Select the records that a prompt shows: relevance, score, budgets, censors."""

from grounding.memory.selection.censors import triggered_censors
from grounding.memory.selection.selection import (
    Floor,
    LastSelections,
    Level,
    RecordLookup,
    RecordSelector,
    ScopeState,
    Selected,
    Standing,
    StoredRecords,
    as_selected,
    floor_for,
)

__all__ = [
    "Floor",
    "LastSelections",
    "Level",
    "RecordLookup",
    "RecordSelector",
    "ScopeState",
    "Selected",
    "Standing",
    "StoredRecords",
    "as_selected",
    "floor_for",
    "triggered_censors",
]
