"""How relevant a passage is to a question, on a scale on which a floor can be set. Pure.

A fused rank says which passage is best, never whether it is any good: the best of nothing has rank 1.
The scale here is the dense cosine, plus a share of the question's terms that the passage contains, plus
the passage's BM25 score in units of the rarest term that the corpus could have (so that the scale does
not move with the corpus's size).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grounding.documents.index import Hit, Kind
from grounding.documents.sparse import coverage


@dataclass(frozen=True, slots=True)
class Floor:
    """Keeps hits with ``dense_weight`` × cosine + ``coverage_weight`` × coverage + ``sparse_weight`` × BM25 /
    largest IDF ≥ ``minimum``."""

    minimum: float
    dense_weight: float = 1.0
    coverage_weight: float = 0.3
    sparse_weight: float = 0.1

    def relevance(self, query: str, hit: Hit, corpus_size: int) -> float:
        """*hit* must carry its arms; an arm that did not offer it counts as 0. *corpus_size* is the number of
        passages that were searched."""
        cosine = max(hit.dense.score, 0.0) if hit.dense is not None else 0.0
        rare = hit.sparse.score / largest_idf(corpus_size) if hit.sparse is not None else 0.0
        passage = hit.passage
        text = "\n".join((passage.title, passage.heading, passage.lead, passage.text))
        return self.dense_weight * cosine + self.coverage_weight * coverage(query, text) + self.sparse_weight * rare

    def keep(self, query: str, hits: Sequence[Hit], corpus_size: int) -> list[Hit]:
        """Those of *hits* that reach the floor, in their order."""
        return [hit for hit in hits if self.relevance(query, hit, corpus_size) >= self.minimum]


def largest_idf(corpus_size: int) -> float:
    """The inverse document frequency of a term in none of *corpus_size* passages, by Qdrant's formula
    ln((N - n + 0.5) / (n + 0.5) + 1)."""
    return math.log((corpus_size + 0.5) / 0.5 + 1)


_DOCUMENTS: dict[str, Floor] = {
    # Four corpora (74 to 15,000 chunks) against 400 general questions and small talk that none of them
    # answers: AUC .89 to .91 on a broad corpus (mtrag-human), .95 to 1.00 on the others. At .45 at least 98 % of
    # the answerable questions keep a passage; of the others 12 to 21 % do on narrow corpora, 74 to 84 % on
    # broad ones. That side is left generous: the strategy has already decided that documents are wanted.
    "wordllama-l2-supercat": Floor(0.45),
}
_TURNS: dict[str, Floor] = {
    # Five long chats (locomo-dev): 99 % of the right turns among the first four are kept, and an unrelated
    # message recalls 0.4 turns instead of four.
    "wordllama-l2-supercat": Floor(0.5),
}
_UNCALIBRATED = Floor(0.25, dense_weight=0.0)
"""For models whose cosines nobody measured: the words alone decide."""


def floor_for(model: str, kind: Kind) -> Floor:
    """The floor for passages of *kind* that were embedded with *model*."""
    return (_DOCUMENTS if kind is Kind.DOCUMENT else _TURNS).get(model, _UNCALIBRATED)
