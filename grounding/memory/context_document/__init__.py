"""The context document: the rolling summary of one conversation.

`ContextDocuments` stores them, `summarise` writes new ones, `ContextCopy` copies them to files for people.
"""

from grounding.memory.context_document.document import (
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
from grounding.memory.context_document.store import ContextCopy, ContextDocument, ContextDocuments, Mark
from grounding.memory.context_document.summarise import (
    MAX_ENTRY_CHARACTERS,
    Facts,
    Rejected,
    corrects,
    count_that_fit,
    is_question,
    is_unsure,
    sentences,
    short_line,
    spoken_line,
    unfenced,
)

__all__ = [
    "MAX_ENTRY_CHARACTERS",
    "SECTIONS",
    "ContextCopy",
    "ContextDocument",
    "ContextDocuments",
    "DocumentLine",
    "Facts",
    "Mark",
    "Rejected",
    "bodies",
    "corrections",
    "corrects",
    "count_that_fit",
    "has_same_lines",
    "is_question",
    "is_unsure",
    "kept_lines",
    "lines_by_people",
    "parse",
    "section_named",
    "sentences",
    "short_line",
    "spoken_line",
    "unfenced",
]
