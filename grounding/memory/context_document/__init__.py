"""The context document: the rolling summary of one conversation.

`ContextDocuments` stores them, `ContextCopy` copies them to files for people. A model writes new ones (`plan` asks it,
`accept` checks its answer), or patterns do (`extract_document`). `Problem` says why a document is not refreshed.
"""

from grounding.memory.context_document.document import (
    PRIORITY,
    SECTIONS,
    DocumentLine,
    bodies,
    corrections,
    has_same_lines,
    kept_lines,
    lines_by_people,
    parse,
    section_named,
)
from grounding.memory.context_document.extract import extract_document
from grounding.memory.context_document.facts import Facts, corrects, is_unsure
from grounding.memory.context_document.problem import Problem
from grounding.memory.context_document.refresh import (
    MAX_ENTRY_CHARACTERS,
    DocumentLimits,
    Refreshed,
    RefreshQuestion,
    Rejected,
    Unchanged,
    accept,
    count_that_fit,
    is_due,
    plan,
    spoken_line,
    unfenced,
    within_bytes,
)
from grounding.memory.context_document.sentence import is_question, sentences, short_line
from grounding.memory.context_document.store import ContextCopy, ContextDocument, ContextDocuments, Mark

__all__ = [
    "MAX_ENTRY_CHARACTERS",
    "PRIORITY",
    "SECTIONS",
    "ContextCopy",
    "ContextDocument",
    "ContextDocuments",
    "DocumentLimits",
    "DocumentLine",
    "Facts",
    "Mark",
    "Problem",
    "RefreshQuestion",
    "Refreshed",
    "Rejected",
    "Unchanged",
    "accept",
    "bodies",
    "corrections",
    "corrects",
    "count_that_fit",
    "extract_document",
    "has_same_lines",
    "is_due",
    "is_question",
    "is_unsure",
    "kept_lines",
    "lines_by_people",
    "parse",
    "plan",
    "section_named",
    "sentences",
    "short_line",
    "spoken_line",
    "unfenced",
    "within_bytes",
]
