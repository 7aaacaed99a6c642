"""Divide the token budget among the records. Pure and deterministic.

Each type has a budget, shaped by the frame and scaled by the demands of the message. The best record comes first. A
record is shown as its summary, or as its micro if the summary does not fit, never in full. Types share what others
leave.
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
"""Returns the tokens that a record takes at a level, including the rest of its line."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A record to show, with its level and its tokens."""

    scored: Scored
    level: Level
    tokens: int


def shared_out(base: TypeBudgets, frame: Frame, scale: float) -> dict[Type, int]:
    """Return the budgets for a message: *base* shaped by *frame*, times *scale*.

    The total is never more than the total of *base* times *scale*.
    """
    shaped = {of: max(base.get(of, 0), 0) * frame.share(of) for of in LOADED}
    most, asked = sum(max(base.get(of, 0), 0) for of in LOADED), sum(shaped.values())
    down = min(most / asked, 1.0) if asked else 0.0
    return {of: int(tokens * down * scale) for of, tokens in shaped.items()}


def fill(ranked: Sequence[Scored], budgets: TypeBudgets, costs: Costs) -> list[Filled]:
    """Return as many of *ranked* (the best first) as fit, in that order."""
    left = dict(budgets)
    placed: dict[str, Filled] = {}
    waiting: list[Scored] = []
    for one in ranked:
        of = one.record.type
        if taken := _fit(one, left.get(of, 0), costs):
            placed[one.record.id] = taken
            left[of] -= taken.tokens
        else:
            waiting.append(one)
    spare = sum(left.values())
    for one in waiting:
        if taken := _fit(one, spare, costs):
            placed[one.record.id] = taken
            spare -= taken.tokens
    return [placed[one.record.id] for one in ranked if one.record.id in placed]


def _fit(one: Scored, room: int, costs: Costs) -> Filled | None:
    """Return *one* at the most detailed level that fits into *room* tokens."""
    for level in LEVELS:
        tokens = costs(one.record, level)
        if tokens <= room:
            return Filled(one, level, tokens)
    return None
