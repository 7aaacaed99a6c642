"""Split a reply into parts that fit a platform, at natural edges: paragraphs, lines, sentences, words. Pure.

A part is a slice of the text. If a cut falls inside a code block, a line after the first slice closes the fence and
a line before the next slice opens it again. All slices joined are the text itself.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Size = Callable[[str], int]
"""Measures a text in a platform's units. One more character must add at least 1 and at most 8."""

SMALLEST_LIMIT = 16

_FENCE_LINE = re.compile(r"^ {0,3}(?P<marker>`{3,}|~{3,})(?P<info>[^\n]*)$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n+")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]*\s+|[。！？]")
_WORD = re.compile(r"\s+")

# Edges from best to worst, each with the share of the limit that a part must at least fill to end there.
_EDGES = ((_PARAGRAPH, 0.5), (_LINE, 0.5), (_SENTENCE, 0.5), (_WORD, 0.25))


def characters(text: str) -> int:
    """Count Unicode code points."""
    return len(text)


def utf16_units(text: str) -> int:
    """Count UTF-16 code units, Telegram's unit: 2 for a character beyond U+FFFF, else 1."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8_bytes(text: str) -> int:
    """Count bytes in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Piece:
    """One part: a slice of the text. ``opening`` and ``closing`` are fence lines if a cut falls inside a code block,
    else empty."""

    body: str
    opening: str = ""
    closing: str = ""

    @property
    def text(self) -> str:
        return self.opening + self.body + self.closing


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fenced code block (CommonMark 0.31.2, section 4.5), as offsets into the text."""

    start: int
    content: int
    """Start of the line after the opening line."""
    closing_line: int
    """Start of the closing line; the end of the text if the block is not closed."""
    end: int
    """Offset after the closing marker; one beyond the end of the text if the block is not closed."""
    marker: str
    opening: str

    def holds(self, cut: int) -> bool:
        return self.start < cut < self.end

    def awkward(self, cut: int) -> bool:
        """Return whether *cut* breaks a fence line or leaves a block without content on one side."""
        return self.start < cut <= self.content or self.closing_line <= cut < self.end


def split(text: str, limit: int, size: Size = characters) -> list[Piece]:
    """Split *text* into pieces whose ``text`` measures at most *limit*. Their bodies joined are *text*.

    No body is empty (an empty text has no pieces). Cuts fall after a paragraph, a line, a sentence or a word, in
    that order of preference, else between two grapheme clusters, and within a cluster only if it is larger than a
    part. Raises `ValueError` if *limit* is below `SMALLEST_LIMIT`.
    """
    if limit < SMALLEST_LIMIT:
        raise ValueError(f"a part needs room for at least {SMALLEST_LIMIT} units, not {limit}")
    fences = tuple(_fences(text, limit, size))
    starts = [fence.start for fence in fences]
    pieces = []
    start = 0
    while start < len(text):
        cutter = _Cutter(text, start, limit, size, fences, starts)
        cut = cutter.best()
        pieces.append(cutter.piece(cut))
        start = cut
    return pieces


def _fences(text: str, limit: int, size: Size) -> Iterator[_Fence]:
    """Find the code blocks whose fence lines fit into half a part."""
    open_line: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        marker, info = line["marker"], line["info"]
        if open_line is None:
            if not (marker[0] == "`" and "`" in info):
                open_line = line
        elif marker.startswith(open_line["marker"]) and not info.strip():
            yield from _fence(text, open_line, line, limit, size)
            open_line = None
    if open_line is not None:
        yield from _fence(text, open_line, None, limit, size)


def _fence(text: str, opened: re.Match[str], closed: re.Match[str] | None, limit: int, size: Size) -> Iterator[_Fence]:
    marker = opened["marker"]
    language = opened["info"].split()[:1]
    for opening in (marker + "".join(language) + "\n", marker + "\n"):
        if size(opening) + size("\n" + marker) <= limit // 2:
            yield _Fence(
                start=opened.start(),
                content=min(opened.end() + 1, len(text)),
                closing_line=closed.start() if closed else len(text),
                end=closed.end("marker") if closed else len(text) + 1,
                marker=marker,
                opening=opening,
            )
            return


def natural_edge(text: str, furthest: int) -> int | None:
    """Return the best cut in ``text[:furthest]`` after a paragraph, a line, a sentence or a word, or None."""
    for edge, least_full in _EDGES:
        ends = [m.end() for m in edge.finditer(text, 0, furthest)]
        for cut in reversed(ends):
            if cut > furthest * least_full and not _is_inside_cluster(text, 0, cut):
                return cut
    return None


def cluster_edge(text: str, furthest: int) -> int:
    """Return the last cut up to *furthest* (at least 1) between grapheme clusters, or *furthest* if there is none."""
    cut = furthest
    while cut > 0 and _is_inside_cluster(text, 0, cut):
        cut -= 1
    return cut or furthest


class _Cutter:
    """Finds the end of the part that begins at ``start``."""

    def __init__(
        self, text: str, start: int, limit: int, size: Size, fences: tuple[_Fence, ...], starts: list[int]
    ) -> None:
        self._text = text
        self._start = start
        self._limit = limit
        self._size = size
        self._fences = fences
        self._starts = starts
        fence = self._fence_over(start)
        self._opening = fence.opening if fence else ""

    def piece(self, cut: int) -> Piece:
        return Piece(self._text[self._start : cut], self._opening, self._closing(cut))

    def best(self) -> int:
        """Return the best cut after ``start``, or the end of the text if the rest fits."""
        furthest = self._furthest("")
        if furthest == len(self._text):
            return furthest
        for edge, least_full in _EDGES:
            least = self._start + int((furthest - self._start) * least_full)
            ends = [m.end() for m in edge.finditer(self._text, self._start, furthest)]
            for cut in reversed(ends):
                if cut > max(least, self._start) and self._good(cut):
                    return cut
        return self._anywhere(furthest)

    def _anywhere(self, cut: int) -> int:
        """Return the last cut up to *cut* that fits and, if possible, breaks no cluster, pair or fence line."""
        while not self._fits(cut):
            cut = max(self._start + 1, min(cut - 1, self._furthest(self._closing(cut))))
        whole = cut
        while whole > self._start and (_is_inside_cluster(self._text, self._start, whole) or not self._fits(whole)):
            whole -= 1
        if whole > self._start:
            return self._before_fence_line(whole)
        return cut - 1 if _splits_surrogate_pair(self._text, cut) and cut - 1 > self._start else cut

    def _before_fence_line(self, cut: int) -> int:
        fence = self._fence_over(cut)
        if fence and fence.awkward(cut):
            line = fence.start if cut <= fence.content else fence.closing_line
            if line > self._start and self._fits(line):
                return line
        return cut

    def _furthest(self, closing: str) -> int:
        """Return the largest cut with which opening, body and *closing* fit."""
        low, high = self._start, min(len(self._text), self._start + self._limit)
        while low < high:
            middle = (low + high + 1) // 2
            if self._size(self._opening + self._text[self._start : middle] + closing) <= self._limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, cut: int) -> bool:
        return self._size(self.piece(cut).text) <= self._limit

    def _closing(self, cut: int) -> str:
        fence = self._fence_over(cut)
        if fence is None or cut == len(self._text):
            return ""
        return ("" if self._text[cut - 1] == "\n" else "\n") + fence.marker

    def _good(self, cut: int) -> bool:
        """Return whether *cut* fits and breaks neither a fence line nor a cluster."""
        fence = self._fence_over(cut)
        awkward = fence is not None and fence.awkward(cut)
        return not awkward and self._fits(cut) and not _is_inside_cluster(self._text, self._start, cut)

    def _fence_over(self, cut: int) -> _Fence | None:
        index = bisect_right(self._starts, cut) - 1
        return self._fences[index] if index >= 0 and self._fences[index].holds(cut) else None


def _is_inside_cluster(text: str, start: int, cut: int) -> bool:
    """Return whether *cut* is inside a grapheme cluster of ``text[start:]``.

    Applies a subset of the rules GB3 to GB13 of Unicode Standard Annex #29, with the properties that the standard
    library knows: combining marks, emoji sequences, flags, Hangul jamo and line ends.
    """
    if cut >= len(text):
        return False
    before, after = text[cut - 1], text[cut]
    if before == "\r" and after == "\n":
        return True
    if after == "\u200d" or "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True
    if unicodedata.category(after) in {"Mn", "Me", "Mc"}:
        return True
    if before == "\u200d" and unicodedata.category(after) in {"So", "Sm"}:
        return True
    if "\u1160" <= after <= "\u11ff" and ("\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"):
        return True
    if _is_flag_letter(before) and _is_flag_letter(after):
        return _flag_letters_before(text, start, cut) % 2 == 1
    return _splits_surrogate_pair(text, cut)


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flag_letters_before(text: str, start: int, cut: int) -> int:
    first = cut
    while first > start and _is_flag_letter(text[first - 1]):
        first -= 1
    return cut - first


def _splits_surrogate_pair(text: str, cut: int) -> bool:
    """Return whether *cut* is between two surrogates that a faulty decoder left as separate characters."""
    return 0 < cut < len(text) and "\ud800" <= text[cut - 1] <= "\udbff" and "\udc00" <= text[cut] <= "\udfff"
