"""The context document: the rolling summary of one conversation."""

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
    one_line,
    sentences,
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
    "one_line",
    "parse",
    "same",
    "section_named",
    "sentences",
    "surviving",
    "written",
]
