"""No passage crosses workspaces and no turn crosses contexts, whatever is stored, replaced and deleted between."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.retrieval import IndexEntry, Kind, Passage, PassageIndex, PassageQuery, Source, encode_document
from grounding.retrieval.bm25 import encode_query
from tests.emulators.embedder import HashedWords
from tests.emulators.passages import EMBEDDER, embedded, server

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

DEEPER = HashedWords(24, "deeper")
WORKSPACES = ("acme", "acme-2", "acme.", "a", "acme.turn", "document")
CONTEXTS = (
    "http:1", "http:1/7", "http:1 ", "http:", "http:*", "http:caf\u00e9", "http:cafe\u0301", "http:1\x00", "HTTP:1",
    "http:1\x00turn\x00http:1", "acme", "turn",
)  # fmt: skip
SOURCES = ("a.md", "a.md ", "A.md", "a", "docs/a.md", "a.md\x00", "a.md#0", "*", "é.md", "e\u0301.md")
WORDS = ("refund", "window", "harbour", "ticket")
Owner = tuple[Scope, Kind]
OWNERS: tuple[Owner, ...] = (
    *((Scope(workspace), Kind.DOCUMENT) for workspace in WORKSPACES),
    *((Scope(workspace, context), Kind.TURN) for workspace in WORKSPACES[:3] for context in CONTEXTS),
    *((Scope(workspace, context), Kind.CONTEXT) for workspace in WORKSPACES[:2] for context in CONTEXTS[:4]),
)


@dataclass
class World:
    """An index, and beside it what everybody ought to find in it: by owner and source, ids with their texts."""

    index: PassageIndex
    held: dict[Owner, dict[str, dict[str, str]]] = field(default_factory=lambda: {owner: {} for owner in OWNERS})

    def entries(self, owner: Owner, source: str, words: tuple[str, ...]) -> list[IndexEntry]:
        """Passages of the same ids and words for everybody, but for a number that only *owner* says."""
        texts = [f"{word} said by owner{OWNERS.index(owner)}" for word in words]
        return [
            IndexEntry(
                Passage(f"{source}:{n}", owner[1], source, text, ordinal=n),
                EMBEDDER._embed(text),
                encode_document(text),
            )
            for n, text in enumerate(texts)
        ]

    async def upsert(self, owner: Owner, source: str, words: tuple[str, ...]) -> None:
        entries = self.entries(owner, source, words)
        await self.index.upsert(owner[0], entries)
        self.held[owner].setdefault(source, {}).update({one.passage.id: one.passage.text for one in entries})

    async def replace(self, owner: Owner, source: str, words: tuple[str, ...]) -> None:
        entries = self.entries(owner, source, words)
        await self.index.replace([Source(*owner, source, entries)])
        self.held[owner][source] = {one.passage.id: one.passage.text for one in entries}

    async def deepen(self, owner: Owner, source: str, words: tuple[str, ...]) -> None:
        """Passages of all owners have these ids; those of the others stay as they are."""
        vectors = {f"{source}:{n}": DEEPER._embed(word) for n, word in enumerate(words)}
        held = self.held[owner].get(source, {})
        assert await self.index.deepen(*owner, vectors) == len(held.keys() & vectors.keys())
        assert (await self.index.vectors(*owner, [*vectors], deep=True)).keys() == held.keys() & vectors.keys()

    async def delete_source(self, owner: Owner, source: str, _: tuple[str, ...]) -> None:
        await self.index.delete(*owner, source=source)
        self.held[owner].pop(source, None)

    async def delete_ids(self, owner: Owner, source: str, words: tuple[str, ...]) -> None:
        ids = [f"{source}:{n}" for n in range(len(words))]
        await self.index.delete(*owner, ids=ids)
        for name in ids:
            self.held[owner].get(source, {}).pop(name, None)

    async def delete_all(self, owner: Owner, _: str, __: tuple[str, ...]) -> None:
        await self.index.delete(*owner)
        self.held[owner].clear()

    async def drop(self, owner: Owner, _: str, __: tuple[str, ...]) -> None:
        await self.index.drop_workspace(owner[0])
        for other, sources in self.held.items():
            if other[0].workspace_id == owner[0].workspace_id:
                sources.clear()

    async def look(self, owner: Owner, word: str) -> None:
        """Everything that *owner* can ask for is theirs, and all of it is there."""
        sources = {source: passages for source, passages in self.held[owner].items() if passages}
        texts = {name: text for passages in sources.values() for name, text in passages.items()}
        vector, sparse = EMBEDDER._embed(f"{word} said"), encode_query(f"{word} said")
        for dense_asked, sparse_asked in ((vector, sparse), (vector, None), (None, sparse)):
            hits = await self.index.search(PassageQuery(*owner, dense_asked, sparse_asked, 500))
            assert {hit.passage.id: hit.passage.text for hit in hits} == texts
        hits = await self.index.search(
            PassageQuery(*owner, vector, sparse, 500, explain=True, deep=DEEPER._embed(word))
        )
        assert {hit.passage.id: hit.passage.text for hit in hits} == texts
        deep = await self.index.vectors(*owner, [*texts], deep=True)
        assert {hit.passage.id for hit in hits if hit.deep} <= deep.keys()
        shallow = await self.index.shallow(*owner, 500)
        assert {one.id: one.text for one in shallow} == {name: texts[name] for name in texts.keys() - deep.keys()}
        assert await self.index.count(*owner, shallow=True) == len(shallow)
        assert await self.index.count(*owner) == len(texts)
        assert await self.index.ids(*owner) == sorted(texts)
        assert await self.index.sources(*owner) == {source: len(passages) for source, passages in sources.items()}
        read = await self.index.read(*owner, {source: range(9) for source in SOURCES})
        assert {one.id: one.text for found in read.values() for one in found} == texts
        vectors = await self.index.vectors(*owner, [f"{source}:{n}" for source in SOURCES for n in range(9)])
        assert vectors.keys() == texts.keys()


ACTS = st.tuples(
    st.sampled_from(
        [World.upsert, World.upsert, World.replace, World.replace, World.deepen, World.deepen,
         World.delete_source, World.delete_ids, World.delete_all, World.drop]
    ),
    st.sampled_from(OWNERS), st.sampled_from(SOURCES), st.lists(st.sampled_from(WORDS), max_size=4).map(tuple),
)  # fmt: skip


@pytest.mark.parametrize("make", [embedded, server])
def test_everybody_finds_all_of_their_own_and_nothing_else(make: Callable[[Path, int], PassageIndex]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(ACTS, min_size=1, max_size=14), st.lists(st.sampled_from(OWNERS), max_size=4), st.sampled_from(WORDS)
    )
    def whatever_happens(
        acts: list[tuple[Callable[..., object], Owner, str, tuple[str, ...]]], others: list[Owner], word: str
    ) -> None:
        asyncio.run(played(acts, others, word))

    async def played(
        acts: list[tuple[Callable[..., object], Owner, str, tuple[str, ...]]], others: list[Owner], word: str
    ) -> None:
        folder = await asyncio.to_thread(tempfile.TemporaryDirectory)
        index = make(Path(folder.name), DEEPER.dimensions)
        try:
            await index.ensure()
            world = World(index)
            for act, owner, source, words in acts:
                await act(world, owner, source, words)  # type: ignore[misc]
                await world.look(owner, word)
            for owner in {owner for _, owner, _, _ in acts} | set(others):
                await world.look(owner, word)
        finally:
            await index.close()
            await asyncio.to_thread(folder.cleanup)

    whatever_happens()
