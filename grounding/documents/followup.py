"""What a message is searched with inside a conversation: its own words, and a little of what was asked before. Pure.

"And what about the window?" names its subject only two turns above. The words and vectors of the last turns go into the
query with a weight that falls with the number of terms that the message has itself: one that says what it is about is
hardly moved, also where it changes the subject; a fragment is carried by what came before.

The rule and its three figures were chosen on conversations that were not scored with them: docs/decisions/07.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from grounding.documents.embedding import Vector
from grounding.documents.sparse import SparseVector

EARLIER_TURNS = 2
"""Turns of people that are looked back at. More of them changed nothing that was measured."""
EARLIER_MAX_CHARACTERS = 400
"""What of such a turn is used: its beginning. Whoever pasted a log there does not ask about all of it."""
LARGEST_WEIGHT = 0.4
"""Of the last turn, next to a message whose own terms have 1."""
WEIGHT_OF_ALL_TERMS = 0.8
"""The last turn's weight is this divided by the message's different terms, from three terms on."""
OLDER = 0.5
"""The weight of a turn, in parts of that of the turn after it."""

FRAGMENT_TERMS = 2
"""Up to so many terms a message is a fragment to whoever reads it whole, as a cross-encoder does."""


def recent(turns: Sequence[str]) -> tuple[str, ...]:
    """Those of *turns* (what people said, the oldest first) that a search uses, each with its beginning."""
    spoken = [turn for turn in turns if turn.strip()]
    return tuple(turn[:EARLIER_MAX_CHARACTERS] for turn in spoken[-EARLIER_TURNS:])


def spelled_out(query: str, turns: Sequence[str], own_terms: int, fragment: int = FRAGMENT_TERMS) -> str:
    """*query* behind the `recent` ones of *turns* if it has at most *fragment* different terms, else alone."""
    return "\n".join((*recent(turns), query)) if own_terms <= fragment else query


def weights(own_terms: int, turns: int) -> list[float]:
    """How much each of as many *turns*, the oldest first, counts next to a message of *own_terms* different terms."""
    last = min(LARGEST_WEIGHT, WEIGHT_OF_ALL_TERMS / max(own_terms, 1))
    return [last * OLDER**age for age in reversed(range(turns))]


def mix_terms(own: SparseVector, earlier: Sequence[SparseVector], own_terms: int) -> SparseVector:
    """The terms of a message that has *own_terms* different ones, as they are, and those of *earlier* turns (the oldest
    first) that it does not have, each once and with the weight of the last turn that has it. How rare a term is is for
    the index to say."""
    mixed: dict[int, float] = {}
    for weight, turn in zip(weights(own_terms, len(earlier)), earlier, strict=True):
        mixed |= {index: weight * min(value, 1.0) for index, value in zip(turn.indices, turn.values, strict=True)}
    mixed |= zip(own.indices, own.values, strict=True)
    ordered = sorted(mixed.items())
    return SparseVector(tuple(index for index, _ in ordered), tuple(value for _, value in ordered))


def mix_vectors(own: Vector, earlier: Sequence[Vector], own_terms: int) -> Vector:
    """The weighted sum, as a unit vector, of the unit vectors of a message that has *own_terms* different terms and of
    *earlier* turns (the oldest first); zeros where all are zeros."""
    import numpy as np

    # By numpy's double precision, which rounds as Python's: to the last bit the same, for a third of the time.
    mixed = np.array(own, dtype=np.float64)
    for weight, turn in zip(weights(own_terms, len(earlier)), earlier, strict=True):
        mixed += weight * np.array(turn, dtype=np.float64)
    length = math.sqrt(math.fsum((mixed * mixed).tolist()))
    unit: Vector = (mixed / length if length > 0 else mixed).tolist()
    return unit
