"""The embedded search index in a process of its own: what becomes of what is asked when that ends."""

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
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import State
from connectors.message import Scope
from grounding.documents.embedding import Vector
from grounding.documents.index import Entry, Hit, IndexUnavailable, Kind, Passage, Source
from grounding.documents.looking_back import Look, looked_back
from grounding.documents.relevance import TurnFloor
from grounding.documents.sparse import encode_document, encode_query
from runtime.embedded.asked_index import AskedIndex
from runtime.embedded.index_process import IndexProcess, begun, has_embedded, index_process
from runtime.embedded.index_program import MAX_LOG_BYTES
from tests.emulators.embedder import HashedWords

ROOT = Path(__file__).parents[2]
ACME, CHAT = Scope("acme"), Scope("acme", "http:one")
WORDS = HashedWords()
MANY = 400


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests ask is whether there is an answer: the machine may be busy."""
    for name in ("BACK_SECONDS", "READY_SECONDS"):
        monkeypatch.setattr(f"runtime.embedded.index_process.{name}", 120.0)


@pytest_asyncio.fixture
async def process(tmp_path: Path) -> AsyncIterator[IndexProcess]:
    async with index_process(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def index(process: IndexProcess, tmp_path: Path) -> AsyncIterator[AskedIndex]:
    opened = index_in(process, tmp_path)
    await opened.ensure()
    yield opened
    await opened.close()


def index_in(process: IndexProcess, folder: Path) -> AskedIndex:
    return AskedIndex(
        process, folder / "qdrant", WORDS.name, WORDS.dimensions, timeout_seconds=120, deep_dimensions=WORDS.dimensions
    )


def entry(number: int, text: str = "", *, kind: Kind = Kind.DOCUMENT, source: str = "") -> Entry:
    text = text or f"passage number{number} of the harbour"
    previous = f"{number - 1}" if kind is Kind.TURN else ""
    said_at = "2026-01-02T10:00:00+00:00" if kind is Kind.TURN else ""
    passage = Passage(f"{number}", kind, source or f"{number}", text, said_at=said_at, previous=previous)
    return Entry(passage, WORDS._embed(text), encode_document(text))


async def found(index: AskedIndex, scope: Scope = ACME, kind: Kind = Kind.DOCUMENT, query: str = "harbour") -> set[str]:
    hits = await index.search(scope, kind, WORDS._embed(query), encode_query(query), 1000)
    return {hit.passage.text for hit in hits}


def end(process: IndexProcess, how: signal.Signals = signal.SIGKILL) -> int:
    assert process.pid is not None
    os.kill(process.pid, how)
    return process.pid


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_what_was_stored_is_there_after_the_process_was_killed(index: AskedIndex, process: IndexProcess) -> None:
    await index.upsert(ACME, [entry(number) for number in range(40)])
    first = end(process)
    assert await index.count(ACME, Kind.DOCUMENT) == 40
    assert process.pid not in (first, None)
    assert len(await found(index)) == 40


@pytest.mark.parametrize("change", ["upsert", "replace", "delete", "deepen"])
async def test_a_change_during_which_the_process_is_killed_fails_and_can_be_made_again(
    index: AskedIndex, process: IndexProcess, change: str
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
    end(process)
    with suppress(IndexUnavailable):  # it may have been done already
        await making
    at_least = 0 if change == "delete" else MANY // 2
    assert at_least <= await index.count(ACME, Kind.DOCUMENT) <= MANY
    await made()
    expected = {"delete": 0, "deepen": MANY // 2}.get(change, MANY)
    assert await index.count(ACME, Kind.DOCUMENT) == expected
    if change == "deepen":
        assert await index.count_shallow(ACME, Kind.DOCUMENT) == 0


@pytest.mark.parametrize("asked_for", [True, False])
async def test_a_look_back_is_one_question_to_the_process_and_finds_what_is_found_here(
    index: AskedIndex, process: IndexProcess, monkeypatch: pytest.MonkeyPatch, asked_for: bool
) -> None:
    said = [entry(number, f"Ann: the key of house{number} is green", kind=Kind.TURN) for number in range(MANY)]
    await index.upsert(CHAT, said)
    floor = TurnFloor(0.3, 0.2, unasked=0.3, unasked_few=0.3)
    shown = frozenset(str(number) for number in range(200, 210))
    query = "which key has house203?"
    look = Look(query, WORDS._embed(query), encode_query(query), shown, floor, 12, asked_for)
    asked: list[str] = []
    ask = process.ask

    async def noted(what: tuple[str, ...], *about: Any, **how: Any) -> list[Any]:
        asked.append(what[0])
        return await ask(what, *about, **how)

    monkeypatch.setattr(process, "ask", noted)
    found = await index.look_back(CHAT, look)
    assert asked == ["look_back"]
    assert found == await looked_back(index, CHAT, look)
    assert found
    assert shown.isdisjoint(part.source for part in found)
    end(process)
    assert await index.look_back(CHAT, look)
    nothing = replace(look, floor=TurnFloor(9, 9, unasked=9, unasked_few=9))
    assert await index.look_back(CHAT, nothing) == []


async def test_what_only_reads_is_asked_again_of_the_next_process(index: AskedIndex, process: IndexProcess) -> None:
    await index.upsert(ACME, [entry(number) for number in range(MANY)])
    for _ in range(3):
        asked = [asyncio.create_task(found(index)) for _ in range(5)]
        await asyncio.sleep(0)
        end(process)
        assert {len(some) for some in await asyncio.gather(*asked)} == {MANY}


async def test_several_that_ask_before_the_end_of_the_process_was_noticed_are_answered_by_the_next_one(
    index: AskedIndex, process: IndexProcess
) -> None:
    await index.upsert(ACME, [entry(1)])
    ended = end(process)
    while _runs(ended):  # awaiting nothing: the event loop does not see it end
        pass
    counts = await asyncio.gather(*(index.count(ACME, Kind.DOCUMENT) for _ in range(3)))
    assert counts == [1, 1, 1]


async def test_who_waits_for_the_next_process_while_the_index_is_closed_is_told_so(
    index: AskedIndex, process: IndexProcess
) -> None:
    end(process)
    await until(lambda: process.pid is None)
    asking = asyncio.create_task(index.check())
    await asyncio.sleep(0)
    await index.close()
    with pytest.raises(IndexUnavailable, match="is closed"):
        await asking


async def test_what_the_system_ends_where_the_disk_is_full_is_the_process_of_the_index_alone(
    index: AskedIndex, process: IndexProcess
) -> None:
    """The engine writes into files with holes: where there is no room for a page of them the system sends SIGBUS."""
    with capture_logs() as logs:
        end(process, signal.SIGBUS)
        await until(lambda: process.health.state is State.DEGRADED)
    (told,) = [one for one in logs if one["event"] == "store.degraded"]
    assert told["store"] == "qdrant"
    assert f"signal {int(signal.SIGBUS)}" in told["why"]
    assert await index.count(ACME, Kind.DOCUMENT) == 0


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked, and looked at, all the time."""
    monkeypatch.setattr("runtime.embedded.index_process.BEAT_SECONDS", 0.01)
    monkeypatch.setattr("runtime.embedded.index_process.LOOK_SECONDS", 0.02)


@pytest.mark.usefixtures("often")
async def test_a_process_that_stands_still_is_replaced_and_nothing_is_lost(
    index: AskedIndex, process: IndexProcess
) -> None:
    await index.upsert(ACME, [entry(number) for number in range(40)])
    with capture_logs() as logs:
        stopped = end(process, signal.SIGSTOP)
        assert await index.count(ACME, Kind.DOCUMENT) == 40
    assert process.pid not in (stopped, None)
    assert not _runs(stopped)
    (told,) = [one["why"] for one in logs if one["event"] == "store.degraded"]
    assert "gave no answer and did nothing" in told
    assert len(await found(index)) == 40


@pytest.mark.usefixtures("often")
async def test_a_change_that_a_process_stands_still_in_fails_and_can_be_made_again(
    index: AskedIndex, process: IndexProcess
) -> None:
    there = [entry(number) for number in range(MANY)]
    storing = asyncio.create_task(index.upsert(ACME, there))
    await asyncio.sleep(0.05)
    end(process, signal.SIGSTOP)
    with suppress(IndexUnavailable):  # it may have been done already
        await storing
    assert await index.count(ACME, Kind.DOCUMENT) <= MANY
    await index.upsert(ACME, there)
    assert await index.count(ACME, Kind.DOCUMENT) == MANY


@pytest.mark.usefixtures("often")
async def test_a_process_that_works_is_left_alone(index: AskedIndex, process: IndexProcess) -> None:
    pid = process.pid
    for _ in range(3):
        await index.upsert(ACME, [entry(number, source="a.md") for number in range(3000)])
        await index.delete(ACME, Kind.DOCUMENT, source="a.md")
    assert process.pid == pid


async def test_while_there_is_no_process_whoever_asks_is_told_why(
    index: AskedIndex, process: IndexProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.embedded.index_process.BACK_SECONDS", 0.05)
    monkeypatch.setattr("runtime.embedded.child.FIRST_PAUSE_SECONDS", 60.0)
    process._child._program.spawn = _no_process  # type: ignore[method-assign]
    end(process)
    await until(lambda: process.health.state is State.DEGRADED and process.pid is None)
    with pytest.raises(IndexUnavailable, match="the process of the search index is not there") as told:
        await index.check()
    assert told.value.retryable


async def _no_process() -> asyncio.subprocess.Process:
    raise OSError("no more processes")


async def test_whoever_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from runtime.embedded.index_process import index_process

async def main():
    async with index_process(Path({str(tmp_path)!r})) as process:
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
        assert _runs(pid)
    finally:
        parent.kill()
        parent.wait()
    await until(lambda: not _runs(pid))


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_serve_starts_it_before_it_imports_what_it_serves_with(tmp_path: Path) -> None:
    program = """
import sys
from types import ModuleType
from runtime.cli.main import invoke

async def serve(settings, role, log_format, fallen_back, engine):
    print(engine.pid is not None, {"runtime.bootstrap", "grounding.pipeline", "rich"} & {*sys.modules})

sys.modules["runtime.serve"] = ModuleType("runtime.serve")
sys.modules["runtime.serve"].serve = serve
invoke(["serve"])
"""
    environment = {**os.environ, "AGENT_RUNTIME_DATA_DIR": str(tmp_path / "data")}
    found = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout == "True set()\n", found.stderr


async def test_what_the_former_process_wrote_is_kept_within_bounds(tmp_path: Path) -> None:
    log, former = tmp_path / "qdrant.log", tmp_path / "qdrant.log.1"
    log.write_text("how the last one ended\n")
    async with begun(Settings(data_dir=tmp_path)) as process:
        assert process is not None
        await until(lambda: process.health.state is State.CONNECTED)
        with capture_logs() as logs:
            ended = end(process)
            await until(lambda: process.pid not in (ended, None))
    said = log.read_text()
    assert said.startswith("how the last one ended\n")
    assert said.count(f"started by process {os.getpid()}\n") == 2
    (told,) = [one for one in logs if one["event"] == "store.degraded"]
    assert told["why"] == f"was ended by signal {signal.SIGKILL:d}"
    log.write_text("x" * (MAX_LOG_BYTES + 1))
    async with begun(Settings(data_dir=tmp_path)):
        assert former.stat().st_size == MAX_LOG_BYTES + 1
        assert log.stat().st_size < 100


async def test_a_folder_has_one_owner(index: AskedIndex, tmp_path: Path) -> None:
    async with index_process(tmp_path / "other") as second:
        other = index_in(second, tmp_path)
        with pytest.raises(IndexUnavailable, match="in use by another process"):
            await other.ensure()
        await other.close()
    await index.check()


async def test_what_is_cancelled_is_not_done_to_its_end(index: AskedIndex, process: IndexProcess) -> None:
    storing = asyncio.create_task(index.upsert(ACME, [entry(number) for number in range(3000)]))
    searching = asyncio.create_task(found(index))
    await asyncio.sleep(0.05)
    for task in (storing, searching):
        task.cancel()
    await asyncio.gather(storing, searching, return_exceptions=True)
    assert not process._waiting
    before = await index.count(ACME, Kind.DOCUMENT)
    await asyncio.sleep(0.1)
    assert await index.count(ACME, Kind.DOCUMENT) == before < 3000


async def test_the_deeper_vector_is_asked_for_beside_the_first_look(index: AskedIndex) -> None:
    await index.upsert(ACME, [entry(number) for number in range(20)])
    await index.deepen(ACME, Kind.DOCUMENT, {f"{number}": WORDS._embed(f"number{number}") for number in range(20)})
    asked = WORDS._embed("harbour"), encode_query("harbour")

    async def deeper() -> Vector | None:
        await asyncio.sleep(0.01)
        return WORDS._embed("number7")

    async def none() -> Vector | None:
        return None

    async def first(deep: Callable[[], object]) -> Hit:
        return (await index.search(ACME, Kind.DOCUMENT, *asked, 20, explain=True, deep=deep))[0]  # type: ignore[arg-type]

    assert (await first(deeper)).passage.id == "7"
    assert (await first(deeper)).deep is not None
    assert (await first(none)).deep is None


async def test_a_scope_that_may_not_be_asked_is_refused_before_there_is_a_process(tmp_path: Path) -> None:
    process = IndexProcess(tmp_path)
    index = index_in(process, tmp_path)
    for asking in (
        index.search(ACME, Kind.TURN, [1.0], None, 1),
        index.upsert(ACME, [entry(1, kind=Kind.TURN)]),
        index.replace([Source(ACME, Kind.TURN, "1", [])]),
        index.read(ACME, Kind.TURN, {"1": [0]}),
        index.count(ACME, Kind.TURN),
        index.delete(ACME, Kind.TURN),
    ):
        with pytest.raises(ValueError, match="names none"):
            await asking
    assert process.pid is None


def test_the_process_imports_little() -> None:
    """Each megabyte of it is there beside every bot."""
    heavy = {"pydantic", "litellm", "fastapi", "redis", "httpx", "openai", "uvicorn", "tiktoken"}
    program = f"import runtime.embedded.serve_index, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_where_there_is_a_server_there_is_no_process(tmp_path: Path) -> None:
    assert has_embedded(Settings(data_dir=tmp_path))
    assert not has_embedded(Settings(data_dir=tmp_path, qdrant_url="http://127.0.0.1:6333"))
