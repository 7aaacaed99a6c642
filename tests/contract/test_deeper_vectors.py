"""Passages get deeper vectors later, and are compared by them once more: both adapters do the same."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from qdrant_client.http.exceptions import UnexpectedResponse

from connectors.message import Scope
from grounding.retrieval import (
    Hit,
    IndexEntry,
    IndexUnavailable,
    Kind,
    Passage,
    PassageIndex,
    PassageQuery,
    Source,
    encode_document,
)
from grounding.retrieval.bm25 import encode_query
from tests.emulators.embedder import HashedWords
from tests.emulators.passages import EMBEDDER, embedded, server
from tests.emulators.qdrant import SharedQdrant

pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

ACME, OTHER = Scope("acme"), Scope("other")
DEEPER = HashedWords(32, "deeper")
DOCUMENT = Kind.DOCUMENT
Make = Callable[[int | None], PassageIndex]


def makers(folder: Path) -> list[Make]:
    client = SharedQdrant(":memory:")
    return [partial(embedded, folder), partial(server, folder, client=client)]


@pytest.fixture(params=[0, 1], ids=["embedded", "server"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens the same collection again and again."""
    opens: Make = makers(tmp_path)[request.param]
    return opens


@pytest_asyncio.fixture
async def index(make: Make) -> AsyncIterator[PassageIndex]:
    opened = make(DEEPER.dimensions)
    await opened.ensure()
    try:
        yield opened
    finally:
        await opened.close()


def entry(text: str, number: int = 0, source: str = "a.md", deep: str = "") -> IndexEntry:
    passage = Passage(f"{source}#{number}", DOCUMENT, source, text, ordinal=number)
    vector = DEEPER._embed(deep) if deep else None
    return IndexEntry(passage, EMBEDDER._embed(text), encode_document(text), vector)


async def hits_of(index: PassageIndex, query: str, deep: str = "", top_k: int = 10, **options: Any) -> list[Hit]:
    asked = DEEPER._embed(deep) if deep else None
    return await index.search(
        PassageQuery(ACME, DOCUMENT, EMBEDDER._embed(query), encode_query(query), top_k, deep=asked, **options)
    )


def sources_of(passages: list[Passage]) -> set[str]:
    return {one.source for one in passages}


async def test_a_passage_lacks_its_deeper_vector_until_it_is_given_one(index: PassageIndex) -> None:
    assert index.deepens
    await index.upsert(ACME, [entry("refund", 0), entry("refund windows", 1), entry("doors", 0, "b.md")])
    await index.upsert(OTHER, [entry("refund", 0)])
    assert await index.count(ACME, DOCUMENT, shallow=True) == 3
    assert sources_of(await index.shallow(ACME, DOCUMENT, 10)) == {"a.md", "b.md"}
    assert len(await index.shallow(ACME, DOCUMENT, 2)) == 2

    vector = DEEPER._embed("money back")
    assert await index.deepen(ACME, DOCUMENT, {"a.md#0": vector, "gone.md#0": vector}) == 1
    assert [one.id for one in await index.shallow(ACME, DOCUMENT, 10) if one.source == "a.md"] == ["a.md#1"]
    assert await index.count(ACME, DOCUMENT, shallow=True) == 2
    assert await index.count(OTHER, DOCUMENT, shallow=True) == 1
    stored = await index.vectors(ACME, DOCUMENT, ["a.md#0", "a.md#1"], deep=True)
    assert stored == {"a.md#0": pytest.approx(vector, abs=1e-6)}
    assert (await index.vectors(ACME, DOCUMENT, ["a.md#0"])).keys() == {"a.md#0"}


async def test_many_passages_are_given_theirs_at_once(index: PassageIndex) -> None:
    await index.upsert(ACME, [entry("refund", n) for n in range(300)])
    vectors = {f"a.md#{n}": DEEPER._embed(f"refund {n}") for n in range(300)}
    assert await index.deepen(ACME, DOCUMENT, vectors) == 300
    assert await index.count(ACME, DOCUMENT, shallow=True) == 0
    assert await index.shallow(ACME, DOCUMENT, 10) == []


async def test_a_source_that_is_stored_again_keeps_the_deeper_vectors_that_it_brings(index: PassageIndex) -> None:
    await index.upsert(ACME, [entry("refund", n, deep="refund") for n in range(3)])
    assert await index.count(ACME, DOCUMENT, shallow=True) == 0
    again = [entry("refund", 0, deep="refund"), entry("refund", 1)]
    await index.replace([Source(ACME, DOCUMENT, "a.md", again)])
    assert [one.ordinal for one in await index.shallow(ACME, DOCUMENT, 10)] == [1]


async def test_the_best_are_put_in_order_by_the_deeper_vectors_too(index: PassageIndex) -> None:
    """What is found, and each arm's raw scores, stay as they are."""
    await index.upsert(ACME, [entry("refund windows", n) for n in range(3)])
    before = await hits_of(index, "refund windows", scores=True)
    assert await hits_of(index, "refund windows", "steamer", scores=True) == before
    last = before[-1].passage
    words = {one.passage.id: "steamer" if one.passage is last else "other words" for one in before}
    await index.deepen(ACME, DOCUMENT, {name: DEEPER._embed(text) for name, text in words.items()})

    again = await hits_of(index, "refund windows", "steamer", scores=True)
    assert again[0].passage == last
    assert again[0].deep is not None
    assert again[0].deep.score == pytest.approx(1, abs=1e-5)
    arms = {hit.passage.id: (hit.dense, hit.sparse) for hit in before}
    assert {hit.passage.id: (hit.dense, hit.sparse) for hit in again} == arms
    assert [one.passage for one in await hits_of(index, "refund windows", scores=True)] == [
        one.passage for one in before
    ]
    explained = await hits_of(index, "refund windows", "steamer", explain=True)
    assert [one.passage for one in explained] == [one.passage for one in again]
    assert explained[0].deep is not None
    assert explained[0].deep.rank == 1
    assert explained[0].deep.score == pytest.approx(1, abs=1e-5)
    (only,) = await hits_of(index, "refund windows", "steamer", 1)
    assert only.passage == last


async def test_later_parts_of_an_assistants_long_answer_stand_behind_what_is_as_near(index: PassageIndex) -> None:
    def part(number: int, lead: str, deep: str) -> IndexEntry:
        one = entry("refund windows", number, deep=deep)
        return replace(one, passage=replace(one.passage, lead=lead))

    leads = {3: "assistant: … ", 4: "Anna: … ", 5: "| a table |"}
    near = [part(number, leads.get(number, ""), "steamer") for number in range(3, 7)]
    far = [part(number, "", "other words") for number in range(10, 30)]
    await index.upsert(ACME, [*near, *far])

    found = [hit.passage.ordinal for hit in await hits_of(index, "refund windows", "steamer", 5)]

    assert set(found[:3]) == {4, 5, 6}
    assert found[3] == 3  # nearer than the rest all the same


async def test_what_is_only_compared_keeps_its_order_and_shows_its_deeper_cosines(index: PassageIndex) -> None:
    await index.upsert(ACME, [entry("refund windows", n, deep="steamer" if n == 2 else "") for n in range(3)])
    before = await hits_of(index, "refund windows", compared=1)

    compared = await hits_of(index, "refund windows", "steamer", compared=1)

    assert [one.passage for one in compared] == [one.passage for one in before]
    assert [one.dense is not None for one in compared] == [True, False, False]
    cosines = {one.passage.ordinal: one.deep.score for one in compared if one.deep is not None}
    assert cosines == {2: pytest.approx(1, abs=1e-5)}


async def test_what_only_deeper_vectors_find_has_the_last_places_of_what_is_compared(index: PassageIndex) -> None:
    other = ["harbour ferry", "window cleaning", "parcel office"]
    entries = [entry("refund windows", n, deep="refund") for n in range(20)]
    await index.upsert(ACME, [*entries, *(entry(text, 20 + n, deep="steamer") for n, text in enumerate(other))])

    found = await hits_of(index, "refund windows", "steamer", 10, compared=5)

    assert [one.passage.ordinal < 20 for one in found] == [True] * 7 + [False] * 3
    assert all(one.score <= found[6].score for one in found[7:])
    assert len(await hits_of(index, "refund windows", "steamer", 2, compared=5)) == 2


async def test_a_deeper_vector_of_zeros_is_none(index: PassageIndex) -> None:
    """What the deeper model cannot read has one, so that it is not asked again."""
    await index.upsert(ACME, [entry(f"refund {n}", n) for n in range(30)])
    before = [hit.passage.id for hit in await hits_of(index, "refund 7", top_k=30)]
    await index.deepen(ACME, DOCUMENT, {f"a.md#{n}": [0.0] * DEEPER.dimensions for n in range(30)})
    assert await index.count(ACME, DOCUMENT, shallow=True) == 0
    again = await hits_of(index, "refund 7", "refund", 30, explain=True)
    assert [hit.passage.id for hit in again] == before
    assert {hit.deep for hit in again} == {None}


async def test_of_two_passages_that_are_as_near_the_one_among_such_goes_first(index: PassageIndex) -> None:
    """So it is in both adapters, and of the documents as they stand now."""
    near, far = "steamer", "something else"
    await index.upsert(ACME, [entry("refund", n, "z.md", deep=near) for n in range(3)])
    await index.upsert(ACME, [entry("refund", n, "b.md", deep=near if n == 1 else far) for n in range(3)])
    await index.upsert(ACME, [entry("refund", 0, f"c{n}.md", deep=far) for n in range(6)])
    found = [hit.passage.id for hit in await hits_of(index, "refund", "steamer")]
    assert {*found[:3]} == {"z.md#0", "z.md#1", "z.md#2"}
    assert found[3] == "b.md#1"

    await index.upsert(ACME, [entry("refund", n, "z.md", deep=near if n == 2 else far) for n in range(3)])
    await index.upsert(ACME, [entry("refund", n, "b.md", deep=near) for n in range(3)])
    found = [hit.passage.id for hit in await hits_of(index, "refund", "steamer")]
    assert {*found[:3]} == {"b.md#0", "b.md#1", "b.md#2"}


async def test_both_adapters_give_the_same_order_where_some_have_no_deeper_vector(tmp_path: Path) -> None:
    answers = []
    for make in makers(tmp_path):
        opened = make(DEEPER.dimensions)
        await opened.ensure()
        words = ["refund", "window", "harbour", "ticket", "parcel"]
        texts = [" ".join(words[: n % 5 + 1]) + f" {n}" for n in range(60)]
        entries = [
            entry(text, n, deep=f"{words[n % 3]} {words[n % 4]}" if n % 2 else "") for n, text in enumerate(texts)
        ]
        await opened.upsert(ACME, entries)
        hits = await hits_of(opened, "refund ticket", "harbour window", 20, explain=True)
        answers.append([(hit.passage.id, round(hit.score, 4), hit.deep and round(hit.deep.score, 4)) for hit in hits])
        await opened.close()
    assert answers[0] == answers[1]
    assert {deep is None for _, _, deep in answers[0]} == {True, False}


async def test_a_collection_of_before_is_given_room_and_nothing_in_it_is_stored_anew(make: Make) -> None:
    before = make(None)
    await before.ensure()
    assert not before.deepens
    await before.upsert(ACME, [entry("refund", n) for n in range(3)])
    assert await before.deepen(ACME, DOCUMENT, {"a.md#0": DEEPER._embed("refund")}) == 0
    assert await before.shallow(ACME, DOCUMENT, 10) == []
    assert await before.count(ACME, DOCUMENT, shallow=True) == 0
    assert await before.vectors(ACME, DOCUMENT, ["a.md#0"], deep=True) == {}
    found = await hits_of(before, "refund", "refund")
    await before.close()

    for missing in (3, 2):  # as it is opened first, and again later
        opened = make(DEEPER.dimensions)
        await opened.ensure()
        assert opened.deepens
        assert await opened.count(ACME, DOCUMENT, shallow=True) == missing
        assert [hit.passage for hit in await hits_of(opened, "refund")] == [hit.passage for hit in found]
        await opened.deepen(ACME, DOCUMENT, {"a.md#1": DEEPER._embed("refund")})
        assert await opened.count(ACME, DOCUMENT, shallow=True) == 2
        await opened.close()

    without = make(None)  # deeper vectors are turned off: what is there does no harm
    await without.ensure()
    assert await hits_of(without, "refund", "refund") == found
    await without.upsert(ACME, [entry("refund", 7)])
    assert await without.count(ACME, DOCUMENT) == 4
    await without.close()


class Refusing(SharedQdrant):
    """Refuses to add a vector, or says so after another process has added it."""

    def __init__(self, status: int, *, is_added: bool = False) -> None:
        super().__init__(":memory:")
        self.status = status
        self.is_added = is_added

    async def create_vector_name(self, *args: Any, **more: Any) -> Any:
        if self.is_added:
            await super().create_vector_name(*args, **more)
        raise UnexpectedResponse(self.status, "no", b"", httpx.Headers())


@pytest.mark.parametrize(
    ("client", "deepens"), [(Refusing(404), False), (Refusing(405), False), (Refusing(400, is_added=True), True)]
)
async def test_a_server_that_cannot_add_a_vector_goes_on_without_and_one_that_has_it_by_now_with_it(
    client: Refusing, deepens: bool
) -> None:
    await server(Path(), client=client).ensure()  # a collection of before
    opened = server(Path(), DEEPER.dimensions, client)
    await opened.ensure()
    assert opened.deepens == deepens
    await opened.upsert(ACME, [entry("refund")])
    assert len(await hits_of(opened, "refund", "refund")) == 1


async def test_a_server_that_is_busy_is_asked_again_to_add_a_vector() -> None:
    client = Refusing(503)
    await server(Path(), client=client).ensure()
    with pytest.raises(IndexUnavailable):
        await server(Path(), DEEPER.dimensions, client).ensure()


async def test_what_a_killed_process_gave_its_passages_is_there_and_the_rest_is_known_to_lack(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, signal
from pathlib import Path
from tests.contract.test_deeper_vectors import ACME, DEEPER, DOCUMENT, entry, makers
async def main():
    index = makers(Path({str(tmp_path)!r}))[0](DEEPER.dimensions)
    await index.ensure()
    await index.upsert(ACME, [entry("refund", n) for n in range(3)])
    await index.deepen(ACME, DOCUMENT, {{"a.md#1": DEEPER._embed("refund")}})
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=Path(__file__).parents[2])
    assert await killed.wait() == -signal.SIGKILL
    opened = makers(tmp_path)[0](DEEPER.dimensions)
    await opened.ensure()
    assert {one.id for one in await opened.shallow(ACME, DOCUMENT, 10)} == {"a.md#0", "a.md#2"}
    assert (await opened.vectors(ACME, DOCUMENT, ["a.md#1"], deep=True)).keys() == {"a.md#1"}
    await opened.close()
