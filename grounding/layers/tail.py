"""The block of the last messages of the conversation, within limits of lines and bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grounding.budgets import Budgets
from grounding.run_context import TailEntry
from grounding.sections import Section, as_data, keep_newest, one_line
from grounding.tokens import Tokens, utf8_length

MAX_LINE_BYTES = 320
HEAD = "<recent_conversation>"
FOOT = "</recent_conversation>"
GAP = "…"
"""Replaces the omitted lines of a long message."""
LONGEST_ENTRY = 1 / 2
"""The largest share of the limits for one message, so that a request and its reply always fit together."""
REMEMBERED = 512
"""Messages whose lines are cached: those of about twenty active conversations."""


class Limits(NamedTuple):
    """Limits of a stretch of conversation: tokens of its text with head and foot, lines, their bytes, and turns."""

    tokens: int
    lines: int
    bytes: int
    turns: int

    @classmethod
    def of(cls, budgets: Budgets) -> Limits:
        """Return the limits of the block."""
        return cls(budgets.tail_tokens, budgets.tail_lines, budgets.tail_bytes, budgets.history_turns)

    def share(self, of_it: float) -> Limits:
        """Return the limits multiplied by *of_it*, each at least 1."""
        smaller = (max(1, int(one * of_it)) for one in (self.tokens, self.lines, self.bytes, self.turns))
        return Limits(*smaller)

    def beside(self, turn: Sequence[TailEntry], tokens: Tokens) -> Limits:
        """Return the limits that remain next to a *turn*; see `are_kept`. Exact to one token per turn."""
        shown, size = _lines_and_bytes(turn)
        return Limits(
            self.tokens - tokens.count("\n".join((*shown, ""))),
            self.lines - len(shown),
            self.bytes - size,
            self.turns - 1,
        )

    @property
    def are_kept(self) -> bool:
        return min(self.tokens, self.lines, self.bytes, self.turns) >= 0

    def hold(self, entries: Sequence[TailEntry], turns: int, tokens: Tokens) -> bool:
        """Say whether *entries*, which belong to *turns* turns, are within all limits."""
        shown, size = _lines_and_bytes(entries)
        return (
            turns <= self.turns
            and len(shown) <= self.lines
            and size <= self.bytes
            and tokens.fits("\n".join((HEAD, *shown, FOOT)), self.tokens)
        )


def lines(entries: Iterable[TailEntry]) -> list[str]:
    """Return the entries as lines, oldest first.

    Further lines of a message are indented, so that no text can pass for another speaker's line.
    """
    return _lines_and_bytes(entries)[0]


def _lines_and_bytes(entries: Iterable[TailEntry]) -> tuple[list[str], int]:
    """Return the lines of *entries*, and their bytes including a line end for each."""
    shown: list[str] = []
    size = 0
    for entry in entries:
        told = _lines_of(entry)
        shown += told.shown
        size += told.size
    return shown, size


def shows_all(entry: TailEntry) -> bool:
    """Say whether every line of *entry* is shown to its end."""
    return _lines_of(entry).are_whole


def shortened(entry: TailEntry, whole: Limits, tokens: Tokens) -> TailEntry:
    """Return *entry* cut to the part of a block with the limits *whole* that one message may take.

    A long message keeps its beginning and its end, a single long line its beginning. The result depends only on the
    message and the limits.
    """
    known = _shortened_cache.get(id(entry))
    if known is None or known[0] is not entry or known[1] != whole or known[2] is not tokens:
        if len(_shortened_cache) >= REMEMBERED:
            _shortened_cache.clear()
        short = _as_short(entry, whole.share(LONGEST_ENTRY), tokens)
        known = _shortened_cache[id(entry)] = entry, whole, tokens, short
    return known[3]


_shortened_cache: dict[int, tuple[TailEntry, Limits, Tokens, TailEntry]] = {}


def _as_short(entry: TailEntry, limits: Limits, tokens: Tokens) -> TailEntry:
    spoken = _text_lines(entry)

    def of(first: int, last: int) -> TailEntry:
        kept = [*spoken[:first], GAP, *spoken[len(spoken) - last :]]
        return entry.model_copy(update={"text": "\n".join(kept)})

    if limits.hold([entry], 1, tokens) or not spoken:
        return entry
    if len(spoken) < 2 or not limits.hold([of(1, 0)], 1, tokens):
        return _beginning(entry, spoken[0], limits, tokens)
    first, last = 1, 0
    grows_at_end = True  # the end first: it often holds the question that is answered next
    while first + last < len(spoken) - 1:
        more = (first, last + 1) if grows_at_end else (first + 1, last)
        if not limits.hold([of(*more)], 1, tokens):
            if not grows_at_end:
                break
            more = (first + 1, last)
            if not limits.hold([of(*more)], 1, tokens):
                break
        first, last = more
        grows_at_end = last < first
    return of(first, last)


def _beginning(entry: TailEntry, line: str, limits: Limits, tokens: Tokens) -> TailEntry:
    """Return *entry* with as much of *line*, its first, as the *limits* allow, or all of it if they allow nothing.

    Keys, and scripts whose characters take several tokens each, fill a block with fewer bytes than a line may have.
    """

    def of(characters: int) -> TailEntry:
        text = line if characters == len(line) else f"{line[:characters].rstrip()} {GAP}"
        return entry.model_copy(update={"text": text})

    def is_over(characters: int) -> bool:
        return not limits.hold([of(characters)], 1, tokens)

    # `bisect` finds the first length that is too much. Bytes beyond those of a line are not shown anyway.
    room = bisect_left(range(1, min(len(line), MAX_LINE_BYTES) + 1), True, key=is_over)
    return of(room or len(line)) if is_over(len(line)) else of(len(line))


def section(entries: Iterable[TailEntry], max_lines: int, max_bytes: int) -> Section:
    """Return the newest lines that fit both limits, oldest first."""
    shown, size = _lines_and_bytes(entries)
    if len(shown) <= max_lines and size <= max_bytes:
        return Section(HEAD, tuple(shown), FOOT, keep=keep_newest(shown), cut="never")
    kept: list[str] = []
    size = 0
    for line in reversed(shown):
        size += utf8_length(line) + 1
        if len(kept) == max_lines or size > max_bytes:
            break
        kept.append(line)
    kept.reverse()
    return Section(HEAD, tuple(kept), FOOT, keep=keep_newest(kept), cut="never")


@dataclass(frozen=True, slots=True)
class _Lines:
    """The shown lines of one message, their bytes including line ends, and whether each line is shown to its end."""

    entry: TailEntry
    shown: tuple[str, ...]
    size: int
    are_whole: bool


_lines_cache: dict[int, _Lines] = {}


def _lines_of(entry: TailEntry) -> _Lines:
    """Return the lines of *entry* from a cache: a turn needs them five times for the same object."""
    known = _lines_cache.get(id(entry))
    if known is None or known.entry is not entry:
        written = _speaker_lines(entry)
        shown = tuple(map(_shorten, written))
        size = sum(utf8_length(line) + 1 for line in shown)
        known = _Lines(entry, shown, size, all(utf8_length(line) <= MAX_LINE_BYTES for line in written))
        if len(_lines_cache) >= REMEMBERED:
            _lines_cache.clear()
        _lines_cache[id(entry)] = known
    return known


def _speaker_lines(entry: TailEntry) -> list[str]:
    by = one_line(entry.speaker) or "someone"
    return [f"{by}: {line}" if number == 0 else f"  {line}" for number, line in enumerate(_text_lines(entry))]


def _text_lines(entry: TailEntry) -> list[str]:
    return [said for line in as_data(entry.text).splitlines() if (said := line.strip())]


def _shorten(line: str) -> str:
    if utf8_length(line) <= MAX_LINE_BYTES:
        return line
    cut = line.encode("utf-8", "surrogatepass")[: MAX_LINE_BYTES - 4].decode("utf-8", "ignore")
    return cut.rstrip() + " …"
