"""What a run of the indexer is asked for and does: its documents, in the forms that they take on the way. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from connectors.message import Scope
from grounding.documents.chunking import Chunk
from grounding.documents.embedding import Vector
from grounding.documents.index import Entry, Kind, Passage, Source
from grounding.documents.library import Document, Found, Skipped
from grounding.documents.registry import Registered
from grounding.documents.sparse import SparseVector

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
    """`grounding.documents.chunking.Chunk.indexed_text` of a chunk that the index holds as *passage*."""
    title, heading = passage.title, passage.heading
    if heading != title and not heading.startswith(f"{title} › "):
        heading = f"{title} › {heading}" if heading else title
    return "\n".join(part for part in (heading, passage.lead, passage.text) if part)
