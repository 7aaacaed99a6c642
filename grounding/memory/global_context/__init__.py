"""The global context: numbered lines that are in every prompt.

`GlobalContexts` stores them; the model has three tools for them.
"""

from grounding.memory.global_context.lines import (
    MARK,
    UNTRUSTED,
    Editor,
    EditOrigin,
    Foreign,
    GlobalContextFull,
    Line,
    LineChange,
    LineChanged,
    NoSuchLine,
    NothingWaits,
    PendingEdit,
    TooManyWaiting,
    UnfitLine,
    foreign_in,
    foreign_text_in,
    model_in,
    prompt_line,
)
from grounding.memory.global_context.store import GlobalContexts
from grounding.memory.global_context.tools import append_context, delete_context, replace_context

__all__ = [
    "MARK",
    "UNTRUSTED",
    "EditOrigin",
    "Editor",
    "Foreign",
    "GlobalContextFull",
    "GlobalContexts",
    "Line",
    "LineChange",
    "LineChanged",
    "NoSuchLine",
    "NothingWaits",
    "PendingEdit",
    "TooManyWaiting",
    "UnfitLine",
    "append_context",
    "delete_context",
    "foreign_in",
    "foreign_text_in",
    "model_in",
    "prompt_line",
    "replace_context",
]
