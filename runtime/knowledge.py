"""What can be searched, opened in the background and kept in step with the disk.

Until the index is open, and while it cannot be, every search raises `IndexUnavailable` with the reason:
the turn goes on without that layer and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import Scope, redis_key
from grounding.documents.backlog import OWNER, Backlog
from grounding.documents.context_field import ContextField
from grounding.documents.disk_copy import DiskCopy
from grounding.documents.embedding import Embedder, EmbedderUnavailable
from grounding.documents.index import Hit, IndexUnavailable, PassageIndex, collection_name
from grounding.documents.indexer import Indexer, Progress, Status, Synced
from grounding.documents.lease import StoringLease
from grounding.documents.library import Library, Skipped
from grounding.documents.rerank import Reranker
from grounding.documents.search import Search
from grounding.documents.shared_shelf import SharedShelf
from grounding.documents.shelf import FileShelf, Shelf
from grounding.documents.turns import Turns as TurnIndex
from grounding.documents.vocabulary import Vocabulary
from grounding.memory.records.index import RecordIndex
from grounding.memory.records.store import RecordStore
from grounding.run_context import DegradedBlock, Passage, RecalledTurn
from grounding.tokens import Tokens
from promptpolicy.files import FilingPublisher
from runtime.doubts import REBUILDING, STALE, Doubts
from runtime.embedder import open_embedder
from runtime.following import Following
from runtime.fusion import fusion_of
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

_RETRY_SECONDS = (1.0, 30.0)
_FILLING_SECONDS = 2.0
"""How long a turn waits for documents that are being indexed for the first time since the start."""
TURN_FORM = "2"
"""Of what is indexed of a turn. Where another one was remembered, everything that was said is remembered anew: with its
day and the turn before it since 2."""
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
        self.copy: DiskCopy | None = None
        """What keeps the files of this machine and the documents the same, where those are kept for several."""
        shared = None
        if settings.redis_url is not None:
            shared = SharedShelf(redis, max_bytes=settings.document_max_bytes)
            self.copy = DiskCopy(self.library, shared)
        self.shelf: Shelf = shared or FileShelf(self.library)
        self._backlog = Backlog(redis)
        self._lease = StoringLease(redis) if shared else lambda _: nullcontext()
        self._following = Following(settings, self, workspaces, publisher, self._backlog, shelf=shared, copy=self.copy)
        self._doubts = Doubts(redis, self._backlog, settings.index_stale_seconds, is_shared=shared is not None)
        self._opened = asyncio.Event()
        self._index: PassageIndex | None = None
        self._search: Search | None = None
        self._vocabulary: Vocabulary | None = None
        self._indexer: Indexer | None = None
        self._turns: TurnIndex | None = None
        self._contexts: ContextField | None = None
        self._records: RecordIndex | None = None
        self._why = ""
        self._embedder: Embedder | None = None
        self._mute = ""
        """Why nothing can be embedded, and so nothing be found in an index that is open."""

    def will_follow(self) -> None:
        """Say that `follow` is about to begin: until it has looked, nobody knows which documents are behind."""
        self._following.will_run()

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
        """Load a bundled embedding model, so that the first search need not; `health` says if it cannot be."""
        if self._embedder is None or self._settings.bundled_embedding_model is None:
            return
        try:
            await self._embedder.embed_query("warm")
        except EmbedderUnavailable as error:
            self._mute = str(error)
            _log.warning("store.degraded", store="qdrant", why=self._mute)

    async def follow(self) -> None:
        """Bring the index and the directives in step with the disk, and keep them there, until cancelled."""
        await self._opened.wait()
        await self._following.run()

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
        self,
        scope: Scope,
        query: str,
        top_k: int,
        excerpt_bytes: int,
        max_tokens: int,
        *,
        lost: list[DegradedBlock],
        earlier: Sequence[str] = (),
    ) -> Sequence[Passage]:
        """See `grounding.pipeline.FindsPassages`. Waits for an index that is being opened or filled.

        Raises `IndexUnavailable` also where nothing was found in a workspace that is still being indexed
        for the first time since the start: that is no answer.
        """
        search = await self._ready()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FILLING_SECONDS):
                await self._following.until_ahead(scope)
        found, doubt = await asyncio.gather(
            search.passages(scope, query, top_k, excerpt_bytes, max_tokens, lost=lost, earlier=earlier),
            self._doubt_after_a_look(scope),
        )
        if not found and (self._following.is_behind(scope) or doubt == REBUILDING):
            raise IndexUnavailable("the documents are still being indexed")
        if doubt:
            lost.append(DegradedBlock(block="retrieved", why=doubt))
        return found

    async def relevance(self, scope: Scope, text: str) -> float | None:
        """See `grounding.deciding.SpeaksOf`. Waits for nothing: None while the index is being opened."""
        return None if self._vocabulary is None else await self._vocabulary.relevance(scope, text)

    async def _doubt_after_a_look(self, scope: Scope) -> str:
        await self._doubts.look(scope)
        if self.copy is not None and self._indexer is not None and await self._indexer.is_being_filled(scope):
            return REBUILDING
        return self.doubt(scope)

    def doubt(self, scope: Scope) -> str:
        """Why what is found may not be all that there is, as a word of metrics; empty where nothing says so."""
        if self._following.is_behind(scope) or self._following.is_failing(scope):
            return STALE
        return self._doubts.doubt(scope)

    async def recall(
        self, scope: Scope, query: str, top_k: int, exclude: frozenset[str], *, earlier: Sequence[str] = ()
    ) -> Sequence[RecalledTurn]:
        """See `grounding.pipeline.RecallsTurns`."""
        await self._ready()
        assert self._turns is not None
        return await self._turns.recall(scope, query, top_k, exclude, earlier=earlier)

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        lost: list[DegradedBlock] | None = None,
    ) -> list[Hit]:
        """See `grounding.documents.search.Search.search`; where the scope names a context also in its document."""
        search = await self._ready()
        inside = scope.context_id is not None
        found, doubt = await asyncio.gather(
            search.search(scope, query, top_k, explain=explain, scores=inside, lost=lost),
            self._doubt_after_a_look(scope),
        )
        if inside:
            assert self._contexts is not None
            found = await self._contexts.among(scope, query, found, top_k, explain=explain)
        if doubt and lost is not None:
            lost.append(DegradedBlock(block="retrieved", why=doubt))
        return found

    async def sync(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Bring documents and files of this machine in step, where they are two, and the index with them: see
        `grounding.documents.indexer.Indexer.sync`."""
        await self._ready()
        if self.copy is not None:
            await self.copy.bring_in_step(scope, paths)
        done = await self.index(scope, paths, progress, fresh=fresh)
        skipped = self.copy.skipped(scope) if self.copy is not None else done.skipped
        return replace(done, skipped=tuple(skipped))

    async def index(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Bring the index in step with the documents: see `grounding.documents.indexer.Indexer.sync`."""
        await self._ready()
        assert self._indexer is not None
        return await self._indexer.sync(scope, paths, progress, fresh=fresh)

    async def unindexed(self, scope: Scope) -> set[str]:
        """See `grounding.documents.indexer.Indexer.pending`."""
        await self._ready()
        assert self._indexer is not None
        return await self._indexer.pending(scope)

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Files that are no documents. Raises `StoreUnavailable` and `IndexUnavailable`."""
        if self.copy is not None:
            return self.copy.skipped(scope)
        await self._ready()
        assert self._indexer is not None
        return await self._indexer.skipped(scope)

    async def status(self, scope: Scope) -> Status:
        """See `grounding.documents.indexer.Indexer.status`. Files are looked at only where nobody follows them."""
        await self._ready()
        assert self._indexer is not None
        if self.copy is None and not self._following.is_running:
            return await self._indexer.status(scope)
        (waiting,) = await self._backlog.waiting([scope])
        return await self._indexer.status(scope, waiting.documents)

    async def forget_workspace(self, scope: Scope) -> None:
        """Take a workspace's passages out of the index; the files stay."""
        await self._ready()
        assert self._indexer is not None
        await self._indexer.forget_workspace(scope)

    async def remembers_turns(self) -> bool:
        """Whether what was said before this collection of the index was made has been put into it. Raises
        `IndexUnavailable` and `StoreUnavailable`."""
        await self._ready()
        return bool(await self._redis.exists(self._remembered_key()))

    async def has_remembered_turns(self) -> None:
        """Say that it has."""
        await self._redis.set(self._remembered_key(), "1")

    def _remembered_key(self) -> str:
        assert self._embedder is not None
        collection = collection_name(self._embedder.name, self._embedder.dimensions)
        return redis_key(OWNER, "{index}", "remembered", collection, TURN_FORM)

    async def turns(self) -> TurnIndex:
        """The earlier turns, once the index is open."""
        await self._ready()
        assert self._turns is not None
        return self._turns

    async def contexts(self) -> ContextField:
        """The context documents, once the index is open."""
        await self._ready()
        assert self._contexts is not None
        return self._contexts

    @property
    def embedding_model(self) -> str:
        """What embeds; empty until the index is open."""
        return self._embedder.name if self._embedder is not None else ""

    async def records(self) -> RecordIndex:
        """The typed records, once the index is open."""
        await self._ready()
        assert self._records is not None
        return self._records

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
        embedder = await open_embedder(settings)
        index = await asyncio.to_thread(_adapter, settings, embedder)
        try:
            await index.ensure()
        except BaseException:
            await index.close()
            raise
        self._index, self._embedder = index, embedder
        self._search = Search(index, embedder, count=self._tokens.count, reranker=self._reranker)
        self._vocabulary = Vocabulary(index, embedder)
        self._turns = TurnIndex(index, embedder)
        self._contexts = ContextField(index, embedder)
        self._records = RecordIndex(index, embedder, RecordStore(self._redis))
        self._indexer = Indexer(
            self.shelf,
            index,
            embedder,
            self._redis,
            self._tokens.count,
            backlog=self._backlog,
            exclusive=self._lease,
        )
        self._why = ""
        self._opened.set()


def _adapter(settings: Settings, embedder: Embedder) -> PassageIndex:
    """The index's adapter; its package is imported here, so that only the one in use costs anything."""
    if settings.qdrant_url is None:
        from grounding.documents.qdrant_embedded import EmbeddedIndex

        return EmbeddedIndex(
            settings.data_dir / "qdrant",
            embedder.name,
            embedder.dimensions,
            timeout_seconds=settings.qdrant_timeout_seconds,
            fusion=fusion_of(settings),
        )
    from grounding.documents.qdrant_server import ServerIndex

    key = settings.qdrant_api_key
    return ServerIndex(
        settings.qdrant_url,
        embedder.name,
        embedder.dimensions,
        timeout_seconds=settings.qdrant_timeout_seconds,
        api_key=key.get_secret_value() if key else None,
        fusion=fusion_of(settings),
    )
