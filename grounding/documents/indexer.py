"""Keeps the passage index in step with the documents, wherever those are kept.

What the index holds is written down (`grounding.documents.ledger`) only after the index has it, so that an interrupted
run is picked up by the next one, and nothing is embedded twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import structlog

from connectors.message import Scope, StoreUnavailable, redis_key
from grounding.documents.ledger import OWNER, Backlog, Ledger, Registered, pending
from grounding.documents.library import (
    READ_DOCUMENTS,
    AtHand,
    Document,
    Found,
    Hand,
    Shelf,
    Skipped,
    below,
    is_document_path,
)
from grounding.retrieval import (
    CHUNKER_VERSION,
    Chunk,
    CountTokens,
    Embedder,
    Entry,
    Kind,
    Passage,
    PassageIndex,
    Sizes,
    Source,
    SparseVector,
    Vector,
    chunk_document,
    collection_name,
    encode_chunk,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- ahead ----
#
# Work that is made in one place and worked off in another, both at the same time.


T = TypeVar("T")


async def made_ahead(made: AsyncGenerator[T, None], work_off: Callable[[T], Awaitable[None]]) -> None:
    """Have what is *made* worked off, one after the other, each while the next one is made: never more than that.

    Raises what either raises: what was made before *made* failed is worked off first; where *work_off* fails, what is
    being made is given up.
    """

    async def following() -> tuple[list[T], Exception | None]:
        try:
            return [await anext(made)], None
        except StopAsyncIteration:
            return [], None
        except Exception as error:  # noqa: BLE001 - it is raised below, in its turn
            return [], error

    async with aclosing(made):
        some, failed = await following()
        while some:
            try:
                async with asyncio.TaskGroup() as group:
                    making = group.create_task(following())
                    await work_off(some[0])
            except ExceptionGroup as several:
                raise several.exceptions[0] from several.exceptions[0].__cause__
            some, failed = making.result()
        if failed is not None:
            raise failed


# ---- runs ----
#
# What a run of the indexer is asked for and does: its documents, in the forms that they take on the way. Pure.


GROUP_CHUNKS = 256
"""Chunks, of several documents, that are embedded and stored together."""

PORTION_BYTES = 250_000
"""Text that is cut before any of it is embedded and stored, more than a run's documents mostly are together. The
smaller ones come first, so that none of them waits for one that takes seconds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: documents looked at, of how many, and the one at hand."""

    done: int
    total: int
    path: str


@dataclass(frozen=True, slots=True)
class Synced:
    """What one run did. ``documents`` were stored anew, ``lag_ms`` is the longest wait among them and what went."""

    documents: int = 0
    chunks: int = 0
    chunks_embedded: int = 0
    deleted: int = 0
    unchanged: int = 0
    lag_ms: int = 0
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """What the index holds of a workspace: documents and chunks, documents that are not yet as they are kept, the lag
    of the last change, and how many chunks are still to get a deeper vector."""

    documents: int
    chunks: int
    pending: int
    lag_ms: int
    shallow: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A document that is to be stored: its text's digest, its chunks, and the terms of each."""

    document: Document
    sha256: str
    chunks: list[Chunk]
    sparse: list[SparseVector]


@dataclass(slots=True)
class Run:
    """One run: what it was asked for, and what it did so far."""

    scope: Scope
    started: float
    fresh: bool
    doubted: frozenset[str] = frozenset()
    """Documents that the index should have, and has not as it should."""
    only_named: bool = False
    """Whether it was asked for documents by their names alone, and no folder was looked through."""
    absent: dict[str, bool] = field(default_factory=dict)
    """Those of them that are none, because folders may be named like that, too; and whether they were known."""
    since: dict[str, float] = field(default_factory=dict)
    """When changes of the folders that it was asked for were told."""
    documents: int = 0
    chunks: int = 0
    embedded: int = 0
    deleted: int = 0
    unchanged: int = 0
    lag_ms: int = 0
    lagged: int = 0
    """Of how many documents, stored or deleted, the lag is written down."""
    skipped: dict[str, Skipped] = field(default_factory=dict)

    def result(self) -> Synced:
        """What it did, as it is told."""
        named = tuple(self.skipped[path] for path in sorted(self.skipped))
        return Synced(
            self.documents, self.chunks, self.embedded, self.deleted, self.unchanged, self.lag_ms, skipped=named
        )


@dataclass(slots=True)
class Batch:
    """Documents that are looked at together: what was known of them, and what they are now."""

    known: dict[str, Registered]
    since: dict[str, float]
    same: dict[str, Registered] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """Documents that were looked at together, all of which is stored that is to be: the *read* ones, and those of them
    that were *registered*. ``done`` of ``total`` are looked at then."""

    batch: Batch
    read: list[str]
    registered: set[str]
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A group of documents that can be stored: the vectors of its chunks, and the deeper ones that some have already,
    by the chunks' ids; and the step that it *ends*, if it is the last of one."""

    batch: Batch
    group: Sequence[Prepared]
    vectors: dict[str, Vector]
    deep: dict[str, Vector]
    ends: Step | None


def sha256_of(document: Document) -> str:
    """What is written down of its text."""
    return hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()


def is_known(item: Document | Found | Skipped | None, known: Registered | None) -> bool:
    """Whether what was read of a document is what is written down of it."""
    if isinstance(item, Document):
        return known is not None and known.sha256 == sha256_of(item)
    return (known is not None) == isinstance(item, Found)


def refused(items: Collection[object]) -> bool:
    """Whether some of *items* are no documents."""
    return any(isinstance(item, Skipped) for item in items)


def portions(documents: Sequence[Document]) -> list[list[Document]]:
    """*documents*, the smallest first, in portions of about `PORTION_BYTES`."""
    portions: list[list[Document]] = []
    size = 0
    for document in sorted(documents, key=lambda document: document.size_bytes):
        if not portions or size + document.size_bytes > PORTION_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(document)
        size += document.size_bytes
    return portions


def groups(prepared: Sequence[Prepared]) -> list[list[Prepared]]:
    """*prepared* in groups of at most `GROUP_CHUNKS` chunks; a document is never divided."""
    groups: list[list[Prepared]] = []
    size = 0
    for item in prepared:
        if not groups or size + len(item.chunks) > GROUP_CHUNKS:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += len(item.chunks)
    return groups


def texts_of(chunks: Sequence[Chunk]) -> list[str]:
    """What is embedded of each of *chunks*."""
    return [chunk.indexed_text for chunk in chunks]


def let_go(ready: Ready, sources: list[Source]) -> None:
    """Empty *ready*, which is stored, and what was made of it. To free a long document's vectors takes 0.1 s: in a
    thread, and one by one, so that the event loop has its turn in between."""
    sources.clear()
    for numbers in (ready.vectors, ready.deep):
        while numbers:
            numbers.popitem()
    for item in ready.group:
        while item.chunks:
            item.chunks.pop()
            item.sparse.pop()


def sources_of(
    scope: Scope, items: Sequence[Prepared], vectors: dict[str, Vector], deep: dict[str, Vector]
) -> list[Source]:
    """*items* as the index stores them; *vectors* are those of their chunks by their ids, *deep* what some have
    already."""
    return [Source(scope, Kind.DOCUMENT, item.document.path, _entries_of(item, vectors, deep)) for item in items]


def _entries_of(item: Prepared, vectors: dict[str, Vector], deep: dict[str, Vector]) -> list[Entry]:
    return [
        Entry(passage_of_chunk(chunk), vectors[chunk.id], sparse, deep.get(chunk.id))
        for chunk, sparse in zip(item.chunks, item.sparse, strict=True)
    ]


def passage_of_chunk(chunk: Chunk, kind: Kind = Kind.DOCUMENT, source: str = "") -> Passage:
    """*chunk* as the index holds it; *source* where it is not the chunk's path."""
    return Passage(
        id=chunk.id,
        kind=kind,
        source=source or chunk.path,
        text=chunk.text,
        title=chunk.title,
        heading=chunk.heading,
        lead=chunk.lead,
        ordinal=chunk.ordinal,
        start=chunk.start,
        end=chunk.end,
        first_line=chunk.first_line,
        last_line=chunk.last_line,
    )


def indexed_text_of(passage: Passage) -> str:
    """`grounding.retrieval.chunking.Chunk.indexed_text` of a chunk that the index holds as *passage*."""
    title, heading = passage.title, passage.heading
    if heading != title and not heading.startswith(f"{title} › "):
        heading = f"{title} › {heading}" if heading else title
    return "\n".join(part for part in (heading, passage.lead, passage.text) if part)


# ---- indexed ----
#
# What the index holds of the documents, and whether that is what is kept of them.


class Indexed:
    """Of one collection. *fingerprint* says how documents are cut and embedded now."""

    def __init__(self, shelf: Shelf, index: PassageIndex, ledger: Ledger, fingerprint: str) -> None:
        self._shelf = shelf
        self._index = index
        self._ledger = ledger
        self._fingerprint = fingerprint

    async def pending(self, scope: Scope) -> set[str]:
        """Documents that are not in the index as they are kept now, by their looks. Raises `StoreUnavailable`."""
        there, unfit = await self._shelf.look_through(scope)
        registry, named = await self._ledger.all(scope), await self._ledger.skipped(scope)
        return await asyncio.to_thread(pending, registry, named, there, unfit, self._fingerprint)

    async def knows(self, scope: Scope, paths: Collection[str]) -> set[str]:
        """Those of *paths* of which the index has some text. Raises `StoreUnavailable`."""
        return await self._ledger.some(scope, list(paths))

    async def has(self, scope: Scope, paths: Sequence[str]) -> bool:
        """Whether the documents at *paths* are in the index as they are kept now, gone where they are none; False also
        where those are too many to be read at once. Raises `StoreUnavailable` or `OSError`."""
        known = await self._ledger.entries(scope, paths)
        read = await self._shelf.read(scope, paths, {path: one.sha256 for path, one in known.items()})
        return len(read) == len(paths) and all(is_known(item, known.get(path)) for path, item in read.items())

    async def is_whole(self, scope: Scope) -> bool:
        """Whether the index has what is written down that it has. Raises `IndexUnavailable` and `StoreUnavailable`."""
        return not await self._doubted(scope)

    async def is_being_filled(self, scope: Scope) -> bool:
        """Whether less than half of the shared documents are in this collection yet. Raises `StoreUnavailable`."""
        documents, kept = await asyncio.gather(self._ledger.documents(scope), self._shelf.size(scope))
        return 2 * documents < kept

    async def status(self, scope: Scope, waiting: int | None = None) -> Status:
        """What the index holds. *waiting* is how many documents are pending, where that is known: else all of them
        are looked at. Raises `StoreUnavailable` and `IndexUnavailable`."""
        return Status(
            documents=await self._ledger.documents(scope),
            chunks=await self._index.count(scope, Kind.DOCUMENT),
            pending=len(await self.pending(scope)) if waiting is None else waiting,
            lag_ms=await self._ledger.lag_ms(scope),
            shallow=await self._index.count_shallow(scope, Kind.DOCUMENT),
        )

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Files that are no documents, by path. Raises `StoreUnavailable`."""
        found = await self._ledger.skipped(scope)
        return [found[path] for path in sorted(found)]

    async def _doubted(self, scope: Scope) -> frozenset[str]:
        """Documents that the index has lost (another server, a deleted folder)."""
        registry = await self._ledger.all(scope)
        expected = sum(entry.chunks for entry in registry.values())
        if await self._index.count(scope, Kind.DOCUMENT) == expected:
            return frozenset()
        found = await self._index.sources(scope, Kind.DOCUMENT)
        return frozenset(path for path, entry in registry.items() if found.get(path, 0) != entry.chunks)


# ---- indexer ----


log = structlog.get_logger()

RECENT_SECONDS = 60.0
"""A file changed at most this long before the indexer looked was changed just now: its lag counts from there."""

_MOST_WAITING = 100_000

Exclusive = Callable[[Scope], AbstractAsyncContextManager[object]]
"""Keeps other processes from storing documents of a workspace."""


class Indexer(Indexed):
    """Brings one collection in step. Runs of one workspace go on at once, each with some documents at a time in hand,
    so that a long one keeps no other waiting."""

    def __init__(
        self,
        shelf: Shelf,
        index: PassageIndex,
        embedder: Embedder,
        redis: Redis,
        count: CountTokens,
        *,
        sizes: Sizes | None = None,
        now: Callable[[], float] = time.time,
        backlog: Backlog | None = None,
        exclusive: Exclusive = lambda _: nullcontext(),
        leaves: bool = False,
    ) -> None:
        """*leaves* is for an index that only answers until
        another takes its place: documents that were cut otherwise than they would be now stay as they are, and nothing
        is announced, because the other one announces it."""
        sizes = sizes or Sizes()
        collection = collection_name(embedder.name, embedder.dimensions)
        fingerprint = f"{CHUNKER_VERSION}/{sizes.target}/{sizes.overlap}/{collection}"
        super().__init__(shelf, index, Ledger(redis, collection), fingerprint)
        self._embedder = embedder
        self._count = count
        self._sizes = sizes
        self._now = now
        self._backlog = backlog
        self._exclusive = exclusive
        self._leaves = leaves
        self._at_hand: WeakValueDictionary[str, AtHand] = WeakValueDictionary()
        """Of each workspace in which something is at hand: whoever has something keeps it from being forgotten."""

    async def sync(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Index what changed in the scope's workspace (of *paths*, files or folders, where given) and forget what
        is gone. *fresh* trusts neither what is written down nor stored vectors: everything is cut and embedded again,
        and can be found meanwhile.

        Raises `IndexUnavailable`, `EmbedderUnavailable`, `StoreUnavailable` or `OSError`; what was stored until then
        stays, and the next run goes on from there.
        """
        run = Run(scope, self._now(), fresh)
        if paths is None and not fresh:
            run.doubted = await self._doubted(scope)
        wanted = await self._wanted(run, paths)
        with self._hands(scope).hand() as hand:
            # What is next is read, cut and embedded while the engine, which may be another process, stores.
            await made_ahead(self._steps(run, wanted, hand), lambda one: self._work_off(run, one, hand, progress))
        result = run.result()
        if (result.documents or result.deleted) and not self._leaves:
            log.info(
                "index.updated",
                workspace_id=scope.workspace_id,
                documents=result.documents,
                chunks=result.chunks,
                chunks_embedded=result.chunks_embedded,
                deleted=result.deleted,
                lag_ms=result.lag_ms,
            )
        return result

    async def _wanted(self, run: Run, paths: Collection[str] | None) -> list[str]:
        if paths is not None and all(is_document_path(path) for path in paths):
            run.only_named = True
            return sorted(set(paths))
        scope = run.scope
        there, unfit = await self._shelf.look_through(scope)
        registered, named = await self._ledger.paths(scope), await self._ledger.skipped(scope)
        known = {item.path for item in there} | registered | named.keys()
        if paths is None:
            known |= set(await self._index.sources(scope, Kind.DOCUMENT))
            if self._backlog is not None:  # what came and went before the index had it is nowhere else
                known |= set(await self._backlog.paths(scope, _MOST_WAITING))
        else:
            folders = frozenset(paths)
            if self._backlog is not None:
                run.since = await self._backlog.since(scope, sorted(folders))
            known = {path for path in known | folders if below(path, folders)}
            unfit = [item for item in unfit if below(item.path, folders)]
        # A link or a folder is no document by its look; what else does not fit is found when it is read.
        links = [item for item in unfit if not is_document_path(item.path)]
        waiting = await self._backlog.since(scope, [item.path for item in links]) if self._backlog is not None else {}
        self._name(run, links, named)
        await self._ledger.record(scope, {}, links, ())
        if self._backlog is not None:
            await self._backlog.done(scope, waiting)
        wanted = (known | {item.path for item in unfit}) - {item.path for item in links}
        sizes = {item.path: item.size_bytes for item in there}
        return sorted(wanted, key=lambda path: (sizes.get(path, 0) > PORTION_BYTES, path))  # long ones come last

    async def _in_folders(self, run: Run) -> list[str]:
        """What lies, or lay, in folders that are named like documents: whoever asked for them could not know."""
        absent, run.absent = run.absent, {}
        inside: set[str] = set()
        if unknown := {path for path, was_known in absent.items() if not was_known}:
            inside |= {path for path in await self._ledger.inside_documents(run.scope) if below(path, unknown)}
        if absent and (folders := await self._shelf.folders(run.scope, absent)):
            there, unfit = await self._shelf.look_through(run.scope)
            found = {item.path for item in there} | {item.path for item in unfit}
            inside |= {path for path in found if below(path, folders)}
        return sorted(inside - absent.keys())

    async def _steps(self, run: Run, wanted: list[str], hand: Hand) -> AsyncGenerator[Ready | Step, None]:
        """What is to be stored of *wanted*, some documents after others, and of each some with the last of it, or by
        itself, that it was all. They are in *hand* from then on."""
        done = 0
        while done < len(wanted):
            some = wanted[done : done + READ_DOCUMENTS]
            await hand.take(some)
            step, changed = await self._read(run, some)
            hand.let_go(set(some).difference(step.read))
            done += len(step.read)
            if done == len(wanted):
                wanted += await self._in_folders(run)
            step.done, step.total = done, len(wanted)
            is_told, left = False, portions(changed)
            for number, portion in enumerate(left, start=1):
                ready = groups(await self._prepare(step.batch, portion))
                for count, group in enumerate(ready, start=1):
                    is_told = number == len(left) and count == len(ready)
                    yield await self._embed(run, step.batch, group, step if is_told else None)
            if not is_told:
                yield step

    async def _work_off(
        self, run: Run, one: Ready | Step, hand: Hand, progress: Callable[[Progress], None] | None
    ) -> None:
        """Store *one*; where a step ends with it, write down what came of that, let go of it and tell of it."""
        if isinstance(one, Ready):
            await self._store(run, one)
        step = one if isinstance(one, Step) else one.ends
        if step is None:
            return
        await self._finish(run, step)
        # In hand, or it would come back after the workspace was forgotten.
        if run.documents + run.deleted > run.lagged and not self._leaves:
            run.lagged = run.documents + run.deleted
            await self._ledger.keep_lag(run.scope, run.lag_ms)
        hand.let_go(step.read)
        if progress is not None:
            for number, path in enumerate(step.read, start=step.done - len(step.read) + 1):
                progress(Progress(number, step.total, path))

    async def _read(self, run: Run, paths: Sequence[str]) -> tuple[Step, list[Document]]:
        """The first of *paths*, and those of them that may have changed."""
        scope = run.scope
        known = {} if run.fresh else await self._ledger.entries(scope, paths)
        batch = Batch({path: entry for path, entry in known.items() if path not in run.doubted}, {})
        if self._backlog is not None:
            batch.since = await self._backlog.since(scope, paths)
        shas = {path: one.sha256 for path, one in batch.known.items() if self._is_cut_well(one)}
        read = await self._shelf.read(scope, paths, shas)
        named = await self._ledger.skipped(scope) if None in read.values() or refused(read.values()) else {}
        registered = set(known) if not run.fresh else await self._ledger.paths(scope) & set(paths)
        changed: list[Document] = []
        for path, item in read.items():
            if isinstance(item, Skipped):
                batch.skipped.append(item)
            elif item is None:
                batch.gone.append(path)
                if run.only_named:
                    run.absent[path] = path in registered or path in named
            elif isinstance(item, Found):
                batch.same[path] = batch.known[path]
            else:
                changed.append(item)
        self._name(run, batch.skipped, named)
        return Step(batch, list(read), registered), changed

    async def _prepare(self, batch: Batch, documents: Sequence[Document]) -> list[Prepared]:
        """Cut those of *documents* that the index does not have as they are; those."""

        def cut() -> list[Prepared]:
            prepared = []
            for document in documents:
                sha256 = sha256_of(document)
                known = batch.known.get(document.path)
                if known is not None and known.sha256 == sha256 and self._is_cut_well(known):
                    batch.same[document.path] = Registered(
                        sha256, known.fingerprint, known.chunks, document.size_bytes, document.modified_ns
                    )
                    continue
                chunks = chunk_document(document.path, document.text, self._count, self._sizes)
                sparse = [encode_chunk(chunk.indexed_text) for chunk in chunks]
                prepared.append(Prepared(document, sha256, chunks, sparse))
            return prepared

        return await asyncio.to_thread(cut)

    async def _embed(self, run: Run, batch: Batch, group: Sequence[Prepared], ends: Step | None) -> Ready:
        scope = run.scope
        chunks = [chunk for item in group for chunk in item.chunks]
        known = [] if run.fresh else [chunk.id for chunk in chunks]
        vectors = await self._index.vectors(scope, Kind.DOCUMENT, known)
        deep = await self._index.vectors(scope, Kind.DOCUMENT, [*vectors], deep=True)
        missing = [chunk for chunk in chunks if chunk.id not in vectors]
        texts = await asyncio.to_thread(texts_of, missing) if missing else []  # as many as a document has chunks
        embedded = await self._embedder.embed_documents(texts) if texts else []
        vectors |= {chunk.id: vector for chunk, vector in zip(missing, embedded, strict=True)}
        run.embedded += len(missing)
        return Ready(batch, group, vectors, deep, ends)

    async def _store(self, run: Run, ready: Ready) -> None:
        scope, batch, deep = run.scope, ready.batch, ready.deep
        async with self._exclusive(scope):
            later = await self._shelf.changed(scope, [item.document for item in ready.group])
            kept = [item for item in ready.group if item.document.path not in later]
            # A document may have thousands of chunks: off the loop.
            sources = await asyncio.to_thread(sources_of, scope, kept, ready.vectors, deep)
            await self._index.replace(sources)
            await self._ledger.record(scope, {item.document.path: self._registered(item) for item in kept}, (), ())
        for path in later:  # whoever changed it goes on with it
            batch.since.pop(path, None)
        run.documents += len(kept)
        run.chunks += sum(len(item.chunks) for item in kept)
        for item in kept:
            changed = (item.document.changed_ns or item.document.modified_ns) / 1e9
            recent = run.started - RECENT_SECONDS <= changed <= self._now()
            since = self._since(run, batch, item.document.path)
            came_later = changed < since < run.started and item.document.path not in batch.since  # with its folder
            self._waited(run, changed if recent and not came_later else since)
        await asyncio.to_thread(let_go, ready, sources)

    async def _finish(self, run: Run, step: Step) -> None:
        """Forget what is gone or no document any more, and write down what is as it was."""
        scope, batch = run.scope, step.batch
        absent = [*batch.gone, *(item.path for item in batch.skipped)]
        if absent:
            async with self._exclusive(scope):
                again = await self._shelf.read(scope, absent, {})
                absent = [path for path in absent if not isinstance(again.get(path), Document)]
                for path in {*batch.gone, *(item.path for item in batch.skipped)} - set(absent):
                    batch.since.pop(path, None)  # it is there again, and whoever put it there goes on with it
                skipped = [item for item in batch.skipped if item.path in absent]
                await self._index.replace([Source(scope, Kind.DOCUMENT, path, ()) for path in absent])
                await self._ledger.record(scope, {}, skipped, [path for path in batch.gone if path in absent])
            went = step.registered & set(absent)
            run.deleted += len(went)
            for path in went:
                self._waited(run, self._since(run, batch, path))
        moved = {path: entry for path, entry in batch.same.items() if entry != batch.known.get(path)}
        await self._ledger.record(scope, moved, (), ())
        run.unchanged += len(batch.same)
        if self._backlog is not None:
            await self._backlog.done(scope, {path: at for path, at in batch.since.items() if path in set(step.read)})

    def _since(self, run: Run, batch: Batch, path: str) -> float:
        """When the change of *path*, or of a folder above it, was told; when the run began where it was not."""
        told = [at for folder, at in run.since.items() if below(path, (folder,))]
        return batch.since.get(path, max(told, default=run.started))

    def _waited(self, run: Run, since: float) -> None:
        run.lag_ms = max(run.lag_ms, round((self._now() - since) * 1000))

    def _registered(self, item: Prepared) -> Registered:
        document = item.document
        return Registered(item.sha256, self._fingerprint, len(item.chunks), document.size_bytes, document.modified_ns)

    def _name(self, run: Run, skipped: Collection[Skipped], named: dict[str, Skipped]) -> None:
        """Name what is no document: in the result, and where that is news in an event."""
        for item in skipped:
            run.skipped[item.path] = item
            if named.get(item.path) != item and not self._leaves:
                log.warning("index.skipped", workspace_id=run.scope.workspace_id, path=item.path, why=item.why)

    def _is_cut_well(self, known: Registered) -> bool:
        return self._leaves or known.fingerprint == self._fingerprint

    async def forget_gone(self, scope: Scope, paths: Collection[str] | None = None) -> None:
        """Forget documents (of *paths*, files or folders, where given) that are kept no more. Nothing is embedded.

        Raises `IndexUnavailable` and `StoreUnavailable`.
        """
        there, _ = await self._shelf.look_through(scope)
        registered = await self._ledger.paths(scope) - {item.path for item in there}
        gone = sorted(path for path in registered if paths is None or below(path, paths))
        async with self._hands(scope).some(gone), self._exclusive(scope):
            await self._index.replace([Source(scope, Kind.DOCUMENT, path, ()) for path in gone])
            await self._ledger.record(scope, {}, (), gone)

    def _hands(self, scope: Scope) -> AtHand:
        return self._at_hand.setdefault(scope.workspace_id, AtHand())

    async def forget_workspace(self, scope: Scope) -> None:
        """Take a workspace's passages and what is written down of them away; the documents stay."""
        async with self._hands(scope).everything():
            await self._index.drop_workspace(scope)
            await self._ledger.forget(scope)
            if self._backlog is not None:
                await self._backlog.forget(scope)


# ---- lease ----
#
# Lets one process at a time store documents of a workspace, so that the index ends as the last of them read it.
#
# Key (owner ``documents``, in the workspace's tag): ``storing``, the token of who holds it.


HOLD_SECONDS = 30.0
"""The longest that anybody holds it. Storing one group of chunks takes far less."""
LEASE_SECONDS = 10.0
"""How long a holder that was killed is waited for: whoever lives renews it in time."""
_ASK_SECONDS = (0.01, 0.2)
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class StoringLease:
    """Of each workspace one."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._renew = redis.register_script(_RENEW)
        self._release = redis.register_script(_RELEASE)

    @asynccontextmanager
    async def __call__(self, scope: Scope) -> AsyncIterator[None]:
        """Hold it as long as the block lasts, at most `HOLD_SECONDS`. Raises `StoreUnavailable`."""
        key, token = redis_key(OWNER, scope.tag, "storing"), uuid.uuid4().hex
        wait, longest = _ASK_SECONDS
        while not await self._redis.set(key, token, nx=True, px=round(LEASE_SECONDS * 1000)):
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)
        renewing = asyncio.create_task(self._kept(key, token), name="storing")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            with suppress(StoreUnavailable):  # it runs out by itself
                await self._release(keys=[key], args=[token])

    async def _kept(self, key: str, token: str) -> None:
        """Renew it until cancelled, at most for `HOLD_SECONDS` in all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_SECONDS - LEASE_SECONDS):
                while True:
                    await asyncio.sleep(LEASE_SECONDS / 3)
                    with suppress(StoreUnavailable):
                        if not await self._renew(keys=[key], args=[token, round(LEASE_SECONDS * 1000)]):
                            return
