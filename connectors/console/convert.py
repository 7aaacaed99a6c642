"""Convert between lines of a terminal and the connectors' messages. Pure."""

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
"""The id of the person at the terminal. That person owns the process and its files, and is always an admin."""

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
    """Turn a typed line into an inbound message."""
    return InboundMessage(
        connector=NAME,
        external_id=context,
        message_id=message_id,
        author=Author(AUTHOR_ID, author_name),
        text=text.encode("utf-8", "replace").decode(),  # a terminal can pass unpaired surrogates
        sent_at=sent_at,
        direct=True,
        workspace_id=workspace_id,
        default_workspace=DEFAULT_WORKSPACE,
        caller_role=Role.ADMIN,
    )


def neutralise(text: str) -> str:
    """Remove everything from *text* that could control a terminal.

    Line feeds and tabs stay; carriage returns are removed. Other control characters become their visible pictures.
    C1 controls, unpaired surrogates and characters that reorder text become U+FFFD. Each character is replaced
    independently of its neighbours, so a text gives the same result whole or in pieces.
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


_DEGRADED_WORDS = {"deep": "the second look of the search", "late": "it took too long"}
"""Readable words for blocks and reasons of `Degraded`."""


def footer(message: OutboundMessage, seconds: float | None) -> tuple[str, ...]:
    """Return the lines below an answer: its sources, its degraded blocks, its strategy and reason, and its duration.

    *seconds* is None if the duration is unknown.
    """
    lines = []
    if sources := sources_line(message):
        lines.append(sources)
    if message.degraded:
        missing = (
            f"{_DEGRADED_WORDS.get(part.block, part.block)} ({_DEGRADED_WORDS.get(part.why, part.why)})"
            for part in message.degraded
        )
        lines.append("answered without: " + ", ".join(missing))
    details = [part for part in (message.strategy, message.reason) if part]
    if seconds is not None:
        details.append(f"{seconds:.1f} s")
    if details:
        lines.append(" · ".join(details))
    return tuple(" ".join(neutralise(line).split()) for line in lines)


def wrap(line: str, columns: int) -> str:
    """Wrap *line* between words to at most *columns*. If *columns* is 0, returns it unchanged."""
    return textwrap.fill(line, columns, break_on_hyphens=False, break_long_words=False) if columns else line
