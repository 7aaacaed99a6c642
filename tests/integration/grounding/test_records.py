"""Typed records in a real server: an index that is away and comes back, writers that meet, and people kept apart."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.message import Scope
from grounding.memory.records import (
    HIDDEN,
    NewRecord,
    NoSuchRecord,
    Provenance,
    Record,
    RecordBusy,
    RecordHit,
    RecordIndex,
    RecordRefused,
    Records,
    RecordStore,
    State,
    Type,
)
from grounding.prompt_input import load_tokens
from grounding.retrieval import IndexUnavailable, Kind
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from runtime import stores
from runtime.background import RecordSweep
from runtime.ingress.removal import forget_keys
from runtime.workspaces import Workspaces
from tests.emulators.embedder import HashedWords

ACME, OTHER = Scope("acme"), Scope("other")
ADA = Scope("acme", None, "slack:U1")
BY = Provenance(author="http:ada")


class Away:
    """An index that can be switched off."""

    def __init__(self, index: RecordIndex) -> None:
        self._index = index
        self.is_away = False

    def _check(self) -> None:
        if self.is_away:
            raise IndexUnavailable("switched off")

    async def find(
        self, scope: Scope, query: str, searches: Sequence[tuple[int, Collection[Type]]], *, deep: bool = False
    ) -> Sequence[RecordHit]:
        self._check()
        return await self._index.find(scope, query, searches, deep=deep)

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        self._check()
        await self._index.follow(scope, ids)


class World:
    """Records with all that is behind them, at a time that can be set."""

    def __init__(self, redis: Redis, passages: EmbeddedIndex, embedder: HashedWords) -> None:
        self.redis = redis
        self.passages = passages
        self.embedder = embedder
        self.store = RecordStore(redis)
        self.index = RecordIndex(passages, embedder, self.store)
        self.away = Away(self.index)
        self.time = datetime(2026, 11, 22, 12, tzinfo=UTC)
        self.records = Records(self.store, load_tokens(), self.away, clock=lambda: self.time)

    async def add(self, scope: Scope, text: str, type_: Type = Type.FACT) -> str:
        return (await self.records.add(scope, NewRecord(type_, text), BY)).record.id

    async def found(self, scope: Scope, query: str) -> set[str]:
        return {one.record.text for one in await self.records.search(scope, query, 20)}


@pytest_asyncio.fixture
async def world(redis: Redis, tmp_path: Path) -> AsyncIterator[World]:
    embedder = HashedWords()
    passages = EmbeddedIndex(tmp_path, embedder.name, embedder.dimensions, timeout_seconds=30)
    await passages.ensure()
    try:
        yield World(redis, passages, embedder)
    finally:
        await passages.close()


async def test_what_was_written_while_the_index_was_away_is_found_once_it_is_back(world: World) -> None:
    gone = await world.add(ADA, "Ada likes tea")
    world.away.is_away = True
    await world.add(ACME, "tea is free")
    await world.records.erase(ADA, gone, BY)
    assert not await world.records.catch_up(ACME)
    assert await world.store.behind() == ["acme"]

    world.away.is_away = False
    assert await world.records.catch_up(ACME)

    assert await world.found(ADA, "tea") == {"tea is free"}
    assert await world.passages.ids(ADA, Kind.RECORD) == []
    assert await world.store.unindexed(ACME) == []


async def test_a_record_that_changes_while_it_is_indexed_is_found_as_it_is_then(world: World) -> None:
    record = await world.add(ACME, "the office is in Berlin")
    embed, changed = world.embedder.embed_documents, False

    async def slowly(texts: Sequence[str]) -> list[list[float]]:
        nonlocal changed
        vectors = await embed(texts)
        if not changed:
            changed = True
            await world.records.change(ACME, record, {"text": "the office is in Hamburg"}, BY)
        return vectors

    world.embedder.embed_documents = slowly  # type: ignore[method-assign]
    await world.index.follow(ACME, [record])

    (hit,) = await world.records.search(ACME, "Hamburg", 5)
    assert hit.matched > 0
    assert hit.similarity > 0.3
    assert (await world.records.search(ACME, "Berlin", 5))[0].matched == 0


async def test_an_emptied_index_is_filled_from_what_is_kept_and_with_nothing_else(world: World) -> None:
    for scope, text in ((ACME, "tea is free"), (ADA, "Ada likes tea"), (OTHER, "tea is expensive")):
        await world.add(scope, text)
    hidden = await world.add(ACME, "tea is poison")
    await world.records.change(ACME, hidden, {"state": "inactive"}, BY)
    await world.passages.drop_workspace(ACME)
    assert await world.found(ADA, "tea") == set()

    assert await world.index.heal(ACME) == 3
    assert await world.index.heal(ACME) == 0

    assert await world.found(ADA, "tea") == {"tea is free", "Ada likes tea"}
    assert await world.found(OTHER, "tea") == {"tea is expensive"}


async def test_fifty_writers_at_once_lose_no_confirmation_and_make_no_second_record(world: World) -> None:
    async def say(number: int) -> None:
        by = Provenance(author="slack:U1", turn_id=f"t{number % 25}", origin="extraction")
        while True:
            with suppress(RecordBusy):  # too many at once: try again
                await world.records.add(ACME, NewRecord(Type.FACT, "The port is 5433."), by)
                return

    await asyncio.gather(*(say(number) for number in range(50)))

    (record,) = await world.records.list(ACME)
    assert record.confirmations == 24  # 25 turns said it, the first of them anew
    assert record.state is State.CORE


async def test_the_sweep_looks_at_what_is_due_and_at_nothing_else(world: World) -> None:
    old = await world.add(ADA, "We met. " + "Much was said about the storage of things. " * 40, Type.EPISODE)
    world.time += timedelta(days=20)
    young = await world.add(ACME, "We met again.", Type.EPISODE)
    await world.add(ACME, "a fact does not age")

    assert await world.records.sweep(ACME) == 0
    world.time += timedelta(days=15)
    assert await world.records.sweep(ACME) == 1
    assert (await world.records.get(ADA, old)).state is State.SUMMARIZED
    world.time += timedelta(days=60)
    assert await world.records.sweep(ACME) == 2
    archived = await world.records.get(ADA, old)
    assert archived.state is State.ARCHIVED
    assert archived.text == archived.summary
    assert (await world.records.get(ACME, young)).state is State.SUMMARIZED
    assert await world.records.sweep(ACME) == 0


async def test_every_transition_is_told_in_the_history_and_by_one_event_without_the_text(world: World) -> None:
    with capture_logs() as told:
        record = await world.add(ACME, "The secret is Zanzibar.")
        await world.records.change(ACME, record, {"confirm": True}, BY)
        await world.records.change(ACME, record, {"confirm": True}, BY)
        await world.records.change(ACME, record, {"state": "inactive"}, Provenance(author="http:ben"))

    history = await world.records.history(ACME, record)
    assert [(one.from_state, one.to_state, one.why, one.by) for one in reversed(history)] == [
        ("", "new", "added", "http:ada"),
        ("new", "confirmed", "confirmed", "http:ada"),
        ("confirmed", "confirmed", "confirmed", "http:ada"),
        ("confirmed", "inactive", "by hand", "http:ben"),
    ]
    events = [one for one in told if one["event"] == "record.changed"]
    assert [(one["from_state"], one["to_state"]) for one in events] == [
        ("", "new"),
        ("new", "confirmed"),
        ("confirmed", "inactive"),
    ]
    assert "Zanzibar" not in str(events)


async def test_nothing_is_left_of_what_was_erased_or_of_a_person_who_was_forgotten(world: World) -> None:
    await world.records.erase(ACME, await world.add(ACME, "erase me"), BY)
    by = Provenance(author="slack:U1", turn_id="t1", context_id="slack:D1")
    new = NewRecord(Type.FACT, "forget me", created_at="2020-01-01", verbatim=True)
    record = (await world.records.add(ADA, new, by)).record
    await world.records.change(ADA, record.id, {"confirm": True}, by)
    await world.records.forget(ADA)

    assert {key async for key in world.redis.scan_iter("ar:records:*")} == {"ar:records:{w.acme}:owners"}
    assert await world.redis.smembers("ar:records:{w.acme}:owners") == {""}


async def test_who_was_forgotten_while_the_index_was_away_leaves_it_when_it_is_back(world: World) -> None:
    await world.add(ADA, "forget me")
    world.away.is_away = True
    await world.records.forget(ADA)
    world.away.is_away = False

    await world.records.catch_up(ACME)

    assert await world.passages.ids(ADA, Kind.RECORD) == []


async def test_a_workspace_takes_its_records_with_it(world: World) -> None:
    await world.add(ACME, "tea is free")
    await world.add(ADA, "Ada likes tea")
    await world.add(OTHER, "tea is expensive")

    await world.passages.drop_workspace(ACME)
    await forget_keys(world.redis, ACME)

    assert [key async for key in world.redis.scan_iter("ar:records:{w.acme}:*")] == []
    assert await world.passages.ids(ADA, Kind.RECORD) == []
    assert await world.found(OTHER, "tea") == {"tea is expensive"}


async def test_a_duty_looks_at_all_workspaces_at_first_and_then_at_those_that_fell_behind(world: World) -> None:
    """A record that cannot be read holds up its own workspace alone, and a store that is away nothing for good."""
    settings = Settings()
    workspaces = Workspaces(world.redis, settings)
    await workspaces.create("acme")
    await workspaces.create("other")
    world.away.is_away = True
    for scope in (ACME, OTHER):
        await world.add(scope, "tea is free")
    await world.store.unmark_behind("other")
    await world.redis.hset("ar:records:{w.acme}:kept:", mapping={"bad": "{}"})
    await world.redis.zadd("ar:records:{w.acme}:due", {"/bad": 1})
    rounds: list[set[str]] = []

    async def sleep(_: float) -> None:
        rounds.append(await world.found(OTHER, "tea"))
        await world.redis.hdel("ar:records:{w.acme}:kept:", "bad")
        if len(rounds) == 2:
            raise asyncio.CancelledError
        world.away.is_away = True
        await world.add(ADA, "Ada likes tea")
        world.away.is_away = False

    world.away.is_away = False
    with pytest.raises(asyncio.CancelledError), capture_logs() as told:
        await RecordSweep(world.records, world.store, workspaces, sleep).run()

    assert rounds[0] == {"tea is free"}
    assert [one["workspace_id"] for one in told if one["event"] == "records.sweep_failed"] == ["acme"]
    assert await world.found(ADA, "tea") == {"tea is free", "Ada likes tea"}
    assert await world.store.behind() == []


async def test_of_what_was_erased_and_forgotten_no_name_is_left(world: World) -> None:
    for number, context in enumerate(("slack:D1", "slack:D2")):
        by = Provenance(author="slack:U1", turn_id="t1", context_id=context)
        new = NewRecord(Type.ITEM, f"buy ring {number}")
        record = (await world.records.add(ADA, new, by)).record
        if not number:
            await world.records.erase(ADA, record.id, by)
    await world.records.change(ADA, record.id, {"text": "buy a ring"}, by.model_copy(update={"context_id": "slack:D3"}))

    assert await world.records.forget(ADA) == 1
    left = [str(key) async for key in world.redis.scan_iter()]
    assert not [key for key in left if "U1" in key]


WORKSPACES = ("acme", "acme-2", "acme.", "record")
PEOPLE = (
    None, "http:1", "http:1 ", "http:1/7", "HTTP:1", "http:%31", "http:", "http:*", "http:caf\u00e9",
    "http:cafe\u0301", "http:1\x00", "record", "acme",
)  # fmt: skip
SCOPES = [Scope(workspace, None, user) for workspace in WORKSPACES for user in PEOPLE]
WORDS = ("refund", "window", "harbour")
HTTP = Provenance(author="http:1")
Act = tuple[str, Scope, Type, str, int]
ACTS = st.tuples(
    st.sampled_from(["add", "add", "add", "add", "replace", "restate", "retire", "erase", "use", "forget"]),
    st.sampled_from(SCOPES), st.sampled_from(Type), st.sampled_from(WORDS), st.integers(0, 30),
)  # fmt: skip


@dataclass
class Owners:
    """The store, and beside it whose every record is."""

    records: Records
    owners: dict[str, Scope] = field(default_factory=dict)

    async def act(self, act: Act) -> None:
        """Whoever it is tries it on any record at all: it succeeds on their own and the workspace's only."""
        what, scope, type_, word, number = act
        target = sorted(self.owners)[number % len(self.owners)] if self.owners else "none"
        may = target in self.owners and seen_by(scope, self.owners[target])
        if what == "forget":
            if scope.audience:
                await self.records.forget(scope)
            self.owners = {one: of for one, of in self.owners.items() if of != scope or not scope.audience}
            return
        if what == "add" or (what == "replace" and self.owners.get(target) == scope):
            supersedes = target if what == "replace" else ""
            new = NewRecord(type_, f"{word} number {number}", verbatim=number % 2 == 0, supersedes=supersedes)
            added = await self.records.add(scope, new, HTTP, f"key-{number}" if number % 5 == 0 else "")
            assert added.record.audience == (scope.audience or "")
            self.owners[added.record.id] = scope
            return
        calls: dict[str, Callable[[], Any]] = {
            "replace": lambda: self.records.add(scope, NewRecord(type_, word, supersedes=target), HTTP),
            "restate": lambda: self.records.change(scope, target, {"text": f"{word} restated {number}"}, HTTP),
            "retire": lambda: self.records.change(scope, target, {"state": State.INACTIVE}, HTTP),
            "erase": lambda: self.records.erase(scope, target, HTTP),
        }
        if what == "use":
            await self.records.count_use(scope, [target])
            return
        try:
            await calls[what]()
        except NoSuchRecord:
            assert not may or what == "replace"
        except RecordRefused:
            assert may
        else:
            assert may
            if what == "erase":
                del self.owners[target]

    async def look(self, scope: Scope, word: str) -> None:
        """Everything that *scope* can ask for is theirs or the workspace's, and all of it is there."""
        mine = {one for one, of in self.owners.items() if seen_by(scope, of)}
        listed = await self.records.list(scope, states=list(State), limit=500)
        assert {one.id for one in listed} == mine
        shown = {one.id: one for one in listed if one.state not in HIDDEN}
        found = [one.record for one in await self.records.search(scope, f"{word} number restated", 200)]
        assert {one.id for one in found} == shown.keys()
        for one in (*found, *await self.records.standing(scope)):
            assert self.is_of(scope, one)
        for record_id in self.owners:
            try:
                record = await self.records.get(scope, record_id)
                assert await self.records.history(scope, record_id)
            except NoSuchRecord:
                assert record_id not in mine
            else:
                assert self.is_of(scope, record)
        own = {one for one, of in self.owners.items() if of == scope}
        assert sum((await self.records.counts(scope)).values()) == len(own)

    def is_of(self, scope: Scope, record: Record) -> bool:
        of = self.owners[record.id]
        return record.audience == (of.audience or "") and seen_by(scope, of)


def seen_by(scope: Scope, owner: Scope) -> bool:
    return owner.workspace_id == scope.workspace_id and owner.audience in (None, scope.audience)


@settings(max_examples=15, deadline=None)
@given(st.lists(ACTS, min_size=1, max_size=16), st.lists(st.sampled_from(SCOPES), max_size=5), st.sampled_from(WORDS))
def test_everybody_finds_their_own_records_and_the_workspaces_and_nothing_else(
    redis_socket: Path, acts: Sequence[Act], others: Sequence[Scope], word: str
) -> None:
    async def played() -> None:
        folder = await asyncio.to_thread(tempfile.TemporaryDirectory)
        client = stores.connect(f"unix://{redis_socket}", 5.0)
        await client.flushall()
        embedder, store = HashedWords(), RecordStore(client)
        index = EmbeddedIndex(Path(folder.name), embedder.name, embedder.dimensions, timeout_seconds=30)
        try:
            await index.ensure()
            world = Owners(Records(store, load_tokens(), RecordIndex(index, embedder, store)))
            for act in acts:
                await world.act(act)
            for scope in dict.fromkeys([*(scope for _, scope, *_ in acts), *others]):
                await world.look(scope, word)
        finally:
            await index.close()
            await client.aclose()
            await asyncio.to_thread(folder.cleanup)

    asyncio.run(played())
