"""What changes on the disk gets into the index, whatever is away in the meantime; and prompts say where it has not."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import ConnectionState
from connectors.message import Scope
from grounding.documents import Backlog, watch
from grounding.prompt_input import DegradedBlock
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable
from runtime.coordination import LEADER_KEY
from runtime.embedded import background_task
from runtime.search import APART, STALE, Knowledge, Staleness, Timing, sync
from runtime.workspaces import Workspaces
from tests.conftest import MakeSettings
from tests.emulators.embedder import HashedWords
from tests.integration.search.conftest import factory_with, make_knowledge, passages_for

ACME = Scope("acme")
CHAT = Scope("acme", "http:one")


@dataclass
class Machine:
    settings: Settings
    knowledge: Knowledge
    workspaces: Workspaces
    embedder: HashedWords
    backlog: Backlog

    def write(self, path: str, text: str) -> None:
        file = self.settings.data_dir / "workspaces" / "acme" / "docs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    async def found(self, query: str) -> list[str]:
        return sorted({hit.passage.source for hit in await self.knowledge.finding.search(ACME, query, 10)})

    async def until(self, query: str, *expected: str) -> None:
        async with asyncio.timeout(60):
            while await self.found(query) != list(expected):
                await asyncio.sleep(0.02)

    async def until_sure(self) -> None:
        """Until nothing is known against what is found."""
        async with asyncio.timeout(60):
            while self.knowledge.finding.doubt(ACME):
                await asyncio.sleep(0.02)


QUICK = Timing(retry=(0.02, 0.1), sweep=0.02, abandoned=0.2, watch_retry=(0.05, 0.1))


@pytest_asyncio.fixture
async def here(redis: Redis, settings: MakeSettings, redis_socket: Path) -> Machine:
    return await machine(settings(redis_url=f"unix://{redis_socket}"), redis)


async def machine(
    settings: Settings, redis: Redis, embedder: HashedWords | None = None, timing: Timing = QUICK, **options: Any
) -> Machine:
    embedder = embedder or HashedWords()
    factory = factory_with({embedder.name: embedder})
    knowledge, workspaces = await make_knowledge(redis, settings, "acme", timing=timing, factory=factory, **options)
    return Machine(settings, knowledge, workspaces, embedder, Backlog(redis))


@asynccontextmanager
async def opened(here: Machine, *, follows: bool = True) -> AsyncIterator[None]:
    """The index is open as long as the block lasts, and the files are followed."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(here.knowledge.close)
        await stack.enter_async_context(background_task(here.knowledge.open(), "open"))
        if follows:
            await stack.enter_async_context(background_task(here.knowledge.follow(), "follow"))
        await here.knowledge.opened()
        yield


@pytest.mark.parametrize("shared", [False, True])
async def test_what_could_not_be_embedded_is_found_when_the_embedder_is_back(
    shared: bool, redis: Redis, settings: MakeSettings, redis_socket: Path
) -> None:
    """Nothing needs to change on the disk once more; meanwhile searches say that they are out of date."""
    here = await machine(settings(redis_url=f"unix://{redis_socket}" if shared else None), redis)
    await asyncio.to_thread(here.write, "a.md", "Refunds")
    async with opened(here):
        await here.until("refunds", "a.md")
        await here.until_sure()
        here.embedder.fails = True
        await asyncio.to_thread(here.write, "b.md", "Refunds too")
        async with asyncio.timeout(60):
            while here.knowledge.finding.doubt(ACME) != STALE:
                await asyncio.sleep(0.02)
        assert (await here.knowledge.status(ACME)).pending == 1
        here.embedder.fails = False
        await here.until("refunds", "a.md", "b.md")
        await here.until_sure()
        async with asyncio.timeout(60):
            while (await here.knowledge.status(ACME)).pending:
                await asyncio.sleep(0.02)


async def test_what_is_saved_while_the_watch_is_slow_to_begin_is_found(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are looked at once changes are told: before that, what is saved after the look would be missed."""
    may_begin = asyncio.Event()

    async def slow(*given: Any, **more: Any) -> AsyncIterator[Any]:
        await may_begin.wait()
        async for change in watch(*given, **more):
            yield change

    monkeypatch.setattr(sync, "watch", slow)
    async with opened(here):
        await asyncio.sleep(0.3)  # in which a look that did not wait would be over
        await asyncio.to_thread(here.write, "a.md", "Refunds")
        may_begin.set()
        await here.until("refunds", "a.md")


async def test_where_files_cannot_be_followed_they_are_looked_at_again_and_again_and_health_says_so(
    redis: Redis, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives no watch where too many folders are watched, and tells nobody of what it then does not see."""
    has_room = asyncio.Event()

    async def limited(*given: Any, **more: Any) -> AsyncIterator[Any]:
        if not has_room.is_set():
            raise OSError("OS file watch limit reached.")
        async for change in watch(*given, **more):
            yield change

    monkeypatch.setattr(sync, "watch", limited)
    here = await machine(settings(), redis, timing=replace(QUICK, unwatched=0.05))
    async with opened(here):
        await here.until_sure()
        health = await here.knowledge.health()
        assert (health.state, "watch limit" in health.why) == (ConnectionState.DEGRADED, True)
        await asyncio.to_thread(here.write, "a.md", "Refunds")
        await here.until("refunds", "a.md")
        has_room.set()
        async with asyncio.timeout(60):
            while (await here.knowledge.health()).state is not ConnectionState.CONNECTED:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(here.write, "b.md", "Refunds")
        await here.until("refunds", "a.md", "b.md")


async def test_a_file_whose_name_is_no_utf8_ends_no_following(here: Machine) -> None:
    """The watch itself breaks over it."""
    await asyncio.to_thread(here.write, "a.md", "Refunds")
    docs = here.settings.data_dir / "workspaces" / "acme" / "docs"

    async with opened(here):
        await here.until("refunds", "a.md")
        for number in range(3):
            await asyncio.to_thread((docs / os.fsdecode(b"bad\xff%d.md" % number)).write_text, "Refunds")
            await asyncio.to_thread(here.write, f"b{number}.md", "Refunds")
            await here.until("refunds", "a.md", *(f"b{one}.md" for one in range(number + 1)))


async def test_what_nobody_foresaw_ends_no_following_and_is_tried_again(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, broken = here.knowledge.index, 3

    async def sometimes(*given: object, **more: object) -> object:
        nonlocal broken
        if broken:
            broken -= 1
            raise ZeroDivisionError("nobody thought of this file")
        return await index(*given, **more)  # type: ignore[arg-type]

    with capture_logs() as events:
        async with opened(here):
            await here.knowledge.opened()
            await here.until_sure()
            monkeypatch.setattr(here.knowledge, "index", sometimes)
            await asyncio.to_thread(here.write, "a.md", "Refunds")
            await here.until("refunds", "a.md")
            await here.until_sure()

    told = [one for one in events if one["event"] == "index.failed"]
    assert (len(told), broken) == (3, 0)
    assert all(one["exc_info"] and "nobody thought of this file" in one["why"] for one in told)


@pytest.mark.timeout(360)
async def test_what_changed_while_nobody_looked_waits_for_no_other_workspaces_import(
    redis: Redis, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a start, nor where a workspace is made after its files, nor where something is tried again."""
    here = await machine(settings(redis_url=None), redis)
    workspaces, imported = here.workspaces, asyncio.Event()
    index, begun = here.knowledge.index, set()

    async def endless(scope: Scope, *given: object, **more: object) -> object:
        if scope.workspace_id.startswith("a-"):
            begun.add(scope.workspace_id)
            await imported.wait()
        if scope not in failed:
            failed.add(scope)
            raise EmbedderUnavailable("not now", retryable=True)
        return await index(scope, *given, **more)  # type: ignore[arg-type]

    def write(name: str, documents: int) -> None:
        docs = here.settings.data_dir / "workspaces" / name / "docs"
        docs.mkdir(parents=True)
        for number in range(documents):
            (docs / f"{number}.md").write_text("Refunds", encoding="utf-8")

    async def until(name: str) -> None:
        async with asyncio.timeout(60):
            while not await here.knowledge.finding.search(Scope(name), "refunds", 1):
                await asyncio.sleep(0.02)

    failed = {Scope(name) for name in ("a-start", "a-born", "z-start", "z-born", "sample", "acme", "default")}
    for name, documents in (("a-start", 3), ("z-start", 1)):
        await asyncio.to_thread(write, name, documents)
        await workspaces.create(name)
    monkeypatch.setattr(here.knowledge, "index", endless)
    async with opened(here):
        await until("z-start")
        assert await here.knowledge.finding.search(Scope("a-start"), "refunds", 1) == []
        async with asyncio.timeout(60):
            while "a-start" not in begun:
                await asyncio.sleep(0.001)
        imported.set()
        await here.until_sure()
        imported.clear()
        for name, documents in (("a-born", 3), ("z-born", 1)):
            await asyncio.to_thread(write, name, documents)
            await workspaces.create(name)
        await until("z-born")
        assert await here.knowledge.finding.search(Scope("a-born"), "refunds", 1) == []
        begun.clear()
        for name in ("a-again", "z-again"):
            await workspaces.create(name)
            failed |= {Scope("a-again")}
            await asyncio.to_thread(write, name, 1)
        await until("z-again")
        imported.set()
        for name in ("a-start", "a-born", "a-again"):
            await until(name)


async def test_what_is_noted_of_a_workspace_while_it_is_deleted_is_not_left(here: Machine, redis: Redis) -> None:
    async with opened(here):
        async with asyncio.timeout(60):
            while not here.knowledge.is_followed:
                await asyncio.sleep(0.02)
        gone = Scope("gone")
        await here.backlog.add(gone, ["a.md"], 1.0)  # as by who was told of the file before the workspace was gone
        folder = here.settings.data_dir / "workspaces" / "gone" / "docs"
        await asyncio.to_thread(folder.mkdir, parents=True)
        async with asyncio.timeout(60):
            while await redis.keys(f"*{gone.tag}*"):
                await asyncio.sleep(0.02)


async def test_the_process_that_leads_writes_files_and_finishes_what_another_left(here: Machine) -> None:
    """A process took a document over HTTP, and died before it was indexed."""
    async with opened(here):
        await here.knowledge.shelf.put(ACME, "sub/put.md", "Refunds")
        await here.until("refunds", "sub/put.md")
        file = here.settings.data_dir / "workspaces" / "acme" / "docs" / "sub" / "put.md"
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(file.exists):
                await asyncio.sleep(0.02)
        await here.knowledge.shelf.delete(ACME, "sub/put.md")
        await here.until("refunds")
        async with asyncio.timeout(60):
            while await asyncio.to_thread(file.exists):
                await asyncio.sleep(0.02)


async def test_nothing_found_while_documents_are_behind_is_no_answer(here: Machine) -> None:
    here.embedder.fails = True
    await asyncio.to_thread(here.write, "a.md", "Refunds")
    here.knowledge.will_follow()
    async with opened(here, follows=False):
        with pytest.raises((IndexUnavailable, EmbedderUnavailable)):
            await passages_for(here.knowledge.finding, ACME, "refunds", 3, 1000, 900, lost=[])
        assert here.knowledge.finding.doubt(ACME) == STALE


async def test_what_is_found_while_a_change_waits_too_long_is_named_degraded(here: Machine) -> None:
    """What is found comes all the same, to prompts and to searches."""
    async with opened(here, follows=False):
        await here.knowledge.shelf.put(ACME, "a.md", "# Refunds\n\nRefunds take thirty days.")
        await here.knowledge.index(ACME)
        await here.backlog.add(ACME, ["b.md"], time.time() - 60)
        for_prompt: list[DegradedBlock] = []
        found = await passages_for(here.knowledge.finding, ACME, "refunds thirty days", 3, 1000, 900, lost=for_prompt)
        assert [passage.source for passage in found] == ["a.md"]
        for_people: list[DegradedBlock] = []
        await here.knowledge.finding.search(ACME, "refunds", 3, lost=for_people)
        assert for_prompt == for_people == [DegradedBlock(block="retrieved", why="index_stale")]


async def test_nothing_found_in_a_collection_that_is_being_filled_is_no_answer(redis: Redis, here: Machine) -> None:
    """As after another embedding model was set and the former collection was deleted by hand, in a process that follows
    no files."""
    asked = (ACME, "refunds thirty days", 3, 1000, 900)
    await here.knowledge.shelf.put(ACME, "a.md", "# Refunds\n\nRefunds take thirty days.")
    async with opened(here, follows=False):
        await here.knowledge.index(ACME)
        assert await passages_for(here.knowledge.finding, *asked, lost=[])
    await asyncio.to_thread(shutil.rmtree, here.settings.data_dir / "qdrant")
    other = await machine(here.settings, redis, HashedWords(name="another-model"))
    async with opened(other, follows=False):
        with pytest.raises(IndexUnavailable):
            await passages_for(other.knowledge.finding, *asked, lost=[])
        await other.knowledge.index(ACME)
        assert await passages_for(other.knowledge.finding, *asked, lost=[])


async def test_a_document_that_came_and_went_before_it_was_indexed_is_waited_for_no_more(here: Machine) -> None:
    """Its change was written down, and the process was killed; the next one looks through all documents."""
    async with opened(here, follows=False):
        await here.backlog.add(ACME, ["gone.md"], time.time() - 60)
        await here.knowledge.index(ACME)
        assert await here.backlog.paths(ACME, 10) == []


async def test_a_document_that_waits_too_long_makes_what_is_found_doubtful(redis: Redis) -> None:
    clock, backlog = [time.time()], Backlog(redis)
    staleness = Staleness(redis, backlog, is_shared=False, now=lambda: clock[0])
    await staleness.check(ACME)
    assert staleness.reason(ACME) == ""
    await backlog.add(ACME, ["a.md"], clock[0])
    clock[0] += 5
    await staleness.check(ACME)
    assert staleness.reason(ACME) == ""
    clock[0] += 6
    assert staleness.reason(ACME) == STALE
    await backlog.done(ACME, await backlog.since(ACME, ["a.md"]))
    await staleness.check(ACME)
    assert staleness.reason(ACME) == ""


async def test_where_nobody_follows_the_files_what_is_found_is_doubtful(redis: Redis) -> None:
    clock = [time.time()]
    staleness = Staleness(redis, Backlog(redis), is_shared=True, leaderless_seconds=20, now=lambda: clock[0])
    await staleness.check(ACME)
    clock[0] += 21
    await staleness.check(ACME)
    assert staleness.reason(ACME) == STALE
    await redis.set(LEADER_KEY, "somebody")
    clock[0] += 2
    await staleness.check(ACME)
    assert staleness.reason(ACME) == ""


async def test_an_index_that_nobody_fills_because_another_process_has_its_own_is_doubtful(redis: Redis) -> None:
    """Two processes share a Redis, and each has an embedded index: only that of the one that leads is filled."""
    clock = [time.time()]
    staleness = Staleness(redis, Backlog(redis), is_shared=True, own="me", leaderless_seconds=20, now=lambda: clock[0])
    await redis.set(LEADER_KEY, "me")
    assert (await staleness.why_apart(), staleness.reason(ACME)) == ("", "")
    await redis.set(LEADER_KEY, "other")
    assert await staleness.why_apart() == ""  # it may have ended a moment ago
    clock[0] += 21
    with capture_logs() as logs:
        await staleness.check(ACME)
        clock[0] += 2
        await staleness.check(ACME)
    assert (staleness.reason(ACME), await staleness.why_apart()) == (STALE, APART)
    assert [one["why"] for one in logs] == [APART]
    await redis.set(LEADER_KEY, "me")
    clock[0] += 2
    await staleness.check(ACME)
    assert (staleness.reason(ACME), await staleness.why_apart()) == ("", "")


async def test_a_process_says_that_its_embedded_index_is_not_the_one_that_is_filled(
    redis: Redis, settings: MakeSettings, redis_socket: Path
) -> None:
    timing = replace(QUICK, leaderless=-1.0)
    here = await machine(settings(redis_url=f"unix://{redis_socket}"), redis, timing=timing, process="me")
    async with opened(here, follows=False):
        assert (await here.knowledge.health()).state is ConnectionState.CONNECTED
        await redis.set(LEADER_KEY, "other")
        health = await here.knowledge.health()
        assert (health.state, health.why) == (ConnectionState.DEGRADED, APART)
        assert here.knowledge.finding.doubt(ACME) == STALE
        lost: list[DegradedBlock] = []
        await here.knowledge.finding.recall(CHAT, "where is the key", 3, frozenset(), lost=lost)
        assert [one.block for one in lost] == ["records"]


async def test_what_changes_again_while_it_is_indexed_goes_on_waiting(redis: Redis) -> None:
    backlog = Backlog(redis)
    await backlog.add(ACME, ["a.md", "b.md"], 100.25)
    seen = await backlog.since(ACME, ["a.md", "b.md", "c.md"])
    assert seen == {"a.md": 100.25, "b.md": 100.25}
    await backlog.add(ACME, ["a.md"], 101.5)
    await backlog.done(ACME, seen)
    assert await backlog.paths(ACME, 10) == ["a.md"]


async def test_documents_in_folders_that_are_made_beside_a_link_are_followed(here: Machine) -> None:
    """Where links lead to folders each folder is watched by itself, so that the watch begins anew with each."""
    docs = here.knowledge.library.root(ACME)
    texts: dict[str, str] = {}

    async def until_found(path: str, text: str) -> None:
        texts[path] = text
        await asyncio.to_thread(here.write, path, text)
        async with asyncio.timeout(60):
            while True:
                hits = await here.knowledge.finding.search(ACME, text, 10)
                if {hit.passage.source: hit.passage.text for hit in hits} == texts:
                    return
                await asyncio.sleep(0.02)

    await asyncio.to_thread(here.write, "v1/a.md", "Refunds")
    await asyncio.to_thread((docs / "latest").symlink_to, "v1")
    async with opened(here):
        await here.until("refunds", "v1/a.md")
        await asyncio.to_thread((docs / "latest").unlink)
        texts["v1/a.md"] = "Refunds"
        await until_found("beside.md", "Contact")  # so that what is told of the link was worked off
        await until_found("v1/a.md", "Warranty")
        await until_found("v2/deep/b.md", "Refunds")
        await until_found("v2/deep/b.md", "Opening hours")


@pytest.mark.parametrize("shared", [False, True])
async def test_a_folder_that_may_not_be_entered_keeps_nothing_else_waiting(
    redis: Redis,
    settings: MakeSettings,
    redis_socket: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
) -> None:
    """What lies in it is named, and where documents are shared nobody deletes it."""
    made = settings(redis_url=f"unix://{redis_socket}" if shared else None)
    one = await machine(made, redis)
    await asyncio.to_thread(one.write, "locked/deep/a.md", "Refunds")
    lstat, open_file = Path.lstat, os.open

    def is_closed(path: object) -> bool:
        return "locked" in Path(str(path)).parent.parts

    def closed_lstat(self: Path) -> os.stat_result:
        if is_closed(self):
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return lstat(self)

    def closed_open(path: Any, *given: Any, **more: Any) -> int:
        if is_closed(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *given, **more)

    async with opened(one, follows=False):
        await one.knowledge.sync(ACME)
        with monkeypatch.context() as closed:
            closed.setattr(Path, "lstat", closed_lstat)
            closed.setattr(os, "open", closed_open)
            await asyncio.to_thread(one.write, "b.md", "Warranty")
            done = await one.knowledge.sync(ACME)
            assert [(item.path, item.why) for item in done.skipped] == [("locked/deep/a.md", "unreadable")]
            assert await one.found("warranty") == (["b.md", "locked/deep/a.md"] if shared else ["b.md"])
        await one.knowledge.sync(ACME)
        assert await one.found("refunds") == ["b.md", "locked/deep/a.md"]
