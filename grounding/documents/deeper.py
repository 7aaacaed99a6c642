"""The second, deeper embedding model: asked beside everything else, and searched without where it is late.

It embeds what was found already, so nobody waits for it: documents get its vectors some time after they can be found,
and a question goes without where its vector is not there in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector

BLOCK = "deep"
"""What a search that went without is named after, in metrics and in the answers of `search`."""
LATE = "late"


class NotYet(EmbedderUnavailable):
    """The model is still being loaded: what nobody could expect of it now is no loss."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is still being loaded", retryable=True)


class Deeper(Protocol):
    """A deeper embedding model. Two of the same name give the same vectors."""

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """The unit vectors of a few questions. Raises `EmbedderUnavailable` where they are not there in time, `NotYet`
        where they could not be."""

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """One unit vector (or zeros for text without words) per text, however long that takes. Raises
        `EmbedderUnavailable`."""


class AtHand:
    """An *embedder* of this process as a deeper one, for whom questions are worth any wait."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.name, self.dimensions = embedder.name, embedder.dimensions

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        return await self._embedder.embed_queries(texts)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        return await self._embedder.embed_documents(texts)
