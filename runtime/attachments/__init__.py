"""Attachments of messages: `Files` fetches and converts one safely, `Reading` reads all of a turn."""

from runtime.attachments.files import Files
from runtime.attachments.locate import Locator
from runtime.attachments.media import in_words
from runtime.attachments.reading import NOTHING, Contents, Reading, written
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
