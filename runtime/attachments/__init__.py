"""Attachments: fetched safely, converted to text in a child process, and read."""

from runtime.attachments.locate import Locator
from runtime.attachments.media import in_words
from runtime.attachments.reading import NOTHING, Contents, Files, Reading, written
from runtime.attachments.uploads import KeptFiles

__all__ = [
    "NOTHING",
    "Contents",
    "Files",
    "KeptFiles",
    "Locator",
    "Reading",
    "in_words",
    "written",
]
