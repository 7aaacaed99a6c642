"""The typed records in the passage index, searched by meaning and by words.

A record is one passage with the record's id. Its source is the record's type, its heading the owner's audience. The
text is only in Redis, the source of truth, from which search results are read. Hidden records are not in the index;
superseded ones are.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Collection, Sequence
from operator import mul

import structlog

from connectors.message import Scope
from grounding.memory.records.model import Record, Type, indexed_text
from grounding.memory.records.records import RecordHit
from grounding.memory.records.store import RecordStore
from grounding.retrieval import (
    TURN_AVERAGE_TERMS,
    DeepEmbedder,
    Embedder,
    EmbedderUnavailable,
    IndexEntry,
    Kind,
    ModelLoading,
    Passage,
    PassageIndex,
    PassageQuery,
    Vector,
    encode_document,
    query_vectors,
    shorten,
)

EMBEDDED_CHARACTERS = 8000
"""How many characters of a record are embedded: models read some thousand tokens. All its words are indexed."""
OFFERED_PER_RECORD = 3
"""So many records are ranked for each one wanted. Several searches run at once, so that more of them would cost."""
_ATTEMPTS = 5
"""How often a record may change while it is being indexed. After that it is indexed later."""
_BATCH = 64
_log = structlog.get_logger()


class RecordIndex:
    """Implements `grounding.memory.records.records.RecordSearch` over the records of *store*."""

    def __init__(
        self,
        index: PassageIndex,
        embedder: Embedder,
        store: RecordStore,
        *,
        is_former: bool = False,
        deep: DeepEmbedder | None = None,
    ) -> None:
        """*is_former*: this index answers only until its replacement is ready. Its progress is not stored, and if the
        question cannot be embedded, it searches by words alone. *deep* makes the deeper vectors."""
        self._index = index
        self._embedder = embedder
        self._store = store
        self._is_former = is_former
        self._deep = deep

    async def find(
        self, scope: Scope, query: str, searches: Sequence[tuple[int, Collection[Type]]], *, deep: bool = False
    ) -> Sequence[RecordHit]:
        """See `grounding.memory.records.records.RecordSearch`. The searches run at the same time."""
        query = shorten(query)
        if not deep:
            return await self._search(scope, query, searches)
        hits, question = await asyncio.gather(self._search(scope, query, searches), self._deep_query(query))
        return hits if question is None else await self._compared(scope, question, hits)

    async def _search(
        self, scope: Scope, query: str, searches: Sequence[tuple[int, Collection[Type]]]
    ) -> list[RecordHit]:
        dense, sparse = await query_vectors(self._embedder, query, words_alone=self._is_former)
        queries = [
            PassageQuery(
                scope,
                Kind.RECORD,
                dense,
                sparse,
                top_k,
                scores=True,
                only_sources=sorted(set(types)),
                offered=OFFERED_PER_RECORD * top_k,
            )
            for top_k, types in searches
        ]
        found = await asyncio.gather(*map(self._index.search, queries))
        return [
            RecordHit(
                hit.passage.heading,
                hit.passage.id,
                hit.dense.score if hit.dense else 0.0,
                hit.sparse.score if hit.sparse else 0.0,
            )
            for hit in itertools.chain(*found)
        ]

    async def _deep_query(self, query: str) -> Vector | None:
        """Return the deeper vector of *query*; None if there is none in time: then the quick one judges alone."""
        if self._deep is None or not self._index.deepens:
            return None
        try:
            (vector,) = await self._deep.embed_queries([query])
        except ModelLoading:
            return None
        except EmbedderUnavailable as error:
            _log.warning("records.unsure", why=str(error))
            return None
        return vector if any(vector) else None

    async def _compared(self, scope: Scope, question: Vector, hits: Sequence[RecordHit]) -> list[RecordHit]:
        """Return *hits* with their deeper vectors, as far as they have some."""
        owners = {owner: [hit.id for hit in hits if hit.owner == owner] for owner in {hit.owner for hit in hits}}
        read = await asyncio.gather(
            *(
                self._index.vectors(Scope(scope.workspace_id, None, owner or None), Kind.RECORD, ids, deep=True)
                for owner, ids in owners.items()
            )
        )
        vectors = {record_id: vector for one in read for record_id, vector in one.items() if any(vector)}
        return [
            hit._replace(deep=sum(map(mul, question, vectors[hit.id])), vector=vectors[hit.id])
            if hit.id in vectors
            else hit
            for hit in hits
        ]

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        """Update the index for these records of the scope's owner, again if they change meanwhile."""
        left = list(dict.fromkeys(ids))
        for _ in range(_ATTEMPTS):
            again: list[str] = []
            for start in range(0, len(left), _BATCH):
                again += await self._index_once(scope, left[start : start + _BATCH])
            left = again
            if not left:
                return

    async def heal(self, scope: Scope) -> int:
        """Rebuild the index if the workspace has stored records but none is indexed, as after the loss of the index.

        Only the first owner with records is checked. Returns the number of records indexed.
        """
        for owner in await self._store.owners(scope):
            if await self._store.page(owner, (), (), 1, own=True):
                return 0 if await self._index.count(owner, Kind.RECORD, exact=False) else await self.rebuild(scope)
        return 0

    async def gone(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """Return those of *ids* that are deleted or hidden: no search may find them. Raises `StoreUnavailable`."""
        records = await self._store.read(scope, ids, own=True)
        return sorted(set(ids) - {record.id for record in records if not record.is_hidden})

    async def forget(self, scope: Scope, ids: Sequence[str]) -> None:
        """Remove these records of the scope's owner from the index. Raises `IndexUnavailable`."""
        await self._index.delete(scope, Kind.RECORD, ids=ids)

    async def rebuild(self, scope: Scope) -> int:
        """Index all records of all owners of the workspace anew and remove deleted ones; return the number of records.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`. Starting it again does no harm.
        """
        count = 0
        for owner in await self._store.owners(scope):
            kept = await self._store.all_ids(owner)
            known = await self._index.ids(owner, Kind.RECORD)
            await self.follow(owner, sorted({*kept, *known}))
            count += len(kept)
        return count

    async def _embed(self, records: Sequence[Record], texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each record. For a long one it is the mean of the vectors of its micro and its full text:
        the beginning would otherwise drown in the rest."""
        long = [at for at, record in enumerate(records) if len(record.text) > len(record.micro)]
        wholes = [text[:EMBEDDED_CHARACTERS] for text in texts]
        vectors = await self._embedder.embed_documents([*wholes, *(records[at].micro for at in long)])
        for at, first in zip(long, vectors[len(texts) :], strict=True):
            vectors[at] = _mean(vectors[at], first)
        return vectors[: len(texts)]

    async def _deep_vectors(self, texts: Sequence[str]) -> Sequence[Vector | None]:
        """Return the deeper vector of each of *texts*; none if the model is away: `deepen` adds them later."""
        if self._deep is not None and self._index.deepens:
            try:
                return await self._deep.embed_notes(texts)
            except EmbedderUnavailable as error:
                _log.warning("index.failed", why=str(error))
        return [None] * len(texts)

    async def owners(self, scope: Scope) -> list[Scope]:
        """Return all owners of records in the workspace. Raises `StoreUnavailable`."""
        return await self._store.owners(scope)

    async def deepen(self, scope: Scope, limit: int) -> int:
        """Give at most *limit* records of the scope's owner that lack a deeper vector theirs; return how many.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`.
        """
        if self._deep is None:
            return 0
        shallow = [passage.id for passage in await self._index.shallow(scope, Kind.RECORD, limit)]
        records = await self._store.read(scope, shallow, own=True)
        texts = {record.id: _deep_text(record) for record in records}
        vectors = await self._deep.embed_notes([*texts.values()]) if texts else []
        return await self._index.deepen(scope, Kind.RECORD, dict(zip(texts, vectors, strict=True)))

    async def _index_once(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """Index these records once and return the ids of those that changed meanwhile."""
        records = await self._store.read(scope, ids, own=True)
        shown = [record for record in records if not record.is_hidden]
        gone = sorted(set(ids) - {record.id for record in shown})
        if gone:
            await self._index.delete(scope, Kind.RECORD, ids=gone)
        if shown:
            texts = [indexed_text(record) for record in shown]
            vectors = await self._embed(shown, texts)
            deeper = await self._deep_vectors([_deep_text(record) for record in shown])

            def entries() -> list[IndexEntry]:
                return [
                    IndexEntry(_passage(record), vector, encode_document(text, TURN_AVERAGE_TERMS), deep)
                    for record, vector, deep, text in zip(shown, vectors, deeper, texts, strict=True)
                ]

            # A text of 20,000 characters without blanks takes 90 ms to encode.
            await self._index.upsert(scope, await asyncio.to_thread(entries))
        if self._is_former:
            return []
        versions = dict.fromkeys(ids, 0) | {record.id: record.version for record in records}
        return await self._store.indexed(scope, versions)


def _deep_text(record: Record) -> str:
    """Return what the deeper model reads of a record: its beginning, without a status and a due day."""
    return f"{record.text}\n{record.reason}".strip()[:EMBEDDED_CHARACTERS]


def _mean(whole: Vector, first: Vector) -> Vector:
    """Return the normalised sum of both vectors."""
    mixed = [one + other for one, other in zip(whole, first, strict=True)]
    length = math.hypot(*mixed)
    return [one / length for one in mixed] if length else whole


def _passage(record: Record) -> Passage:
    return Passage(record.id, Kind.RECORD, record.type.value, "", heading=record.audience, said_at=record.created_at)
