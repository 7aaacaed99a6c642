"""Brings the passage index in step with the documents, wherever those are stored.

The ledger (`grounding.documents.ledger`) is written after the index, so that an interrupted run is continued by the
next one and nothing is embedded twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import Scope, redis_key
from grounding.documents.ledger import OWNER, Backlog, Ledger, Registered, pending
from grounding.documents.library import (
    READ_BYTES,
    READ_DOCUMENTS,
    Document,
    Found,
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
    IndexEntry,
    Kind,
    Passage,
    PassageIndex,
    Sizes,
    Source,
    SparseVector,
    chunk_document,
    collection_name,
    encode_chunk,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

GROUP_CHUNKS = 256
"""Chunks, of several documents, that are embedded and stored together."""
RECENT_SECONDS = 60.0
"""If a file's time is at most this long before its change was noticed, the lag counts from the file's time."""
STORING_SECONDS = 20.0
"""The longest that a process may store documents of a workspace, and that one which was killed is waited for."""
_MOST_WAITING = 100_000
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Progress:
    """How many documents of a run are done, of how many, and the last of them."""

    done: int
    total: int
    path: str


@dataclass(frozen=True, slots=True)
class Synced:
    """What one run did. ``documents`` were stored; ``lag_ms`` is the longest time from a change until it was found."""

    documents: int = 0
    chunks: int = 0
    chunks_embedded: int = 0
    deleted: int = 0
    unchanged: int = 0
    lag_ms: int = 0
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """What the index has of a workspace. ``pending`` documents are not in it as they are stored; ``shallow`` chunks
    still lack their deeper vector."""

    documents: int
    chunks: int
    pending: int
    lag_ms: int
    shallow: int = 0


@dataclass(frozen=True, slots=True)
class _Cut:
    """A document to be stored: the hash of its text, its chunks, and the terms of each chunk."""

    document: Document
    sha256: str
    chunks: list[Chunk]
    sparse: list[SparseVector]


@dataclass(slots=True)
class _Run:
    """One call of `Indexer.sync`: what it was asked for, and what it did so far."""

    scope: Scope
    started: float
    fresh: bool
    lost: frozenset[str] = frozenset()
    """Documents that are registered and of which the index lacks chunks."""
    noticed: float = 0.0
    """When the change of a folder was noticed that the run was asked for; else when the run began."""
    since: dict[str, float] = field(default_factory=dict)
    """When the changes of the documents at hand were noticed."""
    done: Synced = Synced()
    skipped: dict[str, Skipped] = field(default_factory=dict)

    def count(self, **more: int) -> None:
        """Add to the numbers of `Synced`."""
        self.done = replace(self.done, **{name: getattr(self.done, name) + number for name, number in more.items()})


class Indexer:
    """Fills one collection. Runs may overlap; of one workspace, one at a time reads and stores some documents."""

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
        is_shared: bool = False,
    ) -> None:
        """If *is_shared*, other processes store documents in the same index."""
        self._shelf = shelf
        self._index = index
        self._embedder = embedder
        self._count = count
        self._sizes = sizes or Sizes()
        self._now = now
        self._redis = redis
        self._is_shared = is_shared
        collection = collection_name(embedder.name, embedder.dimensions)
        self._fingerprint = f"{CHUNKER_VERSION}/{self._sizes.target}/{self._sizes.overlap}/{collection}"
        self._ledger = Ledger(redis, collection)
        self._backlog = Backlog(redis)
        self._locks: dict[str, asyncio.Lock] = {}

    async def sync(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Index what changed in the workspace and forget what is gone: at *paths* (files or folders), or everywhere.

        If *fresh*, everything is cut and embedded again, and can be found meanwhile. Raises `IndexUnavailable`,
        `EmbedderUnavailable`, `StoreUnavailable` or `OSError`; what was stored until then stays stored.
        """
        now = self._now()
        run = _Run(scope, now, fresh, noticed=now)
        if paths is None and not fresh:
            run.lost = await self._lost(scope)
        wanted = await self._list(run, paths)
        done = 0
        while done < len(wanted):
            async with self._lock(scope):
                read = await self._sync_some(run, wanted[done : done + READ_DOCUMENTS])
                if (run.done.documents or run.done.deleted) and done + len(read) >= len(wanted):
                    await self._ledger.set_lag(scope, run.done.lag_ms)
            for path in read:
                done += 1
                if progress is not None:
                    progress(Progress(done, len(wanted), path))
        result = replace(run.done, skipped=tuple(run.skipped[path] for path in sorted(run.skipped)))
        if result.documents or result.deleted:
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

    async def _list(self, run: _Run, paths: Collection[str] | None) -> list[str]:
        """Return the paths to look at, those of long documents last."""
        if paths is not None and all(is_document_path(path) for path in paths):
            return sorted(set(paths))
        scope = run.scope
        found, unfit = await self._shelf.look_through(scope)
        wanted = {item.path for item in found} | await self._ledger.paths(scope)
        wanted |= (await self._ledger.skipped(scope)).keys()
        if paths is None:
            wanted |= (await self._index.sources(scope, Kind.DOCUMENT)).keys()
            # A document that was deleted before it was indexed is nowhere else.
            wanted |= set(await self._backlog.paths(scope, _MOST_WAITING))
        else:
            told = frozenset(paths)
            run.noticed = max((await self._backlog.since(scope, sorted(told))).values(), default=run.started)
            wanted = {path for path in wanted | told if below(path, told)}
            unfit = [item for item in unfit if below(item.path, told)]
        async with self._lock(scope):
            skipped_paths = [item.path for item in unfit]
            run.since = await self._backlog.since(scope, skipped_paths)
            await self._forget(run, unfit, ())
            await self._backlog.done(scope, run.since)
        sizes = {item.path: item.size_bytes for item in found}
        return sorted(wanted.difference(skipped_paths), key=lambda path: (sizes.get(path, 0) > READ_BYTES, path))

    async def _sync_some(self, run: _Run, paths: Sequence[str]) -> list[str]:
        """Bring the first of *paths* in step, as many as are read at once, and return them."""
        scope = run.scope
        entries = {} if run.fresh else await self._ledger.entries(scope, paths)
        entries = {path: entry for path, entry in entries.items() if path not in run.lost}
        run.since = await self._backlog.since(scope, paths)
        known = {path: entry.sha256 for path, entry in entries.items() if entry.fingerprint == self._fingerprint}
        read = await self._shelf.read(scope, paths, known)
        documents = [item for item in read.values() if isinstance(item, Document)]
        changed = [item for item in documents if known.get(item.path) != sha256_of(item.text)]
        for group in _groups(await asyncio.to_thread(self._cut, changed)):
            await self._store(run, group)
        changed_paths = {item.path for item in changed}
        touched = {
            item.path: replace(entries[item.path], size_bytes=item.size_bytes, modified_ns=item.modified_ns)
            for item in documents
            if item.path not in changed_paths
        }
        await self._ledger.record(scope, {path: one for path, one in touched.items() if one != entries[path]}, (), ())
        run.count(unchanged=sum(isinstance(item, Document | Found) for item in read.values()) - len(changed))
        skipped = [item for item in read.values() if isinstance(item, Skipped)]
        await self._forget(run, skipped, [path for path, item in read.items() if item is None])
        await self._backlog.done(scope, {path: at for path, at in run.since.items() if path in read})
        return list(read)

    def _cut(self, documents: Sequence[Document]) -> list[_Cut]:
        cut = []
        for document in documents:
            chunks = chunk_document(document.path, document.text, self._count, self._sizes)
            cut.append(
                _Cut(document, sha256_of(document.text), chunks, [encode_chunk(one.indexed_text) for one in chunks])
            )
        return cut

    async def _store(self, run: _Run, group: Sequence[_Cut]) -> None:
        """Embed the chunks of *group* that the index does not have, and store the documents."""
        scope = run.scope
        chunks = [chunk for item in group for chunk in item.chunks]
        known = [] if run.fresh else [chunk.id for chunk in chunks]
        vectors = await self._index.vectors(scope, Kind.DOCUMENT, known)
        deep = await self._index.vectors(scope, Kind.DOCUMENT, [*vectors], deep=True)
        missing = [chunk for chunk in chunks if chunk.id not in vectors]
        embedded = await self._embedder.embed_documents([chunk.indexed_text for chunk in missing]) if missing else []
        vectors |= {chunk.id: vector for chunk, vector in zip(missing, embedded, strict=True)}

        def source_of(item: _Cut) -> Source:
            entries = [
                IndexEntry(passage_of_chunk(chunk), vectors[chunk.id], sparse, deep.get(chunk.id))
                for chunk, sparse in zip(item.chunks, item.sparse, strict=True)
            ]
            return Source(scope, Kind.DOCUMENT, item.document.path, entries)

        async with self._exclusive(scope):
            changed = await self._shelf.changed(scope, [item.document for item in group])
            current = [item for item in group if item.document.path not in changed]
            await self._index.replace([source_of(item) for item in current])
            await self._ledger.record(scope, {item.document.path: self._entry_of(item) for item in current}, (), ())
        for path in changed:  # whoever changed it indexes it
            run.since.pop(path, None)
        run.count(
            documents=len(current),
            chunks=sum(len(item.chunks) for item in current),
            chunks_embedded=len(missing),
        )
        for item in current:
            self._measure_lag(run, item.document.path, item.document.modified_ns / 1e9)

    def _entry_of(self, item: _Cut) -> Registered:
        document = item.document
        return Registered(item.sha256, self._fingerprint, len(item.chunks), document.size_bytes, document.modified_ns)

    async def _forget(self, run: _Run, skipped: Sequence[Skipped], gone: Sequence[str]) -> None:
        """Take files that are gone, or no documents any more, out of the index; report what is skipped."""
        scope = run.scope
        run.skipped |= {item.path: item for item in skipped}
        if not skipped and not gone:
            return
        reported = await self._ledger.skipped(scope)
        unfit = {item.path: item for item in skipped if reported.get(item.path) != item}
        for item in unfit.values():
            log.warning("index.skipped", workspace_id=scope.workspace_id, path=item.path, why=item.why)
        absent = [*gone, *unfit]
        async with self._exclusive(scope):
            again = await self._shelf.read(scope, absent, {})
            back = {path for path, item in again.items() if isinstance(item, Document)}
            absent = [path for path in absent if path not in back]
            deleted = await self._ledger.registered(scope, absent)
            await self._index.replace([Source(scope, Kind.DOCUMENT, path, ()) for path in absent])
            skips = [unfit[path] for path in absent if path in unfit]
            await self._ledger.record(scope, {}, skips, [path for path in absent if path not in unfit])
        for path in back:  # whoever put it back indexes it
            run.since.pop(path, None)
        run.count(deleted=len(deleted))
        for path in deleted:
            self._measure_lag(run, path)

    def _measure_lag(self, run: _Run, path: str, modified: float = 0.0) -> None:
        now, since = self._now(), run.since.get(path, run.noticed)
        start = modified if since - RECENT_SECONDS <= modified <= now else since
        run.done = replace(run.done, lag_ms=max(run.done.lag_ms, round((now - start) * 1000)))

    async def pending(self, scope: Scope) -> set[str]:
        """Return the documents that are not in the index as they are stored, judged by hash or by size and time.

        Raises `StoreUnavailable`.
        """
        found, unfit = await self._shelf.look_through(scope)
        registry, skipped = await self._ledger.all(scope), await self._ledger.skipped(scope)
        return await asyncio.to_thread(pending, registry, skipped, found, unfit, self._fingerprint)

    async def is_whole(self, scope: Scope) -> bool:
        """Return whether the index has all chunks of the registered documents.

        Raises `IndexUnavailable` and `StoreUnavailable`.
        """
        return not await self._lost(scope)

    async def _lost(self, scope: Scope) -> frozenset[str]:
        """Return the registered documents of which the index lacks chunks (another server, a deleted folder)."""
        registry = await self._ledger.all(scope)
        if await self._index.count(scope, Kind.DOCUMENT) == sum(entry.chunks for entry in registry.values()):
            return frozenset()
        found = await self._index.sources(scope, Kind.DOCUMENT)
        return frozenset(path for path, entry in registry.items() if found.get(path, 0) != entry.chunks)

    async def is_being_filled(self, scope: Scope) -> bool:
        """Return whether this collection has less than half of the documents. Raises `StoreUnavailable`."""
        indexed, stored = await asyncio.gather(self._ledger.documents(scope), self._shelf.size(scope))
        return 2 * indexed < stored

    async def status(self, scope: Scope, waiting: int | None = None) -> Status:
        """Return what the index has. *waiting* is the number of pending documents; if None, all are looked at.

        Raises `StoreUnavailable` and `IndexUnavailable`.
        """
        return Status(
            documents=await self._ledger.documents(scope),
            chunks=await self._index.count(scope, Kind.DOCUMENT),
            pending=len(await self.pending(scope)) if waiting is None else waiting,
            lag_ms=await self._ledger.lag_ms(scope),
            shallow=await self._index.count(scope, Kind.DOCUMENT, shallow=True),
        )

    async def skipped(self, scope: Scope) -> list[Skipped]:
        """Return the files that are no documents, by path. Raises `StoreUnavailable`."""
        found = await self._ledger.skipped(scope)
        return [found[path] for path in sorted(found)]

    async def forget_gone(self, scope: Scope, paths: Collection[str] | None = None) -> None:
        """Forget documents that do not exist any more: those of *paths* (files or folders), or all. Embed nothing.

        Raises `IndexUnavailable` and `StoreUnavailable`.
        """
        if paths is not None and all(is_document_path(path) for path in paths):
            registered = sorted(await self._ledger.registered(scope, sorted(paths)))
            gone = [path for path in registered if (await self._shelf.read(scope, [path], {}))[path] is None]
        else:
            found, _ = await self._shelf.look_through(scope)
            registered = sorted(await self._ledger.paths(scope) - {item.path for item in found})
            gone = [path for path in registered if paths is None or below(path, paths)]
        async with self._lock(scope):
            await self._index.replace([Source(scope, Kind.DOCUMENT, path, ()) for path in gone])
            await self._ledger.record(scope, {}, (), gone)

    async def forget_workspace(self, scope: Scope) -> None:
        """Forget all passages of a workspace and all records of them; the documents stay."""
        async with self._lock(scope):
            await self._index.drop_workspace(scope)
            await self._ledger.forget(scope)
            await self._backlog.forget(scope)

    def _exclusive(self, scope: Scope) -> AbstractAsyncContextManager[Any]:
        """Keep other processes from storing documents of the workspace during a block: the last to read a document is
        the last to store it.

        Key (owner ``documents``, in the workspace's tag): ``storing``, a lock of redis-py.
        """
        if not self._is_shared:
            return nullcontext()
        key = redis_key(OWNER, scope.tag, "storing")
        return self._redis.lock(key, timeout=STORING_SECONDS, sleep=0.05, raise_on_release_error=False)

    def _lock(self, scope: Scope) -> asyncio.Lock:
        return self._locks.setdefault(scope.workspace_id, asyncio.Lock())


def sha256_of(text: str) -> str:
    """Return the SHA-256 of *text* in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def passage_of_chunk(chunk: Chunk, kind: Kind = Kind.DOCUMENT, source: str = "") -> Passage:
    """Return *chunk* as the index has it; *source* stands for the chunk's path if it is given."""
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
    """Return `grounding.retrieval.chunking.Chunk.indexed_text` of a chunk that the index has as *passage*."""
    title, heading = passage.title, passage.heading
    if heading != title and not heading.startswith(f"{title} › "):
        heading = f"{title} › {heading}" if heading else title
    return "\n".join(part for part in (heading, passage.lead, passage.text) if part)


def _groups(documents: Sequence[_Cut]) -> list[list[_Cut]]:
    """Divide *documents* into groups of at most `GROUP_CHUNKS` chunks; no document is divided."""
    groups: list[list[_Cut]] = []
    size = 0
    for item in documents:
        if not groups or size + len(item.chunks) > GROUP_CHUNKS:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += len(item.chunks)
    return groups
