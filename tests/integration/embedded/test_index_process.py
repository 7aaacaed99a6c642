"""The embedded search index and the deeper model in a process of their own: what becomes of what is asked when that
ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import ConnectionState
from connectors.message import Scope
from grounding.retrieval import (
    EmbedderUnavailable,
    IndexEntry,
    IndexUnavailable,
    Kind,
    MiniLMEmbedder,
    ModelLoading,
    Passage,
    PassageQuery,
    Source,
    Vector,
    encode_document,
)
from grounding.retrieval.bm25 import encode_query
from runtime.embedded.index_client import (
    QUESTIONS_KEPT,
    DeepModel,
    IndexProcess,
    RemoteIndex,
    index_process,
    start_index_process,
)
from tests.emulators.embedder import HashedWords
from tests.integration.embedded.conftest import runs

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
ACME, CHAT = Scope("acme"), Scope("acme", "http:one")
WORDS = HashedWords()
MANY = 400
PATIENT = 120.0
"""These tests ask whether there is an answer: the machine may be busy."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[IndexProcess]:
    """One for all tests, that is replaced at once where a test ends it."""
    log = tmp_path_factory.mktemp("log")
    async with index_process(log, wait_seconds=PATIENT, pause_seconds=(0.02, 0.02)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def index(process: IndexProcess, tmp_path: Path) -> AsyncIterator[RemoteIndex]:
    """An open index in a folder of the test's own."""
    opened = index_in(process, tmp_path)
    await opened.ensure()
    yield opened
    await opened.close()


def index_in(process: IndexProcess, folder: Path) -> RemoteIndex:
    return RemoteIndex(
        process, folder / "qdrant", WORDS.name, WORDS.dimensions, timeout_seconds=120, deep_dimensions=WORDS.dimensions
    )


def entry(number: int, text: str = "", *, kind: Kind = Kind.DOCUMENT, source: str = "") -> IndexEntry:
    text = text or f"passage number{number} of the harbour"
    previous = f"{number - 1}" if kind is Kind.TURN else ""
    said_at = "2026-01-02T10:00:00+00:00" if kind is Kind.TURN else ""
    passage = Passage(f"{number}", kind, source or f"{number}", text, said_at=said_at, previous=previous)
    return IndexEntry(passage, WORDS._embed(text), encode_document(text))


async def found(index: RemoteIndex) -> set[str]:
    hits = await index.search(PassageQuery(ACME, Kind.DOCUMENT, WORDS._embed("harbour"), encode_query("harbour"), 1000))
    return {hit.passage.text for hit in hits}


def end(process: IndexProcess, how: signal.Signals = signal.SIGKILL) -> int:
    assert process.pid is not None
    os.kill(process.pid, how)
    return process.pid


async def restarted(process: IndexProcess, ended: int) -> None:
    await until(lambda: process.pid not in (ended, None))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("change", ["upsert", "replace", "delete", "deepen"])
async def test_a_change_during_which_the_process_is_killed_fails_and_can_be_made_again(
    index: RemoteIndex, process: IndexProcess, change: str
) -> None:
    there = [entry(number, source="a.md") for number in range(MANY)]
    await index.upsert(ACME, there[: MANY // 2])

    async def made() -> None:
        if change == "upsert":
            await index.upsert(ACME, there)
        elif change == "replace":
            await index.replace([Source(ACME, Kind.DOCUMENT, "a.md", there)])
        elif change == "delete":
            await index.delete(ACME, Kind.DOCUMENT, ids=[one.passage.id for one in there])
        else:
            await index.deepen(ACME, Kind.DOCUMENT, {one.passage.id: one.dense for one in there})

    making = asyncio.create_task(made())
    await asyncio.sleep(0.005)
    ended = end(process)
    with suppress(IndexUnavailable):  # it may have been done already
        await making
    await restarted(process, ended)
    at_least = 0 if change == "delete" else MANY // 2
    assert at_least <= await index.count(ACME, Kind.DOCUMENT) <= MANY
    await made()
    expected = {"delete": 0, "deepen": MANY // 2}.get(change, MANY)
    assert await index.count(ACME, Kind.DOCUMENT) == expected
    if change == "deepen":
        assert await index.count(ACME, Kind.DOCUMENT, shallow=True) == 0


async def test_a_call_that_is_lost_with_its_process_fails_and_the_next_process_has_what_was_stored(
    index: RemoteIndex, process: IndexProcess
) -> None:
    await index.upsert(ACME, [entry(number) for number in range(MANY)])
    asked = [asyncio.create_task(found(index)) for _ in range(5)]
    await asyncio.sleep(0)
    ended = end(process)
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert (isinstance(answer, IndexUnavailable) and answer.retryable) or len(answer) == MANY  # type: ignore[arg-type]
    await restarted(process, ended)
    assert await index.count(ACME, Kind.DOCUMENT) == MANY
    assert len(await found(index)) == MANY


async def test_who_waits_for_the_next_process_while_the_index_is_closed_is_told_so(
    index: RemoteIndex, process: IndexProcess
) -> None:
    end(process)
    await until(lambda: not process.is_ready)
    asking = asyncio.create_task(index.check())
    await asyncio.sleep(0)
    await index.close()
    with pytest.raises(IndexUnavailable, match="is closed"):
        await asking


async def test_what_the_system_ends_where_the_disk_is_full_is_the_process_of_the_index_alone(
    index: RemoteIndex, process: IndexProcess
) -> None:
    """The engine writes into files with holes: where there is no room for a page of them the system sends SIGBUS."""
    with capture_logs() as logs:
        await restarted(process, end(process, signal.SIGBUS))
    (told,) = [one for one in logs if one["event"] == "store.degraded"]
    assert told["store"] == "qdrant"
    assert f"signal {int(signal.SIGBUS)}" in told["why"]
    assert await index.count(ACME, Kind.DOCUMENT) == 0


async def test_a_process_that_gives_no_answer_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    async with index_process(tmp_path, wait_seconds=PATIENT, ping_seconds=0.01, silence_seconds=2.0) as process:
        index = index_in(process, tmp_path)
        await index.upsert(ACME, [entry(number) for number in range(40)])
        with capture_logs() as logs:
            stopped = end(process, signal.SIGSTOP)
            with pytest.raises(IndexUnavailable):
                await index.count(ACME, Kind.DOCUMENT)
            await restarted(process, stopped)
        assert not runs(stopped)
        assert next(one["why"] for one in logs if one["event"] == "store.degraded").startswith("gave no answer")
        assert len(await found(index)) == 40
        await index.close()


async def test_a_process_that_stands_still_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with index_process(tmp_path, wait_seconds=PATIENT, stop_seconds=0.2) as process:
        index = index_in(process, tmp_path)
        await index.ensure()
        end(process, signal.SIGSTOP)
        with capture_logs() as logged:
            async with asyncio.timeout(60):
                await index.close()
        assert [one["event"] for one in logged] == ["store.degraded"]


async def test_while_there_is_no_process_whoever_asks_is_told_why(tmp_path: Path) -> None:
    async with index_process(tmp_path, wait_seconds=0.2, pause_seconds=(600.0, 600.0)) as process:
        process.begin()
        await until(lambda: process.is_ready)
        end(process)
        await until(lambda: process.health.state is ConnectionState.DEGRADED and process.pid is None)
        with pytest.raises(IndexUnavailable, match="the process of the search index is not there: was ended") as told:
            await index_in(process, tmp_path).check()
        assert told.value.retryable


async def test_whoever_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from runtime.embedded.index_client import index_process

async def main():
    async with index_process(Path({str(tmp_path)!r})) as process:
        process.begin()
        while process.pid is None:
            await asyncio.sleep(0.01)
        print(process.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert runs(pid)
    finally:
        parent.kill()
        parent.wait()
    await until(lambda: not runs(pid))


async def test_what_the_former_process_wrote_is_kept(tmp_path: Path) -> None:
    log, former = tmp_path / "qdrant.log", tmp_path / "qdrant.log.1"
    log.write_text("how the last one ended\n")
    async with start_index_process(Settings(data_dir=tmp_path)) as process:
        assert process is not None
        await until(lambda: process.health.state is ConnectionState.CONNECTED)
        assert former.read_text() == "how the last one ended\n"
        with capture_logs() as logs:
            await restarted(process, end(process))
    (told,) = [one for one in logs if one["event"] == "store.degraded"]
    assert told["why"] == f"was ended by signal {signal.SIGKILL:d}"


async def test_a_folder_has_one_owner(index: RemoteIndex, tmp_path: Path) -> None:
    async with index_process(tmp_path / "other") as second:
        other = index_in(second, tmp_path)
        with pytest.raises(IndexUnavailable, match="in use by another process"):
            await other.ensure()
        await other.close()
    await index.check()


async def test_what_is_cancelled_is_not_done_to_its_end(index: RemoteIndex) -> None:
    storing = asyncio.create_task(index.upsert(ACME, [entry(number) for number in range(3000)]))
    searching = asyncio.create_task(found(index))
    await asyncio.sleep(0.05)
    for task in (storing, searching):
        task.cancel()
    await asyncio.gather(storing, searching, return_exceptions=True)
    before = await index.count(ACME, Kind.DOCUMENT)
    await asyncio.sleep(0.1)
    assert await index.count(ACME, Kind.DOCUMENT) == before < 3000


async def test_a_search_compares_the_deeper_vectors(index: RemoteIndex) -> None:
    await index.upsert(ACME, [entry(number) for number in range(20)])
    await index.deepen(ACME, Kind.DOCUMENT, {f"{number}": WORDS._embed(f"number{number}") for number in range(20)})
    asked = WORDS._embed("harbour"), encode_query("harbour")

    query = PassageQuery(ACME, Kind.DOCUMENT, *asked, 20, explain=True, deep=WORDS._embed("number7"))
    first, *_ = await index.search(query)
    assert first.passage.id == "7"
    assert first.deep is not None
    without, *_ = await index.search(replace(query, deep=None))
    assert without.deep is None


async def test_errors_travel_as_themselves(index: RemoteIndex) -> None:
    with pytest.raises(ValueError, match="names none"):
        await index.count(ACME, Kind.TURN)
    with pytest.raises(IndexUnavailable, match="another size") as failed:
        await index.upsert(ACME, [replace(entry(1), dense=[1.0])])
    assert not failed.value.retryable


TEXTS = [
    "The refund window is thirty days.",
    "Schiffe im Hafen \U0001f6a2 – \udcff",
    "",
    "the refund window " * 1000,
]


async def test_the_deeper_vectors_are_those_of_the_model_in_this_process(process: IndexProcess) -> None:
    here, model = MiniLMEmbedder(only_english=True), DeepModel(process, PATIENT)
    assert (model.name, model.dimensions) == (here.name, here.dimensions)
    vectors = await model.embed_documents(TEXTS)
    for vector, other in zip(vectors, await here.embed_documents(TEXTS), strict=True):
        assert vector == pytest.approx(other, abs=1e-6)
    assert vectors[2] == [0.0] * 384
    assert await model.embed_queries(TEXTS[:2]) == vectors[:2]


async def test_a_question_is_embedded_once_for_all_who_search_for_it() -> None:
    class Child:
        """Notes what it is asked."""

        def __init__(self) -> None:
            self.asked: list[list[str]] = []

        async def call(self, target: None, method: str, texts: list[str]) -> list[Vector]:
            self.asked.append(texts)
            return [[float(len(text))] for text in texts]

    child = Child()
    model = DeepModel(cast("IndexProcess", child), PATIENT)
    assert await model.embed_queries(["refund", "window"]) == [[6.0], [6.0]]
    assert await model.embed_queries(["window", "harbour", "window"]) == [[6.0], [7.0], [6.0]]
    await model.embed_queries([f"question {number}" for number in range(QUESTIONS_KEPT)])
    await model.embed_queries(["refund"])
    assert [len(texts) for texts in child.asked] == [2, 1, QUESTIONS_KEPT, 1]


async def test_a_question_whose_vector_comes_late_goes_without(process: IndexProcess) -> None:
    model = DeepModel(process, 0.0)
    with pytest.raises(ModelLoading):
        await model.embed_queries(["refund"])
    await model.embed_documents(["it is loaded"])
    with pytest.raises(EmbedderUnavailable, match="late") as late:
        await model.embed_queries(["refund"])
    assert not isinstance(late.value, ModelLoading)


async def test_a_question_and_a_search_do_not_wait_behind_documents(index: RemoteIndex, process: IndexProcess) -> None:
    model = DeepModel(process, PATIENT)
    await model.embed_documents(["it is loaded"])
    many = asyncio.ensure_future(model.embed_documents(["how long is the window for a refund " * 40] * 40))
    storing = asyncio.ensure_future(index.upsert(ACME, [entry(number) for number in range(5000)]))
    await asyncio.sleep(0.2)
    assert len(await model.embed_queries(["refund"])) == 1
    while not await found(index):  # nothing may be stored yet
        await asyncio.sleep(0)
    assert not many.done()
    assert not storing.done()
    for task in (many, storing):
        task.cancel()


async def test_vectors_that_are_lost_with_their_process_are_computed_by_the_next_one(process: IndexProcess) -> None:
    model = DeepModel(process, PATIENT)
    await model.embed_documents(["it is loaded"])
    many = asyncio.ensure_future(model.embed_documents(["refund window " * 200] * 200))
    await asyncio.sleep(0.1)
    ended = end(process)
    with pytest.raises(EmbedderUnavailable) as failed:
        await many
    assert failed.value.retryable
    assert model.health.state is ConnectionState.DEGRADED
    await restarted(process, ended)
    assert len(await model.embed_documents(["again"])) == 1
    assert model.health.why == ""


async def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken" / "onnxruntime"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('built for another machine')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    async with index_process(tmp_path, wait_seconds=PATIENT) as process:
        model = DeepModel(process)
        with pytest.raises(EmbedderUnavailable, match="built for another machine"):
            await model.embed_documents(["refund"])
        assert model.health.state is ConnectionState.DEGRADED
        assert "built for another machine" in model.health.why


async def test_the_process_imports_little() -> None:
    """Each megabyte of it is there beside every bot."""
    heavy = {"litellm", "fastapi", "redis", "openai", "uvicorn", "qdrant_client", "aiogram", "discord"}
    program = f"import runtime.embedded.index_server, sys; print(sorted({heavy} & set(sys.modules)))"
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=ROOT, stdout=subprocess.PIPE)
    printed, _ = await run.communicate()
    assert printed.strip() == b"[]"


async def test_where_nobody_asks_or_there_is_a_server_there_is_no_process(tmp_path: Path) -> None:
    async with index_process(tmp_path) as process:
        await asyncio.sleep(0)
        assert (process.health.state, process.pid) == (ConnectionState.STOPPED, None)
    async with start_index_process(Settings(data_dir=tmp_path, qdrant_url="http://127.0.0.1:6333")) as none:
        assert none is None
