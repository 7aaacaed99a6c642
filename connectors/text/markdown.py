"""Parse a model's Markdown into a form (`ParsedMarkdown`), which a `Dialect` renders for its platform.

A form is a flat tuple of blocks. Each block lists the quotes and list items that contain it. A slice of a form is
therefore a form, so `split` can cut a long reply into valid parts.

The syntax is CommonMark 0.31.2 with GFM's tables and strikethrough. Five deviations keep all text visible and keep
a reply from flickering while it is streamed:

- HTML is text, except ``<br>``, which breaks the line. Images are links with the alternative text.
- Reference links do not exist: ``[refunds.md › Windows]`` is always text, and so is a link definition.
- A line of ``---`` or ``===`` below a text makes no heading (``text\\n-`` may be the beginning of a list).
- Surplus cells of a table row are kept, and so is the text after the language of a code block.
- These are plain text: nesting deeper than `MAX_DEPTH`, a line longer than `MAX_INLINE_CHARACTERS`, and everything
  after the first `MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count, groupby, pairwise

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_block.table import escapedSplit, getLine
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from connectors.text.edges import without_lone_surrogates

MAX_DEPTH = 16
"""Levels of quotes and lists; a list item counts as two. The parser recurses once per level."""

MAX_INLINE_CHARACTERS = 10_000
"""A longer run of text is cut at line ends, and a longer line is plain text. Some of the parser's inline rules take
time quadratic in the length of the run."""

MAX_CHARACTERS = 200_000
"""No chat message is longer. The parser reads 50,000 to 1,000,000 characters per second (measured)."""

_MAX_INLINE_DEPTH = 40
_IMAGE_MARK = re.compile(r"!\Z")
_BREAK_TAG = re.compile(r"[ \t]*<br[ \t]*/?>[ \t]*\n?", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9][\w+#.-]{0,31}", re.ASCII)


class Style(Enum):
    """The style of a span."""

    BOLD = "bold"
    ITALIC = "italic"
    STRIKE = "strike"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to ``url``, which is percent-encoded. Any scheme but javascript, vbscript, file and data."""

    url: str


Mark = Style | Link


@dataclass(frozen=True, slots=True)
class Span:
    """Text with the same marks throughout. ``\\n`` is a line break."""

    text: str
    marks: frozenset[Mark] = frozenset()


Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    spans: Spans


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of ``level`` 1 to 6."""

    level: int
    spans: Spans


@dataclass(frozen=True, slots=True)
class Code:
    """A code block. ``text`` has no final line end; ``language`` is one word or empty."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, which may differ in length.

    The first row is the header, unless ``headless`` (the table is the rest of one that was cut). ``aligns`` has an
    entry for each column: ``left``, ``center``, ``right`` or empty.
    """

    rows: tuple[tuple[Spans, ...], ...]
    aligns: tuple[str, ...] = ()
    headless: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A thematic break."""


Content = Paragraph | Heading | Code | Table | Rule


@dataclass(frozen=True, slots=True)
class Quote:
    """A block quote. All its blocks share its ``ident``."""

    ident: int


@dataclass(frozen=True, slots=True)
class Item:
    """A list item. ``marker`` is its number, e.g. ``3.`` or ``3)``, or empty for a bullet. ``opens`` is true in the
    item's first block, which shows the marker."""

    ident: int
    marker: str = ""
    opens: bool = False


Container = Quote | Item


@dataclass(frozen=True, slots=True)
class Block:
    """A block and its containers, outermost first. If it is ``tight``, no blank line precedes it."""

    content: Content
    within: tuple[Container, ...] = ()
    tight: bool = False


ParsedMarkdown = tuple[Block, ...]


def parse_markdown(text: str) -> ParsedMarkdown:
    """Parse *text*. Never fails: an empty or blank text gives an empty form.

    Unpaired surrogates and NUL, which no platform carries, become U+FFFD.
    """
    clean = without_lone_surrogates(text).replace("\0", "\ufffd")
    end = len(clean)
    if end > MAX_CHARACTERS:
        end = clean.rfind("\n", 0, MAX_CHARACTERS) + 1 or MAX_CHARACTERS
    form = tuple(_BlockReader().walk(markdown_tokens(clean[:end])))
    return (*form, Block(Paragraph((Span(clean[end:]),)))) if clean[end:].strip() else form


def markdown_tokens(text: str) -> list[Token]:
    """Return the block tokens of *text*, with the inline tokens as their children."""
    return _parser.parse(text)


class _BlockReader:
    """Reads the parser's tokens in one pass and yields blocks."""

    def __init__(self) -> None:
        self._idents = count()
        self._within: list[Container] = []
        self._numbers: list[int | None] = []
        """The next number of each open list, outermost first; None for a bulleted list."""
        self._last_line = 0

    def walk(self, parsed: list[Token]) -> Iterator[Block]:
        position = 0
        while position < len(parsed):
            token = parsed[position]
            if token.type == "table_open":
                end = _find_closing(parsed, position, "table_close")
                yield self._block(token, _table(parsed[position:end]))
                position = end
            elif token.type in {"paragraph_open", "heading_open"}:
                spans = _spans(parsed[position + 1])
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
                if self._opens():  # an item without content still shows its marker
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


def _find_closing(parsed: list[Token], position: int, kind: str) -> int:
    return next(index for index in range(position, len(parsed)) if parsed[index].type == kind)


def _code(token: Token) -> Code:
    """Build a code block. Text after the language becomes its first line, so that it stays visible."""
    language, _, more = token.info.strip().partition(" ")
    if not _LANGUAGE.fullmatch(language):
        language, more = "", token.info.strip()
    lines = token.content.removesuffix("\n")
    return Code(f"{more.strip()}\n{lines}" if more.strip() else lines, language)


def _table(parsed: list[Token]) -> Table:
    rows: list[list[Spans]] = []
    aligns: list[str] = []
    for token in parsed:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(tuple(replace(span, text=span.text.replace("\n", " ")) for span in _spans(token)))
        elif token.type == "th_open":
            aligns.append(str(token.attrs.get("style", "")).removeprefix("text-align:"))
    return Table(tuple(tuple(row) for row in rows), tuple(aligns))


def _spans(token: Token) -> Spans:
    return tuple(_merge_neighbours(_inline(token.children or ())))


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


def _merge_neighbours(spans: Iterable[Span]) -> Iterator[Span]:
    """Merge neighbouring spans with the same marks, and drop empty ones."""
    for marks, group in groupby((span for span in spans if span.text), key=lambda span: span.marks):
        text = "".join(span.text for span in group)
        yield Span(text if Style.CODE in marks else _BREAK_TAG.sub("\n", text), marks)


# The parser: CommonMark, configured to keep all text and to finish any input in bounded time


def _keep_deep_text(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Keep text nested deeper than `MAX_DEPTH` as a paragraph. The parser's own rules would drop it."""
    if state.level < MAX_DEPTH:
        return False
    if silent:
        return True
    line = start_line + 1
    while line < end_line and not state.isEmpty(line) and state.sCount[line] >= state.blkIndent:
        line += 1
    token = state.push("paragraph_open", "p", 1)
    token.map = [start_line, line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start_line, line, state.blkIndent, False).strip()
    inline.children = []
    state.push("paragraph_close", "p", -1)
    state.line = line
    return True


def _parse_whole_table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Parse a GFM table with every cell of every row. The parser's own rule drops cells beyond the header's number."""
    first = len(state.tokens)
    if not table(state, start_line, end_line, silent):
        return False
    tokens_with_surplus: list[Token] = []
    cells = 0
    row = start_line
    for token in state.tokens[first:]:
        if token.type == "tr_open":
            cells, row = 0, (token.map or [start_line])[0]
        elif token.type == "inline":
            cells += 1
        elif token.type == "tr_close":
            for surplus in _split_cells(getLine(state, row))[cells:]:
                extra = Token("inline", "", 0, content=surplus, children=[])
                tokens_with_surplus += [Token("td_open", "td", 1), extra, Token("td_close", "td", -1)]
        tokens_with_surplus.append(token)
    state.tokens[first:] = tokens_with_surplus
    return True


def _split_cells(line: str) -> list[str]:
    """Split a row into cells in the same way as the parser."""
    cells = escapedSplit(line.strip())
    if cells and cells[0] == "":
        cells.pop(0)
    if cells and cells[-1] == "":
        cells.pop()
    return [cell.strip() for cell in cells]


def _parse_inline_in_pieces(state: StateCore) -> None:
    """Parse each run of text in pieces of at most `MAX_INLINE_CHARACTERS`."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        children: list[Token] = []
        for piece in _pieces(token.content):
            if len(piece) <= MAX_INLINE_CHARACTERS:
                state.md.inline.parse(piece, state.md, state.env, children)
            else:
                children.append(Token("text", "", 0, content=piece))
        token.children = _turn_images_into_links(children)


def _pieces(text: str) -> list[str]:
    if len(text) <= MAX_INLINE_CHARACTERS:
        return [text]
    pieces: list[str] = []
    size = MAX_INLINE_CHARACTERS
    for line in text.splitlines(keepends=True):
        if size + len(line) > MAX_INLINE_CHARACTERS:
            pieces.append(line)
            size = len(line)
        else:
            pieces[-1] += line
            size += len(line)
    return pieces


def _turn_images_into_links(children: list[Token]) -> list[Token]:
    """Remove the ``!`` that makes a link an image, because chats show no images inside text."""
    for before, token in pairwise(children):
        if token.type == "link_open" and token.markup != "autolink" and before.type == "text":
            before.content = _IMAGE_MARK.sub("", before.content)
    return children


def _build_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_INLINE_DEPTH, "html": False})
    parser.enable(["table", "strikethrough"])
    # Images become links. The parser's image rule would parse the alternative text again at every level.
    parser.disable(["html_block", "html_inline", "reference", "lheading", "image"])
    parser.block.ruler.at("table", _parse_whole_table, {"alt": ["paragraph", "reference"]})
    parser.block.ruler.before("table", "too_deep", _keep_deep_text)
    parser.core.ruler.at("inline", _parse_inline_in_pieces)
    return parser


_parser = _build_parser()
