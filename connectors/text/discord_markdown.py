"""Render parsed Markdown as the Markdown that Discord's apps show ("Markdown Text 101"). Pure."""

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
    shows,
    with_address,
)

_SCHEMES = frozenset({"http", "https"})
_LARGEST_HEADING = 3
_URL = re.compile(r"(https?://[^\s<>]+)")
_SPECIAL = re.compile(r"[\\*_~`|<]|\](?=\()")
_LINE_START = re.compile(r"\A(\s*)(#{1,3}|>{1,3}|-#?|\+|\d+(?=\.))(?=[\s.]|\Z)")
_MASS_MENTION = re.compile(r"@(?=everyone\b|here\b)", re.IGNORECASE)


def render(form: Form) -> str:
    """Render *form* for Discord. It mentions nobody, and tables become code blocks."""
    return lay_out(form, _Discord())


class _Discord:
    bullet = "-"

    def paragraph(self, spans: Spans) -> str:
        return "\n".join(_line(line) for line in by_line(spans))

    def heading(self, level: int, spans: Spans) -> str:
        line = nested(spans, _leaf, _wrap)
        if level > _LARGEST_HEADING or not line.strip():
            return self.paragraph(tuple(replace(span, marks=span.marks | {Style.BOLD}) for span in spans))
        return f"{'#' * level} {line}"

    def code(self, text: str, language: str) -> Piece:
        return Piece(f"```{language}\n{_break_backtick_runs(text)}\n```", verbatim=True)

    def rule(self) -> str:
        return "———"

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        return [replace(piece, text=prefixed(piece.text, "> "), verbatim=False) for piece in pieces]


def _break_backtick_runs(code: str) -> str:
    """Put zero-width spaces into runs of three or more backticks, which would end the code block."""
    return re.sub(r"`{3,}", lambda run: ZERO_WIDTH_SPACE.join(run[0]), code)


def _line(spans: Spans) -> str:
    return _LINE_START.sub(_escape_line_start, nested(spans, _leaf, _wrap))


def _escape_line_start(start: re.Match[str]) -> str:
    sign = start[2]
    return start[1] + (sign + "\\" if sign.isdigit() else "\\" + sign)


def _wrap(mark: Mark, inner: str, before: str, after: str) -> str:
    if mark is Style.BOLD:
        return around("**", inner, "**")
    if mark is Style.STRIKE:
        return around("~~", inner, "~~")
    # "_" cannot be confused with the "**" of bold, but it does not work inside a word.
    sign = "*" if _is_word(before) or _is_word(after) else "_"
    return around(sign, inner, sign)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _leaf(span: Span) -> str:
    url = address(span)
    if url is not None and goes_to(url, _SCHEMES) and not shows(span.text, url):
        target = url.replace("|", "%7C").replace(">", "%3E").replace("<", "%3C")
        return f"[{_literal(span.text)}](<{target}>)"
    if Style.CODE in span.marks and span.text.strip():
        return _code(span.text)
    return _literal(with_address(span))


def _code(text: str) -> str:
    """Return *text* as inline code, between longer backtick runs than it contains."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    if longest > 1:
        text = re.sub(r"`(?=`)", "`" + ZERO_WIDTH_SPACE, text)
    fence = "``" if longest else "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def _literal(text: str) -> str:
    """Escape everything in *text* that Discord would read as a mark or a mention. Bare URLs stay unchanged."""
    return "".join(part if index % 2 else _escape(part) for index, part in enumerate(_URL.split(text)))


def _escape(text: str) -> str:
    # After a URL, a backslash before "<" would become part of the URL and escape nothing.
    start = "<" + ZERO_WIDTH_SPACE if text.startswith("<") else ""
    rest = _SPECIAL.sub(r"\\\g<0>", text.removeprefix("<") if start else text)
    return start + _MASS_MENTION.sub("@" + ZERO_WIDTH_SPACE, rest)
