"""Attachments of messages: `Files` fetches and converts one safely, `AttachmentReader` reads all of a turn."""

from runtime.attachments.files import Files, Locator
from runtime.attachments.network import size_in_words
from runtime.attachments.reading import NOTHING, AttachmentContents, AttachmentReader, transcript_text
from runtime.attachments.uploads import UploadedFiles

__all__ = [
    "NOTHING",
    "AttachmentContents",
    "AttachmentReader",
    "Files",
    "Locator",
    "UploadedFiles",
    "size_in_words",
    "transcript_text",
]
