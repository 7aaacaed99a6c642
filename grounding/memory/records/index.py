"""The typed records in the passage index: found by what they mean and by their words.

A record is one passage under its own id, whose source is its type and whose heading is whose it is. The text stays in
Redis, which is the truth: what was found is read there. Hidden records are not in the index; superseded ones are.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence

from connectors.message import Scope
from grounding.documents.embedding import Embedder, EmbedderUnavailable, Vector
from grounding.documents.index import Entry, Kind, Passage, PassageIndex
from grounding.documents.search import query_terms, query_vectors, shorten
from grounding.documents.sparse import TURN_AVERAGE_TERMS, SparseVector, encode_document
from grounding.memory.records.detail import indexed_text
from grounding.memory.records.record import Record, Type
from grounding.memory.records.store import RecordStore

EMBEDDED_CHARACTERS = 8000
"""What of a record is embedded: models take some thousand tokens. Its words are all indexed."""
_ATTEMPTS = 5
"""A record may change while it is indexed, as often as this; then it is followed later."""
_TOGETHER = 64
_SHORT_CHARACTERS = 1000
"""Of a text without blanks so much takes 5 ms; 20,000 take 90."""


class RecordIndex:
    """`grounding.memory.records.records.FollowsRecords` over the records of *store*."""

    def __init__(self, index: PassageIndex, embedder: Embedder, store: RecordStore, *, is_former: bool = False) -> None:
        """*is_former* is for an index that only answers until another takes its place: what follows there is not
        written down, and words alone are searched where the question cannot be embedded."""
        self._index = index
        self._embedder = embedder
        self._store = store
        self._is_former = is_former

    async def find(
        self, scope: Scope, query: str, top_k: int, types: Collection[Type]
    ) -> Sequence[tuple[str, str, float, float]]:
        """Whose and which records bear on *query*, the best first, each with its cosine and its BM25 score."""
        query = shorten(query)
        dense, sparse = await self._vectors(query)
        only = sorted(set(types)) if types else []
        hits = await self._index.search(scope, Kind.RECORD, dense, sparse, top_k, scores=True, only_sources=only)
        return [
            (
                hit.passage.heading,
                hit.passage.id,
                hit.dense.score if hit.dense else 0.0,
                hit.sparse.score if hit.sparse else 0.0,
            )
            for hit in hits
        ]

    async def _vectors(self, query: str) -> tuple[Vector | None, SparseVector]:
        try:
            return await query_vectors(self._embedder, query)
        except EmbedderUnavailable:
            if not self._is_former:
                raise
        return None, await query_terms(query)

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        """Bring the index in step with these of the scope's own records, also where they change meanwhile."""
        left = list(dict.fromkeys(ids))
        for _ in range(_ATTEMPTS):
            again: list[str] = []
            for start in range(0, len(left), _TOGETHER):
                again += await self._followed(scope, left[start : start + _TOGETHER])
            left = again
            if not left:
                return

    async def heal(self, scope: Scope) -> int:
        """`rebuild`, where records of the workspace are kept and none of them is indexed: the index was lost. It looks
        at those of one owner only."""
        for owner in await self._store.owners(scope):
            if await self._store.page(owner, (), (), 1, own=True):
                return 0 if await self._index.estimate(owner, Kind.RECORD) else await self.rebuild(scope)
        return 0

    async def gone(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """Those of *ids* that are not kept, or hidden: nobody is to find them. Raises `StoreUnavailable`."""
        records = await self._store.read(scope, ids, own=True)
        return sorted(set(ids) - {record.id for record in records if not record.is_hidden})

    async def forget(self, scope: Scope, ids: Sequence[str]) -> None:
        """Let nobody find these of the scope's own records here. Raises `IndexUnavailable`."""
        await self._index.delete(scope, Kind.RECORD, ids=ids)

    async def rebuild(self, scope: Scope) -> int:
        """Index all records of the scope's workspace anew, everybody's, and none that is not kept; how many there are.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`; begun again it does no harm.
        """
        count = 0
        for owner in await self._store.owners(scope):
            kept = await self._store.all_ids(owner)
            known = await self._index.ids(owner, Kind.RECORD)
            await self.follow(owner, sorted({*kept, *known}))
            count += len(kept)
        return count

    async def _embed(self, records: Sequence[Record], texts: Sequence[str]) -> list[Vector]:
        """A vector for each record. Of a long one what it says first counts as much as the whole, or it would drown
        in what follows."""
        long = [at for at, record in enumerate(records) if len(record.text) > len(record.micro)]
        wholes = [text[:EMBEDDED_CHARACTERS] for text in texts]
        vectors = await self._embedder.embed_documents([*wholes, *(records[at].micro for at in long)])
        for at, first in zip(long, vectors[len(texts) :], strict=True):
            vectors[at] = _together(vectors[at], first)
        return vectors[: len(texts)]

    async def _followed(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """The ids of those that have changed since they were read."""
        records = await self._store.read(scope, ids, own=True)
        shown = [record for record in records if not record.is_hidden]
        gone = sorted(set(ids) - {record.id for record in shown})
        if gone:
            await self._index.delete(scope, Kind.RECORD, ids=gone)
        if shown:
            texts = [indexed_text(record) for record in shown]
            vectors = await self._embed(shown, texts)

            def entries() -> list[Entry]:
                return [
                    Entry(_passage(record), vector, encode_document(text, TURN_AVERAGE_TERMS))
                    for record, vector, text in zip(shown, vectors, texts, strict=True)
                ]

            # Of one short record that takes less than the way to a thread and back.
            is_quick = len(texts) == 1 and len(texts[0]) <= _SHORT_CHARACTERS
            made = entries() if is_quick else await asyncio.to_thread(entries)
            await self._index.upsert(scope, made)
        if self._is_former:
            return []
        versions = dict.fromkeys(ids, 0) | {record.id: record.version for record in records}
        return await self._store.indexed(scope, versions)


def _together(whole: Vector, first: Vector) -> Vector:
    """One unit vector for both."""
    mixed = [one + other for one, other in zip(whole, first, strict=True)]
    length = math.hypot(*mixed)
    return [one / length for one in mixed] if length else whole


def _passage(record: Record) -> Passage:
    return Passage(record.id, Kind.RECORD, record.type.value, "", heading=record.audience, said_at=record.created_at)
