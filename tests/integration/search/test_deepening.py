"""Documents and material get deeper vectors in the background; searches use them where they are there."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from structlog.testing import capture_logs

from connectors.message import Scope
from grounding.codex import Size
from grounding.documents import indexed_text_of, passage_of_chunk
from grounding.memory.records import NewRecord, Provenance, Records, RecordStore, Type
from grounding.prompt_input import DegradedBlock, load_tokens
from grounding.retrieval import EmbedderUnavailable, Kind, ModelLoading, Vector, chunk_document
from runtime.embedded import background_task
from runtime.search import Deepening, Knowledge, deepening_unavailable_reason
from runtime.workspaces import SAMPLE
from tests.conftest import MakeSettings
from tests.emulators.embedder import HashedWords
from tests.emulators.face import ADMIN, Face, serving_face
from tests.integration.search.conftest import make_knowledge

ACME, OTHER, CHAT = Scope("acme"), Scope("other"), Scope("acme", "http:one")


class Deep:
    """A deeper model that can be away."""

    def __init__(self) -> None:
        self.words = HashedWords(24, "deeper")
        self.name, self.dimensions = self.words.name, self.words.dimensions
        self.fails: EmbedderUnavailable | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[list[str]] = []
        self.gives = 1000
        """After so many batches it ends."""

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        if self.fails is not None:
            raise self.fails
        return await self.words.embed_queries(texts)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        if texts == [""]:  # to have the model loaded
            return [[0.0] * self.dimensions]
        self.batches.append([*texts])
        await self.gate.wait()
        if len(self.batches) > self.gives:
            raise EmbedderUnavailable("the child ended", retryable=True)
        if self.fails is not None:
            raise self.fails
        return await self.words.embed_documents(texts)

    async def embed_notes(self, texts: Sequence[str]) -> list[Vector]:
        return await self.embed_documents(texts)

    @property
    def embedded(self) -> list[str]:
        return self.words.embedded


class House:
    """One process after the other on the same folder and Redis."""

    def __init__(self, redis: Redis, settings: MakeSettings) -> None:
        self.redis = redis
        self.settings = settings()
        self.deep = Deep()

    @asynccontextmanager
    async def process(self, *, shared: bool = False) -> AsyncIterator[tuple[Knowledge, Deepening]]:
        knowledge, workspaces = await make_knowledge(self.redis, self.settings, "acme", "other", deep=self.deep)
        deepening = Deepening(
            knowledge,
            self.deep,
            workspaces,
            knowledge.material,
            shared=shared,
            start_seconds=0.0,
            retry_seconds=0.02,
            look_seconds=0.01,
        )
        async with background_task(knowledge.open(), "open"):
            await knowledge.opened()
            yield knowledge, deepening
        await knowledge.close()


@pytest.fixture
def house(redis: Redis, settings: MakeSettings) -> House:
    return House(redis, settings)


@pytest_asyncio.fixture
async def opened(house: House) -> AsyncIterator[tuple[Knowledge, Deepening]]:
    async with house.process() as process:
        yield process


async def put(knowledge: Knowledge, path: str, text: str, scope: Scope = ACME) -> None:
    await knowledge.shelf.put(scope, path, text)
    await knowledge.index(scope, [path])


async def until_deepened(knowledge: Knowledge, scope: Scope = ACME) -> None:
    async with asyncio.timeout(60):
        while (await knowledge.status(scope)).shallow:
            await asyncio.sleep(0.01)


def sections(*words: str) -> str:
    return "\n\n".join(f"# {word}\n\nAbout {word}, in some words." for word in words)


async def test_what_can_be_found_gets_its_deeper_vectors_and_is_searched_by_them(
    house: House, opened: tuple[Knowledge, Deepening]
) -> None:
    knowledge, deepening = opened
    await put(knowledge, "a.md", sections("refunds", "windows", "harbours"))
    before = await knowledge.finding.search(ACME, "refunds", 5, explain=True)
    assert (await knowledge.status(ACME)).shallow == 3
    assert before
    assert all(hit.deep is None for hit in before)
    with capture_logs() as events:
        await deepening.look()
    (told,) = [event for event in events if event["event"] == "index.deepened"]
    assert (told["workspace_id"], told["chunks"]) == ("acme", 3)
    assert told["duration_ms"] >= 0
    assert (await knowledge.status(ACME)).shallow == 0
    after = await knowledge.finding.search(ACME, "refunds", 5, explain=True)
    assert {hit.passage.id for hit in after} == {hit.passage.id for hit in before}
    assert all(hit.deep is not None for hit in after)
    with capture_logs() as events:
        await deepening.look()
    assert events == []


async def test_records_that_were_stored_without_a_deeper_vector_get_it_at_the_next_start(house: House) -> None:
    """As those of earlier versions, or of a time when the model was away. Records are stored without waiting for it."""
    mine, store = Scope("acme", audience="http:u1"), RecordStore(house.redis)
    async with house.process() as (knowledge, _):
        records = Records(store, load_tokens(), (await knowledge.ready()).records)
        house.deep.fails = EmbedderUnavailable("the child ended", retryable=True)
        for scope in (ACME, mine):
            await records.add(scope, NewRecord(Type.FACT, f"refunds of {scope.audience}"), Provenance())
        house.deep.fails = None
        before = await records.search_by_type(mine, "refunds", {Type.FACT: 5})
        assert [one.deep for one in before] == [None, None]

    async with house.process() as (knowledge, deepening):
        records = Records(store, load_tokens(), (await knowledge.ready()).records)
        await deepening.look()
        after = await records.search_by_type(mine, "refunds", {Type.FACT: 5})
        assert [one.deep is not None and len(one.vector) == house.deep.dimensions for one in after] == [True, True]


async def test_a_large_workspace_keeps_no_other_waiting(house: House, opened: tuple[Knowledge, Deepening]) -> None:
    knowledge, deepening = opened
    await put(knowledge, "old.md", sections(*(f"old{n}" for n in range(200))))
    house.deep.gate.clear()
    async with background_task(deepening.run(), "deepening"):
        async with asyncio.timeout(60):
            while not house.deep.batches:
                await asyncio.sleep(0.01)
        await put(knowledge, "new.md", sections("new"), OTHER)
        house.deep.gate.set()
        await until_deepened(knowledge)
        await put(knowledge, "later.md", sections("later"))
        await until_deepened(knowledge)
    texts = [" ".join(batch) for batch in house.deep.batches]
    assert "About new," in texts[1] + texts[2]
    assert "later" in texts[-1]
    assert sum(map(len, house.deep.batches)) == 202


async def test_whoever_comes_next_goes_on_and_embeds_nothing_again(house: House) -> None:
    async with house.process() as (knowledge, deepening):
        await put(knowledge, "a.md", sections(*(f"word{n}" for n in range(100))))
        house.deep.gives = 1
        with pytest.raises(EmbedderUnavailable):
            await deepening.look()
        assert await knowledge.finding.search(ACME, "word1", 5)
        left = (await knowledge.status(ACME)).shallow
    assert 0 < left == 100 - len(house.deep.batches[0])

    house.deep.gives = 1000
    house.deep.embedded.clear()
    async with house.process() as (again, deepening):
        await deepening.look()
        assert (await again.status(ACME)).shallow == 0
        assert len(house.deep.embedded) == left


async def test_what_is_deleted_meanwhile_does_not_come_back(house: House, opened: tuple[Knowledge, Deepening]) -> None:
    knowledge, deepening = opened
    await put(knowledge, "a.md", sections("refunds", "windows"))
    await put(knowledge, "b.md", sections("harbours"))
    house.deep.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(deepening.look())
        async with asyncio.timeout(60):
            while not house.deep.batches:
                await asyncio.sleep(0.01)
        for path in ("a.md", "b.md"):
            await knowledge.shelf.delete(ACME, path)
        await knowledge.index(ACME, ["a.md", "b.md"])
        house.deep.gate.set()
    assert (await knowledge.status(ACME)).chunks == 0
    assert await knowledge.finding.search(ACME, "refunds harbours", 5) == []


async def test_what_did_not_change_in_a_document_is_not_embedded_again(
    house: House, opened: tuple[Knowledge, Deepening]
) -> None:
    knowledge, deepening = opened
    await put(knowledge, "a.md", "# Guide\n\n" + sections("refunds", "windows"))
    await deepening.look()
    house.deep.embedded.clear()
    await put(knowledge, "a.md", "# Guide\n\n" + sections("refunds", "windows", "harbours"))
    assert (await knowledge.status(ACME)).shallow == 1
    await deepening.look()
    assert len(house.deep.embedded) == 1


async def test_a_model_that_is_away_is_asked_again(house: House, opened: tuple[Knowledge, Deepening]) -> None:
    knowledge, deepening = opened
    await put(knowledge, "a.md", sections("refunds"))
    house.deep.fails = EmbedderUnavailable("the child ended", retryable=True)
    with capture_logs() as events:
        async with background_task(deepening.run(), "deepening"):
            async with asyncio.timeout(60):
                while not any(event["event"] == "index.failed" for event in events):
                    await asyncio.sleep(0.01)
            house.deep.fails = None
            await until_deepened(knowledge)


async def test_material_gets_them_too_in_the_scope_of_its_owner(
    house: House, opened: tuple[Knowledge, Deepening]
) -> None:
    knowledge, deepening = opened
    collection = await knowledge.ready()
    for scope in (ACME, CHAT, OTHER):
        await knowledge.material.put(scope, "a.md", sections("refunds"), Size(10, 10))
        await collection.material.sync(Scope(scope.workspace_id))
    await deepening.look()
    for scope in (ACME, CHAT, OTHER):
        assert await collection.index.count(scope, Kind.CODEX) == 1
        assert await collection.index.count(scope, Kind.CODEX, shallow=True) == 0
    hits = await collection.material_search.search(CHAT, "refunds", 5, explain=True)
    assert [hit.deep is None for hit in hits] == [False, False]


async def test_a_question_whose_vector_comes_late_is_searched_without_and_that_is_named(
    house: House, opened: tuple[Knowledge, Deepening]
) -> None:
    knowledge, deepening = opened
    await put(knowledge, "a.md", sections("refunds"))
    await deepening.look()
    house.deep.fails = EmbedderUnavailable("late", retryable=True)
    lost: list[DegradedBlock] = []
    (hit,) = await knowledge.finding.search(ACME, "refunds", 5, explain=True, lost=lost)
    assert hit.deep is None
    assert lost == [DegradedBlock(block="deep", why="late")]
    house.deep.fails = ModelLoading("deeper")  # nobody could expect it yet
    lost.clear()
    assert len(await knowledge.finding.search(ACME, "refunds", 5, lost=lost)) == 1
    assert lost == []


async def test_a_follow_up_is_compared_by_what_was_said_before_too(
    house: House, opened: tuple[Knowledge, Deepening]
) -> None:
    knowledge, deepening = opened
    await put(knowledge, "a.md", sections("refunds", "harbours"))
    await deepening.look()
    search = (await knowledge.ready()).search
    found = await search.search(ACME, "and the words?", 5, earlier=["refunds"], explain=True)
    alone = await search.search(ACME, "and the words?", 5, explain=True)
    cosines = [{hit.passage.heading: hit.deep.score for hit in hits if hit.deep} for hits in (found, alone)]
    assert cosines[0]["refunds"] > cosines[0]["harbours"]
    assert cosines[0]["refunds"] > cosines[1]["refunds"]


def test_what_is_embedded_is_what_was_searched() -> None:
    """The deeper model reads the same text as the quick one, made of what the index holds."""
    count = load_tokens().count
    table = "| a | b |\n|---|---|\n" + "\n".join(f"| {n} | some words about {n} |" for n in range(300))
    text = f"---\ntitle: Guide\n---\nFirst words.\n\n# Refunds\n\nText.\n\n## Windows\n\n{table}\n\n# Guide\n\nMore."
    for path, document in (("docs/a.md", text), ("b.md", "# B\n\nText\n\n## C\n\nMore"), ("c.txt", "Plain\n\ntext")):
        chunks = chunk_document(path, document, count)
        assert chunks
        assert [indexed_text_of(passage_of_chunk(chunk)) for chunk in chunks] == [one.indexed_text for one in chunks]


async def test_what_other_processes_store_is_looked_for(house: House) -> None:
    async with (
        house.process(shared=True) as (knowledge, deepening),
        background_task(deepening.run(), "deepening"),
    ):
        for path in ("first.md", "second.md"):
            await put(knowledge, path, sections("harbours"), OTHER)
            knowledge.stored.clear()  # as if it were not this process's
            await until_deepened(knowledge, OTHER)


TEXTS = {
    "money.md": "# Money\n\nWhoever sends an article back is paid what it cost.",
    "ships.md": "# Ships\n\nThe harbour opens at nine.",
    **{f"other{n}.md": f"# Other {n}\n\nNumber {n} of many notes about nothing." for n in range(10)},
}


async def until_all_deepened(face: Face, here: str) -> None:
    async with asyncio.timeout(60):
        while (await face.client.get(f"{here}/index")).json()["shallow"]:
            await asyncio.sleep(0.05)


async def test_documents_are_found_at_once_and_compared_by_a_deeper_model_later(
    settings: MakeSettings,
) -> None:
    """By a whole runtime, with the real model."""
    made = settings(deep_embedding_model="bundled/minilm", admin_token=ADMIN)
    async with serving_face(made) as face:
        await face.client.delete(f"/v1/workspaces/{SAMPLE}")  # whose documents would take longer than these
        here = await face.workspace("zoo")
        for path, text in TEXTS.items():
            put = await face.client.put(f"{here}/documents/{path}?wait=true", content=text.encode())
            assert put.json()["indexed"]
        await until_all_deepened(face, here)
        told = await face.event("index.deepened", workspace_id="zoo")
        assert told["chunks"] >= 1
        search = face.runtime.knowledge.finding.search
        async with asyncio.timeout(60):  # a question's deeper vector may come late, on a busy machine
            while not (hits := await search(Scope("zoo"), "refund of an article", 3, explain=True))[0].deep:
                await asyncio.sleep(0.1)
        assert hits[0].passage.source == "money.md"
        answer = (await face.client.get("/v1/doctor")).json()
        found = {check["name"]: check for check in answer["checks"]}
        assert (found["deep embedding"]["ok"], found["deep embedding"]["detail"]) == (True, "bundled/minilm")
        assert "index_chunks_deepened_total" in (await face.client.get("/metrics")).text


def test_why_there_is_no_deeper_model_is_told(settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = settings(deep_embedding_model="bundled/minilm")
    assert deepening_unavailable_reason(bundled) == ""
    other = bundled.model_copy(update={"embedding_model": "bundled/minilm"})
    assert "EMBEDDING_MODEL is another model" in deepening_unavailable_reason(other)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else found(name))
    assert "not installed" in deepening_unavailable_reason(bundled)
