"""How records share the room there is. Pure: the same input gives the same records.

Each type has a budget, shaped by the frame and scaled by how much the message asks for. The best record first takes
its summary, else its micro, never its full text. What a type leaves, the others may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grounding.memory.frames.frame import LOADED, Frame
from grounding.memory.records.record import Record, Type
from grounding.memory.selection.scoring import Scored

Level = Literal["summary", "micro"]
LEVELS: tuple[Level, ...] = ("summary", "micro")
TypeBudgets = Mapping[Type, int]
"""Tokens per type."""
Costs = Callable[[Record, Level], int]
"""What a record takes at a level, with the line that it stands on."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A record that is shown, at which level, and what that takes."""

    scored: Scored
    level: Level
    tokens: int


def shared_out(base: TypeBudgets, frame: Frame, scale: float) -> dict[Type, int]:
    """The budgets of a message: *base* shaped by *frame*, times *scale*; in all never more than *base* in all times
    *scale*."""
    shaped = {of: max(base.get(of, 0), 0) * frame.share(of) for of in LOADED}
    most, asked = sum(max(base.get(of, 0), 0) for of in LOADED), sum(shaped.values())
    down = min(most / asked, 1.0) if asked else 0.0
    return {of: int(tokens * down * scale) for of, tokens in shaped.items()}


def fill(ranked: Sequence[Scored], budgets: TypeBudgets, costs: Costs) -> list[Filled]:
    """As many of *ranked* (the best first) as there is room for, in that order."""
    left = dict(budgets)
    placed: dict[str, Filled] = {}
    waiting: list[Scored] = []
    for one in ranked:
        of = one.record.type
        if taken := _taken(one, left.get(of, 0), costs):
            placed[one.record.id] = taken
            left[of] -= taken.tokens
        else:
            waiting.append(one)
    spare = sum(left.values())
    for one in waiting:
        if taken := _taken(one, spare, costs):
            placed[one.record.id] = taken
            spare -= taken.tokens
    return [placed[one.record.id] for one in ranked if one.record.id in placed]


def _taken(one: Scored, room: int, costs: Costs) -> Filled | None:
    """*one* in as much detail as *room* allows."""
    for level in LEVELS:
        tokens = costs(one.record, level)
        if tokens <= room:
            return Filled(one, level, tokens)
    return None
