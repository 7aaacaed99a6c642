"""What can be searched, and what keeps it in step with the documents; what is found in it:
`runtime.search.knowledge`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from collections.abc import Collection as Some
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import Health, State
from connectors.message import Scope, StoreUnavailable
from grounding.codex import CodexStore
from grounding.documents import (
    READ_DOCUMENTS,
    Backlog,
    Catalogue,
    DiskCopy,
    FileShelf,
    Identity,
    Lacks,
    Ledger,
    Library,
    Progress,
    SharedShelf,
    Shelf,
    Skipped,
    Status,
    StoringLease,
    Synced,
)
from grounding.memory.records import RecordIndex, Type
from grounding.prompt_input import DegradedBlock, Passage, RecalledTurn, Tokens
from grounding.retrieval import (
    ContextField,
    Deeper,
    Embedder,
    EmbedderUnavailable,
    Hit,
    IndexUnavailable,
    Match,
    Reranker,
)
from grounding.retrieval import Turns as TurnIndex
from promptpolicy.file_sync import FileSyncPublisher
from runtime.embedded.index_client import IndexProcess
from runtime.llm import open_embedder
from runtime.search.collections import (
    REBUILDING,
    STALE,
    Collection,
    Doubts,
    Formers,
    Maker,
    ToldContexts,
    ToldRecords,
    ToldTurns,
    default_identity,
    model_of,
    with_doubt,
)
from runtime.search.sync import Following
from runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- opening ----
#
# The collection of the embedding model that is set, opened in the background, and which collection answers meanwhile.
#
# Until it is open, and while it cannot be, `IndexUnavailable` says why.


_RETRY_SECONDS = (1.0, 30.0)
_log = structlog.get_logger()


class Opening:
    """``target`` is None until it is open; ``why`` says, once that failed, what it failed of."""

    def __init__(self, settings: Settings, redis: Redis, workspaces: Workspaces, maker: Maker) -> None:
        self._settings = settings
        self._redis = redis
        self._workspaces = workspaces
        self._maker = maker
        self.catalogue = Catalogue(redis)
        self.formers = Formers(self.catalogue, maker.former)
        self.target: Collection | None = None
        self.why = ""
        self._mute = ""
        """Why nothing can be embedded, and so nothing be found in an index that is open."""
        self._opened = asyncio.Event()

    async def run(self) -> None:
        """Open it, however long that takes, and see to what is open, until cancelled."""
        wait, longest = _RETRY_SECONDS
        while not self._opened.is_set():
            try:
                await self._open()
            except Exception as error:  # noqa: BLE001 - whatever it is, the bot answers without an index
                self.why = str(error) or type(error).__name__
                store = "redis" if isinstance(error, StoreUnavailable) else "qdrant"
                _log.warning("store.degraded", store=store, why=self.why)
                await asyncio.sleep(wait)
                wait = min(wait * 2, longest)
        await self.formers.tend((await self.ready()).name)

    async def opened(self) -> None:
        """Wait until it is open."""
        await self._opened.wait()

    async def ready(self) -> Collection:
        """It, once it is open. Raises `IndexUnavailable` after ``QDRANT_TIMEOUT_SECONDS``, or once that failed."""
        if self.target is None and self.why:
            raise IndexUnavailable(self.why)
        if self.target is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                    await self._opened.wait()
        if self.target is None:
            raise IndexUnavailable(self.why or "the index is still being opened")
        return self.target

    @asynccontextmanager
    async def answering(self, scope: Scope) -> AsyncIterator[Collection]:
        """The collection that answers the scope's workspace: the former one until the new one has everything, and for
        as long as the new one is not open. Raises `IndexUnavailable`."""
        if self.target is None:
            async with self.formers.other_than(scope, model_of(self._settings)) as former:
                if former is not None:
                    yield former
                    return
        target = await self.ready()
        async with self.formers.answering(scope, target.name) as former:
            yield former or target

    async def warm(self) -> None:
        """Load a bundled embedding model, so that the first search need not; `health` says if it cannot be."""
        if self.target is None or self._settings.bundled_embedding_model is None:
            return
        try:
            await self.target.embedder.embed_query("warm")
        except EmbedderUnavailable as error:
            self._mute = str(error)
            _log.warning("store.degraded", store="qdrant", why=self._mute)

    async def health(self) -> Health:
        """How the index is now."""
        if self.target is None:
            return Health(State.DEGRADED, self.why) if self.why else Health(State.CONNECTING)
        try:
            async with asyncio.timeout(self._settings.qdrant_timeout_seconds):
                await self.target.index.check()
        except (IndexUnavailable, TimeoutError) as error:
            return Health(State.DEGRADED, str(error) or f"no answer in {self._settings.qdrant_timeout_seconds:g} s")
        return Health(State.DEGRADED, self._mute) if self._mute else Health(State.CONNECTED)

    async def close(self) -> None:
        """Let go of the index's files and connections. Never raises."""
        await self.formers.close()
        if self.target is not None:
            with suppress(StoreUnavailable):  # it runs out by itself
                await self.catalogue.leave(self.target.name)
            await self.target.index.close()

    async def _open(self) -> None:
        embedder = await open_embedder(self._settings)
        target = await asyncio.to_thread(self._maker.target, embedder)
        try:
            if not await target.index.exists():
                await self.catalogue.lost(target.name, [Scope(one.id) for one in await self._workspaces.all()])
            await target.index.ensure()
            await self._adopt(target.identity)
            await self.catalogue.register(target.identity)
            await self.catalogue.keep(target.name)
        except BaseException:
            await target.index.close()
            raise
        self.target = target
        self.why = ""
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


# ---- finding ----
#
# What is found in documents, earlier turns and records, and what is said of it that may be missing.
#
# Until an index is open, and while none can be (`runtime.search.knowledge`), every search raises `IndexUnavailable`
# with the
# reason: the turn goes on without that layer and says so.


_FILLING_SECONDS = 2.0
"""How long a turn waits for documents that are being indexed for the first time since the start."""


class Finding:
    """Searches what answers for a workspace: the collection of the model that is set, or a former one's until then."""

    def __init__(
        self, opening: Opening, following: Following, doubts: Doubts, backlog: Backlog, *, is_copied: bool
    ) -> None:
        self._opening = opening
        self._following = following
        self._doubts = doubts
        self._backlog = backlog
        self._is_copied = is_copied  # whether documents come from elsewhere than the files of this machine
        self.unremembered: set[str] = set()
        """Workspaces whose earlier turns are not all in the index, into which they are being put."""
        self._is_awake = False

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
        noted: list[DegradedBlock] = []
        async with self._opening.answering(scope) as answering:
            if self._opening.target is not None:  # else nobody follows yet
                with suppress(TimeoutError):
                    async with asyncio.timeout(_FILLING_SECONDS):
                        await self._following.until_ahead(scope)
            found, doubt = await asyncio.gather(
                answering.search.passages(scope, query, top_k, excerpt_bytes, max_tokens, lost=noted, earlier=earlier),
                self._doubt_after_a_look(scope, answering),
            )
        noted = with_doubt(noted, doubt)
        is_filling = any(one.block == "retrieved" and one.why == REBUILDING for one in noted)
        if not found and (self._following.is_behind(scope) or is_filling):
            raise IndexUnavailable("the documents are still being indexed")
        lost += noted
        return found

    async def awake(self, scope: Scope) -> None:
        """See `grounding.pipeline.SpeaksOf`. What is said first after a start would be judged by cues alone else."""
        if self._is_awake and not self._following.is_behind(scope):
            return
        if self._opening.target is None and self._opening.why:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_FILLING_SECONDS):
                await self._opening.opened()
                await self._opening.warm()
                self._is_awake = True
                await self._following.until_ahead(scope)

    async def best_match(self, scope: Scope, text: str) -> Match | None:
        """See `grounding.pipeline.SpeaksOf`. Waits for nothing: None while the index is being opened."""
        if self._opening.target is None:
            return None
        async with self._opening.answering(scope) as answering:
            return await answering.vocabulary.best_match(scope, text)

    async def _doubt_after_a_look(self, scope: Scope, answering: Collection) -> str:
        await self._doubts.look(scope)
        if await self._lacks(scope, answering, Lacks.DOCUMENTS):
            return REBUILDING
        if answering is not self._opening.target:
            return await self._doubt_of_former(scope, answering)
        if self._is_copied and await answering.indexer.is_being_filled(scope):
            return REBUILDING
        return self.doubt(scope)

    async def _doubt_of_former(self, scope: Scope, former: Collection) -> str:
        """As `doubt`, of a collection that may have what waits for the one that is set, whose model may be away."""
        if self._following.is_behind(scope) or self._doubts.is_unfollowed:
            return STALE
        if not self._doubts.doubt(scope):
            return ""
        waiting = await self._backlog.paths(scope, READ_DOCUMENTS + 1)
        return "" if await former.indexer.has(scope, waiting) else STALE

    async def _lacks(self, scope: Scope, answering: Collection, *what: Lacks) -> bool:
        """Whether something is known to be missing where a former collection answers, or of what was said."""
        if answering is self._opening.target:
            is_lacking = Lacks.TURNS in what and (scope.workspace_id in self.unremembered or self._doubts.is_apart)
            if is_lacking or not self._is_copied:  # this process alone fills it, and knows
                return is_lacking
        return await self._opening.catalogue.is_behind(scope, answering.name, *what)

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
        asked_for: bool = True,
    ) -> Sequence[RecalledTurn]:
        """See `grounding.pipeline.RecallsTurns`."""
        noted: list[DegradedBlock] = []
        if not asked_for and self._opening.target is None:
            return ()  # it is not worth a wait
        async with self._opening.answering(scope) as answering:
            found = await answering.turns.recall(
                scope, query, top_k, exclude, earlier=earlier, lost=noted, asked_for=asked_for
            )
            if not noted and await self._lacks(scope, answering, Lacks.TURNS, Lacks.RECORDS):
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
        """See `grounding.retrieval.search.Search.search`; where the scope names a context also in its document."""
        noted: list[DegradedBlock] = []
        inside = scope.context_id is not None
        async with self._opening.answering(scope) as answering:
            found, doubt = await asyncio.gather(
                answering.search.search(scope, query, top_k, explain=explain, scores=inside, lost=noted),
                self._doubt_after_a_look(scope, answering),
            )
            if inside:
                found = await answering.contexts.among(scope, query, found, top_k, explain=explain)
                if not doubt and await self._lacks(scope, answering, Lacks.CONTEXTS):
                    doubt = REBUILDING
        if lost is not None:
            lost += with_doubt(noted, doubt)
        return found

    def answering_model(self, scope: Scope) -> str:
        """What the cosines of the workspace's last search were taken with: the model that is set, or a former one while
        that answers; empty where none is known."""
        target = self._opening.target.identity if self._opening.target is not None else None
        former = self._opening.formers.model_of(scope, target.name if target else "")
        return former or (target.model if target else "")

    async def find_records(
        self, scope: Scope, query: str, top_k: int, types: Some[Type]
    ) -> Sequence[tuple[str, str, float, float]]:
        """See `grounding.memory.records.index.RecordIndex.find`."""
        async with self._opening.answering(scope) as answering:
            return await answering.records.find(scope, query, top_k, types)


# ---- knowledge ----


class Knowledge:
    """The documents of all workspaces and the earlier turns of all conversations."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
        tokens: Tokens,
        workspaces: Workspaces,
        publisher: FileSyncPublisher,
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
        """See `runtime.search.knowledge.Opening.run`."""
        await self.opening.run()

    async def opened(self) -> None:
        """Wait until the index is open."""
        await self.opening.opened()

    async def close(self) -> None:
        """Let go of the index's files and connections. Never raises."""
        await self.opening.close()

    async def warm(self) -> None:
        """See `runtime.search.knowledge.Opening.warm`."""
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
