"""A look-up of what a prompt is told, made in the process of the search index."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import Entry, Hit, Kind, Passage
from grounding.documents.judging import Judging
from grounding.documents.looking_up import NOTHING, LookUp, looked_up
from grounding.documents.packing import Run
from grounding.documents.relevance import Floor
from grounding.documents.search import Search
from grounding.documents.sparse import encode_document, encode_query
from runtime.embedded.asked_index import AskedIndex
from runtime.embedded.index_process import IndexProcess, index_process
from tests.emulators.embedder import HashedWords

ACME = Scope("acme")
WORDS = HashedWords()
FLOOR = Floor(0.2)
QUERIES = ("where is the key of house7?", "harbour house33 house34", "the house at the harbour")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests ask is whether there is an answer: the machine may be busy."""
    for name in ("BACK_SECONDS", "READY_SECONDS"):
        monkeypatch.setattr(f"runtime.embedded.index_process.{name}", 120.0)


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[IndexProcess]:
    async with index_process(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def index(process: IndexProcess, tmp_path: Path) -> AsyncIterator[AskedIndex]:
    opened = AskedIndex(
        process, tmp_path, WORDS.name, WORDS.dimensions, timeout_seconds=120, deep_dimensions=WORDS.dimensions
    )
    await opened.ensure()
    await opened.upsert(ACME, [entry(number) for number in range(60)])
    yield opened
    await opened.close()


@pytest.fixture
def asked(process: IndexProcess, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the process is asked."""
    ask, found = process.ask, []

    async def noted(what: tuple[str, ...], *about: Any, **how: Any) -> list[Any]:
        found.append(what[0])
        return await ask(what, *about, **how)

    monkeypatch.setattr(process, "ask", noted)
    return found


def entry(number: int) -> Entry:
    text = f"The key of house{number} is in drawer{number % 7} of the house at the harbour"
    ordinal = number % 12
    passage = Passage(
        f"{number}", Kind.DOCUMENT, f"{number // 12}.md", text, "Keys", f"House {number}", "", ordinal,
        ordinal * 100, ordinal * 100 + len(text), ordinal + 1, ordinal + 1,
    )  # fmt: skip
    vector = WORDS._embed(text)
    return Entry(passage, vector, encode_document(text), vector)


def look(query: str, floor: Floor = FLOOR) -> LookUp:
    return LookUp(query, WORDS._embed(query), encode_query(query), floor, 3)


def told(runs: Sequence[Run]) -> list[Any]:
    """What is sent of *runs*: of hits what the prompt is made of."""
    return [(run.parts, run.score, run.chunk_ids, [Hit(hit.passage, hit.score) for hit in run.near]) for run in runs]


async def deep() -> Vector | None:
    return WORDS._embed("the house at the harbour")


@pytest.mark.parametrize("looks_again", [True, False])
async def test_it_is_one_question_and_finds_what_is_found_here(
    index: AskedIndex, asked: list[str], looks_again: bool
) -> None:
    again = deep if looks_again else None
    for query in QUERIES:
        asked.clear()
        found = await index.look_up(ACME, Kind.DOCUMENT, look(query), Judging(), again)
        assert asked == ["look_up"]
        runs, around = await looked_up(index, ACME, Kind.DOCUMENT, look(query), Judging(), again)
        assert asked[1:].count("search") == asked[1:].count("read") == 1
        assert told(found.runs) == told(runs)
        assert found.around == around
        assert any(run.near for run in runs) or len(runs) == 3


async def test_where_nothing_is_relevant_there_is_nothing(index: AskedIndex) -> None:
    assert await index.look_up(ACME, Kind.DOCUMENT, look("keys of boats", Floor(99.0)), Judging(), deep) == NOTHING
    assert await index.look_up(Scope("other"), Kind.DOCUMENT, look(QUERIES[0]), Judging(), deep) == NOTHING


async def test_the_next_process_is_asked_where_one_ends(index: AskedIndex, process: IndexProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert (await index.look_up(ACME, Kind.DOCUMENT, look(QUERIES[0]), Judging(), deep)).runs


async def test_a_scope_that_may_not_be_asked_is_refused_here(index: AskedIndex, asked: list[str]) -> None:
    asked.clear()
    with pytest.raises(ValueError, match="within one context"):
        await index.look_up(ACME, Kind.TURN, look(QUERIES[0]), Judging(), deep)
    assert asked == []


async def test_what_a_prompt_is_told_is_the_same_by_one_question_and_by_several(
    index: AskedIndex, asked: list[str]
) -> None:
    by_one, by_several = Search(index, WORDS, floor=FLOOR, count=len), Search(index, WORDS, floor=FLOOR, count=len)
    by_several._look_up = lambda *about: looked_up(index, *about)
    asked.clear()
    for query in QUERIES:
        one = await by_one.retrieve(ACME, query, 3, 400, 700)
        assert one == await by_several.retrieve(ACME, query, 3, 400, 700)
        assert one
    assert "look_up" in asked
