"""Render parsed Markdown as Slack's mrkdwn ("Formatting text for app surfaces"). Pure.

mrkdwn has no escape for its marks, and marks work only at the edges of words. A zero-width space after a mark
disables it; a zero-width space between a mark and a letter enables it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from connectors.text.form import Form, Mark, Span, Spans, Style
from connectors.text.layout import (
    ZERO_WIDTH_SPACE,
    Piece,
    address,
    around,
    by_line,
    goes_to,
    lay_out,
    nested,
    prefixed,
    with_address,
)

_SCHEMES = frozenset({"http", "https", "mailto"})
_MARKS = {Style.BOLD: "*", Style.ITALIC: "_", Style.STRIKE: "~"}
_LITERAL_MARK = re.compile(r"(?<!\w)([*_~`])(?=\S)")
_BACKTICKS = re.compile(r"`(?=`)")
_MASS_MENTION = re.compile(r"@(?=(?:here|channel|everyone)\b)", re.IGNORECASE)


def render(form: Form) -> str:
    """Render *form* as mrkdwn. ``&``, ``<`` and ``>`` are escaped, so the text mentions nobody."""
    return lay_out(form, _Mrkdwn())


def escaped(text: str) -> str:
    """Replace Slack's three control characters in *text* with entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Mrkdwn:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(_line(line) for line in by_line(spans))

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    def code(self, text: str, language: str) -> Piece:
        return Piece(f"```\n{escaped(_break_backtick_runs(text))}\n```", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        # mrkdwn has no code blocks inside quotes.
        return [piece if piece.verbatim else replace(piece, text=prefixed(piece.text, "> ")) for piece in pieces]


def _break_backtick_runs(code: str) -> str:
    """Put zero-width spaces into runs of three or more backticks, which would end the code block."""
    return re.sub(r"`{3,}", lambda run: ZERO_WIDTH_SPACE.join(run[0]), code)


def _line(spans: Spans) -> str:
    text = nested(spans, _leaf, _wrap)
    return ZERO_WIDTH_SPACE + text if text.startswith("&gt;") else text


def _wrap(mark: Mark, inner: str, before: str, after: str) -> str:
    sign = _MARKS[mark] if isinstance(mark, Style) else ""
    text = around(sign, inner, sign)
    left = ZERO_WIDTH_SPACE if _needs_separator(before) and text.startswith(sign) else ""
    right = ZERO_WIDTH_SPACE if _needs_separator(after) and text.endswith(sign) else ""
    return left + text + right


def _needs_separator(character: str) -> bool:
    return character.isalnum() or character in {*_MARKS.values(), "`"} - {""}


def _leaf(span: Span) -> str:
    url = address(span)
    if url is not None and goes_to(url, _SCHEMES):
        label = _literal(span.text).replace("|", "\u2502")
        return f"<{escaped(url.replace('|', '%7C').replace('>', '%3E'))}|{label}>"
    if Style.CODE in span.marks and "`" not in span.text and span.text.strip():
        return around("`", escaped(span.text), "`")
    return _literal(with_address(span))


def _literal(text: str) -> str:
    text = _BACKTICKS.sub("`" + ZERO_WIDTH_SPACE, text)
    text = _LITERAL_MARK.sub(r"\1" + ZERO_WIDTH_SPACE, text)
    return escaped(_MASS_MENTION.sub("@" + ZERO_WIDTH_SPACE, text))
