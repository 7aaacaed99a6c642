"""Layout that all renderers share: the order of blocks, the nesting of marks, and tables as grids. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from connectors.text.form import (
    Block,
    Code,
    Form,
    Heading,
    Item,
    Link,
    Mark,
    Paragraph,
    Quote,
    Span,
    Spans,
    Style,
    Table,
)

PADDED_COLUMNS = 40
"""A cell is padded to at most this many columns, so that one long cell does not widen every row."""

ZERO_WIDTH_SPACE = "\u200b"

_NESTABLE_STYLES = (Style.BOLD, Style.ITALIC, Style.STRIKE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A rendered block. The lines of a ``verbatim`` one must not be indented or prefixed."""

    text: str
    tight: bool = False
    verbatim: bool = False


class Dialect(Protocol):
    """How a platform writes each kind of block."""

    @property
    def bullet(self) -> str: ...

    def paragraph(self, spans: Spans) -> str: ...

    def heading(self, level: int, spans: Spans) -> str: ...

    def code(self, text: str, language: str) -> Piece: ...

    def rule(self) -> str: ...

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        """Render *pieces* as a quote that *depth* other quotes contain."""


def lay_out(form: Form, dialect: Dialect) -> str:
    """Render *form* in *dialect*."""
    return joined(_pieces(form, dialect, 0, 0))


def joined(pieces: Iterable[Piece]) -> str:
    """Join the pieces with a blank line before each, or a single line end before a tight one."""
    texts: list[str] = []
    for piece in pieces:
        if texts:
            texts.append("\n" if piece.tight else "\n\n")
        texts.append(piece.text)
    return "".join(texts)


def _pieces(blocks: Sequence[Block], dialect: Dialect, depth: int, quotes: int) -> list[Piece]:
    """Render blocks that share their *depth* outermost containers, *quotes* of which are quotes."""
    pieces: list[Piece] = []
    for ident, group in groupby(blocks, key=lambda block: _container_ident(block, depth)):
        same = list(group)
        if ident is None:
            pieces += [_piece(block, dialect) for block in same]
            continue
        container = same[0].within[depth]
        if isinstance(container, Quote):
            inner = dialect.quote(_pieces(same, dialect, depth + 1, quotes + 1), quotes)
        else:
            inner = _item(_pieces(same, dialect, depth + 1, quotes), container, dialect)
        pieces += [replace(inner[0], tight=same[0].tight), *inner[1:]]
    return pieces


def _container_ident(block: Block, depth: int) -> int | None:
    return block.within[depth].ident if depth < len(block.within) else None


def _piece(block: Block, dialect: Dialect) -> Piece:
    match block.content:
        case Paragraph(spans):
            return Piece(dialect.paragraph(spans), block.tight)
        case Heading(level, spans):
            return Piece(dialect.heading(level, spans), block.tight)
        case Code(text, language):
            return replace(dialect.code(text, language), tight=block.tight)
        case Table() as table:
            return replace(dialect.code(grid(table), ""), tight=block.tight)
        case _:
            return Piece(dialect.rule(), block.tight)


def _item(pieces: list[Piece], item: Item, dialect: Dialect) -> list[Piece]:
    marker = item.marker or dialect.bullet
    indent = " " * (len(marker) + 1)
    indented = [piece if piece.verbatim else replace(piece, text=prefixed(piece.text, indent)) for piece in pieces]
    first = indented[0]
    if not item.opens:
        return indented
    if first.verbatim:
        return [Piece(marker, first.tight), replace(first, tight=True), *indented[1:]]
    return [replace(first, text=f"{marker} {first.text[len(indent) :]}".rstrip(" ")), *indented[1:]]


def prefixed(text: str, prefix: str) -> str:
    """Put *prefix* before each line of *text*."""
    return prefix + text.replace("\n", "\n" + prefix)


def grid(table: Table) -> str:
    """Render *table* as lines of aligned cells for a monospaced font, with a line under the header."""
    rows = [[flat(cell) for cell in row] for row in table.rows]
    widths = [
        min(PADDED_COLUMNS, max((columns(row[index]) for row in rows if index < len(row)), default=0))
        for index in range(max(map(len, rows), default=0))
    ]
    aligns = (*table.aligns, *[""] * len(widths))
    lines = [" │ ".join(map(_align, row, widths, aligns)).rstrip() for row in rows]
    if not table.headless:
        lines.insert(1, "─┼─".join("─" * width for width in widths))
    return "\n".join(lines)


def flat(spans: Spans) -> str:
    """Return the spans' text on one line, with the URLs of links whose text does not show them."""
    return "".join(with_address(span) for span in spans).replace("\n", " ")


def with_address(span: Span) -> str:
    """Return the span's text, followed by its URL in brackets if it is a link whose text does not show it."""
    url = address(span)
    return span.text if url is None or shows(span.text, url) else f"{span.text} ({url})"


def address(span: Span) -> str | None:
    """Return the URL of a span that is a link, else None."""
    return next((mark.url for mark in span.marks if isinstance(mark, Link)), None)


def shows(text: str, url: str) -> bool:
    """Return whether *text* is itself the URL."""
    return text in {url, url.removeprefix("mailto:")}


def columns(text: str) -> int:
    """Return how many terminal columns *text* takes (Unicode Standard Annex #11; combining marks take none)."""
    return sum(
        0 if unicodedata.category(character) in {"Mn", "Me", "Cf"} else 2 if _is_wide(character) else 1
        for character in text
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in {"W", "F"}


def _align(text: str, width: int, align: str) -> str:
    room = max(0, width - columns(text))
    before = room if align == "right" else room // 2 if align == "center" else 0
    return " " * before + text + " " * (room - before)


Wrap = Callable[[Mark, str, str, str], str]
"""(mark, inner text, text before, character after) → the inner text with its mark."""


def nested(
    spans: Sequence[Span], leaf: Callable[[Span], str], wrap: Wrap, open_marks: frozenset[Mark] = frozenset()
) -> str:
    """Render the spans so that marks nest and never cross: each mark wraps the longest run of spans that share it.

    *leaf* renders each span with all its marks, and so handles links and code; *wrap* adds the other marks.
    """
    out = ""
    position = 0
    while position < len(spans):
        runs = [
            (_run(spans, position, mark), mark)
            for mark in _NESTABLE_STYLES
            if mark in spans[position].marks and mark not in open_marks
        ]
        if not runs:
            out += leaf(spans[position])
            position += 1
            continue
        length, mark = max(runs, key=lambda run: run[0])
        inner = nested(spans[position : position + length], leaf, wrap, open_marks | {mark})
        position += length
        after = spans[position].text[:1] if position < len(spans) else ""
        out += wrap(mark, inner, out[-1:], after)
    return out


def _run(spans: Sequence[Span], start: int, mark: Mark) -> int:
    end = start
    while end < len(spans) and mark in spans[end].marks:
        end += 1
    return end - start


def around(opening: str, inner: str, closing: str) -> str:
    """Put *inner* between marks that must touch text. White space at its edges stays outside the marks."""
    core = inner.strip()
    if not core:
        return inner
    start = inner.index(core)
    return inner[:start] + opening + core + closing + inner[start + len(core) :]


def by_line(spans: Spans) -> list[Spans]:
    """Return the spans of each line, for platforms whose marks end at the line's end."""
    lines: list[list[Span]] = [[]]
    for span in spans:
        first, *others = span.text.split("\n")
        lines[-1].append(replace(span, text=first))
        lines.extend([replace(span, text=text)] for text in others)
    return [tuple(span for span in line if span.text) for line in lines]


_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*))?")


def goes_to(url: str, schemes: frozenset[str]) -> bool:
    """Return whether *url* is absolute and of one of the *schemes*, and for http and https also names a host."""
    match = _SCHEME.match(url)
    if match is None or match["scheme"].lower() not in schemes:
        return False
    return match["scheme"].lower() not in {"http", "https"} or bool(match["host"])
