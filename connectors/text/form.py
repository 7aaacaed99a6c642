"""Markdown as models write it → a form that every platform's renderer reads.

The form is flat: a tuple of blocks, each of which says in which quotes and list items it stands. So a
slice of a form is a form, which is what makes cutting a long reply into valid parts simple (`parts`).

CommonMark 0.31.2 with GFM's tables and strikethrough, and five deviations, so that nothing that a reader
should see is lost and a reply that is still being streamed does not flicker:

- HTML is text (except that ``<br>`` breaks the line); images are links with the alternative text.
- Reference links do not exist: ``[refunds.md › Windows]`` is always text, and so is a definition.
- A line of ``---`` or ``===`` below a text makes no heading (``text\\n-`` is a list that begins).
- Surplus cells of a table's row are kept, and so is what follows the language of a code block.
- Nesting deeper than `MAX_DEPTH`, a line above `MAX_INLINE_CHARACTERS`, and what follows the first
  `MAX_CHARACTERS`, is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, groupby

from markdown_it.token import Token

from connectors.text.markdown import MAX_DEPTH, MAX_INLINE_CHARACTERS, tokens

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_INLINE_CHARACTERS",
    "Block",
    "Code",
    "Container",
    "Content",
    "Form",
    "Heading",
    "Item",
    "Link",
    "Mark",
    "Paragraph",
    "Quote",
    "Rule",
    "Span",
    "Spans",
    "Style",
    "Table",
    "parse",
]

MAX_CHARACTERS = 200_000
"""The parser reads 50,000 to 1,000,000 characters a second (measured); more than this is no chat message."""

_BREAK_TAG = re.compile(r"[ \t]*<br[ \t]*/?>[ \t]*\n?", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9][\w+#.-]{0,31}", re.ASCII)


class Style(Enum):
    """How a span is set."""

    BOLD = "bold"
    ITALIC = "italic"
    STRIKE = "strike"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Link:
    """A span that leads to ``url``, percent-encoded, of any scheme but javascript, vbscript, file and data."""

    url: str


Mark = Style | Link


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of one look; ``\\n`` breaks the line."""

    text: str
    marks: frozenset[Mark] = frozenset()


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    spans: Spans


@dataclass(frozen=True, slots=True)
class Heading:
    """``level`` 1 to 6."""

    level: int
    spans: Spans


@dataclass(frozen=True, slots=True)
class Code:
    """Lines as they are, without a last line end; ``language`` is one word or empty."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first row is the header unless ``headless`` (the rest of a table that was cut).
    Rows may differ in length. ``aligns``: ``left``, ``center``, ``right`` or empty, one a column."""

    rows: tuple[tuple[Spans, ...], ...]
    aligns: tuple[str, ...] = ()
    headless: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A thematic break."""


Content = Paragraph | Heading | Code | Table | Rule


@dataclass(frozen=True, slots=True)
class Quote:
    """Blocks of one quote share its ``ident``."""

    ident: int


@dataclass(frozen=True, slots=True)
class Item:
    """A list item. ``marker``: ``3.`` or ``3)`` as it counts, empty for a bullet; ``opens``: whether the
    block is the item's first, which shows the marker."""

    ident: int
    marker: str = ""
    opens: bool = False


Container = Quote | Item


@dataclass(frozen=True, slots=True)
class Block:
    """``within``: the containers, outermost first. ``tight``: no blank line stands before it."""

    content: Content
    within: tuple[Container, ...] = ()
    tight: bool = False


Form = tuple[Block, ...]


def parse(text: str) -> Form:
    """The form of *text*. Total: every text has one, an empty or blank one the empty form.

    Surrogates without their other half and NUL, which no platform carries, become U+FFFD.
    """
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")
    end = len(clean)
    if end > MAX_CHARACTERS:
        end = clean.rfind("\n", 0, MAX_CHARACTERS) + 1 or MAX_CHARACTERS
    form = tuple(_Walker().walk(tokens(clean[:end])))
    return (*form, Block(Paragraph((Span(clean[end:]),)))) if clean[end:].strip() else form


class _Walker:
    """Reads the parser's tokens in one pass."""

    def __init__(self) -> None:
        self._idents = count()
        self._within: list[Container] = []
        self._numbers: list[int | None] = []
        """The next number of each open list; None in a bulleted one."""
        self._last_line = 0

    def walk(self, found: list[Token]) -> Iterator[Block]:
        position = 0
        while position < len(found):
            token = found[position]
            if token.type == "table_open":
                end = _closing(found, position, "table_close")
                yield self._block(token, _table(found[position:end]))
                position = end
            elif token.type in {"paragraph_open", "heading_open"}:
                spans = _spans(found[position + 1])
                level = int(token.tag[1:]) if token.type == "heading_open" else 0
                yield self._block(token, Heading(level, spans) if level else Paragraph(spans))
                position += 2
            elif token.type in {"fence", "code_block"}:
                yield self._block(token, _code(token))
            elif token.type == "hr":
                yield self._block(token, Rule())
            else:
                yield from self._container(token)
            position += 1

    def _container(self, token: Token) -> Iterator[Block]:
        match token.type:
            case "blockquote_open":
                self._within.append(Quote(next(self._idents)))
            case "ordered_list_open":
                self._numbers.append(int(token.attrs.get("start", 1)))
            case "bullet_list_open":
                self._numbers.append(None)
            case "list_item_open":
                self._within.append(Item(next(self._idents), self._marker(token), opens=True))
            case "list_item_close":
                if self._opens():  # an item without content has its marker all the same
                    yield self._block(token, Paragraph(()))
                self._within.pop()
            case "blockquote_close":
                self._within.pop()
            case "ordered_list_close" | "bullet_list_close":
                self._numbers.pop()

    def _marker(self, token: Token) -> str:
        number = self._numbers[-1]
        if number is None:
            return ""
        self._numbers[-1] = number + 1
        return f"{number}{token.markup}"

    def _opens(self) -> bool:
        innermost = self._within[-1]
        return isinstance(innermost, Item) and innermost.opens

    def _block(self, token: Token, content: Content) -> Block:
        start, end = token.map or (self._last_line, self._last_line)
        block = Block(content, tuple(self._within), tight=start <= self._last_line)
        self._last_line = end
        for depth, container in enumerate(self._within):
            if isinstance(container, Item) and container.opens:
                self._within[depth] = replace(container, opens=False)
        return block


def _closing(found: list[Token], position: int, kind: str) -> int:
    return next(index for index in range(position, len(found)) if found[index].type == kind)


def _code(token: Token) -> Code:
    """What is said behind the language stays visible, as the first line."""
    language, _, more = token.info.strip().partition(" ")
    if not _LANGUAGE.fullmatch(language):
        language, more = "", token.info.strip()
    lines = token.content.removesuffix("\n")
    return Code(f"{more.strip()}\n{lines}" if more.strip() else lines, language)


def _table(found: list[Token]) -> Table:
    rows: list[list[Spans]] = []
    aligns: list[str] = []
    for token in found:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(tuple(replace(span, text=span.text.replace("\n", " ")) for span in _spans(token)))
        elif token.type == "th_open":
            aligns.append(str(token.attrs.get("style", "")).removeprefix("text-align:"))
    return Table(tuple(tuple(row) for row in rows), tuple(aligns))


def _spans(token: Token) -> Spans:
    return tuple(_merged(_inline(token.children or ())))


def _inline(children: Iterable[Token]) -> Iterator[Span]:
    marks: list[Mark] = []
    styles = {"strong": Style.BOLD, "em": Style.ITALIC, "s": Style.STRIKE}
    for token in children:
        name, _, edge = token.type.rpartition("_")
        if edge == "open":
            marks.append(Link(str(token.attrs["href"])) if name == "link" else styles[name])
        elif edge == "close":
            marks.pop()
        elif token.type == "code_inline":
            yield Span(token.content, frozenset({*marks, Style.CODE}))
        elif token.type in {"softbreak", "hardbreak"}:
            yield Span("\n", frozenset(marks))
        else:
            yield Span(token.content, frozenset(marks))


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Neighbours of one look as one span, without empty ones."""
    for marks, group in groupby((span for span in spans if span.text), key=lambda span: span.marks):
        text = "".join(span.text for span in group)
        yield Span(text if Style.CODE in marks else _BREAK_TAG.sub("\n", text), marks)
