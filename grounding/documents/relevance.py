"""How relevant a passage is to a question, on a scale on which a floor can be set. Pure.

A fused rank says which passage is best, never whether it is any good: the best of nothing has rank 1.
The scale here is the dense cosine plus a share of the question's terms that the passage contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grounding.documents.index import Hit
from grounding.documents.sparse import coverage


@dataclass(frozen=True, slots=True)
class Floor:
    """Keeps hits with ``dense_weight`` × cosine + ``coverage_weight`` × coverage ≥ ``minimum``."""

    minimum: float
    dense_weight: float = 1.0
    coverage_weight: float = 0.3

    def relevance(self, query: str, hit: Hit) -> float:
        """*hit* must carry its arms; one that the dense arm did not offer counts as cosine 0."""
        cosine = hit.dense.score if hit.dense is not None else 0.0
        passage = hit.passage
        text = "\n".join((passage.title, passage.heading, passage.lead, passage.text))
        return self.dense_weight * max(cosine, 0.0) + self.coverage_weight * coverage(query, text)

    def keep(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Those of *hits* that reach the floor, in their order."""
        return [hit for hit in hits if self.relevance(query, hit) >= self.minimum]


CALIBRATED: dict[str, Floor] = {
    # Three development corpora against 500 questions and small talk that none of them answers: AUC .90 on a
    # broad corpus (mtrag-human), 1.00 on a narrow one (cranfield). At .45 at least 92 % of the answerable
    # questions keep a passage, and 55 to 95 % of the others keep none.
    "wordllama-l2-supercat": Floor(0.45),
}
"""Floor of each embedding model whose cosines were measured."""

UNCALIBRATED = Floor(0.34, dense_weight=0.0, coverage_weight=1.0)
"""For models whose cosines are unknown: a third of the question's terms must occur in the passage."""


def floor_for(model: str) -> Floor:
    """The floor for passages embedded with *model*."""
    return CALIBRATED.get(model, UNCALIBRATED)
