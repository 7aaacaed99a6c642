"""Documents of several machines that share Redis and the index, but no disk."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import unicodedata
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import Scope, redis_key
from grounding.documents import (
    Backlog,
    DiskCopy,
    DocumentMissing,
    DocumentRefused,
    Indexer,
    Library,
    SharedShelf,
)
from grounding.documents.sync import STATE_NAME, CatalogueTooNew, DiskState, Version
from grounding.retrieval import Search, Sizes
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from tests.emulators.embedder import HashedWords
from tests.integration.grounding.conftest import ACME, RELEVANCE, words


@dataclass
class Machine:
    """One of several, with a disk of its own."""

    library: Library
    shelf: SharedShelf
    copy: DiskCopy
    indexer: Indexer
    backlog: Backlog

    @property
    def docs(self) -> Path:
        return self.library.root(ACME)

    def write(self, path: str, text: str) -> None:
        file = self.docs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def files(self) -> dict[str, str]:
        return {
            file.relative_to(self.docs).as_posix(): file.read_text(encoding="utf-8")
            for file in self.docs.rglob("*")
            if file.is_file()
        }

    async def follow(self) -> set[str]:
        """What the leading process does when something changed."""
        changed = await self.copy.bring_in_step(ACME)
        await self.indexer.sync(ACME, changed)
        return changed


@dataclass
class Machines:
    one: Machine
    two: Machine
    search: Search
    embedder: HashedWords
    redis: Redis

    async def found(self, query: str) -> list[str]:
        return sorted({hit.passage.source for hit in await self.search.search(ACME, query, 10)})

    async def shared(self) -> dict[str, str]:
        return {path: (await self.one.shelf.get(ACME, path)).text for path in await self.one.shelf.catalogue(ACME)}


@pytest.fixture
def machines(redis: Redis, index: EmbeddedIndex, embedder: HashedWords, tmp_path: Path) -> Machines:
    def machine(name: str) -> Machine:
        library = Library(tmp_path / name, max_bytes=10_000)
        shelf = SharedShelf(redis, max_bytes=10_000)
        indexer = Indexer(shelf, index, embedder, redis, words, sizes=Sizes(30, 0), is_shared=True)
        return Machine(library, shelf, DiskCopy(library, shelf), indexer, Backlog(redis))

    return Machines(machine("one"), machine("two"), Search(index, embedder, relevance=RELEVANCE), embedder, redis)


async def test_what_one_puts_another_reads_finds_lists_and_deletes(machines: Machines) -> None:
    await machines.one.shelf.put(ACME, "sub/a.md", b"\xef\xbb\xbfRefunds \xf0\x9f\x99\x82")
    assert [waits.documents for waits in await machines.two.backlog.waiting([ACME])] == [1]
    await machines.one.indexer.sync(ACME, ["sub/a.md"])
    assert [waits.documents for waits in await machines.two.backlog.waiting([ACME])] == [0]
    assert (await machines.two.shelf.get(ACME, "sub/a.md")).text == "Refunds 🙂"
    assert [found.path for found in (await machines.two.shelf.look_through(ACME))[0]] == ["sub/a.md"]
    assert await machines.found("refunds") == ["sub/a.md"]
    await machines.two.shelf.delete(ACME, "sub/a.md")
    await machines.two.indexer.sync(ACME, ["sub/a.md"])
    assert await machines.found("refunds") == []
    for path in ("sub/a.md", "never.md"):
        with pytest.raises(DocumentMissing):
            await machines.one.shelf.get(ACME, path)
        with pytest.raises(DocumentMissing):
            await machines.one.shelf.delete(ACME, path)


async def test_paths_of_no_document_below_one_and_like_anothers_are_refused(redis: Redis) -> None:
    shelf = SharedShelf(redis, max_bytes=1000)
    for path in ("../a.md", "a.exe", ".a.md", ""):
        for attempt in (shelf.put(ACME, path, "x"), shelf.get(ACME, path), shelf.delete(ACME, path)):
            with pytest.raises(DocumentRefused):
                await attempt
    await shelf.put(ACME, "a.md", "x")
    with pytest.raises(DocumentRefused):
        await shelf.put(ACME, "a.md/b.md", "x")
    composed, apart = (unicodedata.normalize(form, "Gebühren.md") for form in ("NFC", "NFD"))
    for first, second in ((composed, apart), (apart, composed)):
        await shelf.put(ACME, first, "ninety days")
        await shelf.put(ACME, first, "thirty days")
        with pytest.raises(DocumentRefused, match="looks like that of another document"):
            await shelf.put(ACME, second, "ninety days")
        await shelf.delete(ACME, first)


async def test_a_whole_look_from_any_machine_leaves_the_others_documents_in_the_index(machines: Machines) -> None:
    """It used to forget what was not on its own disk."""
    await machines.one.shelf.put(ACME, "a.md", "Refunds")
    await machines.one.indexer.sync(ACME)
    assert await machines.two.copy.bring_in_step(ACME) == set()
    done = await machines.two.indexer.sync(ACME)
    assert (done.deleted, done.unchanged, len(machines.embedder.embedded)) == (0, 1, 1)
    assert await machines.found("refunds") == ["a.md"]
    assert await asyncio.to_thread(machines.two.files) == {"a.md": "Refunds"}


async def test_files_and_documents_follow_each_other(machines: Machines) -> None:
    one = machines.one
    await asyncio.to_thread(one.write, "sub/a.md", "Refunds")
    await asyncio.to_thread(one.write, "b.md", "Parcels")
    assert await one.follow() == {"sub/a.md", "b.md"}
    await asyncio.to_thread(shutil.rmtree, one.docs / "sub")
    await asyncio.to_thread(one.write, "b.md", "Parcels leave on Monday")
    assert await one.copy.bring_in_step(ACME, {"sub", "b.md"}) == {"sub/a.md", "b.md"}
    assert await machines.shared() == {"b.md": "Parcels leave on Monday"}
    await machines.two.shelf.put(ACME, "b.md", "Parcels leave on Friday")
    await machines.two.shelf.put(ACME, "c.md", "Lighthouse")
    assert await one.follow() == set()
    assert await asyncio.to_thread(one.files) == {"b.md": "Parcels leave on Friday", "c.md": "Lighthouse"}
    await machines.two.shelf.delete(ACME, "b.md")
    assert await one.follow() == set()
    assert await asyncio.to_thread(one.files) == {"c.md": "Lighthouse"}


async def test_a_disk_that_led_before_does_not_bring_back_what_was_deleted_meanwhile(machines: Machines) -> None:
    await asyncio.to_thread(machines.one.write, "a.md", "Refunds")
    await asyncio.to_thread(machines.one.write, "b.md", "Parcels")
    await machines.one.follow()
    await machines.two.follow()
    await machines.two.shelf.delete(ACME, "a.md")
    await asyncio.to_thread(machines.one.write, "b.md", "Parcels, changed while another led")
    assert await machines.one.follow() == {"b.md"}
    assert await asyncio.to_thread(machines.one.files) == await machines.shared()
    assert await machines.shared() == {"b.md": "Parcels, changed while another led"}


async def test_a_lost_disk_and_a_damaged_note_of_what_was_the_same_delete_nothing(machines: Machines) -> None:
    one = machines.one
    await asyncio.to_thread(one.write, "a.md", "Refunds")
    await one.follow()
    await asyncio.to_thread(shutil.rmtree, one.docs.parent)
    assert await one.follow() == set()
    assert await asyncio.to_thread(one.files) == {"a.md": "Refunds"}

    await asyncio.to_thread((one.docs.parent / STATE_NAME).write_text, "no database" * 100)
    await asyncio.to_thread(os.unlink, one.docs / "a.md")
    assert await one.follow() == set()
    assert await machines.shared() == {"a.md": "Refunds"}


async def test_a_document_waits_for_another_process_that_stores_some_and_was_killed(
    machines: Machines,
) -> None:
    key = redis_key("documents", ACME.tag, "storing")
    await machines.one.shelf.put(ACME, "a.md", "Refunds")
    await machines.redis.set(key, "of a process that was killed")
    storing = asyncio.create_task(machines.one.indexer.sync(ACME, ["a.md"]))
    await asyncio.sleep(0.3)
    assert not storing.done()
    await machines.redis.delete(key)  # as time does
    await storing
    assert await machines.found("refunds") == ["a.md"]
    assert not await machines.redis.exists(key)


async def test_a_workspace_that_is_deleted_while_its_files_are_read_leaves_nothing_that_deletes_the_next_ones(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machines.one
    for path in ("a.md", "b.md"):
        one.write(path, "the yak")
    put_if = one.shelf.put_if

    async def deleted_meanwhile(scope: Scope, path: str, *given: Any) -> Any:
        done = await put_if(scope, path, *given)
        if path == "b.md":
            await asyncio.to_thread(shutil.rmtree, one.docs.parent)
            await machines.redis.flushall()
        return done

    with monkeypatch.context() as patched:
        patched.setattr(one.shelf, "put_if", deleted_meanwhile)
        await one.copy.bring_in_step(ACME, {"a.md", "b.md"})
    assert not one.docs.parent.exists()

    await one.shelf.put(ACME, "a.md", "the yak")
    await one.copy.bring_in_step(ACME)
    assert one.files() == {"a.md": "the yak"}
    assert (await one.shelf.get(ACME, "a.md")).text == "the yak"


async def test_files_that_are_no_documents_stay_and_are_named(machines: Machines) -> None:
    await machines.two.shelf.put(ACME, "a.md", "Refunds")
    await asyncio.to_thread(machines.one.docs.mkdir, parents=True)
    await asyncio.to_thread((machines.one.docs / "a.md").write_bytes, b"\0")
    await asyncio.to_thread((machines.one.docs / "l.md").symlink_to, "/etc/passwd")
    await machines.one.follow()
    assert [(one.path, one.why) for one in machines.one.copy.skipped(ACME)] == [("a.md", "binary"), ("l.md", "link")]
    assert await asyncio.to_thread((machines.one.docs / "a.md").read_bytes) == b"\0"
    assert await machines.shared() == {"a.md": "Refunds"}


async def test_a_file_that_cannot_be_written_keeps_no_other_from_it(machines: Machines) -> None:
    await asyncio.to_thread(machines.one.write, "a.md/inside.md", "a folder of that name")
    await machines.two.shelf.put(ACME, "a.md", "Refunds")
    await machines.two.shelf.put(ACME, "b.md", "Parcels")
    await machines.one.follow()
    assert (await asyncio.to_thread(machines.one.files))["b.md"] == "Parcels"
    assert (await machines.shared())["a.md"] == "Refunds"


async def test_the_last_of_two_changes_at_once_is_what_is_found(machines: Machines) -> None:
    """However slow the first is between reading and storing."""
    read, go = asyncio.Event(), asyncio.Event()
    embed = machines.embedder.embed_documents

    async def slowly(texts: list[str]) -> list[list[float]]:
        if any("first" in text for text in texts):
            read.set()
            await go.wait()
        return await embed(texts)

    machines.embedder.embed_documents = slowly  # type: ignore[method-assign, assignment]
    await machines.one.shelf.put(ACME, "a.md", "The first refund")
    async with asyncio.TaskGroup() as group:
        group.create_task(machines.one.indexer.sync(ACME, ["a.md"]))
        await read.wait()
        await machines.two.shelf.put(ACME, "a.md", "The second refund")
        await machines.two.indexer.sync(ACME, ["a.md"])
        go.set()
    (hit,) = await machines.search.search(ACME, "refund", 10)
    assert hit.passage.text == "The second refund"
    assert [waits.documents for waits in await machines.one.backlog.waiting([ACME])] == [0]


async def test_many_and_large_documents_are_read_in_parts(machines: Machines) -> None:
    for number in range(150):
        await machines.one.shelf.put(ACME, f"{number:03}.md", f"word{number} " * 900)
    done = await machines.two.indexer.sync(ACME)
    assert done.documents == 150
    assert await machines.two.indexer.pending(ACME) == set()


async def test_what_changed_since_a_revision_is_remembered(machines: Machines) -> None:
    shelf = machines.one.shelf
    await shelf.put(ACME, "a.md", "x")
    (before,) = await shelf.revisions([ACME])
    await shelf.put(ACME, "b.md", "x")
    await shelf.delete(ACME, "a.md")
    (after,) = await shelf.revisions([ACME])
    assert await shelf.changes(ACME, before, after) == {"a.md", "b.md"}
    assert await shelf.changes(ACME, 0, 10**9) is None


async def test_documents_of_a_newer_version_are_left_alone(machines: Machines) -> None:
    await machines.redis.hset(redis_key("documents", ACME.tag, "catalogue"), "a.md", '{"v": 2}')
    with pytest.raises(CatalogueTooNew, match="upgrade"):
        await machines.one.copy.bring_in_step(ACME)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_two_machines_do_at_once_what_is_found_is_what_there_is_and_of_no_other_workspace(
    machines: Machines, seed: int
) -> None:
    """Files are saved, moved and deleted, documents are put and deleted, either machine leads, and each is interrupted
    anywhere."""
    dice, scopes = random.Random(seed), (ACME, Scope("other"), Scope("third"))
    names = [f"{folder}{name}.md" for folder in ("", "sub/") for name in "ab"]
    written: dict[str, Scope] = {}
    changing: list[asyncio.Future[None]] = []

    def text(scope: Scope) -> str:
        written[word := f"word{len(written)}x{seed}"] = scope
        return f"# About {word}\n\nSome words."

    def files_below(docs: Path) -> dict[str, str]:
        return {path.relative_to(docs).as_posix(): path.read_text() for path in docs.rglob("*.md")}

    def change_files(docs: Path, scope: Scope) -> None:
        here = sorted(docs.rglob("*.md"))
        file = docs / dice.choice(names)
        match dice.randrange(4 if here else 1):
            case 0:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text(scope))
            case 1:
                dice.choice(here).unlink()
            case 2:
                file.parent.mkdir(parents=True, exist_ok=True)
                dice.choice(here).rename(file)
            case 3:
                shutil.rmtree(dice.choice(here).parent)

    async def change(machine: Machine, scope: Scope) -> None:
        if dice.random() < 0.6:
            work = partial(change_files, machine.library.root(scope), scope)
            changing.append(asyncio.get_running_loop().run_in_executor(None, work))
            with suppress(OSError):  # the machine may have moved it just now
                await asyncio.shield(changing[-1])
            return
        path = dice.choice(names)
        with suppress(DocumentMissing):
            if dice.random() < 0.7:
                await machine.shelf.put(scope, path, text(scope))
            else:
                await machine.shelf.delete(scope, path)
            await machine.indexer.sync(scope, [path])

    async def follow(machine: Machine, scope: Scope) -> None:
        await machine.indexer.sync(scope, await machine.copy.bring_in_step(scope))

    async def interrupted(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        for _ in range(dice.randrange(200)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    both = (machines.one, machines.two)
    for _ in range(25):
        at_once = [change(dice.choice(both), dice.choice(scopes)) for _ in range(dice.randrange(1, 4))]
        at_once += [follow(dice.choice(both), dice.choice(scopes)) for _ in range(dice.randrange(3))]
        await asyncio.gather(*(interrupted(one) if dice.random() < 0.3 else one for one in at_once))
    await asyncio.gather(*changing, return_exceptions=True)  # threads end though nobody waits for them
    leads = dice.choice(both)
    for scope in scopes:
        await follow(leads, scope)
        if waiting := await leads.backlog.paths(scope, 1000):
            await leads.indexer.sync(scope, waiting)
        there = {path: (await leads.shelf.get(scope, path)).text for path in await leads.shelf.catalogue(scope)}
        assert await asyncio.to_thread(files_below, leads.library.root(scope)) == there
        for word in written:
            hits = await machines.search.search(scope, word, 20)
            found = {hit.passage.source for hit in hits if word in f"{hit.passage.title} {hit.passage.text}"}
            assert found == {path for path, told in there.items() if word in told.split()}
            assert all(written.get(hit.passage.title.removeprefix("About ")) == scope for hit in hits)


async def test_a_note_that_is_closed_while_a_thread_reads_it_ends_no_process(tmp_path: Path) -> None:
    """As by a look that is cancelled: SQLite would take the process along."""
    versions = {f"{number}.md": Version("0" * 64, 1, 1) for number in range(5000)}
    DiskState(tmp_path).save(versions)
    for _ in range(30):
        note = DiskState(tmp_path)
        reading = asyncio.create_task(asyncio.to_thread(note.read))
        await asyncio.sleep(0)
        await asyncio.to_thread(note.close)
        assert await reading in ({}, versions)
