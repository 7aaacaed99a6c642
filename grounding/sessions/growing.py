"""Decide which turns of a conversation a prompt shows. Pure.

An engine can reuse a prefix only as long as nothing in it moves. So the tail keeps its first turn and grows at its end
until it exceeds its ceilings. Then it is compacted in one step to about a third, so that it can grow again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grounding.asked import ASSISTANT
from grounding.history import pairs, places
from grounding.layers.tail import Limits, shortened, shows_all
from grounding.run_context import TailEntry
from grounding.tokens import Tokens

MAX_ENTRY_CHARACTERS = 2000
AFTER_COMPACTION = 1 / 3
"""The share of the ceilings that is used after compaction.

A larger share loses less but compacts more often. Tokens read again per turn in the conversations of
``tests/unit/test_prefix_share.py``, 40 turns long: 839 with a half, 754 with a third, 725 with a quarter.
"""
NEARLY_FULL = 2 / 3
"""Above this share the tail is compacted if it must be read again anyway."""
UNTOLD = 3 / 4
"""The share that turns may use if no context document covers them yet, because they would be shown nowhere else."""

Turn = tuple[TailEntry, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The turns that a prompt shows.

    ``before`` is the turn just before them, empty if there is none. ``compacted`` says that they do not begin with the
    same turn as in the last prompt. ``partly`` are the turns with a person's message that was cut.
    """

    entries: tuple[TailEntry, ...]
    before: str
    compacted: bool
    partly: frozenset[str] = frozenset()

    @property
    def begins(self) -> str:
        """The first turn that is shown."""
        return self.entries[0].turn_id if self.entries else ""


def grown(entries: Sequence[TailEntry], begins: str, told: str, limits: Limits, tokens: Tokens) -> History:
    """Return the turns from *begins* on if they are within the *limits*, else the last turns within a third of them.

    *told* is the last turn that the newest context document covers. If a single turn is larger than the limits, its end
    is shown.
    """
    turns = _Turns(entries, limits, tokens)
    start = turns.index(begins) if begins else None
    if start is not None and turns.hold(start, limits):
        return turns.shown_from(start, compacted=False)
    few = turns.start_within(limits.share(AFTER_COMPACTION))
    untold = turns.start_within(limits.share(UNTOLD), after=told)
    return turns.shown_from(min(few, untold, max(0, len(turns) - 1)), compacted=True)


def again(said: History, entries: Sequence[TailEntry], told: str, limits: Limits, tokens: Tokens) -> History:
    """Return *said*, compacted if it is above `NEARLY_FULL`.

    For a tail that the engine must read again anyway, because the text before it changed. Otherwise it would have to
    read it once more a turn or two later.
    """
    if limits.share(NEARLY_FULL).hold(said.entries, len(pairs(said.entries)), tokens):
        return said
    return grown(entries, "", told, limits, tokens)


def newest(entries: Sequence[TailEntry], limits: Limits, tokens: Tokens) -> tuple[TailEntry, ...]:
    """Return as many of the last turns of *entries* as fit the *limits*, for a conversation that is not stored here."""
    turns = _Turns(entries, limits, tokens)
    return turns.shown_from(min(turns.start_within(limits), max(0, len(turns) - 1)), compacted=True).entries


class _Turns:
    """The turns of a conversation, their messages shortened for a block with the limits *whole*.

    Only turns that may be shown are processed. If there are more messages than the block has lines, the first turn may
    be incomplete and is skipped.
    """

    def __init__(self, entries: Sequence[TailEntry], whole: Limits, tokens: Tokens) -> None:
        self._turns_of = pairs(entries)
        self._place = places(entries)
        self._first = 1 if len(entries) > whole.lines and len(self._turns_of) > 1 else 0
        self._short: dict[int, Turn] = {}
        self._last: tuple[int, Turn] | None = None
        self._whole = whole
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._turns_of)

    def index(self, turn_id: str) -> int | None:
        found = (at for at, turn in enumerate(self._turns_of) if turn[0].turn_id == turn_id and at >= self._first)
        return next(found, None)

    def hold(self, start: int, limits: Limits) -> bool:
        """Say whether the turns from *start* on are within the *limits*."""
        turns = len(self) - start
        return turns <= limits.turns and limits.hold(self._from(start), turns, self._tokens)

    def start_within(self, limits: Limits, *, after: str = "") -> int:
        """Return the earliest start from which the turns are within the *limits*, but not before the end of the turn
        *after*."""
        start, left = len(self), limits
        told = self._place(after)
        while start > self._first and not (after and self._place(self._turns_of[start - 1][0].turn_id) <= told):
            left = left.beside(self._turn(start - 1), self._tokens)
            if not left.are_kept:
                break
            start -= 1
        while start < len(self) and not self.hold(start, limits):  # counts of separate turns do not add up exactly
            start += 1
        return start

    def shown_from(self, start: int, *, compacted: bool) -> History:
        while start < len(self) - 1 and self._turns_of[start][0].speaker == ASSISTANT:
            start += 1  # an answer without its question would be unclear
        before = self._turns_of[start - 1][0].turn_id if start else ""
        shown = self._from(start)
        return History(shown, before, compacted, frozenset(self._partly(start, shown)))

    def _partly(self, start: int, shown: Sequence[TailEntry]) -> Iterator[str]:
        said = (entry for turn in self._turns_of[start:] for entry in turn)
        for one, cut in zip(said, shown, strict=True):
            if one.speaker == ASSISTANT:
                continue
            if cut.text != one.text or len(one.text) >= MAX_ENTRY_CHARACTERS or not shows_all(cut):
                yield one.turn_id

    def _from(self, start: int) -> Turn:
        """Return the messages of all turns from *start* on. The last result is cached, because it is mostly asked for
        twice."""
        if self._last is None or self._last[0] != start:
            self._last = start, tuple([entry for at in range(start, len(self)) for entry in self._turn(at)])
        return self._last[1]

    def _turn(self, at: int) -> Turn:
        known = self._short.get(at)
        if known is None:
            made = [shortened(_cut(one), self._whole, self._tokens) for one in self._turns_of[at]]
            known = self._short[at] = tuple(made)
        return known


def _cut(entry: TailEntry) -> TailEntry:
    if len(entry.text) <= MAX_ENTRY_CHARACTERS:
        return entry
    return entry.model_copy(update={"text": entry.text[:MAX_ENTRY_CHARACTERS]})
