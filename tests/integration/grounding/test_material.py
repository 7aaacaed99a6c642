"""Material as several processes see it: one store, what was read once is not read again, and an index that follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import AgentRuntimeError, Scope, StoreUnavailable
from grounding.codex import CodexStore, CodexTooNew, Room, Size
from grounding.prompt_input import load_tokens
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from runtime.coordination import Hub
from runtime.embedded import background_task
from runtime.turns.material import MaterialIndexer, Materials

ACME, DEN = Scope("acme"), Scope("acme", "http:den")
ROOM = Room(window=10_000, output=100, beside=500, characters=100_000)


class Reads(CodexStore):
    """Counts how often texts were read."""

    reads = 0

    async def texts(self, scope: Scope, paths: Any) -> dict[str, str]:
        self.reads += 1
        return await super().texts(scope, paths)


def process(redis: Redis, settings: Callable[..., Settings]) -> tuple[Materials, Reads]:
    """What one process has of it, but for the index."""
    store = Reads(redis, max_bytes=10_000, file_max_bytes=5000)
    hub = Hub(redis, shared=False)
    return Materials(settings(), store, cast("Any", None), load_tokens(), hub), store


async def given(materials: Materials, scope: Scope, room: Room = ROOM) -> Any:
    """What a turn is given."""
    return await materials.given(scope, await materials.store.held(scope, room.window), room, keep=True)


async def test_what_one_process_puts_the_next_turn_of_another_is_given(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """Texts are read where they changed, and only then; they are the same objects from one turn to the next."""
    (one, _), (other, reads) = process(redis, settings), process(redis, settings)
    await one.put(ACME, "a.md", b"first")
    await one.put(DEN, "b.md", b"own")
    before, again = await given(other, DEN), await given(other, DEN)
    assert [(file.path, file.text) for file in before.files] == [("a.md", "first"), ("here/b.md", "own")]
    assert all(one is other for one, other in zip(before.files, again.files, strict=True))
    assert reads.reads == 2  # the workspace's and the context's

    await one.put(ACME, "a.md", b"second")
    assert [file.text for file in (await given(other, DEN)).files] == ["second", "own"]
    await one.put(ACME, "a.md", b"second")
    await given(other, DEN)
    assert reads.reads == 4  # it says what it said

    await one.delete(ACME, "a.md")
    await one.delete(DEN, "b.md")
    assert await given(other, DEN) is None


async def test_how_it_was_given_last_is_known_to_every_process(redis: Redis, settings: Callable[..., Settings]) -> None:
    (one, _), (other, _) = process(redis, settings), process(redis, settings)
    await one.put(ACME, "a.md", b"words " * 120)
    size = one.size(await one.store.held(ACME)).characters
    little, just, well = (Room(10_000, 100, 500, int(size * part)) for part in (0.99, 1.01, 1.2))

    assert (await given(one, DEN, little)).mode == "search"
    assert (await given(other, DEN, just)).why == "near_line"
    assert (await given(other, ACME, just)).mode == "whole"
    assert (await given(other, DEN, well)).mode == "whole"
    assert (await given(one, DEN, just)).mode == "whole"
    assert await redis.hkeys("ar:codex:{w.acme}:held") == ["*"]  # conversations leave nothing behind


async def test_what_many_put_at_once_adds_up_and_never_beyond_the_limit(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    materials, store = process(redis, settings)
    done = await asyncio.gather(
        *(materials.put(ACME, f"{number % 7}.md", b"x" * (400 + 10 * number)) for number in range(60)),
        *(materials.put(ACME, f"more{number}.md", b"y" * 1000) for number in range(12)),
        return_exceptions=True,
    )
    held, entries = await store.held(ACME), await store.entries(ACME)

    assert any(isinstance(one, Exception) for one in done)
    assert held.every.files == len(entries)
    assert held.every.size_bytes == sum(one.size_bytes for one in entries.values()) <= 10_000
    assert held.every.size.tokens == sum(one.size.tokens for one in entries.values())
    assert held.every.size.characters == sum(one.size.characters for one in entries.values())
    for path in entries:
        await materials.delete(ACME, path)
    assert await store.all_totals(ACME) == {}


class Changing(Reads):
    """Something else changes the material while its texts are read, for as often as it is told."""

    changes: list[bytes]

    async def texts(self, scope: Scope, paths: Any) -> dict[str, str]:
        found = await super().texts(scope, paths)
        if self.changes:
            raw = self.changes.pop(0)
            await self.put(scope, "a.md", raw.decode(), Size(len(raw) // 2, len(raw), len(raw)))
        return found


def changing(redis: Redis, settings: Callable[..., Settings], *changes: bytes) -> Materials:
    store = Changing(redis, max_bytes=1_000_000, file_max_bytes=1_000_000)
    store.changes = list(changes)
    return Materials(settings(), store, cast("Any", None), load_tokens(), Hub(redis, shared=False))


async def test_what_changed_all_the_while_it_was_read_is_read_again_with_the_next_turn(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    materials = changing(redis, settings, b"second", b"third", b"last")
    await materials.put(ACME, "a.md", b"first")
    await given(materials, ACME)
    assert [file.text for file in (await given(materials, ACME)).files] == ["last"]


async def test_what_grew_while_it_was_read_is_judged_by_what_it_has_become(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """A turn that began before is not given more than the window has room for."""
    materials = changing(redis, settings, b"words " * 20_000)
    await materials.put(ACME, "a.md", b"first")
    made = await given(materials, ACME)
    assert (made.mode, made.why, made.files) == ("search", "over_line", ())


class Indexed:
    """Stands for what is behind `Knowledge`: a collection that fails as often as it is told."""

    def __init__(self, failures: int, fails: Mapping[str, AgentRuntimeError] | None = None) -> None:
        self.failures = failures
        self.fails = fails or {}
        self.synced: list[str] = []
        self.opening = self
        self.material = self

    async def opened(self) -> None: ...

    async def ready(self) -> Indexed:
        return self

    async def sync(self, scope: Scope) -> int:
        if self.failures:
            self.failures -= 1
            raise IndexUnavailable("away")
        if scope.workspace_id in self.fails:
            raise self.fails[scope.workspace_id]
        self.synced.append(scope.workspace_id)
        return 1


class Nowhere:
    async def all(self) -> list[Any]:
        return []


@asynccontextmanager
async def following(redis: Redis, hub: Hub, indexed: Indexed) -> AsyncIterator[None]:
    store = CodexStore(redis, max_bytes=10_000, file_max_bytes=5000)
    work = MaterialIndexer(store, cast("Any", indexed), cast("Any", Nowhere()), hub)
    async with background_task(work.run(), "material"):
        yield


async def test_a_change_is_indexed_at_once_and_one_that_could_not_be_when_there_is_news(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    store = CodexStore(redis, max_bytes=10_000, file_max_bytes=5000)
    hub, indexed = Hub(redis, shared=False), Indexed(failures=1)
    materials = Materials(settings(), store, cast("Any", indexed), load_tokens(), hub)
    async with following(redis, hub, indexed), asyncio.timeout(20):
        await materials.put(ACME, "a.md", b"first")
        while indexed.failures:
            await asyncio.sleep(0.01)
        while not await store.waiting():
            await asyncio.sleep(0.01)
        await hub.tell("codex", {})
        while await store.waiting() or not indexed.synced:
            await asyncio.sleep(0.01)
    assert set(indexed.synced) == {"acme"}


@pytest.mark.parametrize(
    "error", [EmbedderUnavailable("this text is refused", retryable=False), CodexTooNew("upgrade")], ids=["text", "new"]
)
async def test_what_of_one_workspace_cannot_be_indexed_keeps_no_others_waiting(
    redis: Redis, settings: Callable[..., Settings], error: AgentRuntimeError
) -> None:
    hub, indexed = Hub(redis, shared=False), Indexed(0, {"acme": error})
    store = CodexStore(redis, max_bytes=10_000, file_max_bytes=5000)
    for scope in (ACME, Scope("zoo")):
        await store.put(scope, "a.md", "first", Size(1, 1, 5))
    async with following(redis, hub, indexed), asyncio.timeout(20):
        while "zoo" not in indexed.synced or await store.waiting() != ["acme"]:
            await asyncio.sleep(0.01)
        indexed.fails = {}
        await hub.tell("codex", {})
        while "acme" not in indexed.synced:
            await asyncio.sleep(0.01)


class Forgetful(CodexStore):
    """Cannot be told that a workspace is still to be looked at."""

    async def mark_changed(self, workspace_id: str) -> None:
        raise StoreUnavailable("away")


async def test_what_was_not_indexed_while_the_store_was_away_is_looked_at_again(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    store = Forgetful(redis, max_bytes=10_000, file_max_bytes=5000)
    hub, indexed = Hub(redis, shared=False), Indexed(failures=1)
    await store.put(ACME, "a.md", "first", Size(1, 1, 5))
    work = MaterialIndexer(store, cast("Any", indexed), cast("Any", Nowhere()), hub)
    async with background_task(work.run(), "material"), asyncio.timeout(20):
        while indexed.failures:
            await asyncio.sleep(0.01)
        while not indexed.synced:
            await hub.tell("codex", {})
            await asyncio.sleep(0.01)
    assert indexed.synced == ["acme"]
