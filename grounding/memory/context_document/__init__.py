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
    BYTES_PER_TOKEN,
    Facts,
    corrects,
    is_question,
    is_unsure,
    sentences,
    short_line,
)

__all__ = [
    "BYTES_PER_TOKEN",
    "SECTIONS",
    "ContextCopy",
    "ContextDocument",
    "ContextDocuments",
    "DocumentLine",
    "Facts",
    "Mark",
    "bodies",
    "corrections",
    "corrects",
    "has_same_lines",
    "is_question",
    "is_unsure",
    "kept_lines",
    "lines_by_people",
    "parse",
    "section_named",
    "sentences",
    "short_line",
]
