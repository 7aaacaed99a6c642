"""Text to dense vectors: the protocols, and the small static model that comes with the ``local`` extra.

There are two kinds of models. An `Embedder` finds: everything in the index has its vectors. A `DeepEmbedder` one
orders what
was found: documents get its vectors some time after they can be found, and a question is searched without one if it is
not there in time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from connectors.message import AgentRuntimeError

Vector = list[float]
DEEP_VECTOR_LATE = "late"
"""The reason, in metrics and in answers of ``search``, why a search went without the question's deeper vector."""


class EmbedderUnavailable(AgentRuntimeError):
    """Text cannot be embedded now (a provider is away) or not at all (``retryable`` is false)."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class ModelLoading(EmbedderUnavailable):
    """The model is still being loaded, so that its vectors are no loss."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is still being loaded", retryable=True)


class DeepEmbedder(Protocol):
    """A deeper embedding model. Two of the same name give the same vectors. An `Embedder` is one that always waits."""

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Return the unit vectors of a few questions. Raises `EmbedderUnavailable` if they are not there in time, and
        `ModelLoading` if they could not be."""

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Return one unit vector (or zeros for text without words) per text, however long that takes. Raises
        `EmbedderUnavailable`."""


class Embedder(Protocol):
    """An embedding model of one fixed size. Two of the same name give the same vectors."""

    @property
    def name(self) -> str:
        """The model, as it goes into the collection's name."""

    @property
    def dimensions(self) -> int: ...

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Return one unit vector (or zeros for text without words) per text. Raises `EmbedderUnavailable`."""

    async def embed_query(self, text: str) -> Vector:
        """Return the vector of a question. Raises `EmbedderUnavailable`."""

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors of a few questions. Raises `EmbedderUnavailable`."""


class WordLlamaEmbedder:
    """The static model in the ``wordllama`` wheel: 256 dimensions, about 0.1 ms a query, no network.

    Every method raises `EmbedderUnavailable` if the wheel is not installed. Weights are loaded on first use, in a
    thread. Long texts are cut at `MAX_CHARACTERS`.
    """

    MAX_CHARACTERS = 20_000
    BATCH = 64
    SHORT_CHARACTERS = 400
    """A question of this length takes about 0.1 ms: it is embedded on the event loop, because a thread costs more."""

    def __init__(self) -> None:
        self._model: Any = None
        self._loading = threading.Lock()

    @property
    def name(self) -> str:
        return "wordllama-l2-supercat"

    @property
    def dimensions(self) -> int:
        return 256

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        vectors: list[Vector] = []
        for start in range(0, len(texts), self.BATCH):
            vectors += await asyncio.to_thread(self._embed, texts[start : start + self.BATCH])
        return vectors

    async def embed_query(self, text: str) -> Vector:
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        if self._model is not None and all(len(text) <= self.SHORT_CHARACTERS for text in texts):
            return self._embed(texts)
        return await asyncio.to_thread(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        model = self._model or self._load()
        import numpy as np

        # The model's own `embed` gives the same, but fills all texts of a batch up to the longest one's tokens, which
        # takes up to twice the time, tens of megabytes, and longer holds of the interpreter.
        raw = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(raw, texts, strict=True):
            if ids := model.tokenizer.encode(text[: self.MAX_CHARACTERS], add_special_tokens=False).ids:
                row[:] = model.embedding.take(ids, axis=0, mode="clip").sum(axis=0, dtype=np.float32) / len(ids)
        lengths = np.sqrt(np.add.reduce(raw * raw, axis=1, keepdims=True))
        # Text without tokens has length zero and must stay a zero vector: a division would make it NaN.
        unit: list[Vector] = (raw / np.where(lengths > 0, lengths, 1.0)).tolist()
        return unit

    def _load(self) -> Any:
        with self._loading:
            if self._model is None:
                self._model = _load_wordllama()
            return self._model


def _load_wordllama() -> Any:
    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise EmbedderUnavailable(
            "the bundled embedding model is not installed: install agent-runtime[local], "
            "or set AGENT_RUNTIME_EMBEDDING_MODEL to a LiteLLM embedding model",
            retryable=False,
        )
    # An OpenMP pool that spins between calls stalls the whole process for up to half a second.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from wordllama import WordLlama

    # The wheel carries weights and tokenizer, but looks for the tokenizer only under its cache folder.
    try:
        model = WordLlama.load(cache_dir=Path(spec.origin).parent, disable_download=True)
    except OSError as error:
        raise EmbedderUnavailable(f"the bundled embedding model is incomplete: {error}", retryable=False) from error
    model.tokenizer.no_padding()
    return model
