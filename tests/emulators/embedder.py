"""An embedder for tests: words to directions, deterministic, no model; counts what it was asked."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Sequence

from grounding.retrieval import EmbedderUnavailable, Vector, terms


class HashedWords:
    """Every term adds one of *dimensions* directions; texts that share words are near each other."""

    def __init__(self, dimensions: int = 64, name: str = "hashed-words") -> None:
        self.name = name
        self.dimensions = dimensions
        self.embedded: list[str] = []
        self.fails = False

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        if self.fails:
            raise EmbedderUnavailable("the embedder was switched off", retryable=True)
        self.embedded += texts
        return [self._embed(text) for text in texts]

    async def embed_notes(self, texts: Sequence[str]) -> list[Vector]:
        return await self.embed_documents(texts)

    async def embed_query(self, text: str) -> Vector:
        if self.fails:
            raise EmbedderUnavailable("the embedder was switched off", retryable=True)
        return self._embed(text)

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return [await self.embed_query(text) for text in texts]

    def _embed(self, text: str) -> Vector:
        vector = [0.0] * self.dimensions
        for term in terms(text):
            digest = hashlib.sha256(term.encode("utf-8", "surrogatepass")).digest()
            vector[int.from_bytes(digest[:4], "big") % self.dimensions] += 1.0
        length = math.sqrt(sum(number * number for number in vector))
        return [number / length for number in vector] if length else vector


def cosine(left: Vector, right: Vector) -> float:
    """Return the cosine of two vectors of one size; 0 if one of them is zero."""
    lengths = math.hypot(*left) * math.hypot(*right)
    return sum(map(operator.mul, left, right)) / lengths if lengths else 0.0
