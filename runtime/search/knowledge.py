"""Searches the documents, earlier turns and records of all workspaces, and keeps the index in step with them.

`Knowledge` is the whole; `Searcher` is the part that turns and people ask. Until the index is open, every search raises
`IndexUnavailable` with the reason: a turn goes on without that layer and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import ConnectionState, Health
from connectors.message import Scope
from grounding.codex import CodexStore
from grounding.documents import (
    Backlog,
    Catalogue,
    DiskCopy,
    FileShelf,
    Library,
    Progress,
    SharedShelf,
    Shelf,
    Skipped,
    Status,
    Synced,
)
from grounding.memory.records import RecordHit, Type
from grounding.prompt_input import DegradedBlock, Passage, RecalledTurn, Tokens
from grounding.retrieval import (
    UNTRANSLATED,
    DeepEmbedder,
    Embedder,
    Found,
    Hit,
    IndexUnavailable,
    PassageRoom,
    QueryTranslation,
    Reranker,
)
from promptpolicy.file_sync import FileSyncPublisher
from runtime.embedded.index_client import IndexProcess
from runtime.search.collections import Collection as PassageCollection
from runtime.search.collections import (
    CollectionFactory,
    Collections,
    ContextsEverywhere,
    RecordsEverywhere,
    TurnsEverywhere,
)
from runtime.search.staleness import REBUILDING, STALE, TIMING, Staleness, Timing, with_reason
from runtime.search.sync import FileFollower
from runtime.search.translation import QueryTranslator
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

_FILLING_SECONDS = 2.0
"""How long a turn waits for documents that are looked at for the first time since the start."""
_log = structlog.get_logger()


class Searcher:
    """Searches the collection that answers a workspace."""

    def __init__(
        self,
        collections: Collections,
        catalogue: Catalogue,
        follower: FileFollower,
        staleness: Staleness,
        translator: QueryTranslator | None,
        *,
        is_shared: bool,
    ) -> None:
        """Without a *translator* every question is searched for as it is."""
        self._collections = collections
        self._catalogue = catalogue
        self._follower = follower
        self._staleness = staleness
        self._translator = translator
        self._is_shared = is_shared
        self._is_awake = False

    async def look(self, scope: Scope, query: str, top_k: int, *, earlier: Sequence[str] = ()) -> Found:
        """See `grounding.pipeline.SearchesDocuments`.

        Raises `EmbedderUnavailable`, and `IndexUnavailable` too if nothing was found and the documents are still being
        indexed.
        """
        collection = await self._collections.answering(scope)
        translation = await self._translate(scope, collection, query)
        said = [self._as_searched(scope, question) for question in earlier]
        found = await collection.search.look(scope, translation.text or query, top_k, earlier=said)
        if not found.passages and self._follower.is_behind(scope):
            raise IndexUnavailable("the documents are still being indexed")
        return replace(found, translation=translation)

    async def pack(
        self, scope: Scope, found: Found, room: PassageRoom, *, lost: list[DegradedBlock]
    ) -> Sequence[Passage]:
        """See `grounding.pipeline.SearchesDocuments`.

        Raises `IndexUnavailable` too if nothing is relevant and the documents are still being indexed.
        """
        collection, noted = await self._collections.answering(scope), list[DegradedBlock]()
        passages, reason = await asyncio.gather(
            collection.search.pack(scope, found, room, lost=noted),
            self._check_staleness(scope, collection),
        )
        noted = with_reason(noted, reason)
        is_filling = any(part.block == "retrieved" and part.why == REBUILDING for part in noted)
        if not passages and (self._follower.is_behind(scope) or is_filling):
            raise IndexUnavailable("the documents are still being indexed")
        lost += noted
        return passages

    async def awake(self, scope: Scope) -> None:
        """See `grounding.pipeline.SearchesDocuments`. Waits for the index, so that the first message is not judged
        without it."""
        if self._is_awake and not self._follower.is_behind(scope):
            return
        if self._collections.target is None and self._collections.why:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_FILLING_SECONDS):
                await self._collections.opened()
                await self._collections.warm()
                self._is_awake = True
                await self._follower.until_looked_at(scope)

    async def recall(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        exclude: frozenset[str],
        *,
        earlier: Sequence[str] = (),
        lost: list[DegradedBlock] | None = None,
        asked_for: bool = True,
    ) -> Sequence[RecalledTurn]:
        """See `grounding.pipeline.RecallsTurns`."""
        if not asked_for and self._collections.target is None:
            return ()  # it is not worth a wait
        noted: list[DegradedBlock] = []
        collection = await self._collections.answering(scope)
        found = await collection.turns.recall(
            scope, query, top_k, exclude, earlier=earlier, lost=noted, asked_for=asked_for
        )
        if not noted and await self._lacks_turns(scope, collection):
            noted.append(DegradedBlock(block="records", why=REBUILDING))
        if lost is not None:
            lost += noted
        return found

    async def search(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        *,
        explain: bool = False,
        lost: list[DegradedBlock] | None = None,
        earlier: Sequence[str] = (),
    ) -> list[Hit]:
        """See `grounding.retrieval.search.Search.search`; if the scope has a context, its document is searched too."""
        noted: list[DegradedBlock] = []
        inside = scope.context_id is not None
        collection = await self._collections.answering(scope)
        translation = await self._translate(scope, collection, query)
        said = [self._as_searched(scope, question) for question in earlier]
        if translation.why:
            noted.append(DegradedBlock(block="translation", why=translation.why))
        found, reason = await asyncio.gather(
            collection.search.search(
                scope, translation.text or query, top_k, explain=explain, scores=inside, lost=noted, earlier=said
            ),
            self._check_staleness(scope, collection),
        )
        if inside:
            found = await collection.contexts.among(scope, query, found, top_k, explain=explain)
        if lost is not None:
            lost += with_reason(noted, reason)
        return found

    async def find_records(
        self, scope: Scope, query: str, searches: Sequence[tuple[int, Collection[Type]]], *, deep: bool = False
    ) -> Sequence[RecordHit]:
        """See `grounding.memory.records.records.RecordSearch.find`."""
        return await (await self._collections.answering(scope)).records.find(scope, query, searches, deep=deep)

    def answering_model(self, scope: Scope) -> str:
        """Return the embedding model of the workspace's last search; empty if it is not known."""
        return self._collections.answering_model(scope)

    def doubt(self, scope: Scope) -> str:
        """Return why the documents in the index may be out of date; empty if nothing says so."""
        if self._follower.is_behind(scope) or self._follower.is_failing(scope):
            return STALE
        return self._staleness.reason(scope)

    async def _translate(self, scope: Scope, collection: PassageCollection, query: str) -> QueryTranslation:
        """Return how *query* is searched for, if the documents are in another language."""
        if self._translator is None:
            return UNTRANSLATED
        return await self._translator.translate(scope, query, collection.search) or UNTRANSLATED

    def _as_searched(self, scope: Scope, question: str) -> str:
        """Return an earlier *question* as it was searched for then."""
        done = self._translator.last(scope, question) if self._translator else None
        return (done.text if done else "") or question

    async def _check_staleness(self, scope: Scope, collection: PassageCollection) -> str:
        await self._staleness.check(scope)
        if self._is_former(collection) or (self._is_shared and await collection.indexer.is_being_filled(scope)):
            return REBUILDING
        return self.doubt(scope)

    async def _lacks_turns(self, scope: Scope, collection: PassageCollection) -> bool:
        """Return whether earlier turns or records are known to be missing from the collection."""
        if self._is_former(collection) or self._staleness.is_apart:
            return True
        return await self._catalogue.is_filling(scope, collection.name)

    def _is_former(self, collection: PassageCollection) -> bool:
        return collection is not self._collections.target


class Knowledge:
    """The documents of all workspaces, their index, and what keeps both in step."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        tokens: Tokens,
        workspaces: Workspaces,
        publisher: FileSyncPublisher,
        reranker: Reranker | None = None,
        deep: DeepEmbedder | None = None,
        engine: IndexProcess | None = None,
        translator: QueryTranslator | None = None,
        process: str = "",
        timing: Timing = TIMING,
        factory: type[CollectionFactory] = CollectionFactory,
    ) -> None:
        """*process* is the name under which this process may lead those that share a Redis. *factory* opens models and
        indexes."""
        self.library = Library(settings.data_dir, max_bytes=settings.document_max_bytes)
        self.material = CodexStore(
            redis, max_bytes=settings.codex_max_bytes, file_max_bytes=settings.document_max_bytes
        )
        self.catalogue = Catalogue(redis)
        shared = SharedShelf(redis, max_bytes=settings.document_max_bytes) if settings.redis_url is not None else None
        self.copy = DiskCopy(self.library, shared) if shared is not None else None
        """Keeps files and shared documents the same; None if the files of this machine are the documents."""
        self.shelf: Shelf = shared or FileShelf(self.library)
        collection_factory = factory(
            settings, redis, self.shelf, tokens.count, reranker, self.material, shared is not None, deep, engine
        )
        self.collections = Collections(settings, workspaces, collection_factory, self.catalogue, timing)
        self._backlog = Backlog(redis)
        self._follower = FileFollower(
            settings, self, workspaces, publisher, self._backlog, shelf=shared, copy=self.copy, timing=timing
        )
        own = process if shared is not None and settings.qdrant_url is None else ""
        self._staleness = Staleness(
            redis, self._backlog, is_shared=shared is not None, own=own, leaderless_seconds=timing.leaderless
        )
        self.finding = Searcher(
            self.collections,
            self.catalogue,
            self._follower,
            self._staleness,
            translator,
            is_shared=shared is not None,
        )
        self.stored = asyncio.Event()
        """Set when this process stored passages that may lack deeper vectors."""

    async def open(self) -> None:
        """Open the index; try again until it succeeds."""
        await self.collections.open()

    async def opened(self) -> None:
        """Wait until the index is open."""
        await self.collections.opened()

    async def ready(self) -> PassageCollection:
        """Return the collection of the model that is set. Raises `IndexUnavailable` while it is not open."""
        return await self.collections.ready()

    async def warm(self) -> None:
        """Load a bundled embedding model, so that the first search need not."""
        await self.collections.warm()

    async def close(self) -> None:
        """Close the index. Never raises."""
        await self.collections.close()

    async def health(self) -> Health:
        """Return the state of the index."""
        health = await self.collections.health()
        why = await self._staleness.why_apart() or self.why_unwatched
        return Health(ConnectionState.DEGRADED, why) if why and health.state is ConnectionState.CONNECTED else health

    async def embedder(self) -> Embedder:
        """Return the embedding model that is set. Raises `IndexUnavailable` while it is not known."""
        return (await self.ready()).embedder

    def will_follow(self) -> None:
        """Announce that `follow` is about to begin: until it has looked at them, documents count as behind."""
        self._follower.will_run()

    async def follow(self) -> None:
        """Bring the index and the directives in step with the disk, and keep them there, until cancelled."""
        await self.opened()
        await self._follower.run()

    @property
    def is_followed(self) -> bool:
        """Return whether this process follows the files, and has looked at all of them once."""
        return self._follower.is_running

    @property
    def why_unwatched(self) -> str:
        """Return why the system reports no changed files; empty if it does, or if no process asks it to."""
        return self._follower.watcher.why_not

    async def sync(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Bring files and shared documents in step, then the index: see `grounding.documents.indexer.Indexer.sync`."""
        await self.ready()
        if self.copy is not None:
            await self.copy.bring_in_step(scope, paths)
        done = await self.index(scope, paths, progress, fresh=fresh)
        return done if self.copy is None else replace(done, skipped=tuple(self.copy.skipped(scope)))

    async def index(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Bring the index in step with the documents: see `grounding.documents.indexer.Indexer.sync`.

        If a former collection answers, it forgets documents that are gone.
        """
        target = await self.ready()
        await self.catalogue.claim(scope, target.name)
        try:
            answering = await self.collections.answering(scope)
            if answering is not target:
                await answering.indexer.forget_gone(scope, paths)
        except IndexUnavailable as error:
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
        try:
            return await target.indexer.sync(scope, paths, progress, fresh=fresh)
        finally:  # if interrupted, some of it may be stored
            self.stored.set()

    async def unindexed(self, scope: Scope) -> set[str]:
        """See `grounding.documents.indexer.Indexer.pending`."""
        return await (await self.ready()).indexer.pending(scope)

    async def is_whole(self, scope: Scope) -> bool:
        """See `grounding.documents.indexer.Indexer.is_whole`."""
        return await (await self.ready()).indexer.is_whole(scope)

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Return the files that are no documents. Raises `StoreUnavailable` and `IndexUnavailable`."""
        if self.copy is not None:
            return self.copy.skipped(scope)
        return await (await self.ready()).indexer.skipped(scope)

    async def status(self, scope: Scope) -> Status:
        """See `grounding.documents.indexer.Indexer.status`. Files are looked at only if no process follows them."""
        indexer = (await self.ready()).indexer
        if self.copy is None and not self.is_followed:
            return await indexer.status(scope)
        (waiting,) = await self._backlog.waiting([scope])
        return await indexer.status(scope, waiting.documents)

    async def deepens(self) -> bool:
        """Return whether passages get deeper vectors. Raises `IndexUnavailable` while the index is not open."""
        return (await self.ready()).index.deepens

    async def forget_workspace(self, scope: Scope) -> None:
        """Take the workspace's passages out of all collections; its files are left to the caller."""
        target = await self.ready()
        await target.indexer.forget_workspace(scope)
        for collection in await self.collections.former():
            await collection.indexer.forget_workspace(scope)
        for name in (await self.catalogue.known()).keys() - {target.name}:
            await self.catalogue.forget(scope, name)

    async def turns_everywhere(self) -> TurnsEverywhere:
        """Return the earlier turns in all collections, once the index is open."""
        return TurnsEverywhere(await self.ready(), self.collections)

    async def contexts_everywhere(self) -> ContextsEverywhere:
        """Return the context documents in all collections, once the index is open."""
        return ContextsEverywhere(await self.ready(), self.collections)

    async def records_everywhere(self) -> RecordsEverywhere:
        """Return the typed records in all collections, once the index is open."""
        return RecordsEverywhere(await self.ready(), self.collections)
