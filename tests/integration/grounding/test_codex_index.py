"""The index of material: it has what the store has, whatever became of either meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from connectors.message import Scope
from grounding.codex import CodexIndex, CodexStore, Size
from grounding.prompt_input import load_tokens
from grounding.retrieval import EmbedderUnavailable, Kind, Vector
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from tests.emulators.embedder import HashedWords
from tests.integration.grounding.conftest import ACME

DEN = Scope("acme", "http:den")
EMBEDDER = HashedWords()


class Failing(HashedWords):
    """Embeds once, and then no more."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        self.calls += 1
        if self.calls > 1:
            raise EmbedderUnavailable("away", retryable=True)
        return await super().embed_documents(texts)


@pytest.fixture
def store(redis: Redis) -> CodexStore:
    return CodexStore(redis, max_bytes=100_000, file_max_bytes=50_000)


async def put(store: CodexStore, scope: Scope, path: str, text: str) -> None:
    await store.put(scope, path, text, Size(1, 2, len(text)))


async def test_an_index_that_was_lost_gets_everything_again_also_where_something_changed_meanwhile(
    store: CodexStore, index: EmbeddedIndex
) -> None:
    """What is written down as indexed is another's index, or one that was deleted."""
    material = CodexIndex(store, index, EMBEDDER, load_tokens().count)
    for scope in (ACME, DEN):
        await put(store, scope, "quokka.md", "The quokka lives on an island.")
        await put(store, scope, "okapi.md", "The okapi is shy.")
    await material.sync(ACME)

    await index.drop_workspace(ACME)
    await put(store, ACME, "okapi.md", "The okapi is not shy any more.")
    await store.delete(DEN, "okapi.md")
    await material.sync(ACME)

    assert set(await index.sources(ACME, Kind.CODEX)) == {"quokka.md", "okapi.md"}
    assert set(await index.sources(DEN, Kind.CODEX)) == {"here/quokka.md"}


async def test_what_was_removed_just_before_all_is_indexed_anew_is_not_found_any_more(
    store: CodexStore, index: EmbeddedIndex
) -> None:
    material = CodexIndex(store, index, EMBEDDER, load_tokens().count)
    for scope in (ACME, DEN):
        await put(store, scope, "quokka.md", "The quokka lives on an island.")
        await put(store, scope, "secret.md", "The secret word is okapi.")
    await material.sync(ACME)

    await store.delete(ACME, "secret.md")
    for path in ("secret.md", "quokka.md"):
        await store.delete(DEN, path)
    await material.rebuild(ACME)

    assert set(await index.sources(ACME, Kind.CODEX)) == {"quokka.md"}
    assert await index.sources(DEN, Kind.CODEX) == {}


async def test_what_is_removed_after_a_run_that_failed_half_way_is_not_found_any_more(
    store: CodexStore, index: EmbeddedIndex
) -> None:
    paths = [f"{number}.md" for number in range(12)]
    for path in paths:
        await put(store, DEN, path, "The secret word is okapi.")
    with pytest.raises(EmbedderUnavailable):
        await CodexIndex(store, index, Failing(), load_tokens().count).sync(ACME)
    assert await index.sources(DEN, Kind.CODEX)

    for path in paths:
        await store.delete(DEN, path)
    material = CodexIndex(store, index, EMBEDDER, load_tokens().count)
    await material.sync(ACME)

    assert await index.sources(DEN, Kind.CODEX) == {}
    assert not await material.is_behind(ACME, {DEN: ""})
