"""Typed records: decisions, facts, procedures, episodes, censors and items of a workspace or a person.

`Records` adds, changes, finds and forgets them; `extraction` finds new ones in a conversation.
"""

from grounding.memory.records.abstract import accept_abstract, plan_abstract
from grounding.memory.records.dates import days_meant, in_words
from grounding.memory.records.extraction import Candidate, Window, found_in
from grounding.memory.records.index import RecordIndex
from grounding.memory.records.lifecycle import Rules
from grounding.memory.records.model import (
    HIDDEN,
    STATES,
    Added,
    FoundRecord,
    ItemKind,
    ItemStatus,
    NeverDeleted,
    NewRecord,
    NoSuchRecord,
    Origin,
    Outcome,
    Provenance,
    Record,
    RecordBusy,
    RecordRefused,
    Severity,
    State,
    Type,
)
from grounding.memory.records.records import RecordHit, Records, RecordSearch, digest
from grounding.memory.records.standing_rules import is_general
from grounding.memory.records.store import Change, RecordStore, place
from grounding.memory.records.tools import create_item, delete_item, expand, query_items, update_item

__all__ = [
    "HIDDEN",
    "STATES",
    "Added",
    "Candidate",
    "Change",
    "FoundRecord",
    "ItemKind",
    "ItemStatus",
    "NeverDeleted",
    "NewRecord",
    "NoSuchRecord",
    "Origin",
    "Outcome",
    "Provenance",
    "Record",
    "RecordBusy",
    "RecordHit",
    "RecordIndex",
    "RecordRefused",
    "RecordSearch",
    "RecordStore",
    "Records",
    "Rules",
    "Severity",
    "State",
    "Type",
    "Window",
    "accept_abstract",
    "create_item",
    "days_meant",
    "delete_item",
    "digest",
    "expand",
    "found_in",
    "in_words",
    "is_general",
    "place",
    "plan_abstract",
    "query_items",
    "update_item",
]
