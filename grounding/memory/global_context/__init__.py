"""The global context: numbered lines that are in every prompt.

`GlobalContexts` stores them; the model has three tools for them.
"""

from grounding.memory.global_context.lines import (
    MARK,
    UNTRUSTED,
    By,
    Change,
    Editor,
    Foreign,
    GlobalContextFull,
    Line,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    TooManyWaiting,
    UnfitLine,
    Waiting,
    foreign_in,
    model_in,
    shown,
    shown_in,
)
from grounding.memory.global_context.store import GlobalContexts
from grounding.memory.global_context.tools import append_context, delete_context, replace_context

__all__ = [
    "MARK",
    "UNTRUSTED",
    "By",
    "Change",
    "Editor",
    "Foreign",
    "GlobalContextFull",
    "GlobalContexts",
    "Line",
    "LineChanged",
    "NoSuchLine",
    "NothingWaits",
    "TooManyWaiting",
    "UnfitLine",
    "Waiting",
    "append_context",
    "delete_context",
    "foreign_in",
    "model_in",
    "replace_context",
    "shown",
    "shown_in",
]
