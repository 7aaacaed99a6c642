"""What the renderers share: where blocks stand, how marks nest, how a table becomes a grid. Pure."""

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
"""A cell is padded to at most this many columns, so that one long cell does not blow up all rows."""

ZERO_WIDTH_SPACE = "\u200b"

_NESTING = (Style.BOLD, Style.ITALIC, Style.STRIKE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A rendered block. ``verbatim``: its lines must not be indented or prefixed."""

    text: str
    tight: bool = False
    verbatim: bool = False


class Dialect(Protocol):
    """How one platform writes each block."""

    @property
    def bullet(self) -> str: ...

    def paragraph(self, spans: Spans) -> str: ...

    def heading(self, level: int, spans: Spans) -> str: ...

    def code(self, text: str, language: str) -> Piece: ...

    def rule(self) -> str: ...

    def quote(self, pieces: Sequence[Piece], depth: int) -> list[Piece]:
        """*pieces* as a quote that stands in *depth* others."""


def lay_out(form: Form, dialect: Dialect) -> str:
    """*form* as *dialect* writes it."""
    return joined(_pieces(form, dialect, 0, 0))


def joined(pieces: Iterable[Piece]) -> str:
    """The pieces, a blank line between them except before a tight one."""
    texts: list[str] = []
    for piece in pieces:
        if texts:
            texts.append("\n" if piece.tight else "\n\n")
        texts.append(piece.text)
    return "".join(texts)


def _pieces(blocks: Sequence[Block], dialect: Dialect, depth: int, quotes: int) -> list[Piece]:
    """The blocks, which share their *depth* outermost containers, *quotes* of which are quotes."""
    pieces: list[Piece] = []
    for ident, group in groupby(blocks, key=lambda block: _ident(block, depth)):
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


def _ident(block: Block, depth: int) -> int | None:
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
    """*text* with *prefix* before each line."""
    return prefix + text.replace("\n", "\n" + prefix)


def grid(table: Table) -> str:
    """*table* as lines of aligned cells, for a font of one width; a line under the header."""
    rows = [[flat(cell) for cell in row] for row in table.rows]
    widths = [
        min(PADDED_COLUMNS, max((columns(row[index]) for row in rows if index < len(row)), default=0))
        for index in range(max(map(len, rows), default=0))
    ]
    aligns = (*table.aligns, *[""] * len(widths))
    lines = [" │ ".join(map(_aligned, row, widths, aligns)).rstrip() for row in rows]
    if not table.headless:
        lines.insert(1, "─┼─".join("─" * width for width in widths))
    return "\n".join(lines)


def flat(spans: Spans) -> str:
    """The spans' text on one line, with the addresses of links that do not show them."""
    return "".join(with_address(span) for span in spans).replace("\n", " ")


def with_address(span: Span) -> str:
    """The span's text, and behind it in brackets where it leads, unless it says so itself."""
    url = address(span)
    return span.text if url is None or shows(span.text, url) else f"{span.text} ({url})"


def address(span: Span) -> str | None:
    """Where the span leads, if it does."""
    return next((mark.url for mark in span.marks if isinstance(mark, Link)), None)


def shows(text: str, url: str) -> bool:
    """Whether *text* is itself the address."""
    return text in {url, url.removeprefix("mailto:")}


def columns(text: str) -> int:
    """How many columns of a terminal *text* takes (Unicode Standard Annex #11; combining marks take none)."""
    return sum(
        0 if unicodedata.category(character) in {"Mn", "Me", "Cf"} else 2 if _is_wide(character) else 1
        for character in text
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in {"W", "F"}


def _aligned(text: str, width: int, align: str) -> str:
    room = max(0, width - columns(text))
    before = room if align == "right" else room // 2 if align == "center" else 0
    return " " * before + text + " " * (room - before)


Wrap = Callable[[Mark, str, str, str], str]
"""(mark, inner, what stands before, the character after) → the inner text, marked."""


def nested(
    spans: Sequence[Span], leaf: Callable[[Span], str], wrap: Wrap, open_marks: frozenset[Mark] = frozenset()
) -> str:
    """The spans with their marks wrapped around the longest runs that share them, so that marks never cross.

    Links and code are left to *leaf*, which gets each span with its full marks.
    """
    out = ""
    position = 0
    while position < len(spans):
        runs = [
            (_run(spans, position, mark), mark)
            for mark in _NESTING
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
    """*inner* between marks that must touch text: white space at its edges stays outside."""
    core = inner.strip()
    if not core:
        return inner
    start = inner.index(core)
    return inner[:start] + opening + core + closing + inner[start + len(core) :]


def by_line(spans: Spans) -> list[Spans]:
    """The spans of each line, for platforms whose marks do not reach beyond a line."""
    lines: list[list[Span]] = [[]]
    for span in spans:
        first, *others = span.text.split("\n")
        lines[-1].append(replace(span, text=first))
        lines.extend([replace(span, text=text)] for text in others)
    return [tuple(span for span in line if span.text) for line in lines]


_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*))?")


def goes_to(url: str, schemes: frozenset[str]) -> bool:
    """Whether *url* is absolute, of one of the *schemes*, and (for those of the web) names a host."""
    found = _SCHEME.match(url)
    if found is None or found["scheme"].lower() not in schemes:
        return False
    return found["scheme"].lower() not in {"http", "https"} or bool(found["host"])
