"""The embedding model of the settings: one that is bundled, or any that LiteLLM knows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from config.settings import Settings
from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector, WordLlamaEmbedder
from grounding.documents.minilm import MiniLMEmbedder
from runtime.credentials import credentials
from runtime.loading import loaded_litellm
from runtime.model_errors import judge

BATCH = 64
"""Texts in one request."""

EMBEDDING_MODEL = "the embedding model"
"""What errors call it, and by which they are known."""


class LiteLLMEmbedder:
    """The model that ``EMBEDDING_MODEL`` names. Made by `open_embedder`, which finds out its dimensions."""

    def __init__(self, settings: Settings, model: str, dimensions: int) -> None:
        self._settings = settings
        self._model = model
        self._dimensions = dimensions

    @property
    def name(self) -> str:
        return self._model

    @property
    def dimensions(self) -> int:
        return self._dimensions

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """One unit vector per text (zeros for zeros). Raises `EmbedderUnavailable`."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), BATCH):
            vectors += await _embed(self._settings, self._model, list(texts[start : start + BATCH]))
        if any(len(vector) != self._dimensions for vector in vectors):
            raise EmbedderUnavailable(
                f"{self._model} answered vectors of another size than {self._dimensions}", retryable=False
            )
        return vectors

    async def embed_query(self, text: str) -> Vector:
        """The unit vector of a question. Raises `EmbedderUnavailable`."""
        return (await self.embed_documents([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """The unit vectors of a few questions, in one request. Raises `EmbedderUnavailable`."""
        return await self.embed_documents(texts)


_BUNDLED: dict[str, Callable[[], Embedder]] = {
    "bundled/wordllama": WordLlamaEmbedder,
    "bundled/minilm": MiniLMEmbedder,
}


def bundled_embedders() -> list[Embedder]:
    """One of each model that runs in this process, the default first; none is loaded before it is used."""
    return [make() for make in _BUNDLED.values()]


async def open_embedder(settings: Settings) -> Embedder:
    """The embedder of ``EMBEDDING_MODEL``. Raises `EmbedderUnavailable`, of a bundled model only once it is used.

    The size of a provider's vectors is found by embedding one word: price lists are wrong about models of one's own.
    """
    if settings.bundled_embedding_model is not None:
        return _BUNDLED[settings.bundled_embedding_model]()
    assert settings.embedding_model is not None
    probe = await _embed(settings, settings.embedding_model, ["word"])
    return LiteLLMEmbedder(settings, settings.embedding_model, len(probe[0]))


async def _embed(settings: Settings, model: str, texts: list[str]) -> list[Vector]:
    seconds = settings.embedding_timeout_seconds
    # An empty text is an error for most providers, and a space is not.
    request: dict[str, Any] = {"model": model, "input": [text or " " for text in texts], "timeout": seconds}
    request |= {"max_retries": 0, "encoding_format": "float", **credentials(settings, model)}
    try:
        litellm = await loaded_litellm()
        async with asyncio.timeout(seconds):
            response = await litellm.aembedding(**request)
        found = sorted(response.data, key=lambda item: item["index"])
        vectors = [_unit(item["embedding"]) for item in found]
    except Exception as error:  # noqa: BLE001 - LiteLLM's adapters let all kinds through; each gets its verdict
        verdict = judge(error)
        why = f"{EMBEDDING_MODEL} {model}: {verdict.why} ({type(error).__name__})"
        # "from None": the provider's words may quote the text, and tracebacks are logged.
        raise EmbedderUnavailable(why, retryable=verdict.retry) from None
    if len(vectors) != len(texts):
        raise EmbedderUnavailable(f"{model} answered {len(vectors)} vectors for {len(texts)} texts", retryable=True)
    return vectors


def _unit(vector: Sequence[float]) -> Vector:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length > 0 else list(vector)
