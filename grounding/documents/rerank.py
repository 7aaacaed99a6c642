"""A second look at what was found: a cross-encoder reads the question and each passage together.

It is dearer than the whole search, so that it is off unless a model is named, and sees the first candidates only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from connectors.message import AgentRuntimeError, Scope
from grounding.documents.index import Arm, Hit, Passage

PASSAGE_MAX_CHARACTERS = 4000
"""What of a passage is read: cross-encoders mostly take 512 tokens, and providers charge for more."""


class RerankUnavailable(AgentRuntimeError):
    """The reranker gave no scores. ``why`` is one word for metrics; ``retryable`` says whether it may later."""

    def __init__(self, message: str, *, why: str, retryable: bool) -> None:
        super().__init__(message)
        self.why = why
        self.retryable = retryable


class Reranker(Protocol):
    """A model that says how well passages answer a question."""

    @property
    def name(self) -> str: ...

    @property
    def candidates(self) -> int:
        """How many passages it is given at most."""

    async def scores(self, scope: Scope, query: str, texts: Sequence[str]) -> list[float]:
        """One score per text, larger is better; what they mean is the model's own affair. What the call cost is
        counted for *scope*. Raises `RerankUnavailable`."""


async def rerank(reranker: Reranker, scope: Scope, query: str, hits: Sequence[Hit]) -> list[Hit]:
    """*hits* with the first of them, as many as the reranker takes, in its order; the others follow as they were.

    Raises `RerankUnavailable`.
    """
    placed = [hit._replace(fused=Arm(rank, hit.score)) for rank, hit in enumerate(hits, start=1)]
    first, rest = placed[: reranker.candidates], placed[reranker.candidates :]
    if not first:
        return []
    scores = await reranker.scores(scope, query, [read_text(hit.passage) for hit in first])
    # Equal scores keep the fused order: the sort is stable.
    order = sorted(range(len(first)), key=lambda at: -scores[at])
    return [first[at]._replace(rerank=Arm(rank, scores[at])) for rank, at in enumerate(order, start=1)] + rest


def read_text(passage: Passage) -> str:
    """What the reranker reads of *passage*: where it stands, and its text."""
    parts = (passage.title, passage.heading, passage.lead, passage.text)
    return "\n".join(dict.fromkeys(part for part in parts if part))[:PASSAGE_MAX_CHARACTERS]
