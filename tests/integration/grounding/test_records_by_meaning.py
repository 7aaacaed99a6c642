"""Records are found by their meaning, with the embedding models that ship: the example of the design note, and a
decision that shares no word with the question."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from connectors.message import Scope
from grounding.memory.frames import choose
from grounding.memory.records import NewRecord, Provenance, Record, RecordIndex, Records, RecordStore, Type
from grounding.memory.selection import LastSelections, Level, RecordSelector, ScopeState, floor_for
from grounding.prompt_input import SelectedRecord, load_tokens
from grounding.retrieval import MiniLMEmbedder, WordLlamaEmbedder
from grounding.retrieval.qdrant_edge import EmbeddedIndex

pytest.importorskip("onnxruntime")
ACME = Scope("acme")
TOKENS = load_tokens()
ASKED = "Should we use Redis for caching in Newton?"
NEWTON = (
    NewRecord(
        Type.DECISION,
        "Chose Postgres + pgvector over separate ChromaDB for unified storage. Unification reduces operational "
        "surface. One backup, one monitor, one connection pool.",
        outcome="success",
        confidence=0.85,
    ),
    NewRecord(
        Type.DECISION,
        "Built CE with SQLite first, migrated to Postgres later. Start simple, migrate when proven. Abstract storage "
        "layer made migration painless.",
        outcome="success",
        confidence=0.8,
    ),
    NewRecord(
        Type.DECISION,
        "Rejected Qdrant in favor of pgvector. Operational simplicity beat raw vector performance.",
        outcome="success",
        confidence=0.82,
    ),
    NewRecord(Type.FACT, "PostgreSQL supports UNLOGGED tables for cache-like workloads (no WAL overhead)"),
    NewRecord(Type.FACT, "Redis adds a separate service to manage, monitor, and backup"),
    NewRecord(Type.FACT, "Newton's docker-compose currently has 3 services (newton, postgres, dashboard)"),
    NewRecord(Type.FACT, "pgvector query performance: 0.37s for hybrid search over 300+ records"),
    NewRecord(
        Type.PROCEDURE,
        "Architecture decision: query similar past decisions before committing. Evaluate at least 2 alternatives with "
        "pros and cons. Record the decision with confidence BEFORE implementing. Consider operational cost.",
    ),
    NewRecord(
        Type.EPISODE,
        "Newton storage architecture discussion (2h, with Tim): chose Postgres + pgvector, rejected multi-service "
        "approaches",
    ),
    NewRecord(Type.EPISODE, "CE SQLite migration (3h): abstracting storage layer first made backend swap painless"),
)
OTHERS = (
    "Lena's birthday is on 12 May",
    "Tim prefers Celsius",
    "The refund window is 14 days",
    "The office party is held at the lake",
    "Everybody gets a parking space for 80 euros a month",
    "The printer is on the second floor",
)


class Workspace:
    def __init__(self, records: Records, selector: RecordSelector) -> None:
        self.records = records
        self._selector = selector

    async def keep(self, new: Sequence[NewRecord]) -> None:
        for one in new:
            await self.records.add(ACME, one, Provenance())

    async def found(self, text: str) -> list[Record]:
        chosen, state = choose(text), ScopeState(await self.records.count(ACME), None)
        looked = await self._selector.look(ACME, text, chosen, (), state, ())
        return [one.record for one, _ in looked.found]

    async def shown(self, text: str) -> tuple[SelectedRecord, ...]:
        chosen = choose(text)
        state = ScopeState(await self.records.count(ACME), None)
        looked = await self._selector.look(ACME, text, chosen, (), state, ())
        return (await self._selector.selected(looked, text, chosen, ())).records


@pytest_asyncio.fixture
async def workspace(redis: Redis, tmp_path: Path) -> AsyncIterator[Workspace]:
    quick, deep, store = WordLlamaEmbedder(), MiniLMEmbedder(only_english=True), RecordStore(redis)
    index = EmbeddedIndex(tmp_path, quick.name, quick.dimensions, timeout_seconds=30, deep_dimensions=deep.dimensions)
    await index.ensure()

    def costs(one: Record, level: Level) -> int:
        return TOKENS.count(one.micro if level == "micro" else one.summary)

    records = Records(store, TOKENS, RecordIndex(index, quick, store, deep=deep))
    selector = RecordSelector(records, LastSelections(redis, 60), costs=costs, floor=lambda _: floor_for(quick.name))
    try:
        yield Workspace(records, selector)
    finally:
        await index.close()


async def test_a_question_finds_the_decisions_and_the_procedure_that_bear_on_it_in_other_words(
    workspace: Workspace,
) -> None:
    """All ten of the note, most of which share no word with it."""
    await workspace.keep([*NEWTON, *(NewRecord(Type.FACT, text) for text in OTHERS)])

    shown = [one.text for one in await workspace.shown(ASKED)]

    assert len(shown) == len(NEWTON)
    assert all(any(one.text[:20] in text for text in shown) for one in NEWTON)
    assert not any(text[:20] in one for text in OTHERS for one in shown)


async def test_who_asks_what_was_decided_finds_the_decision(workspace: Workspace) -> None:
    await workspace.keep([*NEWTON, *(NewRecord(Type.FACT, text) for text in OTHERS)])

    shown = await workspace.shown("Which database did we choose and why?")

    assert any(one.type == "decision" and "Postgres" in one.text for one in shown)
    assert not any(text[:20] in one.text for text in OTHERS for one in shown)


@pytest.mark.parametrize(
    "text", ["What is the capital of France?", "Tell me a joke about penguins", "Should I wear a coat to the opera?"]
)
async def test_a_message_that_nothing_answers_brings_nothing(workspace: Workspace, text: str) -> None:
    await workspace.keep([*NEWTON, *(NewRecord(Type.FACT, one) for one in OTHERS)])

    assert await workspace.shown(text) == ()


async def test_many_facts_crowd_out_no_decision(workspace: Workspace) -> None:
    facts = [NewRecord(Type.FACT, f"Redis cache number {n} holds caching data of Newton") for n in range(60)]
    decision = NewRecord(Type.DECISION, "Against another service to run: the database keeps what is read often.")
    await workspace.keep([*facts, decision])

    found = await workspace.records.search(ACME, ASKED, 40)
    shown = await workspace.found(ASKED)

    assert not any(one.record.type is Type.DECISION for one in found)
    assert [one for one in shown if one.type is Type.DECISION]
