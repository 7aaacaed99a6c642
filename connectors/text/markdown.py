"""The Markdown parser, configured to keep all text and to finish any input in bounded time."""

from __future__ import annotations

import re
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_block.table import escapedSplit, getLine
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

MAX_DEPTH = 16
"""Levels of quotes and lists; a list item counts as two. The parser recurses once per level."""

MAX_INLINE_CHARACTERS = 10_000
"""A longer run of text is cut at line ends, and a longer line is plain text. Some of the parser's inline rules take
time quadratic in the length of the run."""

_MAX_INLINE_DEPTH = 40
_IMAGE_MARK = re.compile(r"!\Z")


def tokens(text: str) -> list[Token]:
    """Return the block tokens of *text*, with the inline tokens as their children."""
    return _parser.parse(text)


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
