"""What the job after a turn makes findable."""

from __future__ import annotations

from pathlib import Path

from redis.asyncio import Redis

from connectors.message import ConversationKey
from grounding.retrieval import Kind, TurnIndex
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.background import RememberTurns
from runtime.coordination import Job
from tests.emulators.embedder import HashedWords

KEY = ConversationKey("acme", "http", "default")
TALK = (
    ("t1", "What is the parrot called?", "I do not know."),
    ("t2", "Kiki!", "Noted."),
    ("t3", "Lovely weather.", "It is."),
)


async def test_turns_are_remembered_with_the_turn_before_and_recalled_by_it(redis: Redis, tmp_path: Path) -> None:
    embedder = HashedWords()
    index = EmbeddedIndex(tmp_path, embedder.name, embedder.dimensions, timeout_seconds=20)
    await index.ensure()
    transcript, turns = Transcript(redis), TurnIndex(index, embedder)
    remember = RememberTurns(transcript, turns)
    for turn_id, question, answer in TALK:
        at = f"2026-11-0{turn_id[1]}T10:00:00.000Z"
        said = TranscriptEntry(EntryRole.INBOUND, question, turn_id, at, author="Lena")
        await transcript.append(KEY, turn_id, [said, TranscriptEntry(EntryRole.OUTBOUND, answer, turn_id, at)])
    await remember([Job("turn.remember", KEY, "t1")])

    await remember([Job("turn.remember", KEY, turn_id) for turn_id in ("t2", "t3")])

    neighbours = await index.neighbours(KEY.scope, Kind.TURN, [], ["t1", "t2"])
    assert {passage.source: passage.previous for passage in neighbours} == {"t2": "t1", "t3": "t2"}
    found = await turns.recall(KEY.scope, "what was the parrot called?", 9)
    assert {one.turn_id: one.said_on for one in found} == {"t1": "2026-11-01", "t2": "2026-11-02"}
    await index.close()
