"""Decide whether the records of the last message also serve the next one. Pure.

Every message searches for its own records, which is cheap. The prompt nevertheless repeats the last records, in the
same bytes, if they cover the message: the best record found is among them, and so is at least `COVERED_SHARE` of all
that was found, weighted by the probability of relevance. A new frame alone changes nothing, because one word can switch
the frame for a single message. Records are selected anew for a frame only if its first record is not shown.

Selecting anew adds the records found and drops those that were useful longest ago. Up to `CARRIED` records stay in the
prompt, so that a return to an earlier subject finds its records there.
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
"""Measured on 300 questions about five long chats (locomo-dev), each after each other question of its chat, with single
statements as records. Of the questions that needed records not shown, 1.7 % were given the old ones; of those with an
answer in common, 48 %. At .5 these are 0.7 and 26 %; at .25 without the rule about the best record 13 and 65 %."""
CARRIED = 10
"""How many records stay in the prompt.

Measured by ``python -m bench.refresh`` on chats of people with each other and with an assistant. With 0 carried records
the selection changed in .50 and .44 of the turns, with up to 10 in .22 and .28, with up to 12 in .20 and .24. Of the
records shown .74 and .83, .36 and .57, .33 and .52 were relevant to the message at hand.
"""


def covered(ranked: Sequence[Scored], known: Collection[str]) -> float:
    """Return the share (0 to 1) of the relevance of *ranked* that the ids *known* hold; 1 if nothing is relevant."""
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
    """Return why the records must be selected anew.

    ``reused`` means that the old ones serve. ``aside`` means that no records are shown, because none is relevant to a
    message with a subject of its own.

    *read* are the records of *kept* that still exist. *ranked* are the records found, the best first. *said* are the
    ids of those that the prompt says anyway. *pinned* are the records of every prompt. *thin* means that the message is
    too short to have a subject of its own.
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
    """Return at most *room* records that were shown and that the message has not *brought* again.

    The most recently useful come first. Superseded records are left out.
    """
    by_id = {one.id: one for one in read if one.state is not State.SUPERSEDED}
    left = [(by_id[one.id], one) for one in (kept.records if kept else ()) if one.id in by_id and one.id not in brought]
    return left[: max(room, 0)]


def _has_changed(kept: Kept, read: Sequence[Record]) -> bool:
    """Say whether a record was deleted or superseded."""
    before = {one.id: one.state for one in kept.records}
    if len(read) != len(before):
        return True
    return any(one.state is State.SUPERSEDED and before[one.id] != State.SUPERSEDED.value for one in read)
