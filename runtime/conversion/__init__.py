"""Converts documents to Markdown in a process of its own (`runtime.conversion.child`), and recognises their types.

It imports little, because each document's process imports it.
"""

from runtime.conversion.formats import READABLE, Refused, Text, convert
from runtime.conversion.media_types import (
    DOCX,
    HTML,
    IMAGES,
    ODT,
    PDF,
    PPTX,
    TEXT,
    UNDECLARED,
    XLSX,
    as_words,
    is_among,
    plain_type,
    sniff,
)

__all__ = [
    "DOCX",
    "HTML",
    "IMAGES",
    "ODT",
    "PDF",
    "PPTX",
    "READABLE",
    "TEXT",
    "UNDECLARED",
    "XLSX",
    "Refused",
    "Text",
    "as_words",
    "convert",
    "is_among",
    "plain_type",
    "sniff",
]
