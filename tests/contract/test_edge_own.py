"""A large tenant of the embedded engine has a shard of its own, and nobody can tell from what is found."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.message import Scope
from grounding.documents import edge_own, stored
from grounding.documents.edge_held import Held
from grounding.documents.edge_own import Own
from grounding.documents.index import Entry, Hit, IndexUnavailable, Kind, Source
from grounding.documents.qdrant_embedded import EmbeddedIndex
from grounding.documents.sparse import SparseVector
from tests.contract.test_edge_held import DIMENSIONS, OTHER, assert_alike
from tests.contract.test_edge_held import entries as random_entries

ACME, GLOBEX = Scope("acme"), Scope("globex")
LARGE = 50
TENANT = stored.tenant(ACME, Kind.DOCUMENT)


@pytest.fixture(autouse=True)
def _soon_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_own, "OWN_PASSAGES", LARGE)
    monkeypatch.setattr(edge_own, "WORN", 1_000_000)  # scores are compared to the fourth digit


def entries(dice: random.Random, count: int, kind: Kind) -> list[Entry]:
    """Random passages, each with words: one without any is none for the engine when it counts them all."""
    given = random_entries(dice, count, kind)
    word = SparseVector((7,), (1.0,))
    return [one if one.sparse.indices else replace(one, sparse=word) for one in given]


def opened(folder: Path, *, deep: int | None = None) -> EmbeddedIndex:
    """An index that holds nothing in memory."""
    index = EmbeddedIndex(folder, "m", DIMENSIONS, timeout_seconds=20, deep_dimensions=deep)
    index._held_whole = Held(DIMENSIONS, most=0)
    return index


async def moved(index: EmbeddedIndex) -> None:
    """Wait until nothing is left to be moved."""
    await index._run(lambda _: None)
    while await index._run(lambda _: index._own.is_busy):
        pass


async def answers(index: EmbeddedIndex, asked: Entry, scope: Scope = ACME) -> list[list[Hit]]:
    """What is found in every way of asking."""
    kind = Kind.DOCUMENT
    found = [
        await index.search(scope, kind, asked.dense, asked.sparse, 8, **how)
        for how in ({}, {"scores": True}, {"compared": 3}, {"explain": True}, {"only_sources": ["t3", "t9"]})
    ]
    found.append(await index.search(scope, kind, asked.dense, None, 8))
    found.append(await index.search(scope, kind, None, asked.sparse, 8))
    return found


async def assert_same(one: EmbeddedIndex, other: EmbeddedIndex, asked: Entry, scope: Scope = ACME) -> None:
    for mine, its in zip(await answers(one, asked, scope), await answers(other, asked, scope), strict=True):
        assert_alike(mine, its)
    for index in (one, other):
        index._centres.clear()
    assert await one.sources(scope, Kind.DOCUMENT) == await other.sources(scope, Kind.DOCUMENT)
    assert await one.ids(scope, Kind.DOCUMENT) == await other.ids(scope, Kind.DOCUMENT)
    assert await one.count(scope, Kind.DOCUMENT) == await other.count(scope, Kind.DOCUMENT)
    wanted = {"t3": [0, 1], "t11": [0], "none": [0]}
    assert await one.read(scope, Kind.DOCUMENT, wanted) == await other.read(scope, Kind.DOCUMENT, wanted)


async def test_how_many_passages_a_large_tenant_has_is_known_whatever_is_changed(tmp_path: Path) -> None:
    dice = random.Random(4)
    index = opened(tmp_path)
    known = entries(dice, 2 * LARGE, Kind.DOCUMENT)
    await index.ensure()
    await index.upsert(ACME, known)
    await moved(index)
    for _ in range(12):
        some = dice.sample(known, 5)
        if dice.random() < 0.5:
            await index.upsert(ACME, [*some, *entries(dice, 3, Kind.DOCUMENT)])
        else:
            await index.delete(ACME, Kind.DOCUMENT, ids=[one.passage.id for one in some])
        await index.delete(ACME, Kind.DOCUMENT, source=dice.choice(known).passage.source)
        await index.upsert(ACME, some)
        assert index._own.size_of(TENANT) == await index.count(ACME, Kind.DOCUMENT)
    await index.close()


@pytest.mark.parametrize("seed", range(3))
async def test_a_tenant_with_a_shard_of_its_own_answers_as_one_that_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While it is moved, after it, and as it is changed meanwhile."""
    dice = random.Random(seed)
    ours, shared = opened(tmp_path / "one"), opened(tmp_path / "two")
    monkeypatch.setattr(shared._own, "may_move", lambda *_: False)
    known = entries(dice, 2 * LARGE, Kind.DOCUMENT)
    others = entries(dice, LARGE + 9, Kind.DOCUMENT)
    asked = entries(dice, 1, Kind.DOCUMENT)[0]

    async def both(change: Callable[[EmbeddedIndex], Any]) -> None:
        for index in (ours, shared):
            await change(index)

    await both(lambda index: index.ensure())
    await both(lambda index: index.upsert(GLOBEX, others[:9]))
    for start in range(0, len(known), 10):
        await both(lambda index, some=known[start : start + 10]: index.upsert(ACME, some))  # type: ignore[misc]
        gone = dice.randrange(start + 10)
        await both(lambda index, gone=gone: index.delete(ACME, Kind.DOCUMENT, source=f"t{gone}"))  # type: ignore[misc]
        again = dice.choice(known[: start + 10]).passage
        entry = Entry(again, asked.dense, asked.sparse)
        source = Source(ACME, Kind.DOCUMENT, again.source, [entry])
        await both(lambda index, source=source: index.replace([source]))  # type: ignore[misc]
        await assert_same(ours, shared, asked)
    await moved(ours)
    assert ours._own.of(TENANT) is not None
    await assert_same(ours, shared, asked)
    await assert_same(ours, shared, asked, GLOBEX)
    assert await ours._run(lambda shard: shard.info().points_count) == 9

    await both(lambda index: index.upsert(GLOBEX, others[9:]))
    await moved(ours)
    assert len([*ours._own.shards()]) == 2
    await both(lambda index: index.delete(ACME, Kind.DOCUMENT, ids=["t5:0", "t6:0"]))
    mixed = [Source(ACME, Kind.DOCUMENT, "t7", []), Source(Scope("tiny"), Kind.DOCUMENT, "t1", [others[1]])]
    await both(lambda index: index.replace(mixed))
    for scope in (ACME, GLOBEX, Scope("tiny")):
        await assert_same(ours, shared, asked, scope)

    await both(lambda index: index.drop_workspace(ACME))
    await assert_same(ours, shared, asked)
    await assert_same(ours, shared, asked, GLOBEX)
    assert ours._own.of(TENANT) is None
    await both(lambda index: index.delete(GLOBEX, Kind.DOCUMENT))
    await assert_same(ours, shared, asked, GLOBEX)
    assert [*(tmp_path / "one").glob("*/own/*")] == []
    await both(lambda index: index.close())


async def test_only_what_can_be_found_in_a_scope_is_found_in_it(tmp_path: Path) -> None:
    """Records of a person and of the workspace are searched together: these share."""
    index, dice = opened(tmp_path), random.Random(1)
    await index.ensure()
    user, kinds = Scope("acme", "http:one", "ann"), (Kind.RECORD, Kind.TURN, Kind.DOCUMENT)
    for kind in kinds:
        await index.upsert(user, entries(dice, LARGE + 5, kind))
        await moved(index)
    await index.upsert(OTHER, entries(dice, 3, Kind.TURN))
    assert len([*index._own.shards()]) == 2
    asked = entries(dice, 1, Kind.TURN)[0]
    for scope, kind, count in ((user, Kind.TURN, LARGE + 5), (OTHER, Kind.TURN, 3), (user, Kind.RECORD, LARGE + 5)):
        found = await index.search(scope, kind, asked.dense, asked.sparse, 500)
        assert len(found) == count
        assert {one.passage.kind for one in found} == {kind}
    await index.close()


async def test_after_a_start_everything_is_found_where_it_was(tmp_path: Path) -> None:
    index, dice = opened(tmp_path), random.Random(2)
    known, asked = entries(dice, LARGE + 20, Kind.DOCUMENT), entries(dice, 1, Kind.DOCUMENT)[0]
    await index.ensure()
    await index.upsert(ACME, known)
    await moved(index)
    before = await answers(index, asked)
    await index.close()
    index = opened(tmp_path)
    await index.ensure()
    assert index._own.of(TENANT) is not None
    for mine, its in zip(await answers(index, asked), before, strict=True):
        assert_alike(mine, its)
    await index.close()


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 6, 7, 30])
async def test_a_process_that_dies_while_a_tenant_is_moved_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Nor does anything that was deleted come back."""
    dice, made = random.Random(3), [0]
    known, asked = entries(dice, LARGE + 20, Kind.DOCUMENT), entries(dice, 1, Kind.DOCUMENT)[0]
    index = opened(tmp_path / "alive")
    step = Own.step

    def few(self: Own, common: Any) -> None:
        if made[0] < steps:
            made[0] += 1
            step(self, common)

    await index.ensure()
    with monkeypatch.context() as patched:
        patched.setattr(Own, "step", few)
        patched.setattr(type(index), "_go_on", lambda _: None)
        await index.upsert(ACME, known)
        for _ in range(steps):
            await index._run(lambda shard: index._own.step(shard))
        await index.delete(ACME, Kind.DOCUMENT, source="t4")
        await index.upsert(ACME, [known[5]])
        await index._run(lambda shard: (shard.flush(), [one.flush() for one in index._own.shards()]))
        shutil.copytree(tmp_path / "alive", tmp_path / "dead")
    await index.close()

    index = opened(tmp_path / "dead")
    await index.ensure()
    await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 8)
    await moved(index)
    left = {f"t{number}" for number in range(len(known))} - {"t4"}
    assert await index.sources(ACME, Kind.DOCUMENT) == dict.fromkeys(left, 1)
    found = await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 500)
    assert {one.passage.source for one in found} == left
    assert index._own.of(TENANT) is not None
    assert await index._run(lambda shard: shard.info().points_count) == 0
    assert not [*(tmp_path / "dead").glob("*/own/*.moving")]
    await index.close()


async def test_a_tenant_that_cannot_be_moved_stays_where_it_is_and_is_moved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, dice, clock, tried = opened(tmp_path), random.Random(4), [0.0], list[float]()
    known, asked = entries(dice, LARGE + 20, Kind.DOCUMENT), entries(dice, 1, Kind.DOCUMENT)[0]
    index._own._now = lambda: clock[0]

    def fails(*_: object) -> None:
        tried.append(clock[0])
        raise OSError("No space left on device")

    async def search() -> None:
        assert len(await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 500)) == len(known)
        await moved(index)

    await index.ensure()
    with monkeypatch.context() as patched:
        patched.setattr(Own, "_finish", fails)
        await index.upsert(ACME, known)
        await moved(index)
        for clock[0] in (0.0, 599.0, 601.0, 1200.0, 1790.0, 1802.0):
            await search()
            assert index._own.of(TENANT) is None
        assert tried == [0.0, 601.0, 1802.0]
        assert not [*tmp_path.glob("*/own/*")]
    clock[0] = 10_000.0
    await search()
    assert index._own.of(TENANT) is not None
    assert await index._run(lambda shard: shard.info().points_count) == 0
    await index.close()


async def test_what_cannot_be_taken_away_is_not_tried_again_before_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, dice, clock, tried = opened(tmp_path), random.Random(4), [0.0], list[float]()
    known, asked = entries(dice, LARGE + 20, Kind.DOCUMENT), entries(dice, 1, Kind.DOCUMENT)[0]
    index._own._now = lambda: clock[0]

    def fails(*_: object) -> bool:
        tried.append(clock[0])
        raise OSError("No space left on device")

    await index.ensure()
    with monkeypatch.context() as patched:
        patched.setattr(Own, "_took_away", fails)
        await index.upsert(ACME, known)
        for clock[0] in (0.0, 599.0, 601.0):
            for _ in range(20):
                await index._run(lambda _: None)  # the engine's thread has its turn
                assert len(await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 500)) == len(known)
        await index._run(lambda _: None)
    assert tried == [0.0, 601.0]
    clock[0] = 1300.0
    await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 500)
    await moved(index)
    assert await index._run(lambda shard: shard.info().points_count) == 0
    assert await index.count(ACME, Kind.DOCUMENT) == len(known)
    await index.close()


async def test_what_could_not_be_changed_where_it_is_moved_to_can_be_changed_again(tmp_path: Path) -> None:
    class Broken:
        def __init__(self, shard: Any) -> None:
            self._shard = shard

        def update(self, _: Any) -> None:
            raise OSError("No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._shard, name)

    index, dice = opened(tmp_path), random.Random(5)
    known = entries(dice, LARGE + 1, Kind.DOCUMENT)
    await index.ensure()
    index._go_on = lambda: None  # type: ignore[method-assign]
    await index.upsert(ACME, known[:-1])
    await index._run(lambda _: None)
    move = index._own._move
    assert move is not None
    assert move.target is not None
    move.target.shard = Broken(move.target.shard)
    with pytest.raises(IndexUnavailable, match="no space left"):
        await index.upsert(ACME, known[-1:])
    await index.upsert(ACME, known[-1:])
    assert await index.count(ACME, Kind.DOCUMENT) == len(known)
    await index.close()


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """The disk has so many bytes left."""
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


async def test_a_disk_that_is_nearly_full_is_told_instead_of_being_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine writes into files with holes: where there is no room for a page the system ends the process."""
    index, dice = opened(tmp_path, deep=4), random.Random(10)
    known = entries(dice, 20, Kind.DOCUMENT)
    await index.ensure()
    await index.upsert(ACME, known[:10])
    with monkeypatch.context() as patched:
        with_free(patched, 8_000_000)
        stores: list[Coroutine[Any, Any, object]] = [
            index.upsert(ACME, known[10:]),
            index.replace([Source(ACME, Kind.DOCUMENT, "t3", known[3:4])]),
            index.deepen(ACME, Kind.DOCUMENT, {"t3:0": [1.0, 0.0, 0.0, 0.0]}),
        ]
        for storing in stores:
            with pytest.raises(IndexUnavailable, match="no space left") as raised:
                await storing
            assert raised.value.retryable
        assert await index.count(ACME, Kind.DOCUMENT) == 10
        await index.delete(ACME, Kind.DOCUMENT, source="t1")
        with_free(patched, 500_000)
        for deleting in (index.delete(ACME, Kind.DOCUMENT, ids=["t2:0"]), index.drop_workspace(ACME)):
            with pytest.raises(IndexUnavailable, match="no space left"):
                await deleting
        await index.close()
        index = opened(tmp_path, deep=4)
        with pytest.raises(IndexUnavailable, match="no space left"):
            await index.ensure()
    await index.ensure()
    await index.upsert(ACME, known[10:])
    assert await index.count(ACME, Kind.DOCUMENT) == 19
    await index.close()


@pytest.mark.parametrize("before", [True, False])
async def test_a_tenant_is_not_moved_where_the_disk_has_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """What was moved of it by then is removed again."""
    index, dice = opened(tmp_path), random.Random(11)
    known = entries(dice, LARGE + 20, Kind.DOCUMENT)
    begin = Own.begin

    def begun(self: Own, tenant: str) -> None:
        begin(self, tenant)
        with_free(monkeypatch, 100_000_000)

    await index.ensure()
    if before:
        with_free(monkeypatch, 100_000_000)
    else:
        monkeypatch.setattr(Own, "begin", begun)
    await index.upsert(ACME, known)
    await moved(index)
    assert index._own.of(TENANT) is None
    assert not [*tmp_path.glob("*/own/*")]
    assert await index.count(ACME, Kind.DOCUMENT) == len(known)
    await index.close()


def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files are open."""

    def refused(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", refused)


async def test_what_is_deleted_after_a_move_that_failed_at_its_end_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Own._finish

    def failing(self: Own, *given: Any) -> None:
        without_files(patched)
        finish(self, *given)

    index, dice = opened(tmp_path), random.Random(12)
    known = entries(dice, LARGE + 20, Kind.DOCUMENT)
    await index.ensure()
    with monkeypatch.context() as patched:
        patched.setattr(Own, "_finish", failing)
        await index.upsert(ACME, known)
        await moved(index)
    assert index._own.of(TENANT) is None
    await index.delete(ACME, Kind.DOCUMENT, source="t4")
    await index.upsert(ACME, entries(dice, LARGE + 30, Kind.DOCUMENT)[-1:])
    there = await index.ids(ACME, Kind.DOCUMENT)
    await index.close()
    index = opened(tmp_path)
    await index.ensure()
    assert await index.ids(ACME, Kind.DOCUMENT) == there
    await index.close()


async def test_a_shard_that_cannot_be_given_up_is_given_up_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, dice = opened(tmp_path), random.Random(13)
    await index.ensure()
    await index.upsert(ACME, entries(dice, LARGE + 20, Kind.DOCUMENT))
    await moved(index)
    with monkeypatch.context() as patched:
        without_files(patched)
        with pytest.raises(IndexUnavailable, match="Too many open files"):
            await index.delete(ACME, Kind.DOCUMENT)
    await index.delete(ACME, Kind.DOCUMENT)
    assert await index.ids(ACME, Kind.DOCUMENT) == []
    await index.close()
    index = opened(tmp_path)
    await index.ensure()
    assert await index.ids(ACME, Kind.DOCUMENT) == []
    await index.close()


async def test_what_is_left_of_a_shard_that_could_not_be_removed_is_not_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a start nor when its tenant has grown again."""
    index, dice = opened(tmp_path), random.Random(14)
    await index.ensure()
    await index.upsert(ACME, entries(dice, LARGE + 20, Kind.DOCUMENT))
    await moved(index)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        await index.delete(ACME, Kind.DOCUMENT)
        again = entries(dice, LARGE + 90, Kind.DOCUMENT)[-LARGE:]
        await index.upsert(ACME, again)
        await moved(index)
        ids = sorted(one.passage.id for one in again)
        assert await index.ids(ACME, Kind.DOCUMENT) == ids
        await index.close()
        index = opened(tmp_path)
        await index.ensure()
        assert await index.ids(ACME, Kind.DOCUMENT) == ids
        await index.close()
    index = opened(tmp_path)
    await index.ensure()
    await index.upsert(ACME, again)
    await moved(index)
    assert index._own.of(TENANT) is not None
    assert await index.ids(ACME, Kind.DOCUMENT) == ids
    await index.close()


async def test_deeper_vectors_move_too(tmp_path: Path) -> None:
    index, dice = opened(tmp_path, deep=4), random.Random(6)
    known = entries(dice, LARGE, Kind.DOCUMENT)
    await index.ensure()
    await index.upsert(ACME, known[:-1])
    some = {one.passage.id: [float(number + 1), 1.0, 0.0, 0.0] for number, one in enumerate(known[:20])}
    await index.deepen(ACME, Kind.DOCUMENT, some)
    before = await index.vectors(ACME, Kind.DOCUMENT, [*some], deep=True)
    await index.upsert(ACME, known[-1:])
    more = {one.passage.id: [1.0, 2.0, 0.0, 0.0] for one in known[20:30]}
    assert await index.deepen(ACME, Kind.DOCUMENT, more) == 10
    await moved(index)
    assert index._own.of(TENANT) is not None
    assert await index.count_shallow(ACME, Kind.DOCUMENT) == LARGE - 30
    assert await index.vectors(ACME, Kind.DOCUMENT, [*some], deep=True) == before
    lacking = await index.shallow(ACME, Kind.DOCUMENT, LARGE)
    assert {one.source for one in lacking} == {f"t{number}" for number in range(30, LARGE)}
    asked = entries(dice, 1, Kind.DOCUMENT)[0]

    async def deep() -> list[float]:
        return [1.0, 2.0, 0.0, 0.0]

    found = await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 8, deep=deep)
    assert len(found) == 8
    await index.close()
    index = opened(tmp_path, deep=4)
    await index.ensure()
    assert await index.search(ACME, Kind.DOCUMENT, asked.dense, asked.sparse, 8, deep=deep) == found
    await index.close()


async def test_an_index_that_gets_deeper_vectors_later_gives_each_shard_room_for_them(tmp_path: Path) -> None:
    index, known = opened(tmp_path), entries(random.Random(7), LARGE, Kind.DOCUMENT)
    await index.ensure()
    await index.upsert(ACME, known)
    await moved(index)
    await index.close()
    index = opened(tmp_path, deep=4)
    await index.ensure()
    assert await index.deepen(ACME, Kind.DOCUMENT, {"t1:0": [1.0, 0.0, 0.0, 0.0]}) == 1
    assert await index.count_shallow(ACME, Kind.DOCUMENT) == LARGE - 1
    await index.drop()
    assert not [*tmp_path.iterdir()]


async def test_no_more_tenants_have_their_own_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_own, "MOST_OWN", 1)
    index, dice = opened(tmp_path), random.Random(8)
    await index.ensure()
    for scope in (ACME, GLOBEX):
        await index.upsert(scope, entries(dice, LARGE + 1, Kind.DOCUMENT))
        await moved(index)
    assert len([*index._own.shards()]) == 1
    asked = entries(dice, 1, Kind.DOCUMENT)[0]
    for scope in (ACME, GLOBEX):
        assert len(await index.search(scope, Kind.DOCUMENT, asked.dense, asked.sparse, 500)) == LARGE + 1
    await index.close()


async def test_where_much_was_changed_the_rarity_of_words_is_that_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was deleted a moment ago still counts for the engine, as long as that is little."""
    monkeypatch.setattr(edge_own, "WORN", 10)
    index, dice = opened(tmp_path), random.Random(9)
    known, asked = entries(dice, LARGE + 50, Kind.DOCUMENT), entries(dice, 1, Kind.DOCUMENT)[0]
    await index.ensure()
    await index.upsert(ACME, known)
    await moved(index)
    assert not index._own.is_worn(TENANT)
    await index.delete(ACME, Kind.DOCUMENT, ids=[one.passage.id for one in known[:5]])
    assert not index._own.is_worn(TENANT)
    await index.upsert(ACME, known[10:15])
    await index.delete(ACME, Kind.DOCUMENT, source="t6")
    assert index._own.is_worn(TENANT)
    worn = await index.search(ACME, Kind.DOCUMENT, None, asked.sparse, 8)
    await index.close()
    index = opened(tmp_path)
    await index.ensure()
    assert not index._own.is_worn(TENANT)
    assert_alike(worn, await index.search(ACME, Kind.DOCUMENT, None, asked.sparse, 8))
    await index.close()


def _of(folder: Path, scope: Scope) -> Path:
    """The folder of the own shard of the documents of *scope*."""
    name = Own(folder, lambda _: None)._folder_of(stored.tenant(scope, Kind.DOCUMENT)).name
    return next(folder.glob(f"*/own/{name}"))


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _cut_off(folder: Path) -> None:
    for file in folder.rglob("status.dat"):
        os.truncate(file, 0)


def _unread(folder: Path) -> None:
    """As the engine opens it, and cannot be asked."""
    os.truncate(next(folder.rglob("payload_storage/page_0.dat")), 0)


@pytest.mark.parametrize("damage", [_empty, _cut_off, _unread])
async def test_a_damaged_shard_is_set_aside_and_keeps_no_other_tenant_from_being_found(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    index, dice = opened(tmp_path), random.Random(15)
    known, asked = entries(dice, LARGE + 20, Kind.DOCUMENT), entries(dice, 1, Kind.DOCUMENT)[0]
    small = Scope("small")
    await index.ensure()
    for scope in (ACME, GLOBEX):
        await index.upsert(scope, known)
        await moved(index)
    await index.upsert(small, known[:3])
    others = await answers(index, asked, GLOBEX)
    await index.close()
    damage(_of(tmp_path, ACME))

    index = opened(tmp_path)
    await index.ensure()
    assert await index.ids(ACME, Kind.DOCUMENT) == []
    assert await index.count(small, Kind.DOCUMENT) == 3
    for mine, its in zip(await answers(index, asked, GLOBEX), others, strict=True):
        assert_alike(mine, its)
    assert len([*tmp_path.glob("*/own/*.damaged-*")]) == 1
    await index.upsert(ACME, known)
    await moved(index)
    assert index._own.of(TENANT) is not None
    found = await index.ids(ACME, Kind.DOCUMENT)
    await index.close()
    index = opened(tmp_path)
    await index.ensure()
    assert await index.ids(ACME, Kind.DOCUMENT) == found == sorted(one.passage.id for one in known)
    await index.drop()
    assert not [*tmp_path.iterdir()]


async def test_what_the_shared_shard_still_has_of_a_damaged_one_is_not_found_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what there was before the tenant was moved."""
    index, dice = opened(tmp_path), random.Random(16)
    known = entries(dice, LARGE + 20, Kind.DOCUMENT)
    await index.ensure()
    with monkeypatch.context() as patched:
        patched.setattr(Own, "_took_away", lambda *_: 1 / 0)
        await index.upsert(ACME, known)
        await moved_or_failed(index)
        await index.upsert(GLOBEX, known[:2])
    assert await index._run(lambda shard: shard.info().points_count) == len(known) + 2
    await index.close()
    _empty(_of(tmp_path, ACME))
    index = opened(tmp_path)
    await index.ensure()
    assert await index.ids(ACME, Kind.DOCUMENT) == []
    assert await index.count(GLOBEX, Kind.DOCUMENT) == 2
    await index.close()


async def moved_or_failed(index: EmbeddedIndex) -> None:
    """Wait until a tenant has its own shard."""
    while await index._run(lambda _: index._own.of(TENANT)) is None:
        pass


async def test_a_shard_that_cannot_be_opened_now_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, dice = opened(tmp_path), random.Random(17)
    known = entries(dice, LARGE + 20, Kind.DOCUMENT)
    await index.ensure()
    await index.upsert(ACME, known)
    await moved(index)
    await index.close()
    index = opened(tmp_path)

    def refused(_: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(index._own, "_make", refused)
        with pytest.raises(IndexUnavailable, match="let this user open more"):
            await index.ensure()
    await index.ensure()
    assert await index.count(ACME, Kind.DOCUMENT) == len(known)
    assert not [*tmp_path.glob("*/own/*.damaged-*")]
    await index.close()


async def test_a_shard_of_which_all_was_deleted_one_by_one_is_no_damaged_one(tmp_path: Path) -> None:
    index, dice = opened(tmp_path), random.Random(18)
    known = entries(dice, LARGE + 20, Kind.DOCUMENT)
    await index.ensure()
    await index.upsert(ACME, known)
    await moved(index)
    await index.delete(ACME, Kind.DOCUMENT, ids=[one.passage.id for one in known])
    await index.upsert(ACME, known[:3])
    await index.close()
    index = opened(tmp_path)
    await index.ensure()
    assert await index.count(ACME, Kind.DOCUMENT) == 3
    assert not [*tmp_path.glob("*/own/*.damaged-*")]
    await index.close()
