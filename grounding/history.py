"""How far back a prompt looks into its conversation: the last turns, as whole pairs of request and reply. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def places(entries: Sequence[TailEntry]) -> Callable[[str], tuple[int, str]]:
    """Which of two turns came first, as a key for a turn's id: by where they stand in *entries*. Ids are made by
    several machines, whose clocks differ: they decide only about turns that do not stand there."""
    where = {entry.turn_id: place for place, entry in enumerate(entries) if entry.turn_id}
    last = entries[-1].turn_id if entries else ""

    def place(turn_id: str) -> tuple[int, str]:
        if turn_id in where:
            return where[turn_id], ""
        return (len(entries) if last and turn_id > last else -1), turn_id

    return place
