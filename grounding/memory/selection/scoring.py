"""Score relevant records against each other. Pure.

The score is the sum of research note 009 (context management): similarity .50, type .15, recency .15 (a half-life of 30
days), outcome .10, usage .05, confidence .05. It only orders records that passed the relevance floor: no boost lifts a
record over the floor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from grounding.memory.frames.frame import Frame
from grounding.memory.records.port import Found
from grounding.memory.records.record import Record, State

HALF_LIFE_DAYS = 30.0
OUTCOMES = {"success": 1.2, "partial": 1.0, "pending": 0.9, "failure": 0.8}
"""The figures of the note; 1 for a record without an outcome."""
LARGEST_USAGE = 1.5
STANDING: Mapping[State, float] = {
    State.CORE: 0.2,
    State.CONFIRMED: 0.1,
    State.EFFECTIVE: 0.2,
    State.INEFFECTIVE: -0.3,
    State.SUPERSEDED: -0.5,
    State.DONE: -0.3,
    State.CANCELLED: -0.5,
    State.ARCHIVED: -0.1,
}
"""Added to the priority of the type, by state: core facts and effective procedures come first."""
_LEAST_STEP = 1e-6


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of each part; see the settings ``RECORD_WEIGHT_…``."""

    similarity: float = 0.50
    type: float = 0.15
    recency: float = 0.15
    outcome: float = 0.10
    usage: float = 0.05
    confidence: float = 0.05


@dataclass(frozen=True, slots=True)
class Scored:
    """A record above the floor: its score, and the log-odds that it is relevant to the message."""

    record: Record
    score: float
    similarity: float
    relevance: float


def score(found: Found, frame: Frame, weights: Weights, today: datetime) -> float:
    """Return the score of one record."""
    record = found.record
    priority = frame.priority(record.type) + STANDING.get(record.state, 0.0)
    return (
        weights.similarity * min(max(found.similarity, 0.0), 1.0)
        + weights.type * priority
        + weights.recency * recency(record.changed_at or record.created_at, today)
        + weights.outcome * OUTCOMES.get(record.outcome or "", 1.0)
        + weights.usage * usage(record.activations)
        + weights.confidence * record.confidence
    )


def recency(at: str, today: datetime) -> float:
    """Return 1 for today, halved every `HALF_LIFE_DAYS`; 0 if the time cannot be read."""
    try:
        made = datetime.fromisoformat(at)
    except ValueError:
        return 0.0
    if made.tzinfo is None:
        made = made.replace(tzinfo=UTC)
    days = max((today - made).total_seconds() / 86_400, 0.0)
    return math.exp(-math.log(2) / HALF_LIFE_DAYS * days)


def usage(activations: int) -> float:
    """Return 1 for at most one activation, growing to `LARGEST_USAGE`."""
    return min(1.0 + math.log10(activations) * 0.1, LARGEST_USAGE) if activations > 0 else 1.0


def ranked(
    found: Sequence[tuple[Found, float]], frame: Frame, weights: Weights, minimum: float, today: datetime
) -> list[Scored]:
    """Return those of *found* (with their relevance) that reach *minimum*, the best first; ties go by id.

    A superseded record ranks below its successor, if that is among them.
    """
    kept = {one.record.id: (one, relevance) for one, relevance in found if relevance >= minimum}
    own = {name: score(one, frame, weights, today) for name, (one, _) in kept.items()}
    scored = [
        Scored(one.record, _below_successors(name, own, kept), one.similarity, relevance)
        for name, (one, relevance) in kept.items()
    ]
    return sorted(scored, key=lambda one: (-one.score, one.record.id))


def _below_successors(name: str, own: Mapping[str, float], kept: Mapping[str, tuple[Found, float]]) -> float:
    """Return the score of *name*, reduced below the scores of all its successors."""
    worth, steps, visited = own[name], 0, {name}
    successor = kept[name][0].record.superseded_by
    while successor in kept and successor not in visited:
        visited.add(successor)
        steps += 1
        worth = min(worth, own[successor] - steps * _LEAST_STEP)
        successor = kept[successor][0].record.superseded_by
    return worth
