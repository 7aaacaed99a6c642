"""Keeps the passage index in step with the documents on disk.

What the index holds is written down in Redis, one hash per workspace: path → content hash, fingerprint of
how it was cut and embedded, chunks. An entry is written only after the index has the document, so an
interrupted run is picked up by the next one, and nothing is embedded twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from connectors.message import Scope, redis_key
from grounding.documents.chunking import CHUNKER_VERSION, Chunk, CountTokens, Sizes, chunk_document
from grounding.documents.embedding import Embedder, Vector
from grounding.documents.index import Entry, Kind, Passage, PassageIndex, Source, collection_name
from grounding.documents.library import Document, Library, is_document_path
from grounding.documents.registry import REGISTRY_VERSION, Registered, pending
from grounding.documents.sparse import SparseVector, encode_document

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = structlog.get_logger()

OWNER = "documents"
GROUP_CHUNKS = 128
"""Chunks that are embedded together, over several documents, before they are stored."""
RECENT_SECONDS = 60.0
"""A file changed at most this long before the indexer looked was changed just now: its lag counts from there."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: documents looked at, of how many, and the one at hand."""

    done: int
    total: int
    path: str


@dataclass(frozen=True, slots=True)
class Synced:
    """What one run did. ``documents`` were stored anew, ``lag_ms`` is the longest wait among them."""

    documents: int = 0
    chunks: int = 0
    chunks_embedded: int = 0
    deleted: int = 0
    unchanged: int = 0
    lag_ms: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What the index holds of a workspace: documents and chunks, documents that are not yet as on disk, and
    the lag of the last change."""

    documents: int
    chunks: int
    pending: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    document: Document
    sha256: str
    chunks: list[Chunk]
    sparse: list[SparseVector]


class Indexer:
    """Brings the index in step, one run per workspace at a time."""

    def __init__(
        self,
        library: Library,
        index: PassageIndex,
        embedder: Embedder,
        redis: Redis,
        count: CountTokens,
        *,
        sizes: Sizes | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._library = library
        self._index = index
        self._embedder = embedder
        self._redis = redis
        self._count = count
        self._sizes = sizes or Sizes()
        self._now = now
        self._running: dict[str, asyncio.Lock] = {}
        model = collection_name(embedder.name, embedder.dimensions)
        self._fingerprint = f"{CHUNKER_VERSION}/{self._sizes.target}/{self._sizes.overlap}/{model}"

    async def sync(
        self,
        scope: Scope,
        paths: Collection[str] | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        fresh: bool = False,
    ) -> Synced:
        """Index what changed in the scope's workspace (of *paths*, files or folders, where given) and forget what
        is gone. *fresh* trusts neither the registry nor stored vectors: everything is cut and embedded again,
        and can be found meanwhile.

        Raises `IndexUnavailable`, `EmbedderUnavailable` or `StoreUnavailable`; what was stored until then stays, and
        the next run goes on from there.
        """
        async with self._lock(scope):
            return await self._sync(scope, paths, progress or (lambda _: None), fresh)

    async def _sync(
        self, scope: Scope, paths: Collection[str] | None, progress: Callable[[Progress], None], fresh: bool
    ) -> Synced:
        started = self._now()
        if fresh:
            await self._redis.delete(self._registry_key(scope))
        registry = await self._registry(scope)
        if paths is None:
            registry = await self._believed(scope, registry)
        wanted = await self._wanted(scope, paths, registry)
        counts = {"unchanged": 0, "deleted": 0}
        totals = _Totals()
        group: list[_Prepared] = []
        for number, path in enumerate(wanted, start=1):
            document = await asyncio.to_thread(self._library.read_for_index, scope, path)
            if document is None:
                counts["deleted"] += await self._forget(scope, path, path in registry)
            elif (prepared := await self._prepare(document, registry.get(path))) is None:
                counts["unchanged"] += 1
                await self._touch(scope, document, registry[path])
            else:
                group.append(prepared)
            if sum(len(item.chunks) for item in group) >= GROUP_CHUNKS or (group and number == len(wanted)):
                await self._store(scope, group, started, totals, fresh)
                group = []
            progress(Progress(number, len(wanted), path))
        result = Synced(
            totals.documents, totals.chunks, totals.embedded, counts["deleted"], counts["unchanged"], totals.lag_ms
        )
        if result.documents or result.deleted:
            await self._redis.hset(self._status_key(scope), mapping={"v": REGISTRY_VERSION, "lag_ms": result.lag_ms})
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

    async def _wanted(self, scope: Scope, paths: Collection[str] | None, registry: dict[str, Registered]) -> list[str]:
        if paths is not None and all(is_document_path(path) for path in paths):
            return sorted(set(paths))
        on_disk = await asyncio.to_thread(self._library.list, scope)
        known = {item.path for item in on_disk} | set(registry)
        if paths is None:
            return sorted(known | set(await self._index.sources(scope, Kind.DOCUMENT)))
        folders = tuple(f"{path}/" for path in paths)
        return sorted(path for path in known if path in paths or path.startswith(folders))

    async def _believed(self, scope: Scope, registry: dict[str, Registered]) -> dict[str, Registered]:
        """*registry* without the documents that the index has lost (another server, a deleted folder)."""
        expected = sum(entry.chunks for entry in registry.values())
        if await self._index.count(scope, Kind.DOCUMENT) == expected:
            return registry
        found = await self._index.sources(scope, Kind.DOCUMENT)
        return {path: entry for path, entry in registry.items() if found.get(path, 0) == entry.chunks}

    async def _prepare(self, document: Document, known: Registered | None) -> _Prepared | None:
        """The chunks of *document*, or nothing where the index has it as it is."""
        sha256 = hashlib.sha256(document.text.encode("utf-8")).hexdigest()
        if known is not None and (known.sha256, known.fingerprint) == (sha256, self._fingerprint):
            return None

        def cut() -> tuple[list[Chunk], list[SparseVector]]:
            chunks = chunk_document(document.path, document.text, self._count, self._sizes)
            return chunks, [encode_document(chunk.indexed_text) for chunk in chunks]

        chunks, sparse = await asyncio.to_thread(cut)
        return _Prepared(document, sha256, chunks, sparse)

    async def _store(
        self,
        scope: Scope,
        group: Sequence[_Prepared],
        started: float,
        totals: _Totals,
        fresh: bool,
    ) -> None:
        chunks = [chunk for item in group for chunk in item.chunks]
        known = [] if fresh else [chunk.id for chunk in chunks]
        vectors = await self._index.vectors(scope, Kind.DOCUMENT, known)
        missing = [chunk for chunk in chunks if chunk.id not in vectors]
        embedded = await self._embedder.embed_documents([chunk.indexed_text for chunk in missing])
        vectors |= {chunk.id: vector for chunk, vector in zip(missing, embedded, strict=True)}
        totals.embedded += len(missing)
        for item in group:
            document = item.document
            await self._index.replace([Source(scope, Kind.DOCUMENT, document.path, _entries(item, vectors))])
            entry = Registered(
                item.sha256, self._fingerprint, len(item.chunks), document.size_bytes, document.modified_ns
            )
            await self._redis.hset(self._registry_key(scope), document.path, entry.to_json())
            totals.documents += 1
            totals.chunks += len(item.chunks)
            changed = document.modified_ns / 1e9
            since = changed if started - RECENT_SECONDS <= changed <= self._now() else started
            totals.lag_ms = max(totals.lag_ms, round((self._now() - since) * 1000))

    async def _touch(self, scope: Scope, document: Document, known: Registered) -> None:
        """A file that was written again with the same text is no longer pending."""
        if (known.size_bytes, known.modified_ns) != (document.size_bytes, document.modified_ns):
            entry = Registered(known.sha256, known.fingerprint, known.chunks, document.size_bytes, document.modified_ns)
            await self._redis.hset(self._registry_key(scope), document.path, entry.to_json())

    async def _forget(self, scope: Scope, path: str, registered: bool) -> int:
        await self._index.delete(scope, Kind.DOCUMENT, source=path)
        if registered:
            await self._redis.hdel(self._registry_key(scope), path)
        return int(registered)

    async def status(self, scope: Scope) -> Status:
        """What the index holds, against what lies on disk now. Raises `StoreUnavailable`."""
        registry = await self._registry(scope)
        on_disk = await asyncio.to_thread(self._library.scan, scope)
        lag = await self._redis.hget(self._status_key(scope), "lag_ms")
        return Status(
            documents=len(registry),
            chunks=sum(entry.chunks for entry in registry.values()),
            pending=pending(registry, on_disk, self._fingerprint),
            lag_ms=int(lag or 0),
        )

    async def forget_workspace(self, scope: Scope) -> None:
        """Take a workspace's passages and its registry out of the index, after the run at hand; the files stay."""
        async with self._lock(scope):
            await self._index.drop_workspace(scope)
            await self._redis.delete(self._registry_key(scope), self._status_key(scope))

    def _lock(self, scope: Scope) -> asyncio.Lock:
        return self._running.setdefault(scope.workspace_id, asyncio.Lock())

    async def _registry(self, scope: Scope) -> dict[str, Registered]:
        stored = await self._redis.hgetall(self._registry_key(scope))
        return {str(path): Registered.from_json(str(entry)) for path, entry in stored.items()}

    def _registry_key(self, scope: Scope) -> str:
        return redis_key(OWNER, scope.tag, "registry")

    def _status_key(self, scope: Scope) -> str:
        return redis_key(OWNER, scope.tag, "status")


@dataclass(slots=True)
class _Totals:
    documents: int = 0
    chunks: int = 0
    embedded: int = 0
    lag_ms: int = 0


def _entries(item: _Prepared, vectors: dict[str, Vector]) -> list[Entry]:
    return [
        Entry(passage_of_chunk(chunk), vectors[chunk.id], sparse)
        for chunk, sparse in zip(item.chunks, item.sparse, strict=True)
    ]


def passage_of_chunk(chunk: Chunk) -> Passage:
    """*chunk* as the index holds it."""
    return Passage(
        id=chunk.id,
        kind=Kind.DOCUMENT,
        source=chunk.path,
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
