"""The log of each conversation: in Redis, and as a Markdown copy for people.

`Transcript` is the log, `MarkdownCopy` writes the copy, `read_log` reads it back.
"""

from grounding.transcript.entry import EntryRole, Reach, TranscriptEntry, UnknownFormat
from grounding.transcript.log import TailPage, Transcript, Turn
from grounding.transcript.markdown import UnreadableLog, read_log
from grounding.transcript.markdown_copy import MarkdownCopy

__all__ = [
    "EntryRole",
    "MarkdownCopy",
    "Reach",
    "TailPage",
    "Transcript",
    "TranscriptEntry",
    "Turn",
    "UnknownFormat",
    "UnreadableLog",
    "read_log",
]
