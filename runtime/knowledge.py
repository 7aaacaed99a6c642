"""What can be searched, opened in the background and kept in step with the disk.

Until the index is open, and while it cannot be, every search raises `IndexUnavailable` with the reason:
the turn goes on without that layer and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from watchfiles import awatch

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import AgentRuntimeError, Scope, StoreUnavailable
from grounding.documents.embedding import Embedder, EmbedderUnavailable, WordLlamaEmbedder
from grounding.documents.index import Hit, IndexUnavailable, PassageIndex
from grounding.documents.indexer import Indexer, Progress, Status, Synced
from grounding.documents.library import Library
from grounding.documents.rerank import Reranker
from grounding.documents.search import Search
from grounding.documents.turns import Turns as TurnIndex
from grounding.documents.watch import Changed, changed_documents, watch
from grounding.run_context import DegradedBlock, Passage, RecalledTurn
from grounding.tokens import Tokens
from promptpolicy.files import FilingPublisher
from runtime.embedder import open_embedder
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

_RETRY_SECONDS = (1.0, 30.0)
_FILLING_SECONDS = 2.0
"""How long a turn waits for documents that are being indexed for the first time since the start."""
_log = structlog.get_logger()


class Knowledge:
    """The documents of all workspaces and the earlier turns of all conversations."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        tokens: Tokens,
        workspaces: Workspaces,
        publisher: FilingPublisher,
        reranker: Reranker | None = None,
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._tokens = tokens
        self._workspaces = workspaces
        self._publisher = publisher
        self._reranker = reranker
        self.library = Library(settings.data_dir, max_bytes=settings.document_max_bytes)
        self._opened = asyncio.Event()
        self._behind: set[str] | None = set()
        """Workspaces that were not looked through since the start; None while nobody knows which."""
        self._caught_up = asyncio.Event()
        """Set, and replaced, whenever one of them was."""
        self._index: PassageIndex | None = None
        self._search: Search | None = None
        self._indexer: Indexer | None = None
        self._turns: TurnIndex | None = None
        self._why = ""
        self._embedder: Embedder | None = None
        self._mute = ""
        """Why nothing can be embedded, and so nothing be found in an index that is open."""

    def will_follow(self) -> None:
        """Say that `follow` is about to begin: until it has looked, nobody knows which documents are behind."""
        self._behind = None

    async def open(self) -> None:
        """Open the index, however long that takes."""
        wait, longest = _RETRY_SECONDS
        while not self._opened.is_set():
            try:
                await self._open()
            except (IndexUnavailable, EmbedderUnavailable, OSError) as error:
                self._why = str(error)
                _log.warning("store.degraded", store="qdrant", why=self._why)
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)

    async def warm(self) -> None:
        """Load the bundled embedding model, so that the first search need not; `health` says if it cannot be."""
        if self._embedder is None or self._settings.embedding_model:
            return
        try:
            await self._embedder.embed_query("warm")
        except EmbedderUnavailable as error:
            self._mute = str(error)
            _log.warning("store.degraded", store="qdrant", why=self._mute)

    async def follow(self) -> None:
        """Bring the index and the directives in step with the disk, and keep them there, until cancelled."""
        await self._opened.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_workspaces())
            group.create_task(self._follow_global_directives())
            await self._catch_up_at_last()

    async def close(self) -> None:
        """Let go of the index's files and connections. Never raises."""
        if self._index is not None:
            await self._index.close()

    async def health(self) -> Health:
        """How the index is now."""
        if self._index is None:
            return Health(State.DEGRADED, self._why) if self._why else Health(State.CONNECTING)
        try:
            async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                await self._index.check()
        except (IndexUnavailable, TimeoutError) as error:
            return Health(State.DEGRADED, str(error) or "timeout")
        return Health(State.DEGRADED, self._mute) if self._mute else Health(State.CONNECTED)

    async def opened(self) -> None:
        """Wait until the index is open."""
        await self._opened.wait()

    async def passages(
        self, scope: Scope, query: str, top_k: int, excerpt_bytes: int, lost: list[DegradedBlock]
    ) -> Sequence[Passage]:
        """See `grounding.pipeline.FindsPassages`. Waits for an index that is being opened or filled.

        Raises `IndexUnavailable` also where nothing was found in a workspace that is still being indexed
        for the first time since the start: that is no answer.
        """
        search = await self._ready()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FILLING_SECONDS):
                while self._is_behind(scope):
                    await self._caught_up.wait()
        found = await search.passages(scope, query, top_k, excerpt_bytes, lost)
        if not found and self._is_behind(scope):
            raise IndexUnavailable("the documents are still being indexed")
        return found

    async def recall(self, scope: Scope, query: str, top_k: int, exclude: frozenset[str]) -> Sequence[RecalledTurn]:
        """See `grounding.pipeline.RecallsTurns`."""
        await self._ready()
        assert self._turns is not None
        return await self._turns.recall(scope, query, top_k, exclude)

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        lost: list[DegradedBlock] | None = None,
    ) -> list[Hit]:
        """See `grounding.documents.search.Search.search`."""
        return await (await self._ready()).search(scope, query, top_k, explain=explain, lost=lost)

    async def sync(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """See `grounding.documents.indexer.Indexer.sync`."""
        await self._ready()
        assert self._indexer is not None
        return await self._indexer.sync(scope, paths, progress, fresh=fresh)

    async def status(self, scope: Scope) -> Status:
        """See `grounding.documents.indexer.Indexer.status`."""
        await self._ready()
        assert self._indexer is not None
        return await self._indexer.status(scope)

    async def forget_workspace(self, scope: Scope) -> None:
        """Take a workspace's passages out of the index; the files stay."""
        await self._ready()
        assert self._indexer is not None
        await self._indexer.forget_workspace(scope)

    async def turns(self) -> TurnIndex:
        """The earlier turns, once the index is open."""
        await self._ready()
        assert self._turns is not None
        return self._turns

    async def _ready(self) -> Search:
        if self._search is None and self._why:
            raise IndexUnavailable(self._why)
        if self._search is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                    await self._opened.wait()
        if self._search is None:
            raise IndexUnavailable(self._why or "the index is still being opened")
        return self._search

    async def _open(self) -> None:
        settings = self._settings
        embedder: Embedder = await open_embedder(settings) if settings.embedding_model else WordLlamaEmbedder()
        index = await asyncio.to_thread(_adapter, settings, embedder)
        try:
            await index.ensure()
        except BaseException:
            await index.close()
            raise
        self._index, self._embedder = index, embedder
        self._search = Search(index, embedder, reranker=self._reranker)
        self._turns = TurnIndex(index, embedder)
        self._indexer = Indexer(self.library, index, embedder, self._redis, self._tokens.count)
        self._why = ""
        self._opened.set()

    async def _catch_up_at_last(self) -> None:
        """`_catch_up`, as soon as the store lets it."""
        wait, longest = _RETRY_SECONDS
        while True:
            try:
                return await self._catch_up()
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _catch_up(self) -> None:
        """What changed on the disk while nobody looked. Raises `StoreUnavailable`."""
        try:
            await self._publisher.import_all()
            workspaces = [workspace.id for workspace in await self._workspaces.all()]
            self._behind = set(workspaces)
            for workspace_id in workspaces:
                await self._keep_in_step(workspace_id, None, directives=False)
                self._behind.discard(workspace_id)
                self._tell_waiting()
        finally:
            self._behind = set()
            self._tell_waiting()

    def _is_behind(self, scope: Scope) -> bool:
        return self._behind is None or scope.workspace_id in self._behind

    def _tell_waiting(self) -> None:
        self._caught_up.set()
        self._caught_up = asyncio.Event()

    async def _follow_workspaces(self) -> None:
        async for change in self._changes():
            documents = changed_documents(change)
            directives = any(path == "context" or path.startswith("context/") for path in change.paths)
            if documents is None or documents or directives:
                await self._keep_in_step(change.workspace_id, documents, directives)

    async def _changes(self) -> AsyncIterator[Changed]:
        """What changes on the disk, also after the system had no watch to give for a while."""
        while True:
            try:
                async for change in watch(self._settings.data_dir):
                    yield change
            except OSError as error:
                _log.warning("index.failed", why=f"files cannot be followed: {error}")
            await asyncio.sleep(_RETRY_SECONDS[1])

    async def _follow_global_directives(self) -> None:
        folder = self._settings.data_dir / "global"
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        async for _ in awatch(folder, debounce=300, ignore_permission_denied=True):
            try:
                await self._publisher.import_all()
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))

    async def _keep_in_step(self, workspace_id: str, documents: Collection[str] | None, directives: bool) -> None:
        """Bring the index (for *documents*; all if None) and, if asked, the directives in step with the files."""
        try:
            scope = Scope(workspace_id)
            if not await self._workspaces.exists(workspace_id):
                return
            if directives:
                await self._publisher.import_workspace(scope)
            if documents is None or documents:
                await self.sync(scope, documents)
        except (AgentRuntimeError, OSError) as error:
            # The next change, or the next start, tries again; searches find what was indexed before.
            _log.warning("index.failed", workspace_id=workspace_id, why=str(error))


def _adapter(settings: Settings, embedder: Embedder) -> PassageIndex:
    """The index's adapter; its package is imported here, so that only the one in use costs anything."""
    if settings.qdrant_url is None:
        from grounding.documents.qdrant_embedded import EmbeddedIndex

        return EmbeddedIndex(
            settings.data_dir / "qdrant",
            embedder.name,
            embedder.dimensions,
            timeout_seconds=settings.qdrant_timeout_seconds,
        )
    from grounding.documents.qdrant_server import ServerIndex

    key = settings.qdrant_api_key
    return ServerIndex(
        settings.qdrant_url,
        embedder.name,
        embedder.dimensions,
        timeout_seconds=settings.qdrant_timeout_seconds,
        api_key=key.get_secret_value() if key else None,
    )
