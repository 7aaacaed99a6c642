"""A form as Slack's mrkdwn ("Formatting text for app surfaces"). Pure.

mrkdwn has no escape for its marks, and they work at the edges of words only. So a character without width
stands where a mark must not work (behind it) or where it must (between it and a letter).
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
    """*form* as mrkdwn: ``&``, ``<`` and ``>`` escaped, so that nothing in it mentions anybody."""
    return lay_out(form, _Mrkdwn())


def escaped(text: str) -> str:
    """*text* with Slack's three control characters as entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _Mrkdwn:
    bullet = "•"

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(_line(line) for line in by_line(spans))

    def heading(self, level: int, spans: Spans) -> str:
        return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))

    def code(self, text: str, language: str) -> Piece:
        return Piece(f"```\n{escaped(_apart(text))}\n```", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        # A code block cannot stand in a quote.
        return [piece if piece.verbatim else replace(piece, text=prefixed(piece.text, "> ")) for piece in pieces]


def _apart(code: str) -> str:
    """*code* without three backticks in a row, which would end the block."""
    return re.sub(r"`{3,}", lambda run: ZERO_WIDTH_SPACE.join(run[0]), code)


def _line(spans: Spans) -> str:
    text = nested(spans, _leaf, _wrapped)
    return ZERO_WIDTH_SPACE + text if text.startswith("&gt;") else text


def _wrapped(mark: Mark, inner: str, before: str, after: str) -> str:
    sign = _MARKS[mark] if isinstance(mark, Style) else ""
    text = around(sign, inner, sign)
    left = ZERO_WIDTH_SPACE if _touches(before) and text.startswith(sign) else ""
    right = ZERO_WIDTH_SPACE if _touches(after) and text.endswith(sign) else ""
    return left + text + right


def _touches(character: str) -> bool:
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
