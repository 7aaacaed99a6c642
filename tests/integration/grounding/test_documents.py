"""Documents on disk get into the index, with a real Redis and a real embedded index."""

from __future__ import annotations

import asyncio
import os
import shutil
import unicodedata

import pytest
from structlog.testing import capture_logs

from connectors.message import Scope, redis_key
from grounding.documents import Backlog, DocumentRefused, FileShelf, Indexer, Progress
from grounding.documents.ledger import RegistryTooNew
from grounding.retrieval import (
    EmbedderUnavailable,
    IndexEntry,
    Kind,
    Passage,
    Sizes,
    collection_name,
    encode_document,
)
from tests.integration.grounding.conftest import ACME, House, words

OTHER = Scope("other")


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


async def test_nothing_is_done_twice_unless_all_is_to_be_done_anew(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds.")
    await house.indexer.sync(ACME)
    with capture_logs() as events:
        again = await house.indexer.sync(ACME)
    assert (again.documents, again.chunks_embedded, again.unchanged) == (0, 0, 1)
    assert events == []
    assert len(house.embedder.embedded) == 1
    fresh = await house.indexer.sync(ACME, fresh=True)
    assert (fresh.documents, fresh.chunks_embedded) == (1, 1)


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


async def test_a_document_that_takes_long_comes_after_the_others_where_all_are_looked_through(house: House) -> None:
    for path, text in (("a.md", "x" * 260_000), ("b.md", "Refunds"), ("c.md", "Parcels")):
        await asyncio.to_thread(house.write, path, text)
    seen: list[Progress] = []
    await house.indexer.sync(ACME, progress=seen.append)
    assert seen == [Progress(1, 3, "b.md"), Progress(2, 3, "c.md"), Progress(3, 3, "a.md")]


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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bell\a.md", "bell\\u0007.md"),
        ("a\\b.md", "a\\b.md"),
        ("half\udcff.md", "half\\udcff.md"),
        ("ä" * 120 + ".md", "ä" * 120 + ".md"),
    ],
)
async def test_a_file_whose_name_no_document_may_have_is_named_once_and_left_out(
    house: House, name: str, told: str
) -> None:
    docs = house.library.root(ACME)
    await asyncio.to_thread(docs.mkdir, parents=True)
    await asyncio.to_thread((docs / name).write_text, "Refunds")
    for logged in ([(told, "name")], []):
        with capture_logs() as events:
            done = await house.indexer.sync(ACME)
        assert [(one.path, one.why) for one in done.skipped] == [(told, "name")]
        assert [(event["path"], event["why"]) for event in events if event["event"] == "index.skipped"] == logged
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


async def test_an_index_that_was_lost_is_filled_again_and_what_no_registry_knows_is_swept_out(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds")
    await house.indexer.sync(ACME)
    await house.index.drop_workspace(ACME)
    assert (await house.indexer.sync(ACME)).documents == 1
    assert await house.sources("refunds") == ["a.md"]
    ghost = Passage("x", Kind.DOCUMENT, "ghost.md", "refunds")
    vector = await house.embedder.embed_query("refunds")
    await house.index.upsert(ACME, [IndexEntry(ghost, vector, encode_document("refunds"))])
    await house.indexer.sync(ACME)
    assert await house.sources("refunds") == ["a.md"]


async def test_another_way_of_cutting_indexes_all_documents_anew(house: House) -> None:
    await asyncio.to_thread(house.write, "a.md", "Refunds")
    await house.indexer.sync(ACME)
    other = Indexer(FileShelf(house.library), house.index, house.embedder, house.redis, words, sizes=Sizes(31, 0))
    assert (await other.status(ACME)).pending == 1
    assert (await other.sync(ACME)).documents == 1


async def test_a_registry_of_a_newer_version_is_an_error_that_says_so(house: House) -> None:
    await house.redis.hset(
        redis_key("documents", ACME.tag, "registry", collection_name(house.embedder.name, house.embedder.dimensions)),
        "a.md",
        '{"v": 2}',
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
