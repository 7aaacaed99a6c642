"""What a question is searched with: its own words and vectors, and a little of what was asked before.

"And what about the window?" names its subject only two turns above. So the words and vectors of the last turns go into
the query, with a weight that falls with the number of terms that the message has itself: a message that says what it is
about is hardly moved, even if it changes the subject; a fragment is carried by what came before. The rule and its three
figures were chosen on conversations that were not scored with them: docs/decisions/07.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from grounding.retrieval.bm25 import SparseVector, encode_query, term_set
from grounding.retrieval.embedding import DeepEmbedder, Embedder, EmbedderUnavailable, Vector

SHORT_QUERY_CHARACTERS = 400
"""A longer question says itself what it is about."""
QUERY_MAX_CHARACTERS = 4000
"""Longer questions are searched with their beginning and end."""

EARLIER_TURNS = 2
"""So many earlier turns of people are used. More of them changed nothing that was measured."""
EARLIER_MAX_CHARACTERS = 400
"""So much of the beginning of such a turn is used: whoever pasted a log there does not ask about all of it."""
LARGEST_WEIGHT = 0.4
"""The largest weight of the last turn; the message's own terms have 1."""
WEIGHT_OF_ALL_TERMS = 0.8
"""The last turn's weight is this divided by the message's different terms, from three terms on."""
OLDER = 0.5
"""The weight of a turn, in parts of that of the turn after it."""
FRAGMENT_TERMS = 2
"""A message of at most so many terms is a fragment to whoever reads it whole, as a cross-encoder does."""


def shorten(query: str) -> str:
    """Return *query*, or its beginning and end if it is longer than `QUERY_MAX_CHARACTERS`."""
    if len(query) <= QUERY_MAX_CHARACTERS:
        return query
    half = QUERY_MAX_CHARACTERS // 2
    return f"{query[:half]}\n{query[-half:]}"


async def query_vectors(
    embedder: Embedder, query: str, earlier: Sequence[str] = (), *, words_alone: bool = False
) -> tuple[Vector | None, SparseVector]:
    """Return the dense and the sparse vector of *query* after *earlier* turns (the oldest first).

    If the question cannot be embedded, the dense one is None if *words_alone*; else `EmbedderUnavailable` is raised.
    """
    sparse, own_terms = await encode_question(query), len(term_set(query))
    turns = used_turns(query, earlier)
    if turns:
        sparse = mix_terms(sparse, [encode_query(turn) for turn in turns], own_terms)
    try:
        own, *turns_before = await embedder.embed_queries([query, *turns])
    except EmbedderUnavailable:
        if not words_alone:
            raise
        return None, sparse
    return mix_vectors(own, turns_before, own_terms), sparse


async def deep_query_vector(model: DeepEmbedder, query: str, earlier: Sequence[str]) -> Vector | None:
    """Return the deeper vector of *query* after *earlier* turns; None if the model cannot read the question, because
    else the turns alone would decide what is found. Raises `EmbedderUnavailable`."""
    own, *turns = await model.embed_queries([query, *used_turns(query, earlier)])
    return mix_vectors(own, turns, len(term_set(query))) if any(own) else None


async def encode_question(query: str) -> SparseVector:
    """Return `encode_query` of *query*; a long one is encoded in a thread."""
    if len(query) <= SHORT_QUERY_CHARACTERS:
        return encode_query(query)
    return await asyncio.to_thread(encode_query, query)


def used_turns(query: str, earlier: Sequence[str]) -> tuple[str, ...]:
    """Return the `recent` ones of *earlier* turns, or none if *query* is long."""
    return recent(earlier) if len(query) <= SHORT_QUERY_CHARACTERS else ()


def recent(turns: Sequence[str]) -> tuple[str, ...]:
    """Return the beginnings of those of *turns* (what people said, the oldest first) that a search uses."""
    spoken = [turn for turn in turns if turn.strip()]
    return tuple(turn[:EARLIER_MAX_CHARACTERS] for turn in spoken[-EARLIER_TURNS:])


def spell_out(query: str, turns: Sequence[str], own_terms: int, fragment: int = FRAGMENT_TERMS) -> str:
    """Return *query* after the `recent` ones of *turns* if it has at most *fragment* different terms, else alone."""
    return "\n".join((*recent(turns), query)) if own_terms <= fragment else query


def weights(own_terms: int, turns: int) -> list[float]:
    """Return the weight of each of so many *turns*, the oldest first, beside a message of *own_terms* different
    terms."""
    last = min(LARGEST_WEIGHT, WEIGHT_OF_ALL_TERMS / max(own_terms, 1))
    return [last * OLDER**age for age in reversed(range(turns))]


def mix_terms(own: SparseVector, earlier: Sequence[SparseVector], own_terms: int) -> SparseVector:
    """Return the terms of a message with *own_terms* different ones, unchanged, and those that only *earlier* turns
    (the oldest first) have, each once and with the weight of the last turn that has it. The index adds how rare a term
    is."""
    mixed: dict[int, float] = {}
    for weight, turn in zip(weights(own_terms, len(earlier)), earlier, strict=True):
        mixed |= {index: weight * min(value, 1.0) for index, value in zip(turn.indices, turn.values, strict=True)}
    mixed |= zip(own.indices, own.values, strict=True)
    ordered = sorted(mixed.items())
    return SparseVector(tuple(index for index, _ in ordered), tuple(value for _, value in ordered))


def mix_vectors(own: Vector, earlier: Sequence[Vector], own_terms: int) -> Vector:
    """Return the weighted sum, as a unit vector, of the unit vectors of a message with *own_terms* different terms and
    of *earlier* turns (the oldest first); zeros if all are zeros."""
    if not earlier:
        return own
    mixed = own
    for weight, turn in zip(weights(own_terms, len(earlier)), earlier, strict=True):
        mixed = [value + weight * other for value, other in zip(mixed, turn, strict=True)]
    length = math.hypot(*mixed)
    return [value / length for value in mixed] if length > 0 else mixed
