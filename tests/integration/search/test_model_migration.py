"""Another embedding model is set: what was found goes on being found until its index is filled, and then by that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import ConversationKey, Scope
from grounding.documents import Catalogue
from grounding.memory.context_document import ContextDocuments
from grounding.memory.records import NewRecord, Provenance, Records, RecordStore, Type
from grounding.prompt_input import DegradedBlock, load_tokens
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable, Kind, TurnText, WordLlamaEmbedder, term_set
from grounding.transcript import EntryRole, MarkdownCopy, Transcript, TranscriptEntry
from runtime.background import IndexRebuilder, ModelMigration, idle_collections, migration_status
from runtime.background.migration import MigrationStatus
from runtime.coordination import Hub
from runtime.embedded import background_task
from runtime.process.bootstrap import LazyRecordIndex
from runtime.search import CollectionFactory, Knowledge, Timing, TurnsEverywhere, identity_of
from runtime.turns.material import Materials
from runtime.workspaces import Workspaces
from tests.conftest import MakeSettings
from tests.emulators.crew import ADMIN, Crew
from tests.emulators.embedder import HashedWords
from tests.emulators.openai import FakeOpenAI
from tests.emulators.qdrant import SharedQdrant
from tests.integration.search.conftest import factory_with, make_knowledge, passages_for

# Local mode keeps no payload indexes, and says so each time that one is made.
pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect")

ACME, OTHER = Scope("acme"), Scope("other")
HERE = ConversationKey("acme", "http", "here")
OLD, NEW = "openai/old", "openai/new"
REBUILDING = [DegradedBlock(block="retrieved", why="index_rebuilding")]
LACKS_TURNS = [DegradedBlock(block="records", why="index_rebuilding")]


Opening = Callable[[], Awaitable[HashedWords]]


@dataclass
class House:
    """What outlives the processes: Redis, the folder, and the models by their names."""

    redis: Redis
    settings: Callable[[str | None], Settings]
    models: dict[str, HashedWords]
    server: SharedQdrant | None = None
    """Has the passages; else each process has them embedded."""

    @asynccontextmanager
    async def process(self, model: str | None, *, is_open: bool = True, **options: Any) -> AsyncIterator[Process]:
        """A process in which that embedding model is set, until the block ends."""
        process = await self.make(model, **options)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(process.knowledge.close)
            await stack.enter_async_context(asyncio.timeout(120))
            await stack.enter_async_context(background_task(process.knowledge.open(), "open"))
            if is_open:
                await process.knowledge.opened()
            yield process

    async def make(
        self,
        model: str | None,
        *,
        keep_seconds: float = 3600.0,
        opens: Opening | None = None,
        contexts: ContextDocuments | None = None,
        workspaces: Workspaces | None = None,
    ) -> Process:
        """*opens* is how its model is opened; *contexts* and *workspaces* are given where they are to break."""
        settings = self.settings(model)
        factory = factory_with(self.models, self.server)
        if opens is not None:
            factory = opening(factory, opens)
        knowledge, all_workspaces = await make_knowledge(
            self.redis, settings, "acme", "other", timing=Timing(retry=(0.02, 0.02), current=0.0), factory=factory
        )
        transcript, clock = Transcript(self.redis), [time.time()]
        rebuilding = IndexRebuilder(
            settings.data_dir,
            knowledge,
            transcript,
            contexts or ContextDocuments(self.redis),
            MarkdownCopy(transcript, settings.data_dir, alone=False),
            all_workspaces,
            retry_seconds=(0.02, 0.02),
        )
        migration = ModelMigration(
            knowledge, rebuilding, workspaces or all_workspaces, keep_seconds, lambda: clock[0], busy_seconds=0.02
        )
        return Process(self.redis, knowledge, rebuilding, migration, transcript, clock)


def opening(factory: type[CollectionFactory], opens: Opening) -> type[CollectionFactory]:
    class OpensSo(factory):  # type: ignore[misc, valid-type]
        async def open_embedder(self) -> HashedWords:
            return await opens()

    return OpensSo


@dataclass
class Process:
    redis: Redis
    knowledge: Knowledge
    rebuilding: IndexRebuilder
    changeover: ModelMigration
    transcript: Transcript
    clock: list[float]
    lost: list[DegradedBlock] = field(default_factory=list)
    """What the last question could not be given."""

    async def found(self, query: str, scope: Scope = ACME) -> list[str]:
        """Where something of *query* is said: a search has no floor, so that by their vectors all are found."""
        self.lost.clear()
        hits = await self.knowledge.finding.search(scope, query, 10, lost=self.lost)
        return sorted({hit.passage.source for hit in hits if term_set(hit.passage.text) & term_set(query)})

    async def put(self, path: str, text: str, scope: Scope = ACME) -> None:
        await self.knowledge.shelf.put(scope, path, text)
        await self.knowledge.index(scope, [path])

    async def say(self, turn_id: str, text: str) -> None:
        entry = TranscriptEntry(EntryRole.INBOUND, text, turn_id, "2026-11-21T10:00:00.000Z", author="Lena")
        await self.transcript.append(HERE, turn_id, [entry])
        told = await self.told()
        await told.remember([TurnText(HERE.scope, turn_id, f"Lena: {text}", datetime.now(UTC))])

    def records(self) -> Records:
        return Records(RecordStore(self.redis), load_tokens(), LazyRecordIndex(self.knowledge))

    async def told(self) -> TurnsEverywhere:
        return await self.knowledge.turns_everywhere()

    async def recalled(self, query: str) -> list[str]:
        """The turns in which something of *query* is said: what was said beside them is told too."""
        self.lost.clear()
        turns = await self.knowledge.finding.recall(HERE.scope, query, 5, frozenset(), lost=self.lost)
        return sorted({turn.turn_id for turn in turns if term_set(turn.text) & term_set(query)})

    async def answers(self, scope: Scope = ACME) -> str:
        """The model whose collection answers."""
        return (await self.knowledge.collections.answering(scope)).identity.model

    async def fill(self) -> None:
        """What `runtime.search.sync` and `IndexRebuilder.fill_new_index` do, once."""
        for scope in (ACME, OTHER):
            await self.knowledge.index(scope)
        await self.rebuilding.fill_new_index()


@pytest.fixture
def house(redis: Redis, redis_socket: Path, settings: MakeSettings) -> House:
    """Documents are in Redis, as with several processes; passages in an embedded index."""

    def made(model: str | None) -> Settings:
        return settings(redis_url=f"unix://{redis_socket}", embedding_model=model)

    return House(redis, made, {OLD: HashedWords(64, OLD), NEW: HashedWords(96, NEW)})


async def filled(house: House) -> None:
    """A process with the old model was here, and ended."""
    async with house.process(OLD) as old:
        await old.put("refunds.md", "# Refunds\n\nRefunds take thirty days.")
        await old.put("gone.md", "# Parcels\n\nParcels go by lighthouse tender.")
        await old.put("other.md", "# Anchors\n\nAnchors rust.", OTHER)
        await old.say("t1", "The deploy key lives in Lockbox seven.")
        await old.say("t2", "The gate code is heron.")
        await old.fill()


async def lose(house: House, *, whole: bool) -> None:
    """Somebody takes everything out of the collection while no process runs, or deletes the *whole* of it."""
    async with house.process(OLD) as old:
        index = (await old.knowledge.ready()).index
        if whole:
            await index.drop()
        else:
            for scope in (ACME, OTHER):
                await index.drop_workspace(scope)


@pytest.mark.parametrize("whole", [True, False])
async def test_a_collection_that_is_missing_or_empty_at_a_start_is_filled_again(house: House, whole: bool) -> None:
    await filled(house)
    await lose(house, whole=whole)
    async with house.process(OLD) as old:
        assert await old.found("refunds") == []
        await old.fill()
        assert (await old.found("refunds"), old.lost) == (["refunds.md"], [])
        assert (await old.recalled("where is the deploy key"), old.lost) == (["t1"], [])


async def test_who_does_not_fill_a_collection_that_was_missing_says_until_it_is_filled_what_it_lacks(
    house: House,
) -> None:
    """Not that there is no such document, and that nothing was said."""
    house.server = SharedQdrant(":memory:")
    await filled(house)
    await lose(house, whole=True)
    async with house.process(OLD) as leader, house.process(OLD) as other:
        for one in (leader, other):
            # Both may have found it missing at the same moment.
            await one.knowledge.catalogue.lose((await one.knowledge.ready()).name, [ACME, OTHER])
        assert (await other.found("refunds"), other.lost) == ([], REBUILDING)
        with pytest.raises(IndexUnavailable, match="being indexed"):
            await passages_for(other.knowledge.finding, ACME, "refunds", 3, 1200, 800, lost=[])
        assert (await other.recalled("where is the deploy key"), other.lost) == ([], LACKS_TURNS)
        await leader.fill()
        assert (await other.found("refunds"), other.lost) == (["refunds.md"], [])
        assert (await other.recalled("where is the deploy key"), other.lost) == (["t1"], [])


async def test_the_former_index_answers_until_the_new_one_has_everything(house: House) -> None:
    """Without what was said meanwhile, and it says so; what is forgotten is not found. Each workspace by itself."""
    await filled(house)
    async with house.process(NEW) as new:
        assert (await new.found("refunds"), new.lost) == (["refunds.md"], REBUILDING)
        assert (await new.recalled("where is the deploy key"), new.lost) == (["t1"], LACKS_TURNS)
        assert await new.answers() == OLD
        assert await migration_status(new.knowledge, ACME) == MigrationStatus(OLD, NEW, 0, turns=False)

        await new.put("new.md", "# Refunds\n\nRefunds of gifts.")
        await new.say("t3", "The deploy key moved to Lockbox nine.")
        await new.knowledge.shelf.delete(ACME, "gone.md")
        await new.knowledge.index(ACME, ["gone.md"])
        await (await new.told()).forget(HERE.scope, ["t2"])
        await new.transcript.forget_turn(HERE, "t2")
        assert await new.found("lighthouse tender parcels") == []
        assert await new.recalled("where is the deploy key") == ["t1"]
        assert await new.recalled("the gate code heron") == []
        assert await new.answers() == OLD

        assert await new.changeover.step()
        assert await new.answers() == OLD
        await new.knowledge.index(OTHER)
        await new.changeover.step()
        assert [await new.answers(OTHER), await new.answers(ACME)] == [NEW, OLD]
        await new.fill()
        await new.changeover.step()
        assert await new.answers() == NEW
        assert (await new.found("refunds"), new.lost) == (["new.md", "refunds.md"], [])
        assert (await new.recalled("where is the deploy key"), new.lost) == (["t1", "t3"], [])
        assert await new.recalled("the gate code heron") == []
        assert await migration_status(new.knowledge, ACME) is None


async def test_a_former_model_that_is_gone_leaves_the_words(house: House) -> None:
    await filled(house)
    house.models[OLD].fails = True
    async with house.process(NEW) as new:
        assert (await new.found("refunds"), new.lost) == (["refunds.md"], REBUILDING)
        assert (await new.recalled("where is the deploy key in Lockbox"), new.lost) == (["t1"], LACKS_TURNS)
        with pytest.raises(IndexUnavailable):
            await passages_for(new.knowledge.finding, ACME, "volcanoes", 3, 1000, 900, lost=[])


async def test_context_documents_and_records_are_forgotten_in_former_collections_too(house: House) -> None:
    ada, by = Scope("acme", None, "slack:U1"), Provenance(author="http:ada")
    await filled(house)
    async with house.process(OLD) as old:
        await (await old.knowledge.contexts_everywhere()).put(HERE, "Likes herons.", "2026-11-21T10:00:00Z")
        record = (await old.records().add(ada, NewRecord(Type.FACT, "Ada saw a heron"), by)).record.id
    async with house.process(NEW) as new:
        hits = await new.knowledge.finding.search(HERE.scope, "herons", 10)
        assert [hit.passage.text for hit in hits if hit.passage.kind is Kind.CONTEXT] == ["Likes herons."]
        assert [one.record.text for one in await new.records().search(ada, "heron", 20)] == ["Ada saw a heron"]
        assert new.knowledge.finding.answering_model(ada) == OLD
        await (await new.knowledge.contexts_everywhere()).forget(HERE)
        await new.records().erase(ada, record, by)
        (former,) = await new.knowledge.collections.former()
        assert await former.index.count(HERE.scope, Kind.CONTEXT) == 0
        assert await former.index.ids(ada, Kind.RECORD) == []


async def test_the_former_index_answers_while_the_new_model_cannot_even_be_asked(house: House) -> None:
    """Its provider is away at the start, or was misspelt."""
    await filled(house)
    is_away = [True]

    async def away() -> HashedWords:
        if is_away:
            raise EmbedderUnavailable("no such model", retryable=False)
        return house.models[NEW]

    async with house.process(NEW, is_open=False, opens=away) as new:
        while not new.knowledge.collections.why:
            await asyncio.sleep(0.01)
        assert await new.found("refunds") == ["refunds.md"]
        lost: list[DegradedBlock] = []
        (passage,) = await passages_for(
            new.knowledge.finding, ACME, "refunds take thirty days", 3, 1000, 900, lost=lost
        )
        assert (passage.source, lost) == ("refunds.md", REBUILDING)
        assert await new.recalled("where is the deploy key") == ["t1"]
        with pytest.raises(IndexUnavailable, match="no such model"):
            await new.found("refunds", Scope("without-an-index"))
        is_away.clear()
        await new.knowledge.opened()
        await new.fill()
        await new.changeover.step()
        assert await new.answers() == NEW

    async def gone() -> HashedWords:
        raise EmbedderUnavailable("the provider is away", retryable=True)

    async with house.process(NEW, is_open=False, opens=gone) as same:  # whose collection is opened by it alone
        while not same.knowledge.collections.why:
            await asyncio.sleep(0.01)
        with pytest.raises(IndexUnavailable, match="the provider is away"):
            await same.found("refunds")


async def test_the_former_index_answers_at_once_while_the_new_one_is_still_being_opened(house: House) -> None:
    """A provider may take as long as its time-out to say anything: no turn waits for that."""
    await filled(house)
    settings = house.settings
    house.settings = lambda model: settings(model).model_copy(update={"qdrant_timeout_seconds": 3600.0})

    async def hangs() -> HashedWords:
        await asyncio.Event().wait()
        raise AssertionError

    async with house.process(NEW, is_open=False, opens=hangs) as new:
        new.knowledge.will_follow()
        assert await new.found("refunds") == ["refunds.md"]
        lost: list[DegradedBlock] = []
        (passage,) = await passages_for(
            new.knowledge.finding, ACME, "refunds take thirty days", 3, 1000, 900, lost=lost
        )
        assert (passage.source, lost) == ("refunds.md", REBUILDING)
        assert await new.recalled("where is the deploy key") == ["t1"]


async def test_what_is_left_to_index_is_indexed_by_whoever_switches(house: House) -> None:
    """Another process, in which the former model is set, put it in the former index alone; or the index lost it."""
    await filled(house)
    async with house.process(NEW) as new, background_task(new.knowledge.follow(), "follow"):
        while not new.knowledge.is_followed:
            await asyncio.sleep(0.01)
        await new.knowledge.shelf.put(ACME, "late.md", "# Late\n\nLate fees.")
        while await new.changeover.step() and await new.answers() == OLD:
            pass
        assert await new.found("late fees") == ["late.md"]
        assert await new.answers() == NEW
        await house.redis.set(f"ar:documents:{ACME.tag}:current", identity_of(house.models[OLD]).name)
        await (await new.knowledge.ready()).index.delete(ACME, Kind.DOCUMENT, source="refunds.md")
        while await new.changeover.step() and await new.answers() == OLD:
            pass
        assert await new.found("refunds") == ["refunds.md"]


async def test_material_is_searched_meanwhile_as_it_is_and_switched_over_with_the_rest(house: House) -> None:
    await filled(house)

    def materials(process: Process) -> Materials:
        hub = Hub(house.redis, shared=False)
        return Materials(house.settings(NEW), process.knowledge.material, process.knowledge, load_tokens(), hub)

    async with house.process(OLD) as old:
        for path, text in (
            ("a.md", "Herons nest early."),
            ("b.md", "Herons nest twice."),
            ("c.md", "Herons nest there."),
        ):
            await materials(old).put(ACME, path, text.encode())
        await (await old.knowledge.ready()).material.sync(ACME)

    async with house.process(NEW) as new:
        given, collection = materials(new), await new.knowledge.ready()

        async def found() -> tuple[list[str], bool]:
            passages, is_whole = await given.find(ACME, "when do herons nest", 5, 1000, 1000)
            return sorted(one.source for one in passages), is_whole

        assert (await found(), await new.answers()) == ((["a.md", "b.md", "c.md"], True), OLD)
        await given.put(ACME, "b.md", b"Herons nest late.")
        await given.delete(ACME, "c.md")
        assert await found() == (["a.md"], False)
        await new.fill()
        await new.changeover.step()
        assert await new.answers() == OLD
        await collection.material.sync(ACME)
        assert (await found(), await new.answers()) == ((["a.md"], False), OLD)
        await new.changeover.step()
        assert (await found(), await new.answers()) == ((["a.md", "b.md"], True), NEW)


async def test_who_goes_back_finds_the_former_index_as_it_should_be(house: House) -> None:
    """Half-way through, and again after the switch: what is there is not embedded again."""
    await filled(house)
    old, new = house.models[OLD], house.models[NEW]
    async with house.process(NEW) as half:
        await half.knowledge.index(ACME, ["refunds.md"])
        await half.put("added.md", "# Added\n\nAdded on the way.")
    old.embedded.clear()
    async with house.process(OLD) as back:
        await back.fill()
        await back.changeover.step()
        assert await back.found("added refunds") == ["added.md", "refunds.md"]
        assert (await back.answers(), back.lost, len(old.embedded)) == (OLD, [], 1)

    async with house.process(NEW) as again:
        new.embedded.clear()
        await again.fill()
        await again.changeover.step()
        assert await again.answers() == NEW
        assert not any("thirty days" in text for text in new.embedded)  # half of it was there
        await again.put("refunds.md", "# Refunds\n\nRefunds take ninety days.")
        await again.say("t9", "The anchor is lost.")
        await again.transcript.forget_turn(HERE, "t1")
        await (await again.told()).forget(HERE.scope, ["t1"])
    old.embedded.clear()

    async with house.process(OLD) as last:
        assert await last.answers() == NEW
        await last.fill()
        await last.changeover.step()
        assert await last.answers() == OLD
        assert await last.found("ninety days") == ["refunds.md"]
        assert await last.recalled("the anchor is lost") == ["t9"]
        assert await last.recalled("deploy key") == []
        # The document that changed, what was said, and what was said after the turn that is forgotten.
        assert len(old.embedded) == 3


async def test_the_former_index_is_dropped_when_its_time_is_over(house: House, data_dir: Path) -> None:
    await filled(house)
    here = Catalogue(house.redis)
    name = identity_of(house.models[OLD]).name
    async with house.process(NEW, keep_seconds=100.0) as new:
        await new.changeover.step()
        assert await here.idle() == {}
        await new.fill()
        await new.changeover.step()
        assert await here.idle() == {name: new.clock[0]}
        assert await idle_collections(new.knowledge) == {OLD: new.clock[0]}
        new.clock[0] += 99
        await new.changeover.step()
        assert name in await here.known()
        new.clock[0] += 2
        await new.changeover.step()
        assert list(await here.known()) == [identity_of(house.models[NEW]).name]
        assert await here.idle() == {}
        assert await new.knowledge.collections.former() == []
        assert not [one for one in data_dir.rglob("*") if "old" in one.name]
        assert not [key async for key in house.redis.scan_iter(match=f"*{name}*")]
        assert await new.found("refunds") == ["refunds.md"]


class BreakingContexts(ContextDocuments):
    """Those of one workspace break in a way that nobody foresaw."""

    is_broken = True

    async def places(self, workspace_id: str) -> list[ConversationKey]:
        if self.is_broken and workspace_id == ACME.workspace_id:
            raise ValueError("nobody foresaw this")
        return await super().places(workspace_id)


async def test_what_breaks_in_one_workspace_is_told_there_and_tried_again_and_keeps_no_other_waiting(
    house: House,
) -> None:
    """Whatever it is: no loop of the change-over ends of what nobody foresaw."""
    await filled(house)
    contexts = BreakingContexts(house.redis)
    async with house.process(OLD, contexts=contexts) as new:
        catalogue, name = new.knowledge.catalogue, (await new.knowledge.ready()).name
        for scope in (ACME, OTHER):
            await catalogue.forget(scope, name)
        async with background_task(new.rebuilding.fill_new_index(), "fill"):
            while not await catalogue.is_complete(OTHER, name):
                await asyncio.sleep(0.01)
            assert await new.recalled("where is the deploy key") == ["t1"]
            assert [(one.block, one.why) for one in new.lost] == [("records", "index_rebuilding")]
            contexts.is_broken = False
            while not await catalogue.is_complete(ACME, name):
                await asyncio.sleep(0.01)
        await new.recalled("where is the deploy key")
        assert new.lost == []


class BreakingWorkspaces(Workspaces):
    """Cannot be listed once, for a reason that nobody foresaw."""

    is_broken = True

    async def all(self) -> Any:
        if self.is_broken:
            self.is_broken = False
            raise ValueError("nobody foresaw this")
        return await super().all()


async def test_looking_for_what_is_to_be_switched_goes_on_after_what_nobody_foresaw(house: House) -> None:
    await filled(house)
    workspaces = BreakingWorkspaces(house.redis, house.settings(NEW))
    async with house.process(NEW, workspaces=workspaces) as new:
        await new.fill()
        async with background_task(new.changeover.run(), "change-over"):
            while await new.answers() != NEW:
                await asyncio.sleep(0.01)
    assert not workspaces.is_broken


async def test_a_workspace_that_is_deleted_leaves_the_former_index_too(house: House) -> None:
    await filled(house)
    async with house.process(NEW) as new:
        await new.fill()
        await new.changeover.step()
        await new.knowledge.forget_workspace(ACME)
        (former,) = await new.knowledge.collections.former()
        assert await former.index.count(ACME, Kind.DOCUMENT) == 0
        assert await former.index.count(HERE.scope, Kind.TURN) == 0
        assert await former.index.count(OTHER, Kind.DOCUMENT) == 1


SECTIONS = 150
"""Chunks of a document: two of them are more than what is stored together."""


def document(topic: str) -> str:
    return "".join(f"# {topic} {number}\n\nThe {topic} has number {number}.\n\n" for number in range(SECTIONS))


@pytest.mark.timeout(300)
@pytest.mark.storm
async def test_a_served_runtime_changes_over_is_killed_goes_on_and_goes_back(
    data_dir: Path, openai_server: FakeOpenAI
) -> None:
    """Real processes: the bundled model, a provider's that fails in the middle, and the bundled one again."""
    environment = {
        "DATA_DIR": str(data_dir),
        "HTTP_PORT": "0",
        "ADMIN_TOKEN": ADMIN,
        "LLM_MODEL": "openai/fake",
        "LLM_API_BASE": openai_server.base_url,
        "LLM_API_KEY": "key",
    }
    crew = Crew(data_dir / "crew", environment)
    other = {"EMBEDDING_MODEL": "openai/fake-embedding"}
    topics = ("lighthouse", "harbour", "anchor")
    try:
        async with asyncio.timeout(240):
            crew.start("bot", "all")
            async with asking(crew) as client:
                for topic in topics:
                    put = await client.put(f"/documents/{topic}.md?wait=true", content=document(topic))
                    assert put.status_code == 200
                said = {"text": "The gate code is heron.", "context": "here"}
                assert (await client.post("/messages", json=said)).status_code == 200
            crew.kill("bot")

            openai_server.embeds_batches = 5  # three for what is stored together first, and not enough for the next
            crew.start("bot", "all", **other)
            async with asking(crew) as client:
                while openai_server.embeds_batches:
                    await asyncio.sleep(0.05)
                assert (await sources(client, "anchor number 7"))[:1] == ["anchor.md"]
                put = await client.put("/documents/added.md", content="# Rope\n\nThe rope is new.")
                assert put.status_code == 202
                await client.delete("/documents/lighthouse.md")
                status = (await client.get("/index")).json()
                assert status["change_over"]["filling"] == "openai/fake-embedding"
                assert status["change_over"]["answered_by"] == WordLlamaEmbedder().name
                answer = (await client.post("/messages", json={"text": "Which file speaks of the harbour?"})).json()
                assert {source["source"] for source in answer["sources"]} == {"harbour.md"}
                assert {"block": "retrieved", "why": "index_rebuilding"} in answer["degraded"]
            crew.kill("bot")
            asked = len(openai_server.embedding_requests)

            openai_server.embeds_batches = None
            crew.start("bot", "all", **other)
            async with asking(crew) as client:
                await crew.has_told("bot", "index.switched")
                while "change_over" in (await client.get("/index")).json():
                    await asyncio.sleep(0.1)
                texts = [text for one in openai_server.embedding_requests[asked:] for text in one["input"]]
                again = {topic for topic in topics if any(f"The {topic} has number 7." in text for text in texts)}
                assert again == {"harbour"}  # the anchor's were stored before, and the lighthouse's deleted
                await found(client, "the new rope", "added.md")
                await found(client, "harbour number 7", "harbour.md")
                assert "lighthouse.md" not in await sources(client, "lighthouse")
            await crew.stop("bot")

            crew.start("bot", "all", INDEX_KEEP_FORMER_DAYS="0")
            async with asking(crew) as client:
                await crew.has_told("bot", "index.switched")
                await found(client, "the new rope", "added.md")
                await crew.has_told("bot", "index.dropped")
                (left,) = [one.name for one in (data_dir / "qdrant").iterdir() if one.is_dir()]
                assert "wordllama" in left
                await found(client, "harbour number 7", "harbour.md")
    finally:
        crew.end()


class asking(httpx.AsyncClient):  # noqa: N801 - used as a context manager only
    """A client of the sample workspace, once the process answers."""

    def __init__(self, crew: Crew) -> None:
        super().__init__(headers={"Authorization": f"Bearer {ADMIN}"}, timeout=60)
        self._crew = crew

    async def __aenter__(self) -> asking:
        await self._crew.has_told("bot", "http.listening")
        listening = [event for event in self._crew.events("bot") if event["event"] == "http.listening"]
        self.base_url = httpx.URL(f"{listening[-1]['url']}/v1/workspaces/sample")
        await super().__aenter__()
        while (await self.get(f"{listening[-1]['url']}/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
        return self


async def sources(client: httpx.AsyncClient, query: str) -> list[str]:
    answer: dict[str, Any] = (await client.get("/search", params={"q": query, "top_k": 5})).json()
    return [hit["source"] for hit in answer["results"]]


async def found(client: httpx.AsyncClient, query: str, source: str) -> None:
    """Ask until *source* comes first and nothing is said against it."""
    while True:
        response = await client.get("/search", params={"q": query, "top_k": 5})
        answer = response.json()
        sure = response.status_code == 200 and not answer["degraded"]
        if sure and [hit["source"] for hit in answer["results"]][:1] == [source]:
            return
        await asyncio.sleep(0.1)
