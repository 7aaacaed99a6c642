"""Render Markdown for a terminal, and find the finished blocks of a streamed text. Pure."""

from __future__ import annotations

import io
from collections.abc import Iterable

from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown
from rich.theme import Theme

from connectors.text.markdown import tokens

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
    shown.parsed = list(_with_line_breaks(tokens(text)))
    console.print(shown)
    return "\n".join(line.rstrip() for line in output.getvalue().split("\n")).strip("\n")


def split_finished(text: str) -> tuple[str, str]:
    """Split *text* into its finished blocks (paragraphs, lists, tables, …), which cannot grow further, and the rest."""
    whole_lines = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in tokens(whole_lines) if token.level == 0 and token.map and token.nesting >= 0]
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
