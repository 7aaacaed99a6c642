"""What can be searched, and what keeps it in step with the documents; what is found in it: `runtime.finding`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Collection as Some
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import Scope
from grounding.codex.store import CodexStore
from grounding.documents.backlog import Backlog
from grounding.documents.catalogue import Identity, Lacks
from grounding.documents.context_field import ContextField
from grounding.documents.deeper import Deeper
from grounding.documents.disk_copy import DiskCopy
from grounding.documents.embedding import Embedder, EmbedderUnavailable
from grounding.documents.index import IndexUnavailable
from grounding.documents.lease import StoringLease
from grounding.documents.library import Library, Skipped
from grounding.documents.rerank import Reranker
from grounding.documents.runs import Progress, Status, Synced
from grounding.documents.shared_shelf import SharedShelf
from grounding.documents.shelf import FileShelf, Shelf
from grounding.documents.turns import Turns as TurnIndex
from grounding.memory.records.index import RecordIndex
from grounding.tokens import Tokens
from promptpolicy.files import FilingPublisher
from runtime.collection import Collection, Maker
from runtime.doubts import Doubts
from runtime.embedded.index_client import IndexProcess
from runtime.finding import Finding
from runtime.following import Following
from runtime.opening import Opening
from runtime.told import ToldContexts, ToldRecords, ToldTurns
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
        deep: Deeper | None = None,
        engine: IndexProcess | None = None,
        process: str = "",
    ) -> None:
        """*process* is the name under which this one may lead those that share a Redis."""
        self.library = Library(settings.data_dir, max_bytes=settings.document_max_bytes)
        self.copy: DiskCopy | None = None
        """What keeps the files of this machine and the documents the same, where those are kept for several."""
        shared = None
        if settings.redis_url is not None:
            shared = SharedShelf(redis, max_bytes=settings.document_max_bytes)
            self.copy = DiskCopy(self.library, shared)
        self.shelf: Shelf = shared or FileShelf(self.library)
        self._backlog = Backlog(redis)
        exclusive = StoringLease(redis) if shared else lambda _: nullcontext()
        self.material = CodexStore(
            redis, max_bytes=settings.codex_max_bytes, file_max_bytes=settings.codex_file_max_bytes
        )
        """What is given whole, or searched apart from the documents."""
        self._stored_in: set[str] = set()
        """Workspaces of which this process stored something that may lack deeper vectors."""
        self._stored = asyncio.Event()
        maker = Maker(
            settings, redis, self.shelf, tokens.count, self._backlog, exclusive, reranker, self.material, deep, engine
        )
        self.opening = Opening(settings, redis, workspaces, maker)
        self.catalogue = self.opening.catalogue
        self.formers = self.opening.formers
        self._following = Following(settings, self, workspaces, publisher, self._backlog, shelf=shared, copy=self.copy)
        own = process if shared is not None and settings.qdrant_url is None else ""
        self._doubts = Doubts(redis, self._backlog, settings.index_stale_seconds, is_shared=shared is not None, own=own)
        self.finding = Finding(
            self.opening, self._following, self._doubts, self._backlog, is_copied=self.copy is not None
        )
        """What turns and people ask of it."""

    def will_follow(self) -> None:
        """Say that `follow` is about to begin: until it has looked, nobody knows which documents are behind."""
        self._following.will_run()

    async def open(self) -> None:
        """See `runtime.opening.Opening.run`."""
        await self.opening.run()

    async def opened(self) -> None:
        """Wait until the index is open."""
        await self.opening.opened()

    async def close(self) -> None:
        """Let go of the index's files and connections. Never raises."""
        await self.opening.close()

    async def warm(self) -> None:
        """See `runtime.opening.Opening.warm`."""
        await self.opening.warm()

    async def health(self) -> Health:
        """How the index is now."""
        health, why_not = await self.opening.health(), self.unwatched
        why_not = await self._doubts.why_apart() or why_not
        return Health(State.DEGRADED, why_not) if why_not and health.state is State.CONNECTED else health

    async def try_embedding(self) -> None:
        """Embed a few words with the model that is set. Raises `EmbedderUnavailable`, and `IndexUnavailable` while
        nothing is known of it."""
        await (await self.opening.ready()).embedder.embed_query("opening hours")

    async def follow(self) -> None:
        """Bring the index and the directives in step with the disk, and keep them there, until cancelled."""
        await self.opening.opened()
        await self._following.run()

    async def sync(
        self,
        scope: Scope,
        paths: Some[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Bring documents and files of this machine in step, where they are two, and the index with them: see
        `grounding.documents.indexer.Indexer.sync`."""
        await self.opening.ready()
        if self.copy is not None:
            await self.copy.bring_in_step(scope, paths)
        done = await self.index(scope, paths, progress, fresh=fresh)
        skipped = self.copy.skipped(scope) if self.copy is not None else done.skipped
        return replace(done, skipped=tuple(skipped))

    async def index(
        self,
        scope: Scope,
        paths: Some[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Bring the index in step with the documents: see `grounding.documents.indexer.Indexer.sync`. What answers
        until the index of another model is filled comes first: there it takes only what has changed."""
        target = await self.opening.ready()
        await self.catalogue.claim(scope, target.name)
        async with self.formers.answering(scope, target.name) as former:
            if former is not None:
                await self._keep_in_step(former, scope, paths)
        try:
            done = await target.indexer.sync(scope, paths, progress, fresh=fresh)
            if paths is None:
                await self.catalogue.caught_up(scope, target.name, Lacks.DOCUMENTS)
            return done
        finally:  # interrupted, some of it may be stored
            self.note_stored(scope)

    def note_stored(self, scope: Scope) -> None:
        """Say that passages of the scope's workspace were stored that may lack deeper vectors."""
        self._stored_in.add(scope.workspace_id)
        self._stored.set()

    def take_stored(self) -> set[str]:
        """The workspaces that were noted since the last call."""
        taken, self._stored_in = self._stored_in, set()
        self._stored.clear()
        return taken

    async def wait_until_stored(self) -> None:
        """Wait until `take_stored` gives something."""
        await self._stored.wait()

    async def keep_answering(self, scope: Scope) -> bool:
        """Bring what answers while the index of another model is filled in step with the documents, so that nothing
        found is out of date; False where there is no such thing, or it could not be."""
        target = await self.opening.ready()
        async with self.formers.answering(scope, target.name) as former:
            if former is None:
                return False
            if self.copy is not None:
                await self.copy.bring_in_step(scope)
            return await self._keep_in_step(former, scope, None)

    async def _keep_in_step(self, former: Collection, scope: Scope, paths: Some[str] | None) -> bool:
        try:
            await former.indexer.sync(scope, paths)
        except (EmbedderUnavailable, IndexUnavailable) as error:
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=str(error))
            await self.catalogue.fell_behind(scope, former.name, Lacks.DOCUMENTS)
            with suppress(IndexUnavailable):  # what is gone must not be found, whatever else is out of date
                await former.indexer.forget_gone(scope, paths)
            return False
        if paths is None:
            await self.catalogue.caught_up(scope, former.name, Lacks.DOCUMENTS)
        return True

    async def unindexed(self, scope: Scope) -> set[str]:
        """See `grounding.documents.indexer.Indexer.pending`."""
        return await (await self.opening.ready()).indexer.pending(scope)

    async def indexed(self, scope: Scope, paths: Some[str]) -> set[str]:
        """See `grounding.documents.indexer.Indexer.knows`."""
        return await (await self.opening.ready()).indexer.knows(scope, paths)

    async def is_whole(self, scope: Scope) -> bool:
        """See `grounding.documents.indexer.Indexer.is_whole`."""
        return await (await self.opening.ready()).indexer.is_whole(scope)

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Files that are no documents. Raises `StoreUnavailable` and `IndexUnavailable`."""
        if self.copy is not None:
            return self.copy.skipped(scope)
        return await (await self.opening.ready()).indexer.skipped(scope)

    async def status(self, scope: Scope) -> Status:
        """See `grounding.documents.indexer.Indexer.status`. Files are looked at only where nobody follows them."""
        target = await self.opening.ready()
        if self.copy is None and not self._following.is_running:
            return await target.indexer.status(scope)
        (waiting,) = await self._backlog.waiting([scope])
        return await target.indexer.status(scope, waiting.documents)

    @property
    def unwatched(self) -> str:
        """Why the system tells of no files that change, while it does not; empty where it does, or nobody asks it."""
        return self._following.watching.why_not

    @property
    def is_followed(self) -> bool:
        """Whether this process follows the documents, and has brought the index in step with all of them once."""
        return self._following.is_running

    async def forget_workspace(self, scope: Scope) -> None:
        """Take a workspace's passages out of the index, of former models too; its files are left to the caller."""
        target = await self.opening.ready()
        await target.indexer.forget_workspace(scope)
        for name in (await self.catalogue.known()).keys() - {target.name}:
            async with self.formers.using(name) as former:
                if former is not None:
                    await former.indexer.forget_workspace(scope)
            await self.catalogue.forget(scope, name)

    async def deepens(self) -> bool:
        """Whether passages get deeper vectors. Raises `IndexUnavailable` while nothing can be asked."""
        return (await self.opening.ready()).index.deepens

    @property
    def too_old(self) -> str:
        """What the index does otherwise than it is asked to because of its version; empty where that is not known."""
        return self.opening.target.index.too_old if self.opening.target is not None else ""

    async def target(self) -> Identity:
        """The collection of the model that is set. Raises `IndexUnavailable` while it cannot be opened."""
        return (await self.opening.ready()).identity

    async def turns(self) -> TurnIndex:
        """The earlier turns in the collection of the model that is set, once the index is open."""
        return (await self.opening.ready()).turns

    async def contexts(self) -> ContextField:
        """The context documents in the collection of the model that is set, once the index is open."""
        return (await self.opening.ready()).contexts

    async def embedder(self) -> Embedder:
        """The embedding model that is set. Raises `IndexUnavailable` while nothing is known of it."""
        return (await self.opening.ready()).embedder

    async def records(self) -> RecordIndex:
        """The typed records in the collection of the model that is set, once the index is open."""
        return (await self.opening.ready()).records

    async def told_turns(self) -> ToldTurns:
        """What is told of turns as they are said and forgotten, once the index is open."""
        target = await self.opening.ready()
        return ToldTurns(target.name, target.turns, self.catalogue, self.formers)

    async def told_contexts(self) -> ToldContexts:
        """What is told of context documents as they are written and forgotten, once the index is open."""
        target = await self.opening.ready()
        return ToldContexts(target.name, target.contexts, self.catalogue, self.formers)

    async def told_records(self) -> ToldRecords:
        """What is told of typed records as they change, once the index is open."""
        target = await self.opening.ready()
        return ToldRecords(target.name, target.records, self.catalogue, self.formers)
