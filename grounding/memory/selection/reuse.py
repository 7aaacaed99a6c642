"""Whether the records that a conversation was given serve its next message, too. Pure.

What a message would bring is looked up for each; that is cheap. It is given the records of the message before, in the
same bytes, as long as these cover it: the best one that it would bring is among them, and at least `COVERED_SHARE` of
all that it would bring, by how likely each bears on it. The share is the similarity of message and context.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grounding.memory.frames.choosing import Chosen
from grounding.memory.records.record import Record, State
from grounding.memory.selection.kept import Kept
from grounding.memory.selection.relevance import probability
from grounding.memory.selection.scoring import Scored
from grounding.run_context import SelectionReason

COVERED_SHARE = 0.25
"""Measured on 300 questions about five long chats (locomo-dev), each after each other one of its chat, single things
said standing in for records: of the questions that needed what was not shown 1.7 % were given the same records again,
of those with an answer in common 48 %. At .5 that is 0.7 and 26 %; without the rule about the best one 13 and 65 % at
.25."""


def covered(ranked: Sequence[Scored], known: Collection[str]) -> float:
    """The share (0 to 1) of what *ranked* bears on a message that the ids *known* hold; 1 where nothing bears on it."""
    weights = {one.record.id: probability(one.relevance) for one in ranked}
    whole = sum(weights.values())
    return sum(weight for name, weight in weights.items() if name in known) / whole if whole else 1.0


def reason(
    kept: Kept | None,
    read: Sequence[Record],
    chosen: Chosen,
    ranked: Sequence[Scored],
    said: Collection[str],
    pinned: Collection[Record] = (),
    *,
    thin: bool,
) -> SelectionReason:
    """Why the records are to be selected anew, or ``reused``.

    *read* are those of *kept* that there still are, *ranked* what the message would bring, *said* the ids of those of
    it that the prompt says anyway, *pinned* what stands in every prompt; *thin* is a message that says too little to be
    about anything of its own.
    """
    if kept is None:
        return "cold"
    if chosen.acts:
        return "acting"
    if chosen.reason != "nothing_asked" and chosen.frame.name != kept.frame:
        return "frame"
    if _has_changed(kept, read):
        return "changed"
    known, held = {one.id for one in kept.records}, {one.id for one in pinned}
    if held != set(kept.pinned):
        return "changed"
    if not ranked:
        return "reused" if thin or not known - held else "topic"
    known |= set(said)
    best = max(ranked, key=lambda one: one.relevance)
    if best.record.id not in known or covered(ranked, known) < COVERED_SHARE:
        return "topic"
    return "reused"


def _has_changed(kept: Kept, read: Sequence[Record]) -> bool:
    """Whether one is gone, or another took its place."""
    before = {one.id: one.state for one in kept.records}
    if len(read) != len(before):
        return True
    return any(one.state is State.SUPERSEDED and before[one.id] != State.SUPERSEDED.value for one in read)
