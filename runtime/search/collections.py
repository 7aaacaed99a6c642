"""The collections of passages: the one of the embedding model that is set, and former ones.

Another embedding model needs another collection. Until that is filled, the former collection of a workspace answers,
without what was said and written meanwhile. What is forgotten is forgotten in all collections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from config.settings import BUNDLED_EMBEDDING_MODELS, Settings
from connectors.connector import ConnectionState, Health
from connectors.message import AgentRuntimeError, ConversationKey, Scope, StoreUnavailable
from grounding.codex import CodexIndex, CodexStore
from grounding.documents import Catalogue, Identity, Indexer, Shelf
from grounding.memory.records import RecordIndex, RecordStore
from grounding.retrieval import (
    ContextField,
    CountTokens,
    DeepEmbedder,
    Embedder,
    EmbedderUnavailable,
    IndexUnavailable,
    Kind,
    PassageIndex,
    Reranker,
    Search,
    TurnIndex,
    TurnText,
)
from runtime.embedded.index_client import IndexProcess, RemoteIndex
from runtime.llm import LiteLLMEmbedder, bundled_embedders, open_embedder
from runtime.search.staleness import REBUILDING, Timing
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

_REMEMBERED = 1000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Collection:
    """One collection, and everything that searches or fills it. Its index is opened on first use."""

    identity: Identity
    index: PassageIndex
    embedder: Embedder
    search: Search
    turns: TurnIndex
    contexts: ContextField
    records: RecordIndex
    material: CodexIndex
    material_search: Search
    indexer: Indexer

    @property
    def name(self) -> str:
        return self.identity.name


@dataclass(frozen=True, slots=True)
class CollectionFactory:
    """Creates collections. Its methods block: they import an adapter's package."""

    settings: Settings
    redis: Redis
    shelf: Shelf
    count: CountTokens
    reranker: Reranker | None
    material: CodexStore
    is_shared: bool
    """Whether other processes store documents in the same index."""
    deep: DeepEmbedder | None = None
    """The model of the deeper vectors, which only the collection of the model that is set has."""
    engine: IndexProcess | None = None
    """The child process that has the embedded engine; None if this process has it."""

    def current(self, embedder: Embedder) -> Collection:
        """Return the collection of the model that is set."""
        return self._create(identity_of(embedder), embedder, is_former=False)

    def former(self, identity: Identity) -> Collection:
        """Return the collection of another model. If that cannot embed a question, words alone are searched."""
        return self._create(identity, self.former_embedder(identity), is_former=True)

    async def open_embedder(self) -> Embedder:
        """Return the embedder of the model that is set. Raises `EmbedderUnavailable`. Does not block."""
        return await open_embedder(self.settings)

    def former_embedder(self, identity: Identity) -> Embedder:
        """Return the embedder of a collection whose model is not the one that is set.

        A provider's model may be gone for good: a question waits for it for at most half of ``QDRANT_TIMEOUT_SECONDS``,
        so that there is time to search by words alone.
        """
        for model in bundled_embedders():
            if identity_of(model) == identity:
                return model
        return LiteLLMEmbedder(
            self.settings, identity.model, identity.dimensions, timeout_seconds=self.settings.qdrant_timeout_seconds / 2
        )

    def index(self, identity: Identity, deep_dimensions: int | None) -> PassageIndex:
        """Return the index of a collection. Only the package of the adapter that is set is imported."""
        settings = self.settings
        how: dict[str, Any] = {
            "timeout_seconds": settings.qdrant_timeout_seconds,
            "version": identity.payload_version,
            "deep_dimensions": deep_dimensions,
        }
        if settings.qdrant_url is not None:
            from grounding.retrieval.qdrant_server import ServerIndex

            key = settings.qdrant_api_key
            return ServerIndex(
                settings.qdrant_url,
                identity.model,
                identity.dimensions,
                api_key=key.get_secret_value() if key else None,
                **how,
            )
        folder = settings.data_dir / "qdrant"
        if self.engine is not None:
            return RemoteIndex(self.engine, folder, identity.model, identity.dimensions, **how)
        from grounding.retrieval.qdrant_edge import EmbeddedIndex

        return EmbeddedIndex(folder, identity.model, identity.dimensions, **how)

    def _create(self, identity: Identity, embedder: Embedder, *, is_former: bool) -> Collection:
        deep, words_alone = (None, REBUILDING) if is_former else (self.deep, "")
        index = self.index(identity, deep.dimensions if deep else None)

        def search(kind: Kind) -> Search:
            return Search(
                index,
                embedder,
                count=self.count,
                reranker=self.reranker,
                kind=kind,
                words_alone=words_alone,
                deep=deep,
            )

        return Collection(
            identity,
            index,
            embedder,
            search(Kind.DOCUMENT),
            TurnIndex(index, embedder, words_alone=words_alone, deep=deep),
            ContextField(index, embedder, words_alone=is_former),
            RecordIndex(index, embedder, RecordStore(self.redis), is_former=is_former, deep=deep),
            CodexIndex(self.material, index, embedder, self.count),
            search(Kind.CODEX),
            Indexer(self.shelf, index, embedder, self.redis, self.count, is_shared=self.is_shared),
        )


def identity_of(embedder: Embedder) -> Identity:
    """Return the identity of the collection that *embedder* fills."""
    return Identity(embedder.name, embedder.dimensions)


def model_of(settings: Settings) -> str:
    """Return the name of the embedding model that is set, as identities have it."""
    if settings.bundled_embedding_model is None:
        return str(settings.embedding_model)
    return bundled_embedders()[BUNDLED_EMBEDDING_MODELS.index(settings.bundled_embedding_model)].name


class Collections:
    """The collection of the model that is set, opened in the background, and the former ones that are still needed."""

    def __init__(
        self,
        settings: Settings,
        workspaces: Workspaces,
        factory: CollectionFactory,
        catalogue: Catalogue,
        timing: Timing,
    ) -> None:
        self._settings = settings
        self._workspaces = workspaces
        self._factory = factory
        self._catalogue = catalogue
        self._timing = timing
        self.target: Collection | None = None
        """The collection of the model that is set; None until it is open."""
        self.why = ""
        """Why it could not be opened the last time."""
        self._embedder_error = ""
        """Why the bundled model cannot embed, so that nothing can be found in an open index."""
        self._opened = asyncio.Event()
        self._former: dict[str, Collection] = {}
        """The former collections that are open, by their names."""
        self._former_lock = asyncio.Lock()
        self._current: dict[str, tuple[str, float]] = {}
        """By workspace the name of the collection that answers, and when it was read."""

    async def open(self) -> None:
        """Open the collection of the model that is set; try again until it succeeds."""
        wait, longest = self._timing.retry
        while not self._opened.is_set():
            try:
                await self._open()
            except Exception as error:  # noqa: BLE001 - whatever it is, the bot answers without an index
                self.why = str(error) or type(error).__name__
                store = "redis" if isinstance(error, StoreUnavailable) else "qdrant"
                _log.warning("store.degraded", store=store, why=self.why)
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)

    async def _open(self) -> None:
        embedder = await self._factory.open_embedder()
        target = await asyncio.to_thread(self._factory.current, embedder)
        try:
            scopes = [Scope(workspace.id) for workspace in await self._workspaces.all()]
            if not await target.index.exists():
                await self._catalogue.lose(target.name, scopes)
            await target.index.ensure()
            await self._catalogue.register(target.identity, scopes)
        except BaseException:
            await target.index.close()
            raise
        self.target = target
        self.why = ""
        self._opened.set()

    async def opened(self) -> None:
        """Wait until the collection of the model that is set is open."""
        await self._opened.wait()

    async def ready(self) -> Collection:
        """Return the collection of the model that is set.

        Raises `IndexUnavailable` if opening it failed, or takes longer than ``QDRANT_TIMEOUT_SECONDS``.
        """
        if self.target is None and not self.why:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                    await self._opened.wait()
        if self.target is None:
            raise IndexUnavailable(self.why or "the index is still being opened")
        return self.target

    async def answering(self, scope: Scope) -> Collection:
        """Return the collection that answers the workspace. Raises `IndexUnavailable`.

        That is the former one until the one of the model that is set has everything, or while that is not open.
        """
        name = await self._current_name(scope)
        if name and (self.target is None or name != self.target.name):
            try:
                former = await self._open_former(name)
            except (IndexUnavailable, StoreUnavailable) as error:
                _log.warning("store.degraded", store="qdrant", why=str(error))
            else:
                if former is not None:
                    return former
        return await self.ready()

    def answering_model(self, scope: Scope) -> str:
        """Return the embedding model of the workspace's last search; empty if it is not known."""
        name, _ = self._current.get(scope.workspace_id, ("", 0.0))
        collection = self._former.get(name) or self.target
        return collection.identity.model if collection is not None else ""

    async def former(self) -> list[Collection]:
        """Return all other collections than that of the model that is set.

        Raises `IndexUnavailable` and `StoreUnavailable`.
        """
        names = (await self._catalogue.known()).keys() - {(await self.ready()).name}
        opened = [await self._open_former(name) for name in sorted(names)]
        return [collection for collection in opened if collection is not None]

    def switched(self, scope: Scope) -> None:
        """Read anew which collection answers the workspace."""
        self._current.pop(scope.workspace_id, None)

    async def close_unused(self, used: set[str]) -> None:
        """Close the former collections that are not among *used*: an embedded one takes memory while it is open."""
        async with self._former_lock:
            for name in self._former.keys() - used:
                await self._former.pop(name).index.close()

    async def drop(self, identity: Identity) -> None:
        """Delete a former collection. Raises `IndexUnavailable`."""
        async with self._former_lock:
            collection = self._former.pop(identity.name, None)
            if collection is None:
                collection = await asyncio.to_thread(self._factory.former, identity)
            await collection.index.drop()

    async def warm(self) -> None:
        """Load a bundled embedding model, so that the first search need not; `health` reports a failure."""
        if self.target is None or self._settings.bundled_embedding_model is None:
            return
        try:
            await self.target.embedder.embed_query("warm")
        except EmbedderUnavailable as error:
            self._embedder_error = str(error)
            _log.warning("store.degraded", store="qdrant", why=self._embedder_error)

    async def health(self) -> Health:
        """Return the state of the collection of the model that is set."""
        if self.target is None:
            return Health(ConnectionState.DEGRADED, self.why) if self.why else Health(ConnectionState.CONNECTING)
        try:
            async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                await self.target.index.check()
        except (IndexUnavailable, TimeoutError) as error:
            return Health(
                ConnectionState.DEGRADED, str(error) or f"no answer in {self._settings.qdrant_timeout_seconds:g} s"
            )
        return (
            Health(ConnectionState.DEGRADED, self._embedder_error)
            if self._embedder_error
            else Health(ConnectionState.CONNECTED)
        )

    async def close(self) -> None:
        """Close all collections. Never raises."""
        await self.close_unused(set())
        if self.target is not None:
            await self.target.index.close()

    async def _current_name(self, scope: Scope) -> str:
        now, workspace_id = time.monotonic(), scope.workspace_id
        name, read_at = self._current.get(workspace_id, ("", -self._timing.current))
        if now - read_at < self._timing.current:
            return name
        if len(self._current) >= _REMEMBERED:
            self._current.clear()
        try:
            name = await self._catalogue.current(scope)
        except StoreUnavailable:
            return name
        self._current[workspace_id] = (name, now)
        return name

    async def _open_former(self, name: str) -> Collection | None:
        """Return None if the collection does not exist, is unreadable, or may be the one that is being opened."""
        async with self._former_lock:
            if name in self._former:
                return self._former[name]
            identity = (await self._catalogue.known()).get(name)
            if identity is None or not identity.is_readable:
                return None
            if self.target is None and identity.model == model_of(self._settings):
                return None
            collection = await asyncio.to_thread(self._factory.former, identity)
            if not await collection.index.exists():  # opening an embedded one would create it
                await collection.index.close()
                return None
            self._former[name] = collection
            return collection


class TurnsEverywhere:
    """The earlier turns: stored in the collection of the model that is set, forgotten in all."""

    def __init__(self, target: Collection, collections: Collections) -> None:
        self._target = target
        self._collections = collections

    async def remember(self, memories: Sequence[TurnText]) -> None:
        """See `grounding.retrieval.recall.TurnIndex.remember`."""
        await self._target.turns.remember(memories)

    async def deepen(self, scope: Scope) -> int:
        """See `grounding.retrieval.recall.TurnIndex.deepen`."""
        return await self._target.turns.deepen(scope)

    async def forget(self, scope: Scope, turn_ids: Sequence[str] | None = None) -> None:
        """See `grounding.retrieval.recall.TurnIndex.forget`. Raises `StoreUnavailable` too."""
        for collection in (self._target, *await self._collections.former()):
            await collection.turns.forget(scope, turn_ids)


class ContextsEverywhere:
    """The context documents: stored in the collection of the model that is set, forgotten in all."""

    def __init__(self, target: Collection, collections: Collections) -> None:
        self._target = target
        self._collections = collections

    async def put(self, key: ConversationKey, text: str, at: str) -> None:
        """See `grounding.retrieval.chunking.ContextField.put`. Former collections forget the version before."""
        for collection in await self._collections.former():
            await collection.contexts.forget(key)
        await self._target.contexts.put(key, text, at)

    async def forget(self, key: ConversationKey) -> None:
        """See `grounding.retrieval.chunking.ContextField.forget`. Raises `StoreUnavailable` too."""
        for collection in (self._target, *await self._collections.former()):
            await collection.contexts.forget(key)


class RecordsEverywhere:
    """The typed records: stored in the collection of the model that is set, forgotten in all."""

    def __init__(self, target: Collection, collections: Collections) -> None:
        self._target = target
        self._collections = collections

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        """See `grounding.memory.records.index.RecordIndex.follow`. Raises `StoreUnavailable` too."""
        if gone := await self._target.records.gone(scope, ids):
            for collection in await self._collections.former():
                await collection.records.forget(scope, gone)
        await self._target.records.follow(scope, ids)


def log_index_error(error: Exception, **of: str) -> None:
    """Log an error of background indexing as ``index.failed``, with the traceback if it was not expected."""
    if isinstance(error, AgentRuntimeError | OSError):
        _log.warning("index.failed", why=str(error), **of)
    else:
        _log.error("index.failed", why=f"{type(error).__name__}: {error}", exc_info=error, **of)
