"""What is found among passages that are held whole is what the embedded engine finds."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.documents.edge_held import READ_AT_ONCE, UNSORTED, Held, Tenant
from grounding.documents.index import Entry, Fusion, Hit, Kind, Passage, Source
from grounding.documents.qdrant_embedded import EmbeddedIndex
from grounding.documents.sparse import SparseVector

DIMENSIONS = 16
CHAT, OTHER = Scope("acme", "http:one"), Scope("acme", "http:two")


def entries(dice: random.Random, count: int, kind: Kind) -> list[Entry]:
    """Random passages; of a few the words, of a few the vector is empty."""
    found = []
    for number in range(count):
        words = sorted(dice.sample(range(80), dice.choice((0, 3, 9))))
        sparse = SparseVector(tuple(words), tuple(dice.uniform(0.5, 2.2) for _ in words))
        dense = [dice.gauss(0, 1) if dice.random() < 0.98 else 0.0 for _ in range(DIMENSIONS)]
        previous = f"t{number - 1}" if number and kind is Kind.TURN else ""
        found.append(Entry(Passage(f"t{number}:0", kind, f"t{number}", "x", previous=previous), dense, sparse))
    return found


def opened(folder: str, fusion: Fusion, *, held: bool) -> EmbeddedIndex:
    index = EmbeddedIndex(Path(folder), "m", DIMENSIONS, timeout_seconds=10, fusion=fusion)
    if not held:
        index._held_whole = Held(DIMENSIONS, most=0)
    return index


async def hits(index: EmbeddedIndex, kind: Kind, asked: Entry, top_k: int, **how: Any) -> list[Hit]:
    return await index.search(CHAT, kind, asked.dense, asked.sparse, top_k, **how)


def assert_alike(here: list[Hit], there: list[Hit]) -> None:
    """The same passages with the same scores; where two have one score to 1e-5, either may come first."""
    assert [one.score for one in here] == pytest.approx([one.score for one in there], abs=1e-4)
    scores = {one.passage.id: one for one in there}
    last = there[-1].score if there else 0.0
    for one in here:
        other = scores.get(one.passage.id)
        if other is None:
            assert one.score == pytest.approx(last, abs=1e-4)
            continue
        assert one.passage == other.passage
        assert one.score == pytest.approx(other.score, abs=1e-4)
        for mine, its in ((one.dense, other.dense), (one.sparse, other.sparse)):
            if mine is not None and its is not None:
                assert mine.score == pytest.approx(its.score, abs=1e-4)
    pairs = [(one, scores[one.passage.id]) for one in here if one.passage.id in scores]
    assert all((one.sparse is None) == (other.sparse is None) for one, other in pairs)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 90),
    kind=st.sampled_from((Kind.TURN, Kind.DOCUMENT)),
    candidates=st.sampled_from((20, 300)),
    centring=st.sampled_from((0.0, 0.75)),
)
async def test_what_is_held_whole_answers_as_the_engine_does(
    seed: int, count: int, kind: Kind, candidates: int, centring: float
) -> None:
    dice = random.Random(seed)
    there, later = entries(dice, count, kind), entries(dice, count + 30, kind)[count:]
    asked = [entries(dice, 1, kind)[0] for _ in range(3)]
    fusion = Fusion(candidates=candidates, centring=centring)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        ours, engine = opened(one, fusion, held=True), opened(two, fusion, held=False)
        for index in (ours, engine):
            await index.ensure()
            await index.upsert(CHAT, there)
            await index.upsert(OTHER, entries(dice, 5, Kind.TURN))
        for more in (None, later):
            if more is not None:
                for index in (ours, engine):
                    await index.upsert(CHAT, more)
            for _ in range(count // READ_AT_ONCE + 2):
                await hits(ours, kind, asked[0], 5)
            tenant = ours._held_whole._tenants
            assert [len(held.points) for held in tenant.values()] == [count + (30 if more else 0)]
            for question in asked:
                for how in ({}, {"scores": True}, {"compared": 3}):
                    assert_alike(
                        await hits(ours, kind, question, 8, **how), await hits(engine, kind, question, 8, **how)
                    )
                near = await ours.search(CHAT, kind, question.dense, None, 8, compared=4)
                assert_alike(near, await engine.search(CHAT, kind, question.dense, None, 8, compared=4))
            named, followed = {"t0", f"t{count - 1}"}, {"t0", f"t{count // 2}"}
            assert await ours.beside(CHAT, kind, named, followed) == await engine.beside(CHAT, kind, named, followed)
            wanted = {"t0": [0, 1], "none": [0]}
            assert await ours.read(CHAT, kind, wanted) == await engine.read(CHAT, kind, wanted)
        for index in (ours, engine):
            await index.close()


async def test_what_is_held_follows_each_change(tmp_path: Path) -> None:
    index = opened(str(tmp_path), Fusion(), held=True)
    await index.ensure()
    dice = random.Random(3)
    there = entries(dice, UNSORTED + 3, Kind.TURN)
    await index.upsert(CHAT, there[:-1])
    asked = there[0]

    async def sources() -> set[str]:
        found = {hit.passage.source for hit in await hits(index, Kind.TURN, asked, 50)}
        again = {hit.passage.source for hit in await hits(index, Kind.TURN, asked, 50)}
        assert index._held_whole._tenants
        assert found == again
        return found

    known = {one.passage.source for one in there[:-1]}
    assert await sources() == known
    await index.upsert(CHAT, there[-1:])
    assert await sources() == known | {there[-1].passage.source}
    await index.delete(CHAT, Kind.TURN, source="t1")
    assert await sources() == known - {"t1"} | {there[-1].passage.source}
    await index.delete(CHAT, Kind.TURN, ids=["t2:0"])
    assert "t2" not in await sources()
    changed = Passage("t3:0", Kind.TURN, "t3", "said otherwise")
    await index.replace([Source(CHAT, Kind.TURN, "t3", [Entry(changed, there[3].dense, there[3].sparse)])])
    assert (await index.read(CHAT, Kind.TURN, {"t3": [0]}))["t3"] == [changed]
    assert "t3" in await sources()
    assert (await index.read(CHAT, Kind.TURN, {"t3": [0]}))["t3"] == [changed]
    await index.drop_workspace(CHAT)
    assert await hits(index, Kind.TURN, asked, 50) == []
    await index.close()


async def test_a_conversation_that_goes_on_while_it_is_read_is_held_whole(tmp_path: Path) -> None:
    index = opened(str(tmp_path), Fusion(), held=True)
    await index.ensure()
    there = entries(random.Random(3), 3 * READ_AT_ONCE, Kind.TURN)
    before = 2 * READ_AT_ONCE + 1
    await index.upsert(CHAT, there[:before])
    for entry in there[before : before + 3]:
        await hits(index, Kind.TURN, there[0], 8)
        await index.upsert(CHAT, [entry])
    (held,) = index._held_whole._tenants.values()
    assert not held.missing
    assert sorted(one.source for one in held.passages) == sorted(one.passage.source for one in there[: before + 3])
    assert len(await hits(index, Kind.TURN, there[0], 100)) == before + 3
    await index.close()


async def test_a_passage_that_changes_before_it_is_read_is_held_as_it_is_then(tmp_path: Path) -> None:
    index = opened(str(tmp_path), Fusion(), held=True)
    await index.ensure()
    there = entries(random.Random(3), READ_AT_ONCE + 2, Kind.TURN)
    await index.upsert(CHAT, there)
    await hits(index, Kind.TURN, there[0], 8)
    (held,) = index._held_whole._tenants.values()
    number = next(number for number, one in enumerate(there) if one.passage not in held.passages)
    changed = Passage(f"t{number}:0", Kind.TURN, f"t{number}", "said otherwise")
    await index.upsert(CHAT, [Entry(changed, there[number].dense, there[number].sparse)])
    for _ in range(4):
        found = [hit.passage for hit in await hits(index, Kind.TURN, there[number], 100)]
        assert len(found) == len(there)
        assert changed in found
    await index.close()


async def test_a_passage_that_is_stored_twice_at_once_is_held_once(tmp_path: Path) -> None:
    """As in the engine the last one counts."""
    index = opened(str(tmp_path), Fusion(), held=True)
    await index.ensure()
    there = entries(random.Random(3), 4, Kind.TURN)
    await index.upsert(CHAT, there[:2])
    await hits(index, Kind.TURN, there[0], 50)
    changed = Entry(Passage("t2:0", Kind.TURN, "t2", "said otherwise"), there[3].dense, there[3].sparse)
    await index.upsert(CHAT, [there[2], changed])
    for _ in range(2):
        found = [hit.passage for hit in await hits(index, Kind.TURN, there[0], 50)]
        assert sorted(one.source for one in found) == ["t0", "t1", "t2"]
        assert changed.passage in found
    assert index._held_whole._tenants
    await index.close()


async def test_many_small_tenants_take_the_room_of_their_passages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that they make room for a large one is no work for each of those that stay."""
    index, clock, counted = opened(str(tmp_path), Fusion(), held=True), [0.0], list[Tenant]()
    held = index._held_whole = Held(DIMENSIONS, most=60, now=lambda: clock[0])
    await index.ensure()
    dice = random.Random(7)
    scopes = [Scope("acme", f"http:{number}") for number in range(60)]
    for scope in scopes:
        await index.upsert(scope, entries(dice, 1, Kind.TURN))
    await index.upsert(CHAT, entries(dice, 20, Kind.TURN))
    asked = entries(dice, 1, Kind.TURN)[0]
    for scope in (*scopes, *scopes[:30]):
        await index.search(scope, Kind.TURN, asked.dense, asked.sparse, 8)
    assert len(held._tenants) == 60
    assert sum(len(one._vectors) for one in held._tenants.values()) == 60
    for scope in scopes[:30]:
        await index.upsert(scope, [entries(dice, 2, Kind.TURN)[1]])
    assert held._passages == sum(len(one) for one in held._tenants.values()) <= 60

    def count(tenant: Tenant) -> int:
        counted.append(tenant)
        return len(tenant.points) + len(tenant.missing)

    monkeypatch.setattr(Tenant, "__len__", count)
    there, clock[0] = len(held._tenants), 61.0
    await hits(index, Kind.TURN, asked, 8)
    gone = there + 1 - len(held._tenants)
    assert gone > 0
    assert len(counted) <= gone + 3
    await index.close()


async def test_no_more_is_held_than_there_is_room_for(tmp_path: Path) -> None:
    """Who was asked about lately keeps the room; others are answered by the engine, alike."""
    index, clock = opened(str(tmp_path), Fusion(), held=True), [0.0]
    index._held_whole = Held(DIMENSIONS, most=20, most_of_one=12, now=lambda: clock[0])
    await index.ensure()
    dice = random.Random(5)
    scopes = [Scope("acme", f"http:{number}") for number in range(4)]
    sizes = (8, 8, 8, 13)
    for scope, count in zip(scopes, sizes, strict=True):
        await index.upsert(scope, entries(dice, count, Kind.TURN))
    asked = entries(dice, 1, Kind.TURN)[0]

    async def held() -> list[int]:
        for scope, count in zip(scopes, sizes, strict=True):
            assert len(await index.search(scope, Kind.TURN, asked.dense, asked.sparse, 50)) == count
        return [len(one.points) for one in index._held_whole._tenants.values()]

    assert await held() == [8, 8]
    clock[0] += 61.0
    await index.search(scopes[2], Kind.TURN, asked.dense, asked.sparse, 50)
    assert [name.endswith("2") for name in index._held_whole._tenants] == [False, True]
    await index.close()
