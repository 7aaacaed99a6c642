"""All adapters of the passage index do the same. The server's runs on its client's local mode."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

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
    encode_document,
)
from grounding.retrieval.bm25 import encode_query
from grounding.retrieval.index import Arm
from runtime.embedded.index_client import IndexProcess, RemoteIndex, index_process
from tests.emulators.embedder import cosine
from tests.emulators.passages import EMBEDDER, embedded, entry, found, server

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Local mode keeps no payload indexes, and says so each time that one is made.
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect"),
]

ACME, OTHER = Scope("acme"), Scope("other")
CHAT, CHAT_2 = Scope("acme", "http:one"), Scope("acme", "http:two")
DOCUMENT, TURN = Kind.DOCUMENT, Kind.TURN


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IndexProcess]:
    """One process for the embedded indexes of all tests."""
    async with index_process(tmp_path_factory.mktemp("engine")) as process:
        yield process


@pytest_asyncio.fixture(params=["embedded", "server", "process"], loop_scope="module")
async def index(request: pytest.FixtureRequest, engine: IndexProcess, tmp_path: Path) -> AsyncIterator[PassageIndex]:
    opened: PassageIndex
    if request.param == "process":
        opened = RemoteIndex(engine, tmp_path, EMBEDDER.name, EMBEDDER.dimensions, timeout_seconds=60)
    else:
        opened = (embedded if request.param == "embedded" else server)(tmp_path)
    await opened.ensure()
    yield opened
    await opened.close()


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


async def test_a_collection_that_was_dropped_is_gone(index: PassageIndex, tmp_path: Path) -> None:
    await index.upsert(ACME, [await entry("refund")])
    await index.ensure()  # twice changes nothing
    await index.check()
    assert await index.exists()
    assert await found(index, ACME, "refund") == ["refund"]
    await index.drop()
    with pytest.raises(IndexUnavailable):
        await index.count(ACME, DOCUMENT)
    assert list(tmp_path.iterdir()) == []


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


async def test_text_without_words_is_stored_and_asked_without_harm(index: PassageIndex) -> None:
    await index.upsert(ACME, [await entry("…"), await entry("refund", 1)])
    assert await index.count(ACME, DOCUMENT) == 2
    assert await index.search(PassageQuery(ACME, DOCUMENT, None, encode_query("!?"), 5)) == []
    assert await index.search(PassageQuery(ACME, DOCUMENT, None, None, 5)) == []
    assert await index.search(PassageQuery(ACME, DOCUMENT, None, encode_query("refund"), 0)) == []


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


@pytest.mark.parametrize("seed", range(2))
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


async def test_a_closed_index_says_so(index: PassageIndex) -> None:
    await index.close()
    await index.close()
    with pytest.raises(IndexUnavailable):
        await index.check()


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
