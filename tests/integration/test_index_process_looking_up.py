"""A look-up of what a prompt is told, made in the process of the search index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import Scope
from grounding.retrieval import Hit, IndexEntry, Kind, Passage, PassageQuery, Search, Vector, encode_document, look_up
from grounding.retrieval.bm25 import encode_query
from grounding.retrieval.packing import Run
from grounding.retrieval.relevance import Floor
from grounding.retrieval.search import NOTHING
from runtime.embedded.index_client import IndexProcess, RemoteIndex, index_process
from tests.emulators.embedder import HashedWords

ACME = Scope("acme")
WORDS = HashedWords()
FLOOR = Floor(0.2, 1.0, 0.3, 0.1)
QUERIES = ("where is the key of house7?", "harbour house33 house34", "the house at the harbour")


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[IndexProcess]:
    async with index_process(tmp_path, wait_seconds=120.0) as running:
        yield running


@pytest_asyncio.fixture
async def index(process: IndexProcess, tmp_path: Path) -> AsyncIterator[RemoteIndex]:
    opened = RemoteIndex(
        process, tmp_path, WORDS.name, WORDS.dimensions, timeout_seconds=120, deep_dimensions=WORDS.dimensions
    )
    await opened.ensure()
    await opened.upsert(ACME, [entry(number) for number in range(60)])
    yield opened
    await opened.close()


def entry(number: int) -> IndexEntry:
    text = f"The key of house{number} is in drawer{number % 7} of the house at the harbour"
    ordinal = number % 12
    passage = Passage(
        f"{number}", Kind.DOCUMENT, f"{number // 12}.md", text, "Keys", f"House {number}", "", ordinal,
        ordinal * 100, ordinal * 100 + len(text), ordinal + 1, ordinal + 1,
    )  # fmt: skip
    vector = WORDS._embed(text)
    return IndexEntry(passage, vector, encode_document(text), vector)


def look(query: str, floor: Floor = FLOOR) -> PassageQuery:
    return PassageQuery(query, WORDS._embed(query), encode_query(query), floor, 3)


def told(runs: Sequence[Run]) -> list[Any]:
    """What is sent of *runs*: of hits what the prompt is made of."""
    return [(run.parts, run.score, run.chunk_ids, [Hit(hit.passage, hit.score) for hit in run.near]) for run in runs]


async def deep() -> Vector | None:
    return WORDS._embed("the house at the harbour")


@pytest.mark.parametrize("looks_again", [True, False])
async def test_it_finds_what_is_found_here(index: RemoteIndex, looks_again: bool) -> None:
    again = deep if looks_again else None
    for query in QUERIES:
        found = await index.look_up(ACME, Kind.DOCUMENT, look(query), again)
        runs, around = await look_up(index, ACME, Kind.DOCUMENT, look(query), again)
        assert told(found.runs) == told(runs)
        assert found.around == around
        assert any(run.near for run in runs) or len(runs) == 3


async def test_where_nothing_is_relevant_there_is_nothing(index: RemoteIndex) -> None:
    assert await index.look_up(ACME, Kind.DOCUMENT, look("keys of boats", Floor(99.0, 1.0, 0.3, 0.1)), deep) == NOTHING
    assert await index.look_up(Scope("other"), Kind.DOCUMENT, look(QUERIES[0]), deep) == NOTHING


async def test_a_scope_that_may_not_be_asked_is_refused(index: RemoteIndex) -> None:
    with pytest.raises(ValueError, match="within one context"):
        await index.look_up(ACME, Kind.TURN, look(QUERIES[0]), deep)


async def test_what_a_prompt_is_told_is_the_same_in_one_call_and_in_several(index: RemoteIndex) -> None:
    in_one, in_several = Search(index, WORDS, floor=FLOOR, count=len), Search(index, WORDS, floor=FLOOR, count=len)
    in_several._look_up = lambda *about: look_up(index, *about)
    for query in QUERIES:
        one = await in_one.retrieve(ACME, query, 3, 400, 700)
        assert one == await in_several.retrieve(ACME, query, 3, 400, 700)
        assert one
