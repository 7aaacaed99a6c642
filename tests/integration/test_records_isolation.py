"""No record crosses workspaces or people, whatever is kept, changed, erased and asked for, and by whom."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.message import Scope
from grounding.memory.records import (
    HIDDEN,
    NewRecord,
    NoSuchRecord,
    Provenance,
    Record,
    RecordIndex,
    RecordRefused,
    Records,
    RecordStore,
    State,
    Type,
)
from grounding.prompt_input import load_tokens
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from runtime import stores
from tests.emulators.embedder import HashedWords

WORKSPACES = ("acme", "acme-2", "acme.", "record")
PEOPLE = (
    None, "http:1", "http:1 ", "http:1/7", "HTTP:1", "http:%31", "http:", "http:*", "http:caf\u00e9",
    "http:cafe\u0301", "http:1\x00", "record", "acme",
)  # fmt: skip
SCOPES = [Scope(workspace, None, user) for workspace in WORKSPACES for user in PEOPLE]
WORDS = ("refund", "window", "harbour")
BY = Provenance(author="http:1")
Act = tuple[str, Scope, Type, str, int]
ACTS = st.tuples(
    st.sampled_from(["add", "add", "add", "add", "replace", "restate", "retire", "erase", "use", "forget"]),
    st.sampled_from(SCOPES), st.sampled_from(Type), st.sampled_from(WORDS), st.integers(0, 30),
)  # fmt: skip


@dataclass
class World:
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
            added = await self.records.add(scope, new, BY, f"key-{number}" if number % 5 == 0 else "")
            assert added.record.audience == (scope.audience or "")
            self.owners[added.record.id] = scope
            return
        calls: dict[str, Callable[[], Any]] = {
            "replace": lambda: self.records.add(scope, NewRecord(type_, word, supersedes=target), BY),
            "restate": lambda: self.records.change(scope, target, {"text": f"{word} restated {number}"}, BY),
            "retire": lambda: self.records.change(scope, target, {"state": State.INACTIVE}, BY),
            "erase": lambda: self.records.erase(scope, target, BY),
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
            world = World(Records(store, load_tokens(), RecordIndex(index, embedder, store)))
            for act in acts:
                await world.act(act)
            for scope in dict.fromkeys([*(scope for _, scope, *_ in acts), *others]):
                await world.look(scope, word)
        finally:
            await index.close()
            await client.aclose()
            await asyncio.to_thread(folder.cleanup)

    asyncio.run(played())
