"""Documents on disk become passages that are found, with a real Redis and a real embedded index."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from structlog.testing import capture_logs
from watchfiles import Change

from connectors.message import Scope, redis_key
from grounding.documents import (
    Backlog,
    Changed,
    DocumentRefused,
    FileShelf,
    Indexer,
    Library,
    Progress,
    changed_documents,
    watch,
)
from grounding.documents import indexer as documents_indexer
from grounding.documents.ledger import RegistryTooNew
from grounding.documents.watcher import group_changes
from grounding.retrieval import (
    EmbedderUnavailable,
    IndexEntry,
    Kind,
    Passage,
    PassageIndex,
    Search,
    Sizes,
    TurnFloor,
    TurnIndex,
    TurnText,
    collection_name,
    encode_document,
    shorten,
)
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.query import QUERY_MAX_CHARACTERS
from grounding.retrieval.recall import CONTINUED, split_turn
from grounding.retrieval.relevance import Floor
from tests.emulators.embedder import HashedWords

ACME, OTHER = Scope("acme"), Scope("other")


def words(text: str) -> int:
    return len(text.split())


@dataclass
class House:
    """All parts together, over one temporary folder."""

    folder: Path
    library: Library
    embedder: HashedWords
    index: PassageIndex
    indexer: Indexer
    search: Search
    redis: Redis

    def write(self, path: str, text: str, scope: Scope = ACME) -> None:
        self.library.put(scope, path, text)

    async def sources(self, query: str, scope: Scope = ACME) -> list[str]:
        return [hit.passage.source for hit in await self.search.search(scope, query, 10)]


def open_index(folder: Path, embedder: HashedWords) -> EmbeddedIndex:
    return EmbeddedIndex(folder / "qdrant", embedder.name, embedder.dimensions, timeout_seconds=20)


@pytest_asyncio.fixture
async def house(redis: Redis, tmp_path: Path) -> AsyncIterator[House]:
    embedder, library = HashedWords(), Library(tmp_path, max_bytes=10_000)
    index = open_index(tmp_path, embedder)
    await index.ensure()
    indexer = Indexer(FileShelf(library), index, embedder, redis, words, sizes=Sizes(30, 0))
    yield House(
        tmp_path, library, embedder, index, indexer, Search(index, embedder, floor=Floor(0.3, 1.0, 0.3, 0.1)), redis
    )
    await index.close()


async def test_documents_are_found_after_a_sync_and_the_event_says_how_many(house: House) -> None:
    await asyncio.to_thread(house.write, "refunds.md", "# Refunds\n\nMoney comes back in thirty days.")
    await asyncio.to_thread(house.write, "sub/parcels.txt", "Parcels leave on Monday.")
    with capture_logs() as events:
        done = await house.indexer.sync(ACME)
    assert (done.documents, done.chunks, done.chunks_embedded, done.deleted) == (2, 2, 2, 0)
    (event,) = [event for event in events if event["event"] == "index.updated"]
    assert {"workspace_id", "documents", "chunks", "chunks_embedded", "deleted", "lag_ms"} <= event.keys()
    assert await house.sources("money back") == ["refunds.md", "sub/parcels.txt"]
    status = await house.indexer.status(ACME)
    assert (status.documents, status.chunks, status.pending) == (2, 2, 0)


async def test_nothing_is_done_twice(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds.")
    await house.indexer.sync(ACME)
    with capture_logs() as events:
        again = await house.indexer.sync(ACME)
    assert (again.documents, again.chunks_embedded, again.unchanged) == (0, 0, 1)
    assert events == []
    assert len(house.embedder.embedded) == 1


async def test_only_changed_chunks_are_embedded_again(house: House) -> None:
    sections = [f"# Part {n}\n\n" + f"alpha beta gamma delta {n} " * 5 for n in range(6)]
    await asyncio.to_thread(house.write, "a.md", "\n\n".join(["---\ntitle: T\n---", *sections]))
    await house.indexer.sync(ACME)
    sections[3] = "# Part 3\n\n" + "something else entirely " * 8
    await asyncio.to_thread(
        house.write, "a.md", "\n\n".join(["---\ntitle: T\n---\n# New\n\n" + "first part " * 12, *sections])
    )
    done = await house.indexer.sync(ACME, ["a.md"])
    assert (done.chunks, done.chunks_embedded) == (7, 2)
    stored = (await house.index.read(ACME, Kind.DOCUMENT, {"a.md": range(10)}))["a.md"]
    assert [passage.heading for passage in stored] == ["New", *(f"Part {n}" for n in range(6))]


async def test_deleted_and_renamed_documents_are_gone_from_the_search(house: House) -> None:
    for name in ("a.md", "b.md"):
        await asyncio.to_thread(house.write, name, f"Refunds in {name}")
    await house.indexer.sync(ACME)
    root = house.library.root(ACME)
    await asyncio.to_thread(os.rename, root / "a.md", root / "c.md")
    await asyncio.to_thread(os.unlink, root / "b.md")
    assert (await house.indexer.status(ACME)).pending == 3
    done = await house.indexer.sync(ACME, ["a.md", "b.md", "c.md"])
    assert done.deleted == 2
    assert await house.sources("refunds") == ["c.md"]


async def test_a_folder_that_vanished_takes_its_documents_along(house: House) -> None:
    for name in ("v1.2/a.md", "v1.2/sub/b.md", "v1.3/c.md"):
        await asyncio.to_thread(house.write, name, "Refunds")
    await house.indexer.sync(ACME)
    await asyncio.to_thread(shutil.rmtree, house.library.root(ACME) / "v1.2")
    assert (await house.indexer.sync(ACME, ["v1.2"])).deleted == 2
    assert await house.sources("refunds") == ["v1.3/c.md"]


async def test_a_document_that_takes_long_comes_after_the_others_where_all_are_looked_through(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents_indexer, "READ_BYTES", 100)
    for path, text in (("a.md", "Refunds. " * 20), ("b.md", "Refunds"), ("c.md", "Parcels")):
        await asyncio.to_thread(house.write, path, text)
    seen: list[str] = []
    await house.indexer.sync(ACME, progress=lambda one: seen.append(one.path))
    assert seen == ["b.md", "c.md", "a.md"]


async def test_the_lag_of_a_folder_that_was_moved_counts_from_when_that_was_told(house: House) -> None:
    """For what came with it and for what went, and not from when its files were written."""
    docs, backlog = house.library.root(ACME), Backlog(house.redis)
    await asyncio.to_thread(house.write, "old/a.md", "Refunds")
    written = (await asyncio.to_thread(os.stat, docs / "old/a.md")).st_ctime
    indexer = Indexer(FileShelf(house.library), house.index, house.embedder, house.redis, words, now=lambda: now)
    now = written + 1
    await indexer.sync(ACME)
    for before, after in (("old", "new"), ("new", ".hidden")):
        await asyncio.to_thread(os.rename, docs / before, docs / after)
        await backlog.add(ACME, {before, after} - {".hidden"}, now := now + 90)
        now += 2
        done = await indexer.sync(ACME, {before, after} - {".hidden"})
        assert (done.deleted, done.lag_ms) == (1, 2000)


async def test_a_link_to_a_folder_is_not_waited_for(house: House) -> None:
    """It was, for ever, and every prompt said that what was found may be out of date."""
    docs, backlog = house.library.root(ACME), Backlog(house.redis)
    indexer = Indexer(FileShelf(house.library), house.index, house.embedder, house.redis, words)
    await asyncio.to_thread(docs.mkdir, parents=True)
    await asyncio.to_thread(os.symlink, house.folder, docs / "elsewhere")
    await backlog.add(ACME, ["elsewhere"], 1.0)
    await indexer.sync(ACME, ["elsewhere"])
    assert [waits.documents for waits in await backlog.waiting([ACME])] == [0]
    assert [one.path for one in await indexer.skipped(ACME)] == ["elsewhere"]


async def test_of_two_files_with_one_name_in_two_forms_of_unicode_that_in_form_c_is_the_document(house: House) -> None:
    composed, apart = (unicodedata.normalize(form, "für/Gebühren.md") for form in ("NFC", "NFD"))
    docs = house.library.root(ACME)
    await asyncio.to_thread(house.write, apart, "Refunds take thirty days")
    await house.indexer.sync(ACME)
    assert await house.sources("refunds") == [apart]
    with pytest.raises(DocumentRefused, match="looks like that of another document"):
        await asyncio.to_thread(house.write, composed, "Refunds take ninety days")
    await asyncio.to_thread((docs / composed).parent.mkdir)
    await asyncio.to_thread((docs / composed).write_text, "Refunds take ninety days")
    await house.indexer.sync(ACME, [composed, apart])
    assert await house.sources("refunds") == [composed]
    assert [(one.path, one.why) for one in await house.indexer.skipped(ACME)] == [(apart, "name")]
    await asyncio.to_thread((docs / composed).unlink)
    await house.indexer.sync(ACME)
    assert (await house.sources("refunds"), await house.indexer.skipped(ACME)) == ([apart], [])


async def test_a_file_whose_name_is_too_long_is_named_and_left_out(house: House) -> None:
    docs, long = house.library.root(ACME), "ä" * 120 + ".md"
    await asyncio.to_thread(docs.mkdir, parents=True)
    await asyncio.to_thread((docs / long).write_text, "Refunds")
    for logged in ([(long, "name")], []):
        with capture_logs() as events:
            done = await house.indexer.sync(ACME)
        assert [(one.path, one.why) for one in done.skipped] == [(long, "name")]
        assert [(event["path"], event["why"]) for event in events if event["event"] == "index.skipped"] == logged
    assert await house.indexer.pending(ACME) == set()
    await asyncio.to_thread((docs / long).rename, docs / "short.md")
    done = await house.indexer.sync(ACME)
    assert (done.documents, done.skipped, await house.indexer.skipped(ACME)) == (1, (), [])


@pytest.mark.parametrize(
    ("name", "told"), [("bell\a.md", "bell\\u0007.md"), ("a\\b.md", "a\\b.md"), ("half\udcff.md", "half\\udcff.md")]
)
async def test_a_file_whose_name_holds_what_no_document_may_have_in_its_own_is_named_and_left_out(
    house: House, name: str, told: str
) -> None:
    docs = house.library.root(ACME)
    await asyncio.to_thread(docs.mkdir, parents=True)
    await asyncio.to_thread((docs / name).write_text, "Refunds")
    for _ in range(2):
        done = await house.indexer.sync(ACME)
        assert [(one.path, one.why) for one in done.skipped] == [(told, "name")]
        assert [one.path for one in await house.indexer.skipped(ACME)] == [told]
        assert await house.indexer.pending(ACME) == set()
    await asyncio.to_thread((docs / name).rename, docs / "plain.md")
    assert await house.indexer.pending(ACME) == {told, "plain.md"}
    done = await house.indexer.sync(ACME)
    assert (done.documents, done.skipped, await house.indexer.skipped(ACME)) == (1, (), [])


async def test_a_document_that_became_unreadable_is_no_longer_found(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds")
    await house.indexer.sync(ACME)
    await asyncio.to_thread((house.library.root(ACME) / "a.md").write_bytes, b"\0\1")
    with capture_logs() as events:
        await house.indexer.sync(ACME)
    assert ("a.md", "binary") in {(e.get("path"), e.get("why")) for e in events}
    assert await house.sources("refunds") == []


async def test_an_interrupted_run_is_picked_up_where_it_stopped(house: House) -> None:
    for number in range(200):
        await asyncio.to_thread(house.write, f"{number:03}.md", f"Refund number {number}")
    await house.indexer.sync(ACME, [f"{number:03}.md" for number in range(150)])
    house.embedder.fails = True
    with pytest.raises(EmbedderUnavailable):
        await house.indexer.sync(ACME)
    assert (await house.indexer.status(ACME)).pending == 50
    house.embedder.fails = False
    house.embedder.embedded.clear()
    done = await house.indexer.sync(ACME)
    assert (done.documents, len(house.embedder.embedded)) == (50, 50)
    assert await house.index.count(ACME, Kind.DOCUMENT) == 200


async def test_an_index_that_was_lost_is_filled_again(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds")
    await house.indexer.sync(ACME)
    await house.index.drop_workspace(ACME)
    assert (await house.indexer.sync(ACME)).documents == 1
    assert await house.sources("refunds") == ["a.md"]


async def test_passages_that_no_registry_knows_are_swept_out(house: House) -> None:
    await house.index.upsert(
        ACME,
        [
            IndexEntry(
                Passage("x", Kind.DOCUMENT, "ghost.md", "refunds"), [1.0] + [0.0] * 63, encode_document("refunds")
            )
        ],
    )
    await house.indexer.sync(ACME)
    assert await house.sources("refunds") == []


async def test_a_fresh_run_embeds_everything_again(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds")
    await house.indexer.sync(ACME)
    done = await house.indexer.sync(ACME, fresh=True)
    assert (done.documents, done.chunks_embedded) == (1, 1)


async def test_another_way_of_cutting_indexes_all_documents_anew(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds")
    await house.indexer.sync(ACME)
    other = Indexer(FileShelf(house.library), house.index, house.embedder, house.redis, words, sizes=Sizes(31, 0))
    assert (await other.status(ACME)).pending == 1
    assert (await other.sync(ACME)).documents == 1


async def test_progress_names_every_document(house: House) -> None:
    for name in ("a.md", "b.md"):
        await asyncio.to_thread(house.write, name, "Refunds")
    seen: list[Progress] = []
    await house.indexer.sync(ACME, progress=seen.append)
    assert seen == [Progress(1, 2, "a.md"), Progress(2, 2, "b.md")]


async def test_a_registry_of_a_newer_version_is_an_error_that_says_so(house: House) -> None:
    await house.redis.hset(
        redis_key("documents", ACME.tag, "registry", collection_name("hashed-words", 64)), "a.md", '{"v": 2}'
    )
    with pytest.raises(RegistryTooNew, match="format 2"):
        await house.indexer.sync(ACME)


async def test_forgetting_a_workspace_spares_the_others(house: House) -> None:
    for scope in (ACME, OTHER):
        await asyncio.to_thread(house.write, "a.md", "Refunds", scope)
        await house.indexer.sync(scope)
    await house.indexer.forget_workspace(ACME)
    assert await house.sources("refunds") == []
    assert (await house.indexer.status(ACME)).documents == 0
    assert await house.sources("refunds", OTHER) == ["a.md"]


async def test_saved_and_deleted_files_are_followed(house: House) -> None:
    stop = asyncio.Event()

    async def follow() -> None:
        async for change in watch(house.folder, stop=stop, debounce_seconds=0.05):
            await house.indexer.sync(Scope(change.workspace_id), changed_documents(change))

    async def until(query: str, expected: list[str]) -> None:
        while await house.sources(query) != expected:
            await asyncio.sleep(0.02)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(follow())
        await asyncio.sleep(0.3)  # The watcher gives no sign when it is ready.
        await asyncio.to_thread(house.write, "sub/a.md", "Refunds take thirty days")
        await until("refunds", ["sub/a.md"])
        await asyncio.to_thread(house.library.delete, ACME, "sub/a.md")
        await until("refunds", [])
        stop.set()


def test_changes_are_told_by_workspace_and_only_documents_are_looked_at() -> None:
    base = Path("/data/workspaces")
    names = ["acme/docs/a.md", "acme/docs/v1.2", "acme/docs/.put-x", "acme/logs/l.md", "Not-an-id/docs/a.md", "acme"]
    (change,) = group_changes(base, [(Change.modified, str(base / name)) for name in names])
    assert change == Changed("acme", frozenset({"docs/a.md", "docs/v1.2", "docs/.put-x", "logs/l.md"}))
    assert changed_documents(change) == {"a.md", "v1.2"}
    assert changed_documents(Changed("acme", frozenset({"docs"}))) is None
    assert changed_documents(Changed("acme", frozenset({"context/SOUL.md"}))) == set()


@pytest.mark.parametrize("kind", [Change.added, Change.deleted])
def test_all_documents_are_looked_at_where_the_folder_of_a_workspace_came_or_went(kind: Change) -> None:
    """Of files that are in a new folder before the system follows it, nothing is told."""
    base = Path("/data/workspaces")
    (change,) = group_changes(base, [(kind, str(base / "acme"))])
    assert changed_documents(change) is None
    assert "context" in change.paths


async def test_retrieved_passages_are_grown_merged_and_within_their_bytes(house: House) -> None:
    text = "\n\n".join(
        f"## Step {n}\n\nThe harbour refund {noun} needs a signature and {noun} {verb} before the office {verb}s it."
        for n, (noun, verb) in enumerate(zip(["form", "ticket", "ledger"], ["sign", "print", "check"], strict=True))
    )
    await asyncio.to_thread(house.write, "steps.md", f"# Steps\n\n{text}")
    await asyncio.to_thread(house.write, "other.md", "# Weather\n\nStorms come from the west.")
    await house.indexer.sync(ACME)
    (passage,) = await house.search.passages(ACME, "harbour refund signature", 3, 1200)
    assert passage.source == "steps.md"
    assert passage.text.index("Step 0") < passage.text.index("Step 1") < passage.text.index("Step 2")
    for limit in (20, 100, 500):
        for found in await house.search.passages(ACME, "harbour refund signature", 3, limit):
            assert len(found.text.encode()) <= limit


async def test_an_unrelated_question_retrieves_nothing_but_still_can_be_searched(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "# Refunds\n\nMoney comes back in thirty days.")
    await house.indexer.sync(ACME)
    assert await house.search.passages(ACME, "who won the world cup", 3, 1200) == []
    assert await house.search.passages(ACME, "", 3, 1200) == []
    assert await house.search.search(ACME, "who won the world cup", 3) != []


async def test_passages_come_in_the_form_of_a_turn_s_input(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "# Refunds\n\nMoney comes back in thirty days.")
    await house.indexer.sync(ACME)
    (passage,) = await house.search.passages(ACME, "refunds money", 3, 1200)
    assert (passage.source, passage.heading) == ("a.md", "Refunds")


async def windows(house: House) -> None:
    await asyncio.to_thread(house.write, "office.md", "# Office\n\nThe window of the office is cleaned on Friday.")
    await asyncio.to_thread(house.write, "refunds.md", "# Refunds\n\nRefunds: the window is open for thirty days.")
    await asyncio.to_thread(house.write, "parcels.md", "# Parcels\n\nParcels leave on Monday from the harbour.")
    await house.indexer.sync(ACME)


@pytest.mark.parametrize("subject", ["office", "refunds"])
async def test_a_follow_up_finds_what_the_conversation_is_about(house: House, subject: str) -> None:
    await windows(house)

    found = await house.search.passages(ACME, "And what about the window?", 1, 1200, earlier=[f"Tell me of {subject}"])

    assert [one.source for one in found] == [f"{subject}.md"]


async def test_a_message_that_changes_the_subject_finds_what_it_would_find_alone(house: House) -> None:
    await windows(house)
    before = ["How long is the window of refunds open?", "And the window of the office?"]

    first, *_ = await house.search.search(ACME, "When do parcels leave the harbour?", 3, earlier=before)

    assert first.passage.source == "parcels.md"


def test_a_very_long_question_is_searched_by_its_beginning_and_end() -> None:
    assert len(shorten("a" * 100_000 + "end")) == QUERY_MAX_CHARACTERS + 1
    assert shorten("a" * 100_000 + "end").endswith("end")


async def test_turns_are_recalled_in_their_own_conversation_only(house: House) -> None:
    turns = TurnIndex(house.index, house.embedder, floor=TurnFloor(0.3, 0.3))
    here, there = Scope("acme", "http:here"), Scope("acme", "http:there")
    said = datetime(2026, 11, 1, 12, tzinfo=UTC)
    await turns.remember([TurnText(here, "t1", "The deploy key lives in Lockbox.", said)])
    await turns.remember([TurnText(here, "t2", "Lunch was good.", said)])
    await turns.remember([TurnText(there, "t3", "Another deploy key.", said)])
    (recalled,) = await turns.recall(here, "where is the deploy key", 5)
    assert (recalled.turn_id, recalled.said_on) == ("t1", "2026-11-01")
    assert await turns.recall(here, "where is the deploy key", 5, exclude=["t1"]) == []
    assert await turns.recall(here, "?", 5) == []
    await turns.remember([TurnText(here, "t1", "Nothing to see.", said)])
    assert await turns.recall(here, "where is the deploy key", 5) == []
    await turns.forget(there)
    assert await turns.recall(there, "deploy key", 5) == []
    assert await house.sources("deploy key") == []


async def test_what_was_said_earlier_is_recalled_though_long_texts_in_the_prompt_say_more_of_it(house: House) -> None:
    turns = TurnIndex(house.index, house.embedder, floor=TurnFloor(0.4, 0.4, unasked=0.4, unasked_few=0.4))
    here = Scope("acme", "http:here")
    said = datetime(2026, 11, 1, 12, tzinfo=UTC)
    pasted = ["Ann: " + "where is the deploy key deploy key " * 1500 for _ in range(2)]
    await turns.remember([TurnText(here, "t1", "Bo: The deploy key lives in Lockbox.", said)])
    await turns.remember([TurnText(here, f"p{number}", text, said) for number, text in enumerate(pasted)])

    for asked_for in (True, False):
        found = await turns.recall(here, "where is the deploy key", 5, ["p0", "p1"], asked_for=asked_for)
        assert [one.turn_id for one in found] == ["t1"]


async def test_a_message_without_a_subject_recalls_what_was_just_spoken_of(house: House) -> None:
    turns = TurnIndex(house.index, house.embedder, floor=TurnFloor(0.2, 0.2))
    scope = Scope("acme", "slack:C1")
    now = datetime(2026, 11, 21, 10, tzinfo=UTC)
    await turns.remember(
        [
            TurnText(scope, "t1", "The roof is painted green.", now),
            TurnText(scope, "t2", "Kiki is a parrot.", now),
            TurnText(scope, "t3", "What colour is the roof?", now),
        ]
    )
    shown, earlier = ["t3"], ["What colour is the roof?"]

    assert await turns.recall(scope, "what did we say about that?", 4, shown) == []
    (found, *_) = await turns.recall(scope, "what did we say about that?", 4, shown, earlier=earlier)
    assert found.turn_id == "t1"
    (other, *_) = await turns.recall(scope, "Kiki, our parrot?", 4, shown, earlier=earlier)
    assert other.turn_id == "t2"


async def test_an_answer_is_recalled_with_its_question_though_it_says_none_of_the_words(house: House) -> None:
    turns = TurnIndex(house.index, house.embedder)
    here, now = Scope("acme", "http:here"), datetime(2026, 11, 1, tzinfo=UTC)
    texts = ["Ann: What is the parrot called?", "Bo: Kiki!", "Ann: Lovely weather."]
    before = ["", "t0", "t1"]
    await turns.remember(
        [
            TurnText(here, f"t{n}", text, now, previous)
            for n, (text, previous) in enumerate(zip(texts, before, strict=True))
        ]
    )

    found = [one.turn_id for one in await turns.recall(here, "what was the parrot called?", 9)]

    assert set(found) == {"t0", "t1"}
    assert [one.turn_id for one in await turns.recall(here, "what was the parrot called?", 9, ["t1"])] == ["t0"]


async def test_the_day_on_which_something_was_said_can_be_asked_for(house: House) -> None:
    turns = TurnIndex(house.index, house.embedder)
    here = Scope("acme", "http:here")
    await turns.remember(
        [
            TurnText(here, f"t{month}", "Ann: We met the landlord.", datetime(2026, month, 8, tzinfo=UTC))
            for month in (3, 5, 9)
        ]
    )

    (first, *_) = await turns.recall(here, "the landlord on 8 May", 9)

    assert first.turn_id == "t5"


async def test_a_turn_can_be_forgotten(house: House) -> None:
    turns = TurnIndex(house.index, house.embedder)
    here = Scope("acme", "http:here")
    await turns.remember([TurnText(here, "t1", "deploy key " * 400, datetime(2026, 11, 1, tzinfo=UTC))])
    assert {item.turn_id for item in await turns.recall(here, "deploy key", 9)} == {"t1"}
    await turns.forget(here, ["t1"])
    assert await turns.recall(here, "deploy key", 9) == []


@given(st.text(max_size=5000))
def test_parts_of_a_turn_hold_all_its_words(text: str) -> None:
    # Who goes on speaking is named again, with a mark that the texts do not have.
    parts = [part.partition(CONTINUED)[2] or part for part in split_turn(text.replace(CONTINUED, ""))]
    assert "".join("".join(parts).split()) == "".join(text.replace(CONTINUED, "").split())


names = st.sampled_from(["acme", "acme2", "a.cme", "other"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, st.lists(st.sampled_from(["refund", "parcel", "sensor", "key", "storm"]), min_size=1)))
def test_no_passage_ever_crosses_workspaces(held: dict[str, list[str]]) -> None:
    async def check(folder: Path) -> None:
        embedder = HashedWords()
        index = open_index(folder, embedder)
        await index.ensure()
        for workspace, nouns in held.items():
            entries = [
                IndexEntry(
                    Passage(f"{n}", Kind.DOCUMENT, f"{workspace}.md", noun, ordinal=n),
                    await embedder.embed_query(noun),
                    encode_document(noun),
                )
                for n, noun in enumerate(nouns)
            ]
            await index.upsert(Scope(workspace), entries)
        search = Search(index, embedder)
        for workspace in ("acme", "acme2", "a.cme", "other"):
            hits = await search.search(Scope(workspace), "refund parcel sensor key storm", 50)
            assert [hit.passage.source for hit in hits] == [f"{workspace}.md"] * len(held.get(workspace, []))
        await index.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))
