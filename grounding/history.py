"""How far back a prompt looks into its conversation: the last turns, as whole pairs of request and reply. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from grounding.asked import ASSISTANT
from grounding.run_context import TailEntry


def pairs(entries: Sequence[TailEntry]) -> list[tuple[TailEntry, ...]]:
    """*entries*, the oldest first, by turns: what was said, by one or several, and the reply to it.

    Messages of one turn have its id; where they have none (a history that a caller gave) whoever speaks after the
    assistant begins the next pair.
    """
    turns: list[list[TailEntry]] = []
    for entry in entries:
        if turns and _goes_on(turns[-1][-1], entry):
            turns[-1].append(entry)
        else:
            turns.append([entry])
    return [tuple(turn) for turn in turns]


def last_turns(entries: Sequence[TailEntry], most: int) -> tuple[TailEntry, ...]:
    """The entries of the last *most* turns, each whole: a reply whose request is not among *entries* any more is left
    out, too, as nobody could tell what it answers, unless there is nothing else."""
    turns = pairs(entries)
    if len(turns) > 1 and turns[0][0].speaker == ASSISTANT:
        del turns[0]
    return tuple(entry for turn in turns[-most:] for entry in turn)


def _goes_on(last: TailEntry, entry: TailEntry) -> bool:
    if last.turn_id or entry.turn_id:
        return last.turn_id == entry.turn_id
    return last.speaker != ASSISTANT or entry.speaker == ASSISTANT
