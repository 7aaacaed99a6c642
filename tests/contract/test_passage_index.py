"""Both adapters of the passage index do the same. The server's runs on its client's local mode."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import pytest_asyncio
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common import client_exceptions
from qdrant_client.http import exceptions
from structlog.testing import capture_logs

from connectors.message import Scope
from grounding.retrieval import (
    IndexEntry,
    IndexUnavailable,
    Kind,
    Passage,
    PassageIndex,
    PassageQuery,
    Source,
    SparseVector,
    collection_name,
    encode_document,
    qdrant_edge,
    qdrant_server,
)
from grounding.retrieval.bm25 import encode_query
from grounding.retrieval.index import Arm
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.qdrant_server import ServerIndex
from runtime.embedded.index_client import RemoteIndex, index_process
from tests.emulators.embedder import HashedWords, cosine
from tests.emulators.qdrant import SharedQdrant

# Local mode keeps no payload indexes, and says so each time that one is made.
pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

ACME, OTHER = Scope("acme"), Scope("other")
CHAT, CHAT_2 = Scope("acme", "http:one"), Scope("acme", "http:two")
EMBEDDER = HashedWords()
DOCUMENT, TURN = Kind.DOCUMENT, Kind.TURN


def embedded(folder: Path) -> PassageIndex:
    return EmbeddedIndex(folder, EMBEDDER.name, EMBEDDER.dimensions, timeout_seconds=10)


def server(_: Path) -> PassageIndex:
    client = AsyncQdrantClient(":memory:")
    return ServerIndex("local", EMBEDDER.name, EMBEDDER.dimensions, timeout_seconds=10, client=client)


@asynccontextmanager
async def made(make: Callable[[Path], PassageIndex] | None, folder: Path) -> AsyncIterator[PassageIndex]:
    """What *make* makes; without it the embedded one in a process of its own."""
    async with AsyncExitStack() as stack:
        if make is None:
            process = await stack.enter_async_context(index_process(folder.with_name(f"{folder.name}-log")))
            opened: PassageIndex = RemoteIndex(process, folder, EMBEDDER.name, EMBEDDER.dimensions, timeout_seconds=10)
        else:
            opened = make(folder)
        stack.push_async_callback(opened.close)
        await opened.ensure()
        yield opened


@pytest_asyncio.fixture(params=[embedded, server, None], ids=["embedded", "server", "process"])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PassageIndex]:
    async with made(request.param, tmp_path) as opened:
        yield opened


async def entry(text: str, number: int = 0, source: str = "a.md", kind: Kind = DOCUMENT) -> IndexEntry:
    passage = Passage(f"{source}#{number}#{text}", kind, source, text, "Title", "H › I", "", number, 1, 9, 2, 3, "at")
    return IndexEntry(passage, await EMBEDDER.embed_query(text), encode_document(text))


async def found(index: PassageIndex, scope: Scope, query: str, kind: Kind = DOCUMENT, **options: Any) -> list[str]:
    dense = await EMBEDDER.embed_query(query)
    hits = await index.search(PassageQuery(scope, kind, dense, encode_query(query), 10, **options))
    return [hit.passage.text for hit in hits]


async def test_a_passage_comes_back_as_it_was_stored(index: PassageIndex) -> None:
    stored = await entry("refund windows")
    await index.upsert(ACME, [stored])
    (hit,) = await index.search(PassageQuery(ACME, DOCUMENT, stored.dense, stored.sparse, 5, explain=True))
    assert hit.passage == stored.passage
    assert hit.dense is not None
    assert (hit.dense.rank, round(hit.dense.score, 4)) == (1, 1.0)
    assert hit.sparse is not None
    assert hit.sparse.rank == 1
    vectors = await index.vectors(ACME, DOCUMENT, [stored.passage.id, "unknown"])
    assert vectors.keys() == {stored.passage.id}
    assert vectors[stored.passage.id] == pytest.approx(stored.dense, abs=1e-6)


async def test_what_was_found_before_it_was_changed_is_found_as_it_is_now(index: PassageIndex) -> None:
    first = await entry("refund windows")
    asked = first.dense, encode_query("refund windows")
    await index.upsert(ACME, [first, await entry("opening hours", 1)])
    (before,) = await index.search(PassageQuery(ACME, DOCUMENT, *asked, 1, compared=1))
    assert before.dense is not None
    assert before.dense.score == pytest.approx(1.0, abs=1e-6)

    other = await EMBEDDER.embed_query("refund doors")
    changed = Passage(first.passage.id, DOCUMENT, "a.md", "refund doors")
    await index.upsert(ACME, [IndexEntry(changed, other, encode_document("refund doors"))])
    (after,) = await index.search(PassageQuery(ACME, DOCUMENT, *asked, 1, compared=1))
    assert after.passage == changed
    assert after.dense is not None
    assert after.dense.score == pytest.approx(cosine(first.dense, other), abs=1e-6)
    assert await index.read(ACME, DOCUMENT, {"a.md": [0]}) == {"a.md": [changed]}

    await index.delete(ACME, DOCUMENT, ids=[first.passage.id])
    assert await found(index, ACME, "refund") == ["opening hours"]
    await index.delete(ACME, DOCUMENT, ids=[])
    assert await found(index, ACME, "refund") == ["opening hours"]
    await index.delete(ACME, DOCUMENT)
    assert await found(index, ACME, "refund") == []


async def test_nothing_crosses_workspaces_kinds_and_contexts(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry("refund of acme")])
    await index.upsert(OTHER, [await entry("refund of other")])
    await index.upsert(CHAT, [await entry("refund of chat one", kind=TURN)])
    await index.upsert(CHAT_2, [await entry("refund of chat two", kind=TURN)])
    assert await found(index, ACME, "refund") == ["refund of acme"]
    assert await found(index, CHAT, "refund") == ["refund of acme"]
    assert await found(index, OTHER, "refund") == ["refund of other"]
    assert await found(index, CHAT, "refund", TURN) == ["refund of chat one"]
    assert await found(index, CHAT_2, "refund", TURN) == ["refund of chat two"]
    assert await index.count(ACME, DOCUMENT) == 1
    await index.drop_workspace(ACME)
    assert await found(index, CHAT, "refund", TURN) == []
    assert await found(index, OTHER, "refund") == ["refund of other"]


async def test_a_collection_that_was_dropped_is_gone(index: PassageIndex, tmp_path: Path) -> None:
    await index.upsert(ACME, [await entry("refund")])
    assert await index.exists()
    await index.drop()
    with pytest.raises(IndexUnavailable):
        await index.count(ACME, DOCUMENT)
    assert list(tmp_path.iterdir()) == []


async def test_whether_a_collection_exists_is_found_out_without_making_it(tmp_path: Path) -> None:
    for opened in (embedded(tmp_path), server(tmp_path)):
        assert not await opened.exists()
        await opened.drop()
        assert not list(tmp_path.iterdir())


async def test_a_removal_that_was_interrupted_is_finished_and_what_it_left_is_never_opened(tmp_path: Path) -> None:
    first = embedded(tmp_path)
    await first.ensure()
    await first.close()
    (folder,) = tmp_path.iterdir()
    folder.rename(folder.with_name(f"{folder.name}.dropped"))
    again = embedded(tmp_path)
    assert not await again.exists()
    await again.drop()
    assert list(tmp_path.iterdir()) == []


async def test_collections_of_one_server_are_dropped_one_by_one() -> None:
    client = SharedQdrant(":memory:")

    def opened(model: str) -> ServerIndex:
        return ServerIndex("local", model, 64, timeout_seconds=10, client=client)

    for model in ("left", "kept"):
        await opened(model).ensure()
    await opened("left").drop()
    assert not await opened("left").exists()
    assert await opened("kept").exists()
    await opened("left").drop()


async def test_the_same_passage_in_two_workspaces_is_two_passages(index: PassageIndex) -> None:
    same = await entry("refund")
    await index.upsert(ACME, [same])
    await index.upsert(OTHER, [same])
    await index.delete(ACME, DOCUMENT, ids=[same.passage.id])
    assert await found(index, ACME, "refund") == []
    assert await found(index, OTHER, "refund") == ["refund"]


async def test_others_documents_do_not_change_how_rare_a_word_is(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry("refund storm"), await entry("parcel", 1)])
    before = await index.search(PassageQuery(ACME, DOCUMENT, None, encode_query("refund"), 5))
    await index.upsert(OTHER, [await entry(f"refund {n}", n) for n in range(50)])
    after = await index.search(PassageQuery(ACME, DOCUMENT, None, encode_query("refund"), 5))
    assert [hit.score for hit in after] == pytest.approx([hit.score for hit in before])


async def test_turns_need_a_context(index: PassageIndex) -> None:
    with pytest.raises(ValueError, match="context"):
        await index.search(PassageQuery(ACME, TURN, None, encode_query("refund"), 5))
    with pytest.raises(ValueError, match="context"):
        await index.upsert(ACME, [await entry("refund", kind=TURN)])


async def test_replacing_a_source_leaves_only_the_new_passages(index: PassageIndex) -> None:
    old = [await entry(f"old {n}", n) for n in range(3)]
    await index.upsert(ACME, [*old, await entry("bystander", 0, "b.md")])
    await index.replace([Source(ACME, DOCUMENT, "a.md", [old[1], await entry("new", 1)])])
    assert await index.sources(ACME, DOCUMENT) == {"a.md": 2, "b.md": 1}
    assert set(await index.ids(ACME, DOCUMENT)) >= {old[1].passage.id, "a.md#1#new"}
    await index.replace([Source(ACME, DOCUMENT, "a.md", [])])
    assert await index.sources(ACME, DOCUMENT) == {"b.md": 1}


async def test_many_sources_are_replaced_at_once_each_in_its_own_scope(index: PassageIndex) -> None:
    """One of the same name in another conversation, or in another workspace, stays as it was."""
    elsewhere = Scope("other", CHAT.context_id)
    for scope in (CHAT, CHAT_2, elsewhere):
        await index.upsert(scope, [await entry(f"old {n}", n, "t1", TURN) for n in range(2)])

    new = {scope: [await entry("new", 0, name, TURN)] for scope, name in ((CHAT, "t1"), (CHAT_2, "t2"))}
    await index.replace([Source(CHAT, TURN, "t1", new[CHAT]), Source(CHAT_2, TURN, "t2", new[CHAT_2])])

    assert await index.ids(CHAT, TURN) == ["t1#0#new"]
    assert await index.ids(CHAT_2, TURN) == ["t1#0#old 0", "t1#1#old 1", "t2#0#new"]
    assert await index.sources(elsewhere, TURN) == {"t1": 2}
    with pytest.raises(ValueError, match="context"):
        await index.replace([Source(CHAT, TURN, "t1", new[CHAT]), Source(ACME, TURN, "t2", new[CHAT_2])])
    assert await index.ids(CHAT, TURN) == ["t1#0#new"]


async def test_more_passages_than_a_batch_are_all_stored_and_listed(index: PassageIndex) -> None:
    many = [await entry(f"refund {n}", n) for n in range(600)]
    await index.replace([Source(ACME, DOCUMENT, "a.md", many)])
    assert await index.count(ACME, DOCUMENT) == 600
    assert len(await index.ids(ACME, DOCUMENT)) == 600
    await index.replace([Source(ACME, DOCUMENT, "a.md", many[:300])])
    assert await index.count(ACME, DOCUMENT) == 300


async def test_passages_of_a_source_are_read_by_ordinal(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry(f"part {n}", n) for n in range(5)])
    await index.upsert(ACME, [await entry("elsewhere", 2, "b.md")])
    found = await index.read(ACME, DOCUMENT, {"a.md": [3, 1, 99], "b.md": [], "c.md": [1]})
    assert [p.text for p in found.pop("a.md")] == ["part 1", "part 3"]
    assert found == {"b.md": [], "c.md": []}
    assert await index.read(ACME, DOCUMENT, {}) == {}


async def test_what_stands_beside_a_turn_is_found_in_its_own_conversation(index: PassageIndex) -> None:
    def turn(name: str, previous: str, ordinal: int = 0) -> IndexEntry:
        passage = Passage(f"{name}:{ordinal}", TURN, name, f"{name}.{ordinal}", ordinal=ordinal, previous=previous)
        return IndexEntry(passage, [1.0] + [0.0] * (EMBEDDER.dimensions - 1), encode_document("word"))

    await index.upsert(
        CHAT, [turn("t1", ""), turn("t2", "t1"), turn("t2", "t1", 1), turn("t3", "t2"), turn("t4", "t3")]
    )
    await index.upsert(CHAT_2, [turn("t1", ""), turn("t3", "t2")])

    assert {one.text for one in await index.neighbours(CHAT, TURN, ["t1"], ["t2"])} == {"t1.0", "t3.0"}
    assert [one.previous for one in await index.neighbours(CHAT, TURN, ["t2"], [])] == ["t1"]
    assert [one.text for one in await index.neighbours(CHAT_2, TURN, [], ["t2", "t3"])] == ["t3.0"]
    assert await index.neighbours(CHAT, TURN, [], []) == []


async def test_counts_and_estimates_follow_each_change(index: PassageIndex) -> None:
    counts = []
    one, two, three = await entry("one"), await entry("two", source="b.md"), await entry("three", source="c.md")
    for change in (
        index.upsert(ACME, [one, two]),
        index.replace([Source(ACME, DOCUMENT, "a.md", [])]),
        index.upsert(ACME, [three]),
        index.delete(ACME, DOCUMENT, source="b.md"),
        index.drop_workspace(ACME),
    ):
        await change
        counts.append([await index.count(ACME, DOCUMENT), await index.count(ACME, DOCUMENT, exact=False)])
    assert counts == [[2, 2], [1, 1], [2, 2], [1, 1], [0, 0]]


NAMES = ("red", "blue", "green", "grey", "black", "white")


async def test_the_best_are_compared_by_their_own_vectors_where_that_is_asked_for(index: PassageIndex) -> None:
    await index.upsert(CHAT, [await entry(f"refund {one}", 0, f"t-{one}", TURN) for one in NAMES])
    dense, sparse = await EMBEDDER.embed_query("refund blue"), encode_query("refund blue")
    whole = await index.search(PassageQuery(CHAT, TURN, dense, sparse, 4, scores=True))
    found = await index.search(PassageQuery(CHAT, TURN, dense, sparse, 4, compared=2))
    assert [one.passage for one in found] == [one.passage for one in whole]
    assert [one.dense for one in found] == [*(one.dense for one in whole[:2]), None, None]


async def test_a_corpus_of_fewer_passages_than_an_arm_offers_is_ranked_alike_whether_its_size_is_known(
    index: PassageIndex,
) -> None:
    await index.upsert(ACME, [await entry(f"refund of the {one} case {n}", n) for n, one in enumerate(NAMES)])
    dense, sparse = await EMBEDDER.embed_query("refund of the blue case"), encode_query("refund of the blue case")
    before = await index.search(PassageQuery(ACME, DOCUMENT, dense, sparse, 5, scores=True))
    assert await index.count(ACME, DOCUMENT, exact=False) == len(NAMES)
    after = await index.search(PassageQuery(ACME, DOCUMENT, dense, sparse, 5, scores=True))
    assert [one.passage for one in after] == [one.passage for one in before]
    assert [one.score for one in after] == pytest.approx([one.score for one in before], abs=1e-5)
    without = encode_query("zebra")
    assert [one.sparse for one in await index.search(PassageQuery(ACME, DOCUMENT, dense, without, 3, scores=True))] == [
        None
    ] * 3


async def test_deleting_a_source_or_a_kind_spares_the_rest(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry("refund a"), await entry("refund b", 0, "b.md")])
    await index.upsert(CHAT, [await entry("refund turn", 0, "t1", TURN)])
    await index.delete(ACME, DOCUMENT, source="a.md")
    assert await found(index, ACME, "refund") == ["refund b"]
    await index.delete(ACME, DOCUMENT)
    assert await found(index, ACME, "refund") == []
    assert await found(index, CHAT, "refund", TURN) == ["refund turn"]


async def test_text_without_words_is_stored_and_asked_without_harm(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry("…"), await entry("refund", 1)])
    assert await index.count(ACME, DOCUMENT) == 2
    assert await index.search(PassageQuery(ACME, DOCUMENT, None, encode_query("!?"), 5)) == []
    assert await index.search(PassageQuery(ACME, DOCUMENT, None, None, 5)) == []
    assert await index.search(PassageQuery(ACME, DOCUMENT, None, encode_query("refund"), 0)) == []


async def test_ensuring_twice_changes_nothing(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry("refund")])
    await index.ensure()
    await index.check()
    assert await found(index, ACME, "refund") == ["refund"]


def random_entries(seed: int, count: int) -> list[IndexEntry]:
    """Passages whose scores are all different, so that only one ranking is right."""
    dice = random.Random(seed)
    entries = []
    for number in range(count):
        indices = tuple(sorted(dice.sample(range(60), 8)))
        sparse = SparseVector(indices, tuple(dice.uniform(0.5, 2.2) for _ in indices))
        dense = [dice.gauss(0, 1) for _ in range(EMBEDDER.dimensions)]
        entries.append(IndexEntry(Passage(str(number), DOCUMENT, "a.md", "x", ordinal=number), dense, sparse))
    return entries


@pytest.mark.parametrize("seed", range(4))
async def test_both_adapters_find_the_same_ten_with_the_same_scores(tmp_path: Path, seed: int) -> None:
    entries = random_entries(seed, 400)
    asked = random_entries(seed + 100, 1)[0]
    answers = []
    for make in (embedded, server):
        opened = make(tmp_path)
        await opened.ensure()
        await opened.upsert(ACME, entries[:300])
        await opened.upsert(OTHER, entries[300:])
        tens = [
            await opened.search(PassageQuery(ACME, DOCUMENT, dense, sparse, 10))
            for dense, sparse in ((asked.dense, None), (None, asked.sparse), (asked.dense, asked.sparse))
        ]
        answers.append([[(hit.passage.id, round(hit.score, 4)) for hit in ten] for ten in tens])
        await opened.close()
    assert answers[0] == answers[1]
    assert all(len(ten) == 10 for ten in answers[0])


async def test_the_only_passage_with_a_rare_word_comes_first(tmp_path: Path) -> None:
    entries = random_entries(1, 90)
    rare = IndexEntry(entries[7].passage, entries[7].dense, SparseVector((7_000_000,), (1.5,)))
    asked = SparseVector((7_000_000,), (1.0,))
    for opened in (embedded(tmp_path), server(tmp_path)):
        await opened.ensure()
        await opened.upsert(ACME, [*entries[:7], rare, *entries[8:]])
        for explain, scores in ((True, False), (False, True), (False, False)):
            hits = await opened.search(
                PassageQuery(ACME, DOCUMENT, random_entries(5, 1)[0].dense, asked, 3, explain=explain, scores=scores)
            )
            assert hits[0].passage.id == rare.passage.id
            assert bool(hits[0].sparse) == (explain or scores)
        await opened.close()


async def test_what_passages_have_in_common_counts_for_less(tmp_path: Path) -> None:
    """A passage that is near to everything does not win over the one that is near to what was asked."""
    size = EMBEDDER.dimensions
    dice = random.Random(3)
    common = [1.0] * size

    def passage(number: int, own: float) -> IndexEntry:
        dense = [one + own * dice.gauss(0, 1) for one in common]
        return IndexEntry(Passage(str(number), DOCUMENT, "a.md", "x", ordinal=number), dense, encode_document("refund"))

    crowd = [passage(number, 2.0) for number in range(60)]
    typical = passage(60, 0.1)
    meant = crowd[7]
    asked = [one + 0.35 * (value - one) for one, value in zip(common, meant.dense, strict=True)]
    for opened in (embedded(tmp_path), server(tmp_path)):
        await opened.ensure()
        await opened.upsert(ACME, [*crowd, typical])
        (nearest,) = await opened.search(PassageQuery(ACME, DOCUMENT, asked, None, 1))
        (best,) = await opened.search(PassageQuery(ACME, DOCUMENT, asked, encode_query("refund"), 1))
        assert (nearest.passage.id, best.passage.id) == ("60", "7")
        await opened.close()


async def test_a_deleted_kind_leaves_no_centre_behind(index: PassageIndex) -> None:
    entries = random_entries(1, 90)
    asked = random_entries(2, 1)[0]
    await index.upsert(ACME, entries[:45])
    await index.search(PassageQuery(ACME, DOCUMENT, asked.dense, asked.sparse, 10))
    await index.delete(ACME, DOCUMENT)
    await index.upsert(ACME, entries[45:])
    after = await index.search(PassageQuery(ACME, DOCUMENT, asked.dense, asked.sparse, 10))
    await index.upsert(OTHER, entries[45:])
    fresh = await index.search(PassageQuery(OTHER, DOCUMENT, asked.dense, asked.sparse, 10))
    assert [(hit.passage.id, hit.score) for hit in after] == [(hit.passage.id, hit.score) for hit in fresh]


async def test_the_raw_scores_alone_are_those_that_the_arms_give(index: PassageIndex) -> None:
    await index.upsert(ACME, random_entries(1, 90))
    asked = random_entries(2, 1)[0]
    explained = await index.search(PassageQuery(ACME, DOCUMENT, asked.dense, asked.sparse, 20, explain=True))
    scored = await index.search(PassageQuery(ACME, DOCUMENT, asked.dense, asked.sparse, 20, scores=True))
    assert [hit.passage for hit in scored] == [hit.passage for hit in explained]
    for bare, whole in zip(scored, explained, strict=True):
        assert bare.dense is not None
        assert whole.dense is not None
        assert bare.dense.rank == 0
        assert bare.dense.score == pytest.approx(whole.dense.score, abs=1e-5)
        assert (bare.sparse and bare.sparse.score) == (whole.sparse and whole.sparse.score)
    (one, *_) = await index.search(PassageQuery(ACME, DOCUMENT, asked.dense, None, 5, scores=True))
    assert one.dense is not None
    assert one.dense.score == pytest.approx(one.score, abs=1e-5)
    assert one.sparse is None
    (one, *_) = await index.search(PassageQuery(ACME, DOCUMENT, None, asked.sparse, 5, scores=True))
    assert one.sparse == Arm(0, one.score)
    assert one.dense is None


async def test_embedded_passages_survive_a_restart(tmp_path: Path) -> None:
    first = embedded(tmp_path)
    await first.ensure()
    await first.upsert(ACME, [await entry("refund")])
    await first.close()
    second = embedded(tmp_path)
    await second.ensure()
    assert await found(second, ACME, "refund") == ["refund"]
    await second.close()


async def test_a_second_owner_of_the_embedded_index_is_told_what_to_do(tmp_path: Path) -> None:
    first, second = embedded(tmp_path), embedded(tmp_path)
    await first.ensure()
    with pytest.raises(IndexUnavailable, match="another process") as refused:
        await second.ensure()
    assert refused.value.retryable
    await first.close()
    await second.ensure()
    await second.close()


async def test_another_model_has_a_collection_of_its_own(tmp_path: Path) -> None:
    first = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    second = EmbeddedIndex(tmp_path, "two", 64, timeout_seconds=10)
    for opened in (first, second):
        await opened.ensure()
    await first.upsert(ACME, [await entry("refund")])
    assert await found(second, ACME, "refund") == []
    for opened in (first, second):
        await opened.close()
    assert collection_name("a/b", 3) != collection_name("a-b", 3)


async def test_a_panic_of_the_engine_is_an_outage_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """It panics over damaged files; what it raises then is no ``Exception``."""

    class PanicException(BaseException):
        """As pyo3 makes it."""

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            raise PanicException("index out of bounds")

    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    index._shard = Damaged()
    with pytest.raises(IndexUnavailable, match="out of bounds"):
        await index.check()
    await index.close()


def bytes_of_segments(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("segments/**/*") if file.is_file())


async def test_deleting_gives_the_disk_back_and_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    """The vectors are long, so that few passages fill a segment that the engine rewrites."""
    size, count, kept = 2048, 1200, 700
    index = EmbeddedIndex(tmp_path, "long", size, timeout_seconds=60)

    def vector_of(number: int) -> list[float]:
        return [float(place == number) for place in range(size)]

    async def found(**arm: Any) -> list[str]:
        query = PassageQuery(ACME, DOCUMENT, arm.get("dense"), arm.get("sparse"), 1)
        return [hit.passage.id for hit in await index.search(query)]

    entries = [
        IndexEntry(Passage(f"{number}", DOCUMENT, f"{number}.md", f"word{number}"), vector_of(number), sparse)
        for number, sparse in enumerate(encode_document(f"word{number}") for number in range(count))
    ]
    await index.upsert(ACME, entries)
    before = bytes_of_segments(tmp_path)
    for number in range(count - kept):
        await index.delete(ACME, DOCUMENT, source=f"{number}.md")
    assert bytes_of_segments(tmp_path) < 0.8 * before
    assert await index.count(ACME, DOCUMENT) == kept
    assert len(await index.vectors(ACME, DOCUMENT, await index.ids(ACME, DOCUMENT))) == kept
    for number in (0, count - kept - 1, count - kept, count - 1):
        is_there = number >= count - kept
        assert await found(sparse=encode_query(f"word{number}")) == ([f"{number}"] if is_there else [])
        assert (await found(dense=vector_of(number)) == [f"{number}"]) is is_there
    await index.drop_workspace(ACME)
    assert await index.count(ACME, DOCUMENT) == 0
    await index.close()


@pytest.mark.parametrize("name", ["payload_storage/tracker.dat", "payload_storage/page_0.dat", "edge_config.json"])
async def test_a_damaged_index_is_set_aside_and_begun_anew(tmp_path: Path, name: str) -> None:
    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    await index.ensure()
    await index.upsert(ACME, [await entry("refund")])
    await index.close()
    damaged = next(tmp_path.rglob(name))
    if name.endswith("page_0.dat"):
        os.truncate(damaged, 0)  # the engine does not notice as it opens
    else:
        damaged.unlink()

    again = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    await again.ensure()
    assert await again.count(ACME, DOCUMENT) == 0
    await again.upsert(ACME, [await entry("refund")])
    assert len(await found(again, ACME, "refund")) == 1
    aside = [one for one in tmp_path.iterdir() if "damaged" in one.name]
    assert len(aside) == (0 if name == "edge_config.json" else 1)
    await again.drop()
    assert list(tmp_path.iterdir()) == []


async def test_an_index_on_a_full_disk_says_so_instead_of_being_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = embedded(tmp_path)
    await index.upsert(ACME, [await entry("refund")])
    with monkeypatch.context() as patched:
        patched.setattr(qdrant_edge, "LEAST_FREE_BYTES", 1 << 62)
        with pytest.raises(IndexUnavailable, match="no space left"):
            await index.upsert(ACME, [await entry("doors")])
        assert await found(index, ACME, "refund") == ["refund"]
    await index.upsert(ACME, [await entry("doors")])
    assert await index.count(ACME, DOCUMENT) == 2
    await index.close()


async def test_opening_may_take_longer_than_a_search_and_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, limit, open_shard = 0, 0.5, qdrant_edge.open_shard

    def slowly(*about: Any) -> Any:
        nonlocal began
        began += 1
        time.sleep(2 * limit)
        return open_shard(*about)

    monkeypatch.setattr(qdrant_edge, "open_shard", slowly)
    index = EmbeddedIndex(tmp_path, "test", 3, timeout_seconds=limit)
    await index.ensure()
    assert began == 1
    await index.close()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        Exception("Service runtime error: failed to load segment: Cannot allocate memory (os error 12)"),
        Exception("failed to lock: WouldBlock"),
    ],
)
async def test_an_index_that_cannot_be_opened_now_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: object) -> None:
        raise error

    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    await index.ensure()
    await index.upsert(ACME, [await entry("refund")])
    await index.close()
    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    with monkeypatch.context() as patched:
        patched.setattr(qdrant_edge, "open_shard", refused)
        with pytest.raises(IndexUnavailable):
            await index.ensure()
    await index.ensure()
    assert len(await found(index, ACME, "refund")) == 1
    assert not [*tmp_path.glob("*/damaged-*")]
    await index.close()


async def test_a_closed_index_says_so(index: PassageIndex) -> None:
    await index.close()
    await index.close()
    with pytest.raises(IndexUnavailable):
        await index.check()


async def test_a_server_that_is_away_is_an_outage_that_may_pass() -> None:
    away = ServerIndex("http://127.0.0.1:9", "m", 4, timeout_seconds=2)
    for call in (away.ensure, away.check):
        with pytest.raises(IndexUnavailable) as outage:
            await call()
        assert outage.value.retryable
    await away.close()


def exception_classes(module: ModuleType) -> list[type[Exception]]:
    own = inspect.getmembers(module, inspect.isclass)
    return [kind for _, kind in own if issubclass(kind, Exception) and kind.__module__ == module.__name__]


SERVER_ERRORS: list[type[Exception]] = [
    *exception_classes(exceptions),
    *exception_classes(client_exceptions),
    asyncio.TimeoutError,
    httpx.ConnectError,
    httpx.ReadTimeout,
    httpx.InvalidURL,
    ConnectionResetError,
    ValueError,
    RuntimeError,
]


@pytest.mark.parametrize("kind", SERVER_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_class_of_the_client_is_in_the_table(kind: type[Exception]) -> None:
    assert any(issubclass(kind, known) for known, _, _ in qdrant_server.ERRORS)
    error = kind.__new__(kind)
    if isinstance(error, exceptions.UnexpectedResponse):
        error.status_code = None
    if isinstance(error, exceptions.ResponseHandlingException):
        error.source = ValueError("no JSON")
    assert isinstance(qdrant_server.unavailable(error, "here"), IndexUnavailable)


@pytest.mark.parametrize("status", range(400, 600))
def test_every_http_status_is_final_or_passing_as_it_should_be(status: int) -> None:
    error = exceptions.UnexpectedResponse(status, "reason", b"", httpx.Headers())
    mapped = qdrant_server.unavailable(error, "here")
    assert mapped.retryable == (status >= 500 or status in (404, 408, 409, 425, 429))
    assert str(status) in str(mapped)


@pytest.mark.parametrize(
    ("said", "retryable"),
    [
        ("Service runtime error: failed to open WAL x: Can't init WAL: Kind(WouldBlock)", True),
        ("Service runtime error: IO Error: No space left on device", True),
        ("Vector dimension error: expected dim: 4, got 3", False),
        ("Not existing vector name error: nope", False),
        ("Service runtime error: Shard is not initialized", True),
        ("something that no version said before", True),
    ],
)
def test_every_message_of_the_embedded_engine_is_in_the_table(said: str, retryable: bool) -> None:
    mapped = qdrant_edge.unavailable(Exception(said), Path("here"))
    assert mapped.retryable is retryable
    assert said in str(mapped)


async def test_vectors_of_a_wrong_size_are_refused_for_good(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    await opened.ensure()
    with pytest.raises(IndexUnavailable, match="another size") as refused:
        await opened.search(PassageQuery(ACME, DOCUMENT, [1.0], None, 5))
    assert not refused.value.retryable
    await opened.close()


async def test_a_person_finds_the_workspaces_records_and_their_own_in_one_search(index: PassageIndex) -> None:
    """And of the types asked for; all else is about the scope's own alone."""
    ada, ben = Scope("acme", None, "slack:U1"), Scope("acme", "http:one", "slack:U2")
    for scope, text in ((ACME, "refund of all"), (ada, "refund of ada"), (ben, "refund of ben")):
        await index.upsert(scope, [await entry(text, source="fact", kind=Kind.RECORD)])
    await index.upsert(ada, [await entry("refund chosen by ada", source="decision", kind=Kind.RECORD)])

    assert set(await found(index, ada, "refund", Kind.RECORD)) == {
        "refund of all",
        "refund of ada",
        "refund chosen by ada",
    }
    assert set(await found(index, ben, "refund", Kind.RECORD)) == {"refund of all", "refund of ben"}
    assert await found(index, ACME, "refund", Kind.RECORD) == ["refund of all"]
    assert await found(index, OTHER, "refund", Kind.RECORD) == []
    assert await found(index, ada, "refund", Kind.RECORD, only_sources=["decision"]) == ["refund chosen by ada"]
    assert await index.count(ada, Kind.RECORD) == 2
    await index.delete(ada, Kind.RECORD)
    assert await found(index, ada, "refund", Kind.RECORD) == ["refund of all"]
    assert await found(index, ben, "refund", Kind.RECORD, explain=True) != []


@pytest.mark.parametrize(("version", "count"), [("1.18.2", 1), ("1.19.0", 0), ("2.0.1", 0), ("dev", 0)])
async def test_a_server_that_counts_words_over_all_workspaces_is_told(version: str, count: int) -> None:
    """An older one passes over what it is asked there without a word."""
    index = ServerIndex("http://qdrant", "m", 4, timeout_seconds=10, client=Versioned(version))
    with capture_logs() as events:
        await index.ensure()
    told = [event["why"] for event in events if event["event"] == "store.degraded"]
    assert len(told) == count
    assert all(f"version {version}: upgrade it" in why for why in told)


async def test_a_server_that_knows_no_fusion_by_scores_is_not_used_and_its_version_told() -> None:
    index = ServerIndex("http://qdrant", "m", 4, timeout_seconds=10, client=Versioned("1.9.7"))
    with pytest.raises(IndexUnavailable, match=r"http://qdrant is of version 1\.9\.7: upgrade it to 1\.19 or later"):
        await index.ensure()


async def test_a_server_behind_something_that_tells_no_version_is_used() -> None:
    client = Versioned("1.20.0")
    client.error = exceptions.UnexpectedResponse(403, "no", b"", httpx.Headers())
    index = ServerIndex("http://qdrant", "m", 4, timeout_seconds=10, client=client)
    with capture_logs() as events:
        await index.ensure()
    assert events == []


class Versioned(SharedQdrant):
    """Says that it is of some version, or raises an error instead."""

    def __init__(self, version: str) -> None:
        super().__init__(":memory:")
        self.version = version
        self.error: Exception | None = None

    async def info(self) -> models.VersionInfo:
        if self.error is not None:
            raise self.error
        return models.VersionInfo(title="qdrant", version=self.version)
