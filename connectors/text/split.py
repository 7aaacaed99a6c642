"""Cut a reply into parts that fit a platform after rendering. Pure.

`cut_reply` renders and cuts Markdown; `outbound_parts` numbers the texts. Each part is a run of parsed
blocks, rendered by itself. So marks, tags and fences are closed at the end of a part and opened again in the next,
lists continue their numbers, and no visible character is lost.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from connectors.message import OutboundMessage, OutboundPart
from connectors.text.edges import cluster_edge, natural_edge, without_lone_surrogates
from connectors.text.markdown import (
    Block,
    Code,
    Heading,
    Item,
    Link,
    Paragraph,
    ParsedMarkdown,
    Span,
    Spans,
    Table,
    parse_markdown,
)
from connectors.text.render import Dialect, to_one_line, with_address

SMALLEST_LIMIT = 64
FILE_NAME = "whole-reply.md"
WHOLE_FOLLOWS = "*The whole reply follows.*"
"""The note below the beginning of a reply of which only the beginning is sent as text."""

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})


def cut_reply(
    markdown: str, dialect: Dialect, limit: int, limit_with_sources: int, max_parts: int
) -> tuple[list[str], int]:
    """Render *markdown* as texts of at most *limit*, and say below which of them the sources go.

    Return the texts and the index of that one: the last text, or the first if there are more than *max_parts* texts,
    because then only the first is sent, with a file, and says so (`WHOLE_FOLLOWS`). The text above the sources has at
    most *limit_with_sources*; if it is larger, the whole reply is cut again at that size. Texts without a visible
    character are left out, because platforms reject them as empty: there may be no text at all.
    """
    form = parse_markdown(markdown)

    def cut(size: int) -> list[str]:
        return [text for text in cut_form(form, size, dialect) if can_be_seen(dialect.visible_text(text))]

    texts = cut(limit)
    if texts and len(texts) <= max_parts and dialect.size(texts[-1]) > limit_with_sources:
        texts = cut(limit_with_sources)
    if len(texts) <= max_parts:
        return texts, len(texts) - 1
    note = "\n\n" + dialect.render(parse_markdown(WHOLE_FOLLOWS))
    beginning, *others = cut(limit_with_sources - dialect.size(note))
    return [beginning + note, *others], 0


def outbound_parts(
    message: OutboundMessage, texts: Sequence[str], payload: str, max_parts: int
) -> tuple[OutboundPart, ...]:
    """Return the parts of *message*, whose rendered *texts* are each within the platform's limit.

    More than *max_parts* texts become two parts: the first text, and a file with all of ``message.text``
    (Markdown). Rendering the same message again gives the same tokens.
    """
    if len(texts) <= max_parts:
        return tuple(
            OutboundPart(index, len(texts), text, _token(message, str(index)), payload)
            for index, text in enumerate(texts)
        )
    whole = without_lone_surrogates(message.text)
    return (
        OutboundPart(0, 2, texts[0], _token(message, "0"), payload),
        OutboundPart(1, 2, whole, _token(message, "file"), file_name=FILE_NAME),
    )


def _token(message: OutboundMessage, part: str) -> str:
    return f"{message.turn_id}.{message.kind}.{part}"


def can_be_seen(text: str) -> bool:
    """Return whether *text* has any visible character. Platforms reject a message without one as empty."""
    return any(unicodedata.category(character) not in _INVISIBLE for character in text)


def cut_form(form: ParsedMarkdown, limit: int, dialect: Dialect) -> list[str]:
    """Render *form* in *dialect* as texts of at most *limit* units each.

    A part ends between two blocks if it is then at least half full. Otherwise the next block is cut: a table between
    rows, anything else after a paragraph, a line, a sentence or a word (`natural_edge`); without such an edge, the
    part stays less than half full. The rest of a table has no header. A heading at the end of a part moves to the next
    one. A block that fits no part and cannot be cut (a link with a huge URL, a list nested too deep for the limit)
    loses its formatting and keeps its text.
    Raises `ValueError` if *limit* is below `SMALLEST_LIMIT`.
    """
    if limit < SMALLEST_LIMIT:
        raise ValueError(f"a part needs room for at least {SMALLEST_LIMIT} units, not {limit}")
    if sum(_least_size(block, limit) for block in form) <= limit:
        whole = dialect.render(form)
        if dialect.size(whole) <= limit:
            return [whole] if form else []
    packer = _Packer(form, limit, dialect)
    texts = []
    while packer.waiting:
        texts.append(dialect.render(tuple(packer.next())))
    return texts


class _Packer:
    """Takes the blocks of one part after the other. ``waiting`` has the remaining blocks in reverse order."""

    def __init__(self, form: ParsedMarkdown, limit: int, dialect: Dialect) -> None:
        self.waiting = list(reversed(form))
        self._limit = limit
        self._dialect = dialect

    def next(self) -> list[Block]:
        """Return the blocks of the next part: at least one. The last one may be the beginning of a block."""
        window = self._window()
        blocks = window[: _find_largest(len(window), self._limit, lambda count: self._measure(window[:count]))]
        if not blocks:
            return self._cut_next_block()
        del self.waiting[-len(blocks) :]
        if not self.waiting:
            return blocks
        if self._measure(blocks) < self._limit / 2:
            cut = self._cut(blocks, self.waiting[-1])
            if cut is not None:
                self.waiting[-1] = cut[1]
                return [*blocks, cut[0]]
        return self._return_last_headings(blocks)

    def _window(self) -> list[Block]:
        """Return as many of the next blocks as could fit if each took only its characters and a line end."""
        window: list[Block] = []
        room = self._limit
        for block in reversed(self.waiting):
            if window and room <= 0:
                break
            window.append(block)
            room -= _least_size(block, room) + 1
        return window

    def _cut_next_block(self) -> list[Block]:
        """Return a part with the beginning of the next block, which is too large for one part.

        If the block cannot be cut, simplifies it and tries again.
        """
        while True:
            block = self.waiting.pop()
            cut = self._cut([], block)
            if cut is not None:
                self.waiting.append(cut[1])
                return [cut[0]]
            if self._measure([block]) <= self._limit:
                return [block]
            self.waiting += reversed(_simplify(block))

    def _return_last_headings(self, blocks: list[Block]) -> list[Block]:
        """Put headings at the end of *blocks* back for the next part, unless all blocks are headings."""
        end = len(blocks)
        while end > 0 and isinstance(blocks[end - 1].content, Heading):
            end -= 1
        if end == 0:
            return blocks
        self.waiting += reversed(blocks[end:])
        return blocks[:end]

    def _cut(self, before: Sequence[Block], block: Block) -> tuple[Block, Block] | None:
        """Cut *block* in two so that the first half fits into the part after the blocks *before*.

        Returns None if there is no good cut.
        """

        def measure(at: int) -> int:
            return self._measure([*before, _split_block(block, at)[0]])

        content = block.content
        if isinstance(content, Table):
            rows = _find_largest(min(len(content.rows) - 1, self._limit), self._limit, measure)
            return _split_block(block, rows) if rows > (1 if before else 0) else None
        text = _text(block)
        furthest = _find_largest(min(len(text) - 1, self._limit), self._limit, measure)
        if furthest < 1:
            return None
        edge = natural_edge(text, furthest)
        if edge is None and before:
            return None
        at = edge or cluster_edge(text, furthest)
        # Less text almost never renders larger. If it does, move the cut back until the part fits.
        while at > 0 and measure(at) > self._limit:
            at -= 1
        return _split_block(block, at) if at > 0 else None

    def _measure(self, blocks: Sequence[Block]) -> int:
        least = 0
        for block in blocks:
            least += _least_size(block, self._limit)
            if least > self._limit:
                return least  # too large even before rendering
        return self._dialect.size(self._dialect.render(tuple(blocks)))


def _find_largest(high: int, limit: int, measure: Callable[[int], int]) -> int:
    """Return the largest number up to *high* whose measure is within *limit*, or 0. *measure* must be increasing."""
    return bisect_right(range(1, high + 1), limit, key=measure)


def _least_size(block: Block, enough: int) -> int:
    """Return a lower bound of the block's size, from its characters. Stops counting beyond *enough*."""
    content = block.content
    if not isinstance(content, Table):
        return len(_text(block))
    size = 0
    for row in content.rows:
        size += 3 * len(row) + sum(len(span.text) for cell in row for span in cell) - 2
        if size > enough:
            break
    return size


def _text(block: Block) -> str:
    match block.content:
        case Paragraph(spans) | Heading(_, spans):
            return "".join(span.text for span in spans)
        case Code(text, _):
            return text
        case _:
            return ""


def _split_block(block: Block, at: int) -> tuple[Block, Block]:
    """Split *block* at a character (a table: at a row)."""
    content = block.content
    within = tuple(replace(c, opens=False) if isinstance(c, Item) else c for c in block.within)
    rest = Block(content, within, tight=True)
    match content:
        case Paragraph(spans) | Heading(_, spans):
            first, second = _split_spans(spans, at)
            return replace(block, content=replace(content, spans=first)), replace(
                rest, content=replace(content, spans=second)
            )
        case Code(text, _):
            return replace(block, content=replace(content, text=text[:at].removesuffix("\n"))), replace(
                rest, content=replace(content, text=text[at:])
            )
        case Table(rows, _, _):
            return replace(block, content=replace(content, rows=rows[:at])), replace(
                rest, content=replace(content, rows=rows[at:], headless=True)
            )
        case _:
            return block, rest


def _split_spans(spans: Spans, at: int) -> tuple[Spans, Spans]:
    first: list[Span] = []
    for index, span in enumerate(spans):
        if len(span.text) > at:
            head, tail = replace(span, text=span.text[:at]), replace(span, text=span.text[at:])
            return tuple([*first, head] if at else first), (tail, *spans[index + 1 :])
        first.append(span)
        at -= len(span.text)
    return tuple(first), ()


def _simplify(block: Block) -> list[Block]:
    """Return the same text with less formatting: without links, as lines, without language, containers or marks."""
    content = block.content
    match content:
        case Paragraph(spans) | Heading(_, spans) if any(isinstance(m, Link) for s in spans for m in s.marks):
            return [replace(block, content=replace(content, spans=tuple(map(_unlink, spans))))]
        case Table(rows, _, _):
            lines = "\n".join(" | ".join(map(to_one_line, row)) for row in rows)
            return [replace(block, content=Paragraph((Span(lines),)))]
        case Code(text, language) if language:
            return [replace(block, content=Code(text))]
    if block.within:
        markers = " ".join(c.marker for c in block.within if isinstance(c, Item) and c.opens and c.marker)
        shown = [Block(Paragraph((Span(markers),)))] if markers else []
        return [*shown, replace(block, within=())]
    return [Block(Paragraph((Span(_text(block)),)))]


def _unlink(span: Span) -> Span:
    return Span(with_address(span), frozenset(mark for mark in span.marks if not isinstance(mark, Link)))
