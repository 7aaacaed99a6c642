"""Text to dense vectors: the protocols, and the small static model that comes with the ``local`` extra.

There are two kinds of models. An `Embedder` finds: everything in the index has its vectors. A `DeepEmbedder` one
orders what
was found: documents get its vectors some time after they can be found, and a question is searched without one if it is
not there in time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from connectors.message import AgentRuntimeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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

    async def embed_notes(self, texts: Sequence[str]) -> list[Vector]:
        """Return what `embed_documents` does, but for texts in telegraphic style ("Chose Postgres + pgvector"), whose
        language the model cannot tell: none is left out."""


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

    Every method raises `EmbedderUnavailable` if the wheel is not installed. The wheel's code is not imported: a vector
    is the mean of the tokens' rows in its table, which is read from its file. Both are opened on first use, in a
    thread. Long texts are cut at `MAX_CHARACTERS`.
    """

    MAX_CHARACTERS = 20_000
    BATCH = 64
    SHORT_CHARACTERS = 400
    """A question of this length takes about 0.1 ms: it is embedded on the event loop, because a thread costs more."""

    def __init__(self) -> None:
        self._model: _WordLlama | None = None

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

        raw = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(raw, texts, strict=True):
            if ids := model.tokenizer.encode(text[: self.MAX_CHARACTERS], add_special_tokens=False).ids:
                row[:] = model.table.take(ids, axis=0, mode="clip").sum(axis=0, dtype=np.float32) / len(ids)
        lengths = np.sqrt(np.add.reduce(raw * raw, axis=1, keepdims=True))
        # Text without tokens has length zero and must stay a zero vector: a division would make it NaN.
        unit: list[Vector] = (raw / np.where(lengths > 0, lengths, 1.0)).tolist()
        return unit

    def _load(self) -> _WordLlama:
        with _opening:
            self._model = _open_wordllama(_find_wordllama())
            return self._model


class _WordLlama(NamedTuple):
    """The tokenizer, and the table with a row of 256 half-precision numbers for each token."""

    tokenizer: Tokenizer
    table: Any


_opening = threading.Lock()


def _find_wordllama() -> Path:
    """Return the folder of the ``wordllama`` wheel."""
    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise EmbedderUnavailable(
            "the bundled embedding model is not installed: install agent-runtime[local], "
            "or set AGENT_RUNTIME_EMBEDDING_MODEL to a LiteLLM embedding model",
            retryable=False,
        )
    return Path(spec.origin).parent


@cache  # all embedders of a process share it
def _open_wordllama(folder: Path) -> _WordLlama:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    try:
        text = (folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_text(encoding="utf-8")
        table = _map_table(folder / "weights" / "l2_supercat_256.safetensors", "embedding.weight")
    except OSError as error:
        raise EmbedderUnavailable(f"the bundled embedding model is incomplete: {error}", retryable=False) from error
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    return _WordLlama(tokenizer, table)


def _map_table(file: Path, name: str) -> Any:
    """Return the table *name* of half-precision numbers in *file*, whose pages are read when they are needed.

    The format is safetensors: 8 bytes with the length of the header, the header as JSON, and the tables.
    """
    import numpy as np

    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        entry = json.loads(opened.read(length))[name]
    start = 8 + length + entry["data_offsets"][0]
    return np.asarray(np.memmap(file, np.dtype("<f2"), "r", offset=start, shape=tuple(entry["shape"])))
