"""Render parsed Markdown as a JSON tree, from which the chat page creates its elements. Pure.

The tree contains no HTML, so nobody can inject any. An element is ``[tag, attributes, children]``; a text is a
string. Tags: p, h3 to h6, ul, ol, li, blockquote, pre, code, table, thead, tbody, tr, th, td, hr, a, strong, em, s,
br. The highest heading level in the text becomes h3 (the page uses h1 and h2), the next one h4, and so on without
gaps. Attributes: ``href`` of a (http, https or mailto), ``value`` of li, ``language`` of pre, ``align`` of th and td.
A bare web address becomes a link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from connectors.text.markdown import (
    Block,
    Code,
    Content,
    Heading,
    Item,
    Paragraph,
    Quote,
    Span,
    Spans,
    Style,
    Table,
    parse_markdown,
)
from connectors.text.render import has_scheme, link_url, with_address

Node = str | list[Any]

_SCHEMES = frozenset({"http", "https", "mailto"})
_WWW = r"(?<![\w@./-])www(?:\.[a-z0-9-]+){2,}(?:[:/?#][^\s<>\"`]*)?"
_ADDRESS = re.compile(rf"\bhttps?://[^\s<>\"`]+|{_WWW}", re.IGNORECASE)
_BRACKETS = {")": "(", "]": "[", "}": "{"}
_TAGS = {Style.CODE: "code", Style.STRIKE: "s", Style.ITALIC: "em", Style.BOLD: "strong"}


def to_page_tree(text: str) -> list[Node]:
    """Return the tree of *text* (Markdown)."""
    form = parse_markdown(text)
    levels = sorted({block.content.level for block in form if isinstance(block.content, Heading)})
    ranks = {level: min(3 + rank, 6) for rank, level in enumerate(levels)}
    return _nodes([_with_rank(block, ranks) for block in form], 0)


def remove_breaks(nodes: Sequence[Node]) -> list[Node]:
    """Replace each line break in *nodes* with a space. Authors wrap the lines of documents for their own editors."""
    return [
        node if isinstance(node, str) else " " if node[0] == "br" else [node[0], node[1], remove_breaks(node[2])]
        for node in nodes
    ]


def link_addresses(text: str) -> list[Node]:
    """Return the nodes of plain *text*, with a link for each bare web address."""
    nodes: list[Node] = []
    end = 0
    for match in _ADDRESS.finditer(text):
        shown = _without_punctuation(match[0])
        url = shown if "://" in shown else f"https://{shown}"
        if has_scheme(url, _SCHEMES):
            nodes += [text[end : match.start()], ["a", {"href": url}, [shown]]]
            end = match.start() + len(shown)
    return [node for node in (*nodes, text[end:]) if node]


def _without_punctuation(url: str) -> str:
    """Remove punctuation of the sentence from the end of *url*, and a closing bracket that *url* does not open."""
    while url[-1] in ".,;:!?'*_~…" or url.count(url[-1]) > url.count(_BRACKETS.get(url[-1], url[-1])):
        url = url[:-1]
    return url


def _with_rank(block: Block, ranks: Mapping[int, int]) -> Block:
    if not isinstance(block.content, Heading):
        return block
    return replace(block, content=replace(block.content, level=ranks[block.content.level]))


def _nodes(blocks: Sequence[Block], depth: int) -> list[Node]:
    """Render blocks that share their *depth* outermost containers."""
    nodes: list[Node] = []
    for kind, group in groupby(blocks, key=lambda block: _kind(block, depth)):
        same = list(group)
        if kind == "":
            nodes += [_block(block.content) for block in same]
        elif kind == "blockquote":
            for _, quoted in groupby(same, key=lambda block: block.within[depth].ident):
                nodes.append(["blockquote", {}, _nodes(list(quoted), depth + 1)])
        else:
            items = groupby(same, key=lambda block: block.within[depth].ident)
            nodes.append([kind, {}, [_item(list(blocks_of), depth) for _, blocks_of in items]])
    return nodes


def _kind(block: Block, depth: int) -> str:
    """Return the tag of the element that contains *block* at *depth*, or an empty text if none does."""
    if depth >= len(block.within):
        return ""
    container = block.within[depth]
    if isinstance(container, Quote):
        return "blockquote"
    return "ol" if container.marker else "ul"


def _item(blocks: Sequence[Block], depth: int) -> Node:
    container = blocks[0].within[depth]
    number = container.marker.rstrip(".)") if isinstance(container, Item) else ""
    return ["li", {"value": int(number)} if number else {}, _nodes(blocks, depth + 1)]


def _block(content: Content) -> Node:
    match content:
        case Paragraph(spans):
            return ["p", {}, _inline(spans)]
        case Heading(level, spans):
            return [f"h{level}", {}, _inline(spans)]
        case Code(text, language):
            return ["pre", {"language": language} if language else {}, [["code", {}, [text]]]]
        case Table() as table:
            return _table(table)
        case _:
            return ["hr", {}, []]


def _table(table: Table) -> Node:
    def row(cells: Sequence[Spans], tag: str) -> Node:
        aligned = [
            (spans, table.aligns[index] if index < len(table.aligns) else "") for index, spans in enumerate(cells)
        ]
        return ["tr", {}, [[tag, {"align": align} if align else {}, _inline(spans)] for spans, align in aligned]]

    head, body = ((), table.rows) if table.headless else (table.rows[:1], table.rows[1:])
    parts: list[Node] = []
    if head:
        parts.append(["thead", {}, [row(cells, "th") for cells in head]])
    if body:
        parts.append(["tbody", {}, [row(cells, "td") for cells in body]])
    return ["table", {}, parts]


def _inline(spans: Spans) -> list[Node]:
    nodes: list[Node] = []
    for url, group in groupby(spans, key=_address):
        inner = [node for span in group for node in _span(span, linked=url is not None)]
        nodes += inner if url is None else [["a", {"href": url}, inner]]
    return nodes


def _address(span: Span) -> str | None:
    """Return the URL of *span* if it is a link that a browser may open, else None."""
    url = link_url(span)
    return url if url is not None and has_scheme(url, _SCHEMES) else None


def _span(span: Span, *, linked: bool) -> list[Node]:
    nodes: list[Node] = []
    for index, line in enumerate((span.text if linked else with_address(span)).split("\n")):
        if index:
            nodes.append(["br", {}, []])
        if line:
            nodes += [line] if linked or Style.CODE in span.marks else link_addresses(line)
    for style, tag in _TAGS.items():
        if style in span.marks:
            nodes = [[tag, {}, nodes]]
    return nodes
