"""One collection of passages: its index, what embeds for it, and all that asks or fills it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from grounding.codex.index import CodexIndex
from grounding.codex.store import CodexStore
from grounding.documents.backlog import Backlog
from grounding.documents.catalogue import Identity
from grounding.documents.chunking import CountTokens
from grounding.documents.context_field import ContextField
from grounding.documents.deeper import Deeper
from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.documents.index import Fusion, Kind, PassageIndex
from grounding.documents.indexer import Exclusive, Indexer
from grounding.documents.rerank import Reranker
from grounding.documents.search import Search
from grounding.documents.shelf import Shelf
from grounding.documents.turns import Turns
from grounding.documents.vocabulary import Vocabulary
from grounding.memory.records.index import RecordIndex
from grounding.memory.records.store import RecordStore
from runtime.doubts import REBUILDING
from runtime.embedded.index_client import IndexProcess, RemoteIndex
from runtime.llm import LiteLLMEmbedder, bundled_embedders

if TYPE_CHECKING:
    from redis.asyncio import Redis

MUTE_SECONDS = 30.0
"""How long the model of a former collection is not asked again after it failed: until then words alone are searched."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The collection of *identity*. Nothing is opened before it is asked for the first time."""

    identity: Identity
    index: PassageIndex
    embedder: Embedder
    search: Search
    vocabulary: Vocabulary
    turns: Turns
    contexts: ContextField
    records: RecordIndex
    material: CodexIndex
    material_search: Search
    indexer: Indexer

    @property
    def name(self) -> str:
        return self.identity.name


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes collections of what is common to all of them. Its methods block: they import an adapter's package."""

    settings: Settings
    redis: Redis
    shelf: Shelf
    count: CountTokens
    backlog: Backlog
    exclusive: Exclusive
    reranker: Reranker | None
    material: CodexStore
    deep: Deeper | None = None
    """The model of deeper vectors, which the collection of the model that is set has."""
    engine: IndexProcess | None = None
    """The process that has the embedded engine; without it this one has it."""

    def target(self, embedder: Embedder) -> Collection:
        """The collection of the model that is set."""
        return self._made(identity_of(embedder), embedder, is_former=False)

    def former(self, identity: Identity) -> Collection:
        """That of another model: where a question cannot be embedded, words alone are searched, and that is named."""
        return self._made(identity, former_embedder(self.settings, identity), is_former=True)

    def _made(self, identity: Identity, embedder: Embedder, *, is_former: bool) -> Collection:
        deep, words_alone = (None, REBUILDING) if is_former else (self.deep, "")
        index = adapter(self.settings, identity, deep.dimensions if deep else None, self.engine)
        backlog = None if is_former else self.backlog
        return Collection(
            identity,
            index,
            embedder,
            Search(index, embedder, count=self.count, reranker=self.reranker, words_alone=words_alone, deep=deep),
            Vocabulary(index, embedder),
            Turns(index, embedder, words_alone=words_alone),
            ContextField(index, embedder, words_alone=is_former),
            RecordIndex(index, embedder, RecordStore(self.redis), is_former=is_former),
            CodexIndex(self.material, index, embedder, self.count),
            Search(
                index,
                embedder,
                count=self.count,
                reranker=self.reranker,
                kind=Kind.CODEX,
                words_alone=words_alone,
                deep=deep,
            ),
            Indexer(
                self.shelf,
                index,
                embedder,
                self.redis,
                self.count,
                backlog=backlog,
                exclusive=self.exclusive,
                leaves=is_former,
            ),
        )


def identity_of(embedder: Embedder) -> Identity:
    """The collection of *embedder*."""
    return Identity(embedder.name, embedder.dimensions)


def default_identity() -> Identity:
    """The collection of the model that embeds where none is set."""
    return identity_of(bundled_embedders()[0])


def model_of(settings: Settings) -> str:
    """The name of the model that *settings* ask for, as it is in identities."""
    if settings.bundled_embedding_model is None:
        return str(settings.embedding_model)
    return bundled_embedders()[BUNDLED_EMBEDDING_MODELS.index(settings.bundled_embedding_model)].name


def former_embedder(settings: Settings, identity: Identity) -> Embedder:
    """What embeds for the collection of *identity*, though another model is set now."""
    for model in bundled_embedders():
        if identity_of(model) == identity:
            return model
    return FormerEmbedder(settings, LiteLLMEmbedder(settings, identity.model, identity.dimensions))


def adapter(
    settings: Settings,
    identity: Identity,
    deep_dimensions: int | None = None,
    engine: IndexProcess | None = None,
) -> PassageIndex:
    """The index's adapter; its package is imported here, so that only the one in use costs anything. Blocking."""
    if settings.qdrant_url is None:
        about = settings.data_dir / "qdrant", identity.model, identity.dimensions
        how: dict[str, Any] = {
            "timeout_seconds": settings.qdrant_timeout_seconds,
            "fusion": Fusion.from_settings(settings),
            "version": identity.payload_version,
            "deep_dimensions": deep_dimensions,
        }
        if engine is not None:
            return RemoteIndex(engine, *about, **how)
        from grounding.documents.qdrant_edge import EmbeddedIndex

        return EmbeddedIndex(*about, **how)
    from grounding.documents.qdrant_server import ServerIndex

    key = settings.qdrant_api_key
    return ServerIndex(
        settings.qdrant_url,
        identity.model,
        identity.dimensions,
        timeout_seconds=settings.qdrant_timeout_seconds,
        api_key=key.get_secret_value() if key else None,
        fusion=Fusion.from_settings(settings),
        version=identity.payload_version,
        deep_dimensions=deep_dimensions,
    )


class FormerEmbedder:
    """A provider's model that is not the one that is set any more, and may be gone for good.

    A question waits for it for at most half of ``QDRANT_TIMEOUT_SECONDS``, so that the layer of a turn still has time
    to search by words; where it failed it is not asked for `MUTE_SECONDS`.
    """

    def __init__(self, settings: Settings, model: Embedder) -> None:
        self._model = model
        self._seconds = min(settings.embedding_timeout_seconds, settings.qdrant_timeout_seconds / 2)
        self._mute_until = 0.0

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def dimensions(self) -> int:
        return self._model.dimensions

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        self._check()
        try:
            return await self._model.embed_documents(texts)
        except EmbedderUnavailable:
            self._fall_mute()
            raise

    async def embed_query(self, text: str) -> Vector:
        """Raises `EmbedderUnavailable`."""
        return (await self.embed_queries([text]))[0]

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        """Raises `EmbedderUnavailable`."""
        self._check()
        try:
            async with asyncio.timeout(self._seconds):
                return await self._model.embed_queries(texts)
        except TimeoutError:
            self._fall_mute()
            raise EmbedderUnavailable(f"{self.name}: no answer in {self._seconds:g} s", retryable=True) from None
        except EmbedderUnavailable:
            self._fall_mute()
            raise

    def _check(self) -> None:
        if asyncio.get_running_loop().time() < self._mute_until:
            raise EmbedderUnavailable(f"{self.name} failed a moment ago", retryable=True)

    def _fall_mute(self) -> None:
        self._mute_until = asyncio.get_running_loop().time() + MUTE_SECONDS
