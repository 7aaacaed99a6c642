"""Estimate how likely a record is relevant to a message, on a scale that allows a fixed threshold. Pure.

The estimate is the log-odds, at even prior odds, that the record is one of those that answer the message. It is a
logistic regression on the cosine, the share of the message's terms that the record contains, and its BM25 score in
units of the largest possible IDF. The coefficients come from ``python -m bench.record_floor``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grounding.documents.relevance import largest_idf
from grounding.documents.sparse import coverage
from grounding.memory.records.port import Found


@dataclass(frozen=True, slots=True)
class Floor:
    """The coefficients of one embedding model, and ``minimum``: records with lower log-odds are never shown."""

    minimum: float
    dense: float
    covered: float
    sparse: float
    constant: float

    def relevance(self, query: str, found: Found, count: int) -> float:
        """Return the log-odds that *found*, one of *count* records, is relevant to *query*."""
        text = f"{found.record.text}\n{found.record.reason}" if found.record.reason else found.record.text
        return (
            self.constant
            + self.dense * max(found.similarity, 0.0)
            + self.covered * coverage(query, text)
            + self.sparse * max(found.matched, 0.0) / largest_idf(max(count, 1))
        )


def probability(relevance: float) -> float:
    """Return the probability for the log-odds *relevance*."""
    return 1.0 / (1.0 + math.exp(-max(min(relevance, 500.0), -500.0)))


_FLOORS = {
    # Measured on single statements of five long chats (locomo-dev) as records, and 1,263 messages that none of them
    # answers: AUC .91.
    "wordllama-l2-supercat": Floor(-0.5, dense=8.3, covered=2.55, sparse=1.93, constant=-4.97),
    # The same data: AUC .92.
    "all-minilm-l6-v2-8bit": Floor(-0.5, dense=10.19, covered=2.3, sparse=1.94, constant=-5.4),
}
_BY_WORDS = Floor(-0.5, dense=0.0, covered=5.0, sparse=1.9, constant=-3.6)
"""For models whose cosines were not measured, words alone decide."""


def floor_for(model: str) -> Floor:
    """Return the floor for records that were embedded with *model*."""
    return _FLOORS.get(model, _BY_WORDS)


def fitting(floor: Floor, found: Sequence[Found]) -> Floor:
    """Return *floor*, or the word-only floor if *found* has no cosines: without them nothing would pass *floor*."""
    return floor if any(one.similarity for one in found) else replace(_BY_WORDS, minimum=floor.minimum)
