"""Passages and the adapters of their index, for the contract suites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qdrant_client import AsyncQdrantClient

from connectors.message import Scope
from grounding.retrieval import IndexEntry, Kind, Passage, PassageIndex, PassageQuery, encode_document
from grounding.retrieval.bm25 import encode_query
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.qdrant_server import ServerIndex
from tests.emulators.embedder import HashedWords

EMBEDDER = HashedWords()


def embedded(folder: Path, deep_dimensions: int | None = None) -> PassageIndex:
    return EmbeddedIndex(
        folder, EMBEDDER.name, EMBEDDER.dimensions, timeout_seconds=30, deep_dimensions=deep_dimensions
    )


def server(_: Path, deep_dimensions: int | None = None, client: AsyncQdrantClient | None = None) -> PassageIndex:
    """On *client*, or on one of its own."""
    client = client or AsyncQdrantClient(":memory:")
    return ServerIndex(
        "local",
        EMBEDDER.name,
        EMBEDDER.dimensions,
        timeout_seconds=30,
        deep_dimensions=deep_dimensions,
        client=client,
    )


async def entry(text: str, number: int = 0, source: str = "a.md", kind: Kind = Kind.DOCUMENT) -> IndexEntry:
    """A passage with something in each of its fields."""
    passage = Passage(f"{source}#{number}#{text}", kind, source, text, "Title", "H › I", "", number, 1, 9, 2, 3, "at")
    return IndexEntry(passage, await EMBEDDER.embed_query(text), encode_document(text))


async def found(index: PassageIndex, scope: Scope, query: str, kind: Kind = Kind.DOCUMENT, **options: Any) -> list[str]:
    """The texts of what is found, best first."""
    dense = await EMBEDDER.embed_query(query)
    hits = await index.search(PassageQuery(scope, kind, dense, encode_query(query), 10, **options))
    return [hit.passage.text for hit in hits]
