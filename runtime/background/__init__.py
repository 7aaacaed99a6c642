"""Background work after a turn: summaries, records, marks, forgetting."""

from runtime.background.after_turn import RememberTurns, SummaryRefresh
from runtime.background.contexts import JOB as INDEX_CONTEXT
from runtime.background.contexts import ContextFollowing, ContextKeeping, ContextMoved
from runtime.background.directives import Condensing, ModelSilent
from runtime.background.extraction import ExtractionMarks, RecordsExtraction
from runtime.background.forgetting import JOB as FORGET_TURNS
from runtime.background.forgetting import Forgetting, ForgetTurns
from runtime.background.karma import By, MarkEffects, Marking
from runtime.background.migration import DAY_SECONDS, Changeover, former_collections, underway
from runtime.background.rebuild import Rebuilding, Reindexed, Restored, Tells
from runtime.background.records import ErasedEverywhere, RecordKeeping

__all__ = [
    "DAY_SECONDS",
    "FORGET_TURNS",
    "INDEX_CONTEXT",
    "By",
    "Changeover",
    "Condensing",
    "ContextFollowing",
    "ContextKeeping",
    "ContextMoved",
    "ErasedEverywhere",
    "ExtractionMarks",
    "ForgetTurns",
    "Forgetting",
    "MarkEffects",
    "Marking",
    "ModelSilent",
    "Rebuilding",
    "RecordKeeping",
    "RecordsExtraction",
    "Reindexed",
    "RememberTurns",
    "Restored",
    "SummaryRefresh",
    "Tells",
    "former_collections",
    "underway",
]
