"""Between lines of a terminal and the nouns. Pure."""

from __future__ import annotations

import textwrap
import unicodedata
from datetime import datetime

from connectors.message import CALLER_PREFIX, Author, InboundMessage, OutboundMessage, Role
from connectors.text.sources import sources_line

NAME = "console"
DEFAULT_CONTEXT = "default"
DEFAULT_WORKSPACE = "sample"
AUTHOR_ID = CALLER_PREFIX + "console"
"""Whoever sits at the terminal owns the process and its files, and needs no role given."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_PICTURES = 0x2400  # U+2400 + n is the visible picture of the control character n
_DELETE_PICTURE = "\N{SYMBOL FOR DELETE}"


def to_inbound(
    text: str,
    *,
    message_id: str,
    workspace_id: str | None,
    context: str,
    author_name: str,
    sent_at: datetime,
) -> InboundMessage:
    """A line that was typed, as the runtime sees it."""
    return InboundMessage(
        connector=NAME,
        external_id=context,
        message_id=message_id,
        author=Author(AUTHOR_ID, author_name),
        text=text.encode("utf-8", "replace").decode(),  # a terminal can hand over halves of surrogate pairs
        sent_at=sent_at,
        direct=True,
        workspace_id=workspace_id,
        default_workspace=DEFAULT_WORKSPACE,
        caller_role=Role.ADMIN,
    )


def neutralise(text: str) -> str:
    """*text* without anything that a terminal obeys: what a model writes may only be read.

    Line feeds and tabs stay, carriage returns go. Other control characters become their visible
    pictures; C1 controls, halves of surrogate pairs and marks that reorder text become U+FFFD. Each
    character is judged alone, so that pieces of a stream give what the whole would.
    """
    return "".join(map(_neutral, text))


def _neutral(character: str) -> str:
    if character in "\n\t":
        return character
    if character == "\r":
        return ""
    code = ord(character)
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return _DELETE_PICTURE
    if character in "\u2028\u2029":
        return "\n"
    if unicodedata.category(character) in ("Cc", "Cs") or unicodedata.bidirectional(character) in _REORDERING:
        return _REPLACEMENT
    return character


_REORDERING = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


_SAID = {"deep": "the second look of the search", "late": "it took too long"}
"""Words of `Degraded` that say nothing to people, in words that do."""


def footer(message: OutboundMessage, seconds: float | None) -> tuple[str, ...]:
    """The lines under an answer: its sources, what it had to do without, and how it came about.

    *seconds* is how long it took, where that is known.
    """
    lines = []
    if sources := sources_line(message):
        lines.append(sources)
    if message.degraded:
        missing = (
            f"{_SAID.get(part.block, part.block)} ({_SAID.get(part.why, part.why)})" for part in message.degraded
        )
        lines.append("answered without: " + ", ".join(missing))
    details = [part for part in (message.strategy, message.reason) if part]
    if seconds is not None:
        details.append(f"{seconds:.1f} s")
    if details:
        lines.append(" · ".join(details))
    return tuple(" ".join(neutralise(line).split()) for line in lines)


def wrap(line: str, columns: int) -> str:
    """*line* in lines of at most *columns*, broken between words; as it is where *columns* is 0."""
    return textwrap.fill(line, columns, break_on_hyphens=False, break_long_words=False) if columns else line
