"""Embedding and reranking models: those that are bundled, or any that LiteLLM knows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable, Usage
from grounding.retrieval import (
    Embedder,
    EmbedderUnavailable,
    MiniLMEmbedder,
    MultilingualEmbedder,
    RerankUnavailable,
    Vector,
    WordLlamaEmbedder,
)
from runtime.llm.capabilities import credentials
from runtime.llm.errors import classify_error
from runtime.llm.loader import load_litellm

BATCH = 64
"""Texts in one request."""
EMBEDDING_MODEL = "the embedding model"
"""The name of the model in errors, by which they are recognised."""
EMBEDDING_SECONDS = 20.0
"""Time limit of one embedding call."""
RERANK_SECONDS = 3.0
"""Time limit of one reranking; if it takes longer, passages keep their order."""
IMPORT_SECONDS = 20.0
"""So long the first reranking of a process may wait for LiteLLM's import; the turn's answer waits for it as well."""
_log = structlog.get_logger()


class LiteLLMEmbedder:
    """Embeds by the model that ``EMBEDDING_MODEL`` names. `open_embedder` creates it and finds out its dimensions."""

    def __init__(
        self, settings: Settings, model: str, dimensions: int, *, timeout_seconds: float = EMBEDDING_SECONDS
    ) -> None:
        self._settings = settings
        self._model = model
        self._dimensions = dimensions
        self._timeout_seconds = timeout_seconds

    @property
    def name(self) -> str:
        return self._model

    @property
    def dimensions(self) -> int:
        return self._dimensions

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Return one unit vector for each text (zeros for zeros). Raises `EmbedderUnavailable`."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            vectors += await _embed(self._settings, self._model, batch, self._timeout_seconds)
        if any(len(vector) != self._dimensions for vector in vectors):
            raise EmbedderUnavailable(
                f"{self._model} answered vectors of another size than {self._dimensions}", retryable=False
            )
        return vectors

    async def embed_query(self, text: str) -> Vector:
        """Return the unit vector of a question. Raises `EmbedderUnavailable`."""
        return (await self.embed_documents([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Return the unit vectors of a few questions, by one request. Raises `EmbedderUnavailable`."""
        return await self.embed_documents(texts)


_BUNDLED: dict[str, Callable[[], Embedder]] = {
    "bundled/wordllama": WordLlamaEmbedder,
    "bundled/minilm": MiniLMEmbedder,
    "bundled/multilingual": MultilingualEmbedder,
}


def bundled_embedders() -> list[Embedder]:
    """Return one embedder for each model that runs in this process, the default first. They load when they are used."""
    return [create() for create in _BUNDLED.values()]


async def open_embedder(settings: Settings) -> Embedder:
    """Return the embedder of ``EMBEDDING_MODEL``. Raises `EmbedderUnavailable`, but not for a bundled model.

    It finds the size of a provider's vectors by embedding one word: price lists do not know private models.
    """
    if settings.bundled_embedding_model is not None:
        return _BUNDLED[settings.bundled_embedding_model]()
    assert settings.embedding_model is not None
    probe = await _embed(settings, settings.embedding_model, ["word"], EMBEDDING_SECONDS)
    return LiteLLMEmbedder(settings, settings.embedding_model, len(probe[0]))


async def _embed(settings: Settings, model: str, texts: list[str], seconds: float) -> list[Vector]:
    # An empty text is an error for most providers, and a space is not.
    request: dict[str, Any] = {"model": model, "input": [text or " " for text in texts], "timeout": seconds}
    request |= {"max_retries": 0, "encoding_format": "float", **credentials(settings, model)}
    try:
        litellm = await load_litellm()
        async with asyncio.timeout(seconds):
            response = await litellm.aembedding(**request)
        items = sorted(response.data, key=lambda item: item["index"])
        vectors = [_unit(item["embedding"]) for item in items]
    except Exception as error:  # noqa: BLE001 - LiteLLM raises errors of all kinds; the table classifies them
        verdict = classify_error(error)
        why = f"{EMBEDDING_MODEL} {model}: {verdict.why} ({type(error).__name__})"
        # "from None": the provider's words may quote the text, and tracebacks are logged.
        raise EmbedderUnavailable(why, retryable=verdict.retry) from None
    if len(vectors) != len(texts):
        raise EmbedderUnavailable(f"{model} answered {len(vectors)} vectors for {len(texts)} texts", retryable=True)
    return vectors


def _unit(vector: Sequence[float]) -> Vector:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length > 0 else list(vector)


class RerankAccounting(Protocol):
    """Pays for reranking."""

    async def check(self, scope: Scope) -> None:
        """Raises `grounding.retrieval.ranking.RerankUnavailable` if the budget is used up, and `StoreUnavailable`."""

    async def count(self, scope: Scope, model: str, tokens: Usage) -> None:
        """Count one call. Raises `StoreUnavailable`."""


class LiteLLMReranker:
    """Reranks by the model that ``RERANK_MODEL`` names, which must be set. Without *accounting* nothing is counted.

    Implements `grounding.retrieval.ranking.Reranker`.
    """

    def __init__(
        self,
        settings: Settings,
        accounting: RerankAccounting | None = None,
        *,
        candidates: int = 30,
        timeout_seconds: float = RERANK_SECONDS,
    ) -> None:
        assert settings.rerank_model is not None, "RERANK_MODEL is not set"
        self.candidates = candidates
        self._timeout_seconds = timeout_seconds
        self._settings = settings
        self._model = settings.rerank_model
        self._accounting = accounting

    @property
    def name(self) -> str:
        return self._model

    async def scores(self, scope: Scope, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score for each text. Raises `grounding.retrieval.ranking.RerankUnavailable`."""
        if self._accounting is not None:
            try:
                await self._accounting.check(scope)
            except StoreUnavailable as error:
                raise RerankUnavailable(str(error), why="store_unavailable", retryable=True) from error
        response = await self._request(query, texts)
        await self._count(scope, response)
        scores = _scores(response, len(texts))
        if scores is None:
            message = f"{self._model} did not answer one score for each of {len(texts)} passages"
            raise RerankUnavailable(message, why="bad_response", retryable=True)
        return scores

    async def _request(self, query: str, texts: Sequence[str]) -> Any:
        seconds = self._timeout_seconds
        request: dict[str, Any] = {
            "model": self._model,
            "query": query,
            # An empty passage is an error for some providers, and a space is not.
            "documents": [text or " " for text in texts],
            "top_n": len(texts),
            "return_documents": False,
            "timeout": seconds,
            "max_retries": 0,
        }
        if self._settings.rerank_api_base is not None:
            request["api_base"] = self._settings.rerank_api_base
        if self._settings.rerank_api_key is not None:
            request["api_key"] = self._settings.rerank_api_key.get_secret_value()
        try:
            litellm = await load_litellm()
            async with asyncio.timeout(seconds):
                return await litellm.arerank(**request)
        except Exception as error:  # noqa: BLE001 - LiteLLM raises errors of all kinds; the table classifies them
            verdict = classify_error(error)
            why = f"{self._model}: {verdict.why} ({type(error).__name__})"
            # "from None": the provider's words may quote the question, and tracebacks are logged.
            raise RerankUnavailable(why, why=verdict.why, retryable=verdict.retry) from None

    async def _count(self, scope: Scope, response: Any) -> None:
        if self._accounting is None:
            return
        try:
            await self._accounting.count(scope, self._model, _usage(response))
        except StoreUnavailable as error:
            _log.warning("rerank.uncounted", workspace_id=scope.workspace_id, model=self._model, why=str(error))


def _scores(response: Any, count: int) -> list[float] | None:
    """Return the scores in the order of the texts; None if one is missing or is not a finite number."""
    scores = {int(item["index"]): float(item["relevance_score"]) for item in response.results or ()}
    if set(scores) != set(range(count)) or not all(map(math.isfinite, scores.values())):
        return None
    return [scores[index] for index in range(count)]


def _usage(response: Any) -> Usage:
    """Return the tokens that the provider counted, and LiteLLM's price for them; zeros if they are not given."""
    meta = response.meta or {}
    tokens = (meta.get("tokens") or {}).get("input_tokens") or (meta.get("billed_units") or {}).get("total_tokens")
    cost = response.hidden_params.get("response_cost")
    return Usage(prompt=int(tokens or 0), cost_usd=float(cost or 0.0))
