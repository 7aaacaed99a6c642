"""Convert between lines of a terminal and the connectors' messages. Pure."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from collections.abc import Iterable
from datetime import datetime

from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown
from rich.theme import Theme

from connectors.message import CALLER_PREFIX, Author, InboundMessage, OutboundMessage, Role
from connectors.text import markdown_tokens, sources_line

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


# ---- markdown ----
#
# Render Markdown for a terminal, and find the finished blocks of a streamed text. Pure.


WIDEST = 100
"""Longer lines are hard to read."""
NARROWEST = 20
_THEME = Theme(
    {"markdown.code": "cyan", "markdown.table.border": "none", "markdown.table.header": "bold"}, inherit=True
)
"""No background colours: terminals are light or dark."""


def render(text: str, width: int, *, colours: bool) -> str:
    """Render *text* (Markdown) in lines of at most *width* columns, wrapped between words, without a final line end.

    Keeps the line breaks of *text*, shows HTML as text, and shows the URLs of links.
    """
    output = io.StringIO()
    console = Console(
        file=output,
        width=max(NARROWEST, min(width, WIDEST)),
        force_terminal=colours,
        color_system="standard" if colours else None,
        theme=_THEME,
        legacy_windows=False,
    )
    shown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
    shown.parsed = list(_with_line_breaks(markdown_tokens(text)))
    console.print(shown)
    return "\n".join(line.rstrip() for line in output.getvalue().split("\n")).strip("\n")


def split_finished(text: str) -> tuple[str, str]:
    """Split *text* into its finished blocks (paragraphs, lists, tables, …), which cannot grow further, and the rest."""
    whole_lines = text[: text.rfind("\n") + 1]
    starts = [
        token.map[0] for token in markdown_tokens(whole_lines) if token.level == 0 and token.map and token.nesting >= 0
    ]
    if len(starts) < 2:
        return "", text
    end = sum(len(line) for line in text.split("\n")[: starts[-1]]) + starts[-1]
    return text[:end], text[end:]


def _with_line_breaks(parsed: Iterable[Token]) -> Iterable[Token]:
    for token in parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
        yield token
