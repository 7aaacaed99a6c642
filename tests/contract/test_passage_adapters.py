"""What each adapter of the passage index promises by itself: files, one owner, damage, and errors by their tables."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from qdrant_client import models
from qdrant_client.common import client_exceptions
from qdrant_client.http import exceptions
from structlog.testing import capture_logs

from connectors.message import Scope
from grounding.retrieval import (
    IndexEntry,
    IndexUnavailable,
    Kind,
    Passage,
    PassageQuery,
    collection_name,
    encode_document,
    qdrant_edge,
    qdrant_server,
)
from grounding.retrieval.bm25 import encode_query
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.retrieval.qdrant_server import ServerIndex
from tests.emulators.passages import embedded, entry, found, server
from tests.emulators.qdrant import SharedQdrant

# Local mode keeps no payload indexes, and says so each time that one is made.
pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

ACME = Scope("acme")
DOCUMENT = Kind.DOCUMENT


async def test_whether_a_collection_exists_is_found_out_without_making_it(tmp_path: Path) -> None:
    for opened in (embedded(tmp_path), server(tmp_path)):
        assert not await opened.exists()
        await opened.drop()
        assert not list(tmp_path.iterdir())


async def test_a_removal_that_was_interrupted_is_finished_and_what_it_left_is_never_opened(tmp_path: Path) -> None:
    first = embedded(tmp_path)
    await first.ensure()
    await first.close()
    (folder,) = tmp_path.iterdir()
    folder.rename(folder.with_name(f"{folder.name}.dropped"))
    again = embedded(tmp_path)
    assert not await again.exists()
    await again.drop()
    assert list(tmp_path.iterdir()) == []


async def test_collections_of_one_server_are_dropped_one_by_one() -> None:
    client = SharedQdrant(":memory:")

    def opened(model: str) -> ServerIndex:
        return ServerIndex("local", model, 64, timeout_seconds=10, client=client)

    for model in ("left", "kept"):
        await opened(model).ensure()
    await opened("left").drop()
    assert not await opened("left").exists()
    assert await opened("kept").exists()
    await opened("left").drop()


async def test_embedded_passages_survive_a_restart(tmp_path: Path) -> None:
    first = embedded(tmp_path)
    await first.ensure()
    await first.upsert(ACME, [await entry("refund")])
    await first.close()
    second = embedded(tmp_path)
    await second.ensure()
    assert await found(second, ACME, "refund") == ["refund"]
    await second.close()


async def test_a_second_owner_of_the_embedded_index_is_told_what_to_do(tmp_path: Path) -> None:
    first, second = embedded(tmp_path), embedded(tmp_path)
    await first.ensure()
    with pytest.raises(IndexUnavailable, match="another process") as refused:
        await second.ensure()
    assert refused.value.retryable
    await first.close()
    await second.ensure()
    await second.close()


async def test_another_model_has_a_collection_of_its_own(tmp_path: Path) -> None:
    first = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    second = EmbeddedIndex(tmp_path, "two", 64, timeout_seconds=10)
    for opened in (first, second):
        await opened.ensure()
    await first.upsert(ACME, [await entry("refund")])
    assert await found(second, ACME, "refund") == []
    for opened in (first, second):
        await opened.close()
    assert collection_name("a/b", 3) != collection_name("a-b", 3)


async def test_a_panic_of_the_engine_is_an_outage_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It panics over damaged files; what it raises then is no ``Exception``."""

    class PanicException(BaseException):
        """As pyo3 makes it."""

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            raise PanicException("index out of bounds")

    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    monkeypatch.setattr(qdrant_edge, "open_shard", lambda *_: Damaged())
    with pytest.raises(IndexUnavailable, match="out of bounds"):
        await index.check()
    await index.close()


def bytes_of_segments(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("segments/**/*") if file.is_file())


async def test_deleting_gives_the_disk_back_and_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    """The vectors are long, so that few passages fill a segment that the engine rewrites."""
    size, count, kept = 2048, 1200, 700
    index = EmbeddedIndex(tmp_path, "long", size, timeout_seconds=60)

    def vector_of(number: int) -> list[float]:
        return [float(place == number) for place in range(size)]

    async def found(**arm: Any) -> list[str]:
        query = PassageQuery(ACME, DOCUMENT, arm.get("dense"), arm.get("sparse"), 1)
        return [hit.passage.id for hit in await index.search(query)]

    entries = [
        IndexEntry(Passage(f"{number}", DOCUMENT, f"{number}.md", f"word{number}"), vector_of(number), sparse)
        for number, sparse in enumerate(encode_document(f"word{number}") for number in range(count))
    ]
    await index.upsert(ACME, entries)
    before = bytes_of_segments(tmp_path)
    await index.delete(ACME, DOCUMENT, ids=[f"{number}" for number in range(count - kept)])
    assert bytes_of_segments(tmp_path) < 0.8 * before
    assert await index.count(ACME, DOCUMENT) == kept
    assert len(await index.vectors(ACME, DOCUMENT, await index.ids(ACME, DOCUMENT))) == kept
    for number in (0, count - kept - 1, count - kept, count - 1):
        is_there = number >= count - kept
        assert await found(sparse=encode_query(f"word{number}")) == ([f"{number}"] if is_there else [])
        assert (await found(dense=vector_of(number)) == [f"{number}"]) is is_there
    await index.drop_workspace(ACME)
    assert await index.count(ACME, DOCUMENT) == 0
    await index.close()


@pytest.mark.parametrize("name", ["payload_storage/tracker.dat", "payload_storage/page_0.dat", "edge_config.json"])
async def test_a_damaged_index_is_set_aside_and_begun_anew(tmp_path: Path, name: str) -> None:
    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    await index.ensure()
    await index.upsert(ACME, [await entry("refund")])
    await index.close()
    damaged = next(tmp_path.rglob(name))
    if name.endswith("page_0.dat"):
        os.truncate(damaged, 0)  # the engine does not notice as it opens
    else:
        damaged.unlink()

    again = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    await again.ensure()
    assert await again.count(ACME, DOCUMENT) == 0
    await again.upsert(ACME, [await entry("refund")])
    assert len(await found(again, ACME, "refund")) == 1
    aside = [one for one in tmp_path.iterdir() if "damaged" in one.name]
    assert len(aside) == (0 if name == "edge_config.json" else 1)
    await again.drop()
    assert list(tmp_path.iterdir()) == []


async def test_an_index_on_a_full_disk_says_so_instead_of_being_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = embedded(tmp_path)
    await index.upsert(ACME, [await entry("refund")])
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: full)
        with pytest.raises(IndexUnavailable, match="no space left"):
            await index.upsert(ACME, [await entry("doors")])
        assert await found(index, ACME, "refund") == ["refund"]
    await index.upsert(ACME, [await entry("doors")])
    assert await index.count(ACME, DOCUMENT) == 2
    await index.close()


async def test_opening_may_take_longer_than_a_search_and_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, limit, open_shard = 0, 0.5, qdrant_edge.open_shard

    def slowly(*about: Any) -> Any:
        nonlocal began
        began += 1
        time.sleep(2 * limit)
        return open_shard(*about)

    monkeypatch.setattr(qdrant_edge, "open_shard", slowly)
    index = EmbeddedIndex(tmp_path, "test", 3, timeout_seconds=limit)
    await index.ensure()
    assert began == 1
    await index.close()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        Exception("Service runtime error: failed to load segment: Cannot allocate memory (os error 12)"),
        Exception("failed to lock: WouldBlock"),
    ],
)
async def test_an_index_that_cannot_be_opened_now_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: object) -> None:
        raise error

    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    await index.ensure()
    await index.upsert(ACME, [await entry("refund")])
    await index.close()
    index = EmbeddedIndex(tmp_path, "one", 64, timeout_seconds=10)
    with monkeypatch.context() as patched:
        patched.setattr(qdrant_edge, "open_shard", refused)
        with pytest.raises(IndexUnavailable):
            await index.ensure()
    await index.ensure()
    assert len(await found(index, ACME, "refund")) == 1
    assert not [*tmp_path.glob("*/damaged-*")]
    await index.close()


async def test_a_server_that_is_away_is_an_outage_that_may_pass() -> None:
    away = ServerIndex("http://127.0.0.1:9", "m", 4, timeout_seconds=2)
    for call in (away.ensure, away.check):
        with pytest.raises(IndexUnavailable) as outage:
            await call()
        assert outage.value.retryable
    await away.close()


def exception_classes(module: ModuleType) -> list[type[Exception]]:
    own = inspect.getmembers(module, inspect.isclass)
    return [kind for _, kind in own if issubclass(kind, Exception) and kind.__module__ == module.__name__]


SERVER_ERRORS: list[type[Exception]] = [
    *exception_classes(exceptions),
    *exception_classes(client_exceptions),
    asyncio.TimeoutError,
    httpx.ConnectError,
    httpx.ReadTimeout,
    httpx.InvalidURL,
    ConnectionResetError,
    ValueError,
    RuntimeError,
]


@pytest.mark.parametrize("kind", SERVER_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_class_of_the_client_is_in_the_table(kind: type[Exception]) -> None:
    assert any(issubclass(kind, known) for known, _, _ in qdrant_server.ERRORS)
    error = kind.__new__(kind)
    if isinstance(error, exceptions.UnexpectedResponse):
        error.status_code = None
    if isinstance(error, exceptions.ResponseHandlingException):
        error.source = ValueError("no JSON")
    assert isinstance(qdrant_server.unavailable(error, "here"), IndexUnavailable)


def test_every_http_status_is_final_or_passing_as_it_should_be() -> None:
    for status in range(400, 600):
        mapped = qdrant_server.unavailable(exceptions.UnexpectedResponse(status, "no", b"", httpx.Headers()), "here")
        assert mapped.retryable == (status >= 500 or status in (404, 408, 409, 425, 429))
        assert str(status) in str(mapped)


@pytest.mark.parametrize(
    ("said", "retryable"),
    [
        ("Service runtime error: failed to open WAL x: Can't init WAL: Kind(WouldBlock)", True),
        ("Service runtime error: IO Error: No space left on device", True),
        ("Vector dimension error: expected dim: 4, got 3", False),
        ("Not existing vector name error: nope", False),
        ("Service runtime error: Shard is not initialized", True),
        ("something that no version said before", True),
    ],
)
def test_every_message_of_the_embedded_engine_is_in_the_table(said: str, retryable: bool) -> None:
    mapped = qdrant_edge.unavailable(Exception(said), Path("here"))
    assert mapped.retryable is retryable
    assert said in str(mapped)


async def test_vectors_of_a_wrong_size_are_refused_for_good(tmp_path: Path) -> None:
    opened = embedded(tmp_path)
    await opened.ensure()
    with pytest.raises(IndexUnavailable, match="another size") as refused:
        await opened.search(PassageQuery(ACME, DOCUMENT, [1.0], None, 5))
    assert not refused.value.retryable
    await opened.close()


@pytest.mark.parametrize(("version", "count"), [("1.18.2", 1), ("1.19.0", 0), ("2.0.1", 0), ("dev", 0)])
async def test_a_server_that_counts_words_over_all_workspaces_is_told(version: str, count: int) -> None:
    """An older one passes over what it is asked there without a word."""
    index = ServerIndex("http://qdrant", "m", 4, timeout_seconds=10, client=Versioned(version))
    with capture_logs() as events:
        await index.ensure()
    told = [event["why"] for event in events if event["event"] == "store.degraded"]
    assert len(told) == count
    assert all(f"version {version}: upgrade it" in why for why in told)


async def test_a_server_that_knows_no_fusion_by_scores_is_not_used_and_its_version_told() -> None:
    index = ServerIndex("http://qdrant", "m", 4, timeout_seconds=10, client=Versioned("1.9.7"))
    with pytest.raises(IndexUnavailable, match=r"http://qdrant is of version 1\.9\.7: upgrade it to 1\.19 or later"):
        await index.ensure()


async def test_a_server_behind_something_that_tells_no_version_is_used() -> None:
    client = Versioned("1.20.0")
    client.error = exceptions.UnexpectedResponse(403, "no", b"", httpx.Headers())
    index = ServerIndex("http://qdrant", "m", 4, timeout_seconds=10, client=client)
    with capture_logs() as events:
        await index.ensure()
    assert events == []


class Versioned(SharedQdrant):
    """Says that it is of some version, or raises an error instead."""

    def __init__(self, version: str) -> None:
        super().__init__(":memory:")
        self.version = version
        self.error: Exception | None = None

    async def info(self) -> models.VersionInfo:
        if self.error is not None:
            raise self.error
        return models.VersionInfo(title="qdrant", version=self.version)
