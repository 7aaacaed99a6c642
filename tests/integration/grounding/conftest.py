"""Fixtures of the integration tests of grounding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest_asyncio
from redis.asyncio import Redis

from connectors.message import Scope
from grounding.documents import FileShelf, Indexer, Library
from grounding.retrieval import PassageIndex, Search, Sizes
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.relevance import SHOWN_LOG_ODDS, Relevance, Weights
from tests.emulators.embedder import HashedWords

ACME = Scope("acme")
RELEVANCE = Relevance(Weights(constant=SHOWN_LOG_ODDS - 0.3, dense=1.0, coverage=0.3, rarity=0.1))
"""What passages must reach by the vectors of `HashedWords`."""


def words(text: str) -> int:
    return len(text.split())


@dataclass
class House:
    """The parts that index and search documents together, over one temporary folder."""

    folder: Path
    library: Library
    embedder: HashedWords
    index: PassageIndex
    indexer: Indexer
    search: Search
    redis: Redis

    def write(self, path: str, text: str, scope: Scope = ACME) -> None:
        self.library.put(scope, path, text)

    async def sources(self, query: str, scope: Scope = ACME) -> list[str]:
        return [hit.passage.source for hit in await self.search.search(scope, query, 10)]


@pytest_asyncio.fixture
async def house(redis: Redis, index: EmbeddedIndex, embedder: HashedWords, tmp_path: Path) -> House:
    library = Library(tmp_path, max_bytes=300_000)
    indexer = Indexer(FileShelf(library), index, embedder, redis, words, sizes=Sizes(30, 0))
    return House(tmp_path, library, embedder, index, indexer, Search(index, embedder, relevance=RELEVANCE), redis)


@pytest_asyncio.fixture
async def embedder() -> HashedWords:
    return HashedWords()


@pytest_asyncio.fixture
async def index(tmp_path: Path, embedder: HashedWords) -> AsyncIterator[EmbeddedIndex]:
    """An open embedded index, empty."""
    opened = EmbeddedIndex(tmp_path / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=20)
    await opened.ensure()
    yield opened
    await opened.close()
