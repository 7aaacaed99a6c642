"""Whether the records that a conversation was given serve its next message, too. Pure.

What a message would bring is looked up for each; that is cheap. It is given the records of the message before, in the
same bytes, as long as these cover it: the best one that it would bring is among them, and at least `COVERED_SHARE` of
all that it would bring, by how likely each bears on it. The share is the similarity of message and context. A frame
that one word brings, and the next message leaves again, changes nothing by itself: they are chosen anew for a frame
that puts something first which is not shown.

Chosen anew means that what the message brings is added, and takes the place of what was of use longest ago: up to
`CARRIED` records in all stay in sight, so that who comes back to a subject finds it there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grounding.memory.frames.choosing import Chosen
from grounding.memory.records.record import Record, State
from grounding.memory.selection.kept import Kept, KeptRecord
from grounding.memory.selection.relevance import probability
from grounding.memory.selection.scoring import Scored
from grounding.run_context import SelectionReason

COVERED_SHARE = 0.25
"""Measured on 300 questions about five long chats (locomo-dev), each after each other one of its chat, single things
said standing in for records: of the questions that needed what was not shown 1.7 % were given the same records again,
of those with an answer in common 48 %. At .5 that is 0.7 and 26 %; without the rule about the best one 13 and 65 % at
.25."""
CARRIED = 10
"""So many records stay in sight. Measured by ``python -m bench.refresh`` on chats of people with each other and with an
assistant: with none that stay records were chosen anew in .50 and .44 of the turns, with up to 10 in .22 and .28, with
up to 12 in .20 and .24; of those shown .74 and .83, .36 and .57, .33 and .52 bore on the message at hand."""


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
    """Why the records are to be selected anew; ``reused`` where they are not, and ``aside`` where they are neither
    shown, as nothing bears on the message, which has a subject of its own.

    *read* are those of *kept* that there still are, *ranked* what the message would bring in its frame, the best first,
    *said* the ids of those of it that the prompt says anyway, *pinned* what stands in every prompt; *thin* is a message
    that says too little to be about anything of its own.
    """
    if kept is None:
        return "cold"
    if chosen.acts:
        return "acting"
    if _has_changed(kept, read):
        return "changed"
    known, held = {one.id for one in kept.records}, {one.id for one in pinned}
    if held != set(kept.pinned):
        return "changed"
    if not ranked:
        return "reused" if thin or not known - held else "aside"
    known |= set(said) | held
    if chosen.reason != "nothing_asked" and chosen.frame.name != kept.frame and ranked[0].record.id not in known:
        return "frame"
    best = max(ranked, key=lambda one: one.relevance)
    if best.record.id not in known or covered(ranked, known) < COVERED_SHARE:
        return "topic"
    return "reused"


def carried(
    kept: Kept | None, read: Sequence[Record], brought: Collection[str], room: int
) -> list[tuple[Record, KeptRecord]]:
    """At most *room* of the records that were shown and are not among those that a message *brought*, what was of use
    last first; none that another took the place of."""
    by_id = {one.id: one for one in read if one.state is not State.SUPERSEDED}
    left = [(by_id[one.id], one) for one in (kept.records if kept else ()) if one.id in by_id and one.id not in brought]
    return left[: max(room, 0)]


def _has_changed(kept: Kept, read: Sequence[Record]) -> bool:
    """Whether one is gone, or another took its place."""
    before = {one.id: one.state for one in kept.records}
    if len(read) != len(before):
        return True
    return any(one.state is State.SUPERSEDED and before[one.id] != State.SUPERSEDED.value for one in read)
