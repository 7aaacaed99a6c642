"""Which turns of a conversation a prompt shows: they grow at their end, and are cut in one step, never slid. Pure.

A prefix that an engine has read stays read for as long as nothing in it moves. So the tail shows the turns from one
on, and goes on from the same one in the next prompt, until they are more than its ceilings allow. Then it is compacted:
what is left takes about a third, so that it can grow again for a while.
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
"""The share of the ceilings that is used then. Keeping more loses less and compacts more often: of the conversations of
``tests/unit/test_prefix_share.py``, 40 turns long, with half 839 tokens a turn are read anew, with a third 754, with a
quarter 725."""
NEARLY_FULL = 2 / 3
"""The share beyond which the tail is compacted when it has to be read anew anyway."""
UNTOLD = 3 / 4
"""The share that may be used for turns that no context document tells of yet: they would be shown nowhere."""

Turn = tuple[TailEntry, ...]


@dataclass(frozen=True, slots=True)
class History:
    """What is shown. ``before`` is the turn that came just before it, empty where none did; ``compacted`` whether it
    does not go on from where the last prompt's began; ``partly`` the turns in which a person said more than is shown:
    the rest of a long message is told elsewhere, or nowhere."""

    entries: tuple[TailEntry, ...]
    before: str
    compacted: bool
    partly: frozenset[str] = frozenset()

    @property
    def begins(self) -> str:
        """The first turn that is shown."""
        return self.entries[0].turn_id if self.entries else ""


def grown(entries: Sequence[TailEntry], begins: str, told: str, limits: Limits, tokens: Tokens) -> History:
    """The turns from *begins* on, if they keep the *limits*; else the last ones of *entries*, whole, in about a third
    of them.

    *told* is the last turn that the newest context document was made of. A turn that alone is larger is shown as far
    as there is room, its end.
    """
    turns = _Turns(entries, limits, tokens)
    start = turns.index(begins) if begins else None
    if start is not None and turns.hold(start, limits):
        return turns.shown_from(start, compacted=False)
    few = turns.start_within(limits.share(AFTER_COMPACTION))
    untold = turns.start_within(limits.share(UNTOLD), after=told)
    return turns.shown_from(min(few, untold, max(0, len(turns) - 1)), compacted=True)


def again(said: History, entries: Sequence[TailEntry], told: str, limits: Limits, tokens: Tokens) -> History:
    """*said*, compacted where it is `NEARLY_FULL`: for when an engine reads it anew anyway, as what stands in front of
    it is another. Else that would come to pass once more a turn or two later."""
    if limits.share(NEARLY_FULL).hold(said.entries, len(pairs(said.entries)), tokens):
        return said
    return grown(entries, "", told, limits, tokens)


def newest(entries: Sequence[TailEntry], limits: Limits, tokens: Tokens) -> tuple[TailEntry, ...]:
    """As many of the last turns of *entries* as keep the *limits*: of a conversation that is not kept here."""
    turns = _Turns(entries, limits, tokens)
    return turns.shown_from(min(turns.start_within(limits), max(0, len(turns) - 1)), compacted=True).entries


class _Turns:
    """The turns of a conversation, each message of them as long as it is shown in a block of the limits *whole*.
    Only what may be shown is looked at. Of more messages than a block has lines the first may be half of a turn."""

    def __init__(self, entries: Sequence[TailEntry], whole: Limits, tokens: Tokens) -> None:
        self._said = pairs(entries)
        self._place = places(entries)
        self._first = 1 if len(entries) > whole.lines and len(self._said) > 1 else 0
        self._short: dict[int, Turn] = {}
        self._last: tuple[int, Turn] | None = None
        self._whole = whole
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._said)

    def index(self, turn_id: str) -> int | None:
        found = (at for at, turn in enumerate(self._said) if turn[0].turn_id == turn_id and at >= self._first)
        return next(found, None)

    def hold(self, start: int, limits: Limits) -> bool:
        """Whether the turns from *start* on keep the *limits*."""
        turns = len(self) - start
        return turns <= limits.turns and limits.hold(self._from(start), turns, self._tokens)

    def start_within(self, limits: Limits, *, after: str = "") -> int:
        """From where on they keep the *limits*; only those behind the turn *after*, where it is given."""
        start, left = len(self), limits
        told = self._place(after)
        while start > self._first and not (after and self._place(self._said[start - 1][0].turn_id) <= told):
            left = left.beside(self._turn(start - 1), self._tokens)
            if not left.are_kept:
                break
            start -= 1
        while start < len(self) and not self.hold(start, limits):  # tokens at joints may split
            start += 1
        return start

    def shown_from(self, start: int, *, compacted: bool) -> History:
        while start < len(self) - 1 and self._said[start][0].speaker == ASSISTANT:
            start += 1  # nobody could tell what it answers
        before = self._said[start - 1][0].turn_id if start else ""
        shown = self._from(start)
        return History(shown, before, compacted, frozenset(self._partly(start, shown)))

    def _partly(self, start: int, shown: Sequence[TailEntry]) -> Iterator[str]:
        said = (entry for turn in self._said[start:] for entry in turn)
        for one, cut in zip(said, shown, strict=True):
            if one.speaker == ASSISTANT:
                continue
            if cut.text != one.text or len(one.text) >= MAX_ENTRY_CHARACTERS or not shows_all(cut):
                yield one.turn_id

    def _from(self, start: int) -> Turn:
        """The messages of all turns from *start* on; mostly it is asked twice for the same."""
        if self._last is None or self._last[0] != start:
            self._last = start, tuple([entry for at in range(start, len(self)) for entry in self._turn(at)])
        return self._last[1]

    def _turn(self, at: int) -> Turn:
        known = self._short.get(at)
        if known is None:
            made = [shortened(_cut(one), self._whole, self._tokens) for one in self._said[at]]
            known = self._short[at] = tuple(made)
        return known


def _cut(entry: TailEntry) -> TailEntry:
    if len(entry.text) <= MAX_ENTRY_CHARACTERS:
        return entry
    return entry.model_copy(update={"text": entry.text[:MAX_ENTRY_CHARACTERS]})
