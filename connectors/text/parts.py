"""Cuts a form into parts that fit a platform once they are rendered. Pure.

Each part is rendered from a form of its own, so its marks, tags and fences are closed and opened again,
lists count on, and no character that the form shows is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from connectors.text.form import (
    Block,
    Code,
    Form,
    Heading,
    Item,
    Link,
    Paragraph,
    Span,
    Spans,
    Table,
)
from connectors.text.layout import flat, with_address
from connectors.text.split import Size, cluster_edge, natural_edge

Render = Callable[[Form], str]

SMALLEST_LIMIT = 64


def parts(form: Form, limit: int, size: Size, render: Render) -> list[str]:
    """*form* as texts that *render* made and that measure at most *limit* by *size*, in order.

    A part ends between two blocks where that leaves it half full, else within a block (after a line, a
    sentence or a word if it can be), and not after a heading. What does not fit in any shape (a link with
    a huge address, a list nested too deep for the limit) loses the shape and keeps its characters.
    Raises `ValueError` for a *limit* below `SMALLEST_LIMIT`.
    """
    if limit < SMALLEST_LIMIT:
        raise ValueError(f"a part needs room for at least {SMALLEST_LIMIT} units, not {limit}")
    packer = _Packer(form, limit, size, render)
    texts = []
    while packer.waiting:
        texts.append(render(tuple(packer.next())))
    return texts


class _Packer:
    """Takes blocks for one part after the other. ``waiting``: those to come, the next one last."""

    def __init__(self, form: Form, limit: int, size: Size, render: Render) -> None:
        self.waiting = list(reversed(form))
        self._limit = limit
        self._size = size
        self._render = render

    def next(self) -> list[Block]:
        """The blocks of the next part: at least one, of which the last may be a cut one."""
        window = self._window()
        taken = window[: _largest(len(window), self._limit, lambda count: self._measure(window[:count]))]
        if not taken:
            return self._forced()
        del self.waiting[-len(taken) :]
        if not self.waiting:
            return taken
        if self._measure(taken) < self._limit / 2:
            cut = self._cut(taken, self.waiting[-1])
            if cut is not None:
                self.waiting[-1] = cut[1]
                return [*taken, cut[0]]
        return self._without_last_headings(taken)

    def _window(self) -> list[Block]:
        """As many of the next blocks as could fit if each took no more than its characters and a line end."""
        window: list[Block] = []
        room = self._limit
        for block in reversed(self.waiting):
            if window and room <= 0:
                break
            window.append(block)
            room -= _least_size(block, room) + 1
        return window

    def _forced(self) -> list[Block]:
        """A part of a piece of the next block, which is too large; of a simpler shape of it if need be."""
        while True:
            block = self.waiting.pop()
            cut = self._cut([], block)
            if cut is not None:
                self.waiting.append(cut[1])
                return [cut[0]]
            if self._fits([block]):
                return [block]
            self.waiting += reversed(_simpler(block))

    def _without_last_headings(self, taken: list[Block]) -> list[Block]:
        end = len(taken)
        while end > 0 and isinstance(taken[end - 1].content, Heading):
            end -= 1
        if end == 0:
            return taken
        self.waiting += reversed(taken[end:])
        return taken[:end]

    def _cut(self, taken: Sequence[Block], block: Block) -> tuple[Block, Block] | None:
        """*block* in two, the first of which fits behind *taken*; None where no good cut would."""

        def measured(at: int) -> int:
            return self._measure([*taken, _at(block, at)[0]])

        content = block.content
        if isinstance(content, Table):
            rows = _largest(min(len(content.rows) - 1, self._limit), self._limit, measured)
            return _at(block, rows) if rows > (1 if taken else 0) else None
        text = _text(block)
        furthest = _largest(min(len(text) - 1, self._limit), self._limit, measured)
        if furthest < 1:
            return None
        edge = natural_edge(text, furthest)
        if edge is None and taken:
            return None
        at = edge or cluster_edge(text, furthest)
        # Less text almost never renders larger; where it does, the cut moves on until it fits.
        while at > 0 and measured(at) > self._limit:
            at -= 1
        return _at(block, at) if at > 0 else None

    def _fits(self, blocks: Sequence[Block]) -> bool:
        return self._measure(blocks) <= self._limit

    def _measure(self, blocks: Sequence[Block]) -> int:
        least = 0
        for block in blocks:
            least += _least_size(block, self._limit)
            if least > self._limit:
                return least  # too large in any case: not worth rendering
        return self._size(self._render(tuple(blocks)))


def _largest(high: int, limit: int, measure: Callable[[int], int]) -> int:
    """The largest number up to *high* whose measure, which grows with it, is within *limit*; else 0."""
    low, size_low = 0, 0
    if high <= 0 or (size_high := measure(high)) <= limit:
        return max(high, 0)
    halve = False
    while high - low > 1:
        # Interpolation finds it in a few steps where sizes grow evenly; every other step halves the rest.
        share = 0.5 if halve else (limit - size_low) / max(1, size_high - size_low)
        middle = min(high - 1, max(low + 1, low + int((high - low) * share)))
        halve = not halve
        size = measure(middle)
        if size <= limit:
            low, size_low = middle, size
        else:
            high, size_high = middle, size
    return low


def _least_size(block: Block, enough: int) -> int:
    """What the block measures at least, by its characters; not counted beyond *enough*."""
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


def _at(block: Block, at: int) -> tuple[Block, Block]:
    """*block* up to a character (of a table: a row), and from there on."""
    content = block.content
    within = tuple(replace(c, opens=False) if isinstance(c, Item) else c for c in block.within)
    rest = Block(content, within, tight=True)
    match content:
        case Paragraph(spans) | Heading(_, spans):
            first, second = _spans_at(spans, at)
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


def _spans_at(spans: Spans, at: int) -> tuple[Spans, Spans]:
    first: list[Span] = []
    for index, span in enumerate(spans):
        if len(span.text) > at:
            head, tail = replace(span, text=span.text[:at]), replace(span, text=span.text[at:])
            return tuple([*first, head] if at else first), (tail, *spans[index + 1 :])
        first.append(span)
        at -= len(span.text)
    return tuple(first), ()


def _simpler(block: Block) -> list[Block]:
    """The same characters in the next simpler shape."""
    content = block.content
    match content:
        case Paragraph(spans) | Heading(_, spans) if any(isinstance(m, Link) for s in spans for m in s.marks):
            return [replace(block, content=replace(content, spans=tuple(map(_unlinked, spans))))]
        case Table(rows, _, _):
            lines = "\n".join(" | ".join(map(flat, row)) for row in rows)
            return [replace(block, content=Paragraph((Span(lines),)))]
        case Code(text, language) if language:
            return [replace(block, content=Code(text))]
    if block.within:
        markers = " ".join(c.marker for c in block.within if isinstance(c, Item) and c.opens and c.marker)
        shown = [Block(Paragraph((Span(markers),)))] if markers else []
        return [*shown, replace(block, within=())]
    return [Block(Paragraph((Span(_text(block)),)))]


def _unlinked(span: Span) -> Span:
    return Span(with_address(span), frozenset(mark for mark in span.marks if not isinstance(mark, Link)))
