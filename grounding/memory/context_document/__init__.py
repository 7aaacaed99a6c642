"""The context document: the rolling summary of one conversation.

`ContextDocuments` stores them, `summarise` writes new ones, `ContextCopy` copies them to files for people.
"""

from grounding.memory.context_document.document import (
    SECTIONS,
    Line,
    bodies,
    corrected,
    parse,
    same,
    section_named,
    surviving,
    written,
)
from grounding.memory.context_document.store import ContextCopy, ContextDocument, ContextDocuments, Mark
from grounding.memory.context_document.summarise import (
    BYTES_PER_TOKEN,
    Facts,
    corrects,
    is_question,
    sentences,
    short_line,
)

__all__ = [
    "BYTES_PER_TOKEN",
    "SECTIONS",
    "ContextCopy",
    "ContextDocument",
    "ContextDocuments",
    "Facts",
    "Line",
    "Mark",
    "bodies",
    "corrected",
    "corrects",
    "is_question",
    "parse",
    "same",
    "section_named",
    "sentences",
    "short_line",
    "surviving",
    "written",
]
