"""Keeps the passage index in step with the documents, wherever those are kept.

What the index holds is written down (`grounding.documents.ledger`) only after the index has it, so that an interrupted
run is picked up by the next one, and nothing is embedded twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import structlog

from connectors.message import Scope
from grounding.documents.ahead import made_ahead
from grounding.documents.at_hand import AtHand, Hand
from grounding.documents.backlog import Backlog
from grounding.documents.chunking import CHUNKER_VERSION, CountTokens, Sizes, chunk_document
from grounding.documents.embedding import Embedder
from grounding.documents.index import Kind, PassageIndex, Source
from grounding.documents.indexed import Indexed
from grounding.documents.ledger import Ledger
from grounding.documents.library import Document, Found, Skipped, is_document_path
from grounding.documents.registry import Registered
from grounding.documents.runs import (
    PORTION_BYTES,
    Batch,
    Prepared,
    Progress,
    Ready,
    Run,
    Step,
    Synced,
    groups,
    let_go,
    portions,
    refused,
    sha256_of,
    sources_of,
    texts_of,
)
from grounding.documents.shelf import READ_DOCUMENTS, Shelf, below
from grounding.documents.sparse import encode_chunk
from grounding.documents.stored import collection_name

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
