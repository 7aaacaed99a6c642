"""What can be searched, opened in the background and kept in step with the disk.

Until the index is open, and while it cannot be, every search raises `IndexUnavailable` with the reason:
the turn goes on without that layer and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Collection as Some
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import Scope, StoreUnavailable
from grounding.documents.backlog import Backlog
from grounding.documents.catalogue import Catalogue, Identity, Lacks
from grounding.documents.context_field import ContextField
from grounding.documents.disk_copy import DiskCopy
from grounding.documents.embedding import Embedder, EmbedderUnavailable
from grounding.documents.index import Hit, IndexUnavailable
from grounding.documents.indexer import Indexer, Progress, Status, Synced
from grounding.documents.lease import StoringLease
from grounding.documents.ledger import Ledger
from grounding.documents.library import Library, Skipped
from grounding.documents.rerank import Reranker
from grounding.documents.search import Search
from grounding.documents.shared_shelf import SharedShelf
from grounding.documents.shelf import FileShelf, Shelf
from grounding.documents.turns import Turns as TurnIndex
from grounding.documents.vocabulary import Vocabulary
from grounding.run_context import DegradedBlock, Passage, RecalledTurn
from grounding.tokens import Tokens
from promptpolicy.files import FilingPublisher
from runtime.collection import Collection, adapter, default_identity, former_embedder, identity_of, model_of
from runtime.doubts import REBUILDING, STALE, Doubts
from runtime.embedder import open_embedder
from runtime.following import Following
from runtime.formers import Formers
from runtime.told import ToldContexts, ToldTurns
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis

_RETRY_SECONDS = (1.0, 30.0)
_FILLING_SECONDS = 2.0
"""How long a turn waits for documents that are being indexed for the first time since the start."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChangeOver:
    """A workspace that is answered from the collection of another model than the one that is set: both models, and how
    many documents, and whether all remembered turns, the new collection has."""

    answered_by: str
    filling: str
    documents: int
    turns: bool


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
        self.catalogue = Catalogue(redis)
        self.formers = Formers(self.catalogue, self._former)
        self._opened = asyncio.Event()
        self._target: Collection | None = None
        """The collection of the model that is set, to be filled and, once it is, to answer."""
        self._why = ""
        self._mute = ""
        """Why nothing can be embedded, and so nothing be found in an index that is open."""

    def will_follow(self) -> None:
        """Say that `follow` is about to begin: until it has looked, nobody knows which documents are behind."""
        self._following.will_run()

    async def open(self) -> None:
        """Open the index, however long that takes, and see to what is open, until cancelled."""
        wait, longest = _RETRY_SECONDS
        while not self._opened.is_set():
            try:
                await self._open()
            except (IndexUnavailable, EmbedderUnavailable, StoreUnavailable, OSError) as error:
                self._why = str(error)
                store = "redis" if isinstance(error, StoreUnavailable) else "qdrant"
                _log.warning("store.degraded", store=store, why=self._why)
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)
        await self.formers.tend((await self._ready()).name)

    async def warm(self) -> None:
        """Load a bundled embedding model, so that the first search need not; `health` says if it cannot be."""
        if self._target is None or self._settings.bundled_embedding_model is None:
            return
        try:
            await self._target.embedder.embed_query("warm")
        except EmbedderUnavailable as error:
            self._mute = str(error)
            _log.warning("store.degraded", store="qdrant", why=self._mute)

    async def try_embedding(self) -> None:
        """Embed a few words with the model that is set. Raises `EmbedderUnavailable`, and `IndexUnavailable` while
        nothing is known of it."""
        await (await self._ready()).embedder.embed_query("opening hours")

    async def follow(self) -> None:
        """Bring the index and the directives in step with the disk, and keep them there, until cancelled."""
        await self._opened.wait()
        await self._following.run()

    async def close(self) -> None:
        """Let go of the index's files and connections. Never raises."""
        await self.formers.close()
        if self._target is not None:
            with suppress(StoreUnavailable):  # it runs out by itself
                await self.catalogue.leave(self._target.name)
            await self._target.index.close()

    async def health(self) -> Health:
        """How the index is now."""
        if self._target is None:
            return Health(State.DEGRADED, self._why) if self._why else Health(State.CONNECTING)
        try:
            async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                await self._target.index.check()
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
        if self._why == "":
            await self._ready()
            with suppress(TimeoutError):
                async with asyncio.timeout(_FILLING_SECONDS):
                    await self._following.until_ahead(scope)
        noted: list[DegradedBlock] = []
        async with self._answering(scope) as answering:
            found, doubt = await asyncio.gather(
                answering.search.passages(scope, query, top_k, excerpt_bytes, max_tokens, lost=noted, earlier=earlier),
                self._doubt_after_a_look(scope, answering),
            )
        noted = _with_doubt(noted, doubt)
        if not found and (self._following.is_behind(scope) or _REBUILDING in noted):
            raise IndexUnavailable("the documents are still being indexed")
        lost += noted
        return found

    async def relevance(self, scope: Scope, text: str) -> float | None:
        """See `grounding.deciding.SpeaksOf`. Waits for nothing: None while the index is being opened."""
        if self._target is None:
            return None
        async with self._answering(scope) as answering:
            return await answering.vocabulary.relevance(scope, text)

    @asynccontextmanager
    async def _answering(self, scope: Scope) -> AsyncIterator[Collection]:
        """The collection that answers the scope's workspace: the former one until the new one has everything, and also
        where the new one cannot be opened. Raises `IndexUnavailable`."""
        try:
            target = await self._ready()
        except IndexUnavailable as error:
            async with self._former_alone(scope) as former:
                if former is None:
                    raise error from None
                yield former
            return
        async with self.formers.answering(scope, target.name) as former:
            yield former or target

    @asynccontextmanager
    async def _former_alone(self, scope: Scope) -> AsyncIterator[Collection | None]:
        """The former collection; None where the one that answers may be that of the model that is set, which nobody
        must open twice."""
        model = model_of(self._settings)
        try:
            identity = (await self.catalogue.known()).get(await self.catalogue.current(scope))
        except StoreUnavailable:
            identity = None
        if identity is None or identity.model == model:
            yield None
            return
        async with self.formers.answering(scope, "") as former:
            yield former

    async def _doubt_after_a_look(self, scope: Scope, answering: Collection) -> str:
        await self._doubts.look(scope)
        if await self._lacks(scope, answering, Lacks.DOCUMENTS):
            return REBUILDING
        if answering is not self._target:  # what could not be stored in the new one yet is in this one all the same
            return STALE if self._following.is_behind(scope) else self._doubts.doubt(scope)
        if self.copy is not None and await answering.indexer.is_being_filled(scope):
            return REBUILDING
        return self.doubt(scope)

    async def _lacks(self, scope: Scope, answering: Collection, what: Lacks) -> bool:
        """Whether something is known to be missing where a former collection answers."""
        return answering is not self._target and await self.catalogue.is_behind(scope, answering.name, what)

    def doubt(self, scope: Scope) -> str:
        """Why what is found may not be all that there is, as a word of metrics; empty where nothing says so."""
        if self._following.is_behind(scope) or self._following.is_failing(scope):
            return STALE
        return self._doubts.doubt(scope)

    async def recall(
        self,
        scope: Scope,
        query: str,
        top_k: int,
        exclude: frozenset[str],
        *,
        earlier: Sequence[str] = (),
        lost: list[DegradedBlock] | None = None,
    ) -> Sequence[RecalledTurn]:
        """See `grounding.pipeline.RecallsTurns`."""
        noted: list[DegradedBlock] = []
        async with self._answering(scope) as answering:
            found = await answering.turns.recall(scope, query, top_k, exclude, earlier=earlier, lost=noted)
            if not noted and await self._lacks(scope, answering, Lacks.TURNS):
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
    ) -> list[Hit]:
        """See `grounding.documents.search.Search.search`; where the scope names a context also in its document."""
        noted: list[DegradedBlock] = []
        inside = scope.context_id is not None
        async with self._answering(scope) as answering:
            found, doubt = await asyncio.gather(
                answering.search.search(scope, query, top_k, explain=explain, scores=inside, lost=noted),
                self._doubt_after_a_look(scope, answering),
            )
            if inside:
                found = await answering.contexts.among(scope, query, found, top_k, explain=explain)
                if not doubt and await self._lacks(scope, answering, Lacks.CONTEXTS):
                    doubt = REBUILDING
        if lost is not None:
            lost += _with_doubt(noted, doubt)
        return found

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
        await self._ready()
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
        target = await self._ready()
        await self.catalogue.claim(scope, target.name)
        async with self.formers.answering(scope, target.name) as former:
            if former is not None:
                await self._keep_in_step(former, scope, paths)
        return await target.indexer.sync(scope, paths, progress, fresh=fresh)

    async def keep_answering(self, scope: Scope) -> bool:
        """Bring what answers while the index of another model is filled in step with the documents, so that nothing
        found is out of date; False where there is no such thing, or it could not be."""
        target = await self._ready()
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
        return await (await self._ready()).indexer.pending(scope)

    async def is_whole(self, scope: Scope) -> bool:
        """See `grounding.documents.indexer.Indexer.is_whole`."""
        return await (await self._ready()).indexer.is_whole(scope)

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Files that are no documents. Raises `StoreUnavailable` and `IndexUnavailable`."""
        if self.copy is not None:
            return self.copy.skipped(scope)
        return await (await self._ready()).indexer.skipped(scope)

    async def status(self, scope: Scope) -> Status:
        """See `grounding.documents.indexer.Indexer.status`. Files are looked at only where nobody follows them."""
        target = await self._ready()
        if self.copy is None and not self._following.is_running:
            return await target.indexer.status(scope)
        (waiting,) = await self._backlog.waiting([scope])
        return await target.indexer.status(scope, waiting.documents)

    async def change_over(self, scope: Scope) -> ChangeOver | None:
        """How far the index of another model is; None where the one that is set answers the workspace. Raises
        `StoreUnavailable` and `IndexUnavailable`."""
        target = await self._ready()
        name = await self.catalogue.current(scope)
        former = (await self.catalogue.known()).get(name) if name not in ("", target.name) else None
        if former is None:
            return None
        documents = await Ledger(self._redis, target.name).documents(scope)
        turns = await self.catalogue.remembers(scope, target.name)
        return ChangeOver(former.model, target.identity.model, documents, turns)

    @property
    def is_followed(self) -> bool:
        """Whether this process follows the documents, and has brought the index in step with all of them once."""
        return self._following.is_running

    async def forget_workspace(self, scope: Scope) -> None:
        """Take a workspace's passages out of the index, of former models too; the files stay."""
        target = await self._ready()
        await target.indexer.forget_workspace(scope)
        for name in (await self.catalogue.known()).keys() - {target.name}:
            async with self.formers.using(name) as former:
                if former is not None:
                    await former.indexer.forget_workspace(scope)
            await self.catalogue.forget(scope, name)

    async def target(self) -> Identity:
        """The collection of the model that is set. Raises `IndexUnavailable` while it cannot be opened."""
        return (await self._ready()).identity

    async def turns(self) -> TurnIndex:
        """The earlier turns in the collection of the model that is set, once the index is open."""
        return (await self._ready()).turns

    async def contexts(self) -> ContextField:
        """The context documents in the collection of the model that is set, once the index is open."""
        return (await self._ready()).contexts

    async def told_turns(self) -> ToldTurns:
        """What is told of turns as they are said and forgotten, once the index is open."""
        target = await self._ready()
        return ToldTurns(target.name, target.turns, self.catalogue, self.formers)

    async def told_contexts(self) -> ToldContexts:
        """What is told of context documents as they are written and forgotten, once the index is open."""
        target = await self._ready()
        return ToldContexts(target.name, target.contexts, self.catalogue, self.formers)

    async def _ready(self) -> Collection:
        if self._target is None and self._why:
            raise IndexUnavailable(self._why)
        if self._target is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                    await self._opened.wait()
        if self._target is None:
            raise IndexUnavailable(self._why or "the index is still being opened")
        return self._target

    async def _open(self) -> None:
        embedder = await open_embedder(self._settings)
        target = await asyncio.to_thread(self._collection, identity_of(embedder), embedder)
        try:
            await target.index.ensure()
            await self._adopt(target.identity)
            await self.catalogue.register(target.identity)
            await self.catalogue.keep(target.name)
        except BaseException:
            await target.index.close()
            raise
        self._target = target
        self._why = ""
        self._opened.set()

    async def _adopt(self, target: Identity) -> None:
        """What versions without a catalogue left: of all models that they may have been given, the default one is
        known. Where its collection has documents of a workspace, it goes on answering."""
        if target == default_identity() or await self.catalogue.known():
            return
        ledger = Ledger(self._redis, default_identity().name)
        for workspace in await self._workspaces.all():
            if await ledger.documents(scope := Scope(workspace.id)):
                await self.catalogue.register(default_identity())
                await self.catalogue.claim(scope, default_identity().name)

    def _collection(self, identity: Identity, embedder: Embedder, words_alone: str = "") -> Collection:
        """Blocking."""
        index = adapter(self._settings, identity)
        count, former = self._tokens.count, bool(words_alone)
        indexer = Indexer(
            self.shelf,
            index,
            embedder,
            self._redis,
            count,
            backlog=None if former else self._backlog,
            exclusive=self._lease,
            leaves=former,
        )
        search = Search(index, embedder, count=count, reranker=self._reranker, words_alone=words_alone)
        turns = TurnIndex(index, embedder, words_alone=words_alone)
        contexts = ContextField(index, embedder, words_alone=former)
        return Collection(identity, index, embedder, search, Vocabulary(index, embedder), turns, contexts, indexer)

    def _former(self, identity: Identity) -> Collection:
        return self._collection(identity, former_embedder(self._settings, identity), REBUILDING)


_REBUILDING = DegradedBlock(block="retrieved", why=REBUILDING)


def _with_doubt(noted: Sequence[DegradedBlock], doubt: str) -> list[DegradedBlock]:
    """*noted* and *doubt*, if that says more."""
    said = any(one.block == "retrieved" for one in noted)
    return [*noted, *([DegradedBlock(block="retrieved", why=doubt)] if doubt and not said else [])]
