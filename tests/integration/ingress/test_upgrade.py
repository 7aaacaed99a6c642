"""What an earlier version kept for everybody is given to where it was said, once, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from redis.asyncio import Redis

from connectors.message import EVERYONE, Scope, redis_key
from grounding.memory.global_context import Editor, GlobalContexts
from grounding.memory.karma import MarkStore
from grounding.memory.records import Provenance, RecordIndex, Records, RecordStore
from grounding.prompt_input import load_tokens
from grounding.retrieval.qdrant_edge import EmbeddedIndex
from runtime.ingress import Audiences
from runtime.ingress.upgrade import PrivateCounts
from runtime.turns.manifest import Manifests
from tests.emulators.embedder import HashedWords

ACME = Scope("acme")
RECORD = (
    '{"v":1,"id":"%s","type":"decision","user":"","text":"%s","micro":"m","summary":"s","state":"recorded",'
    '"created_at":"2026-01-01T00:00:00.000Z","changed_at":"2026-01-01T00:00:00.000Z","provenance":{"author":"%s",'
    '"turn_id":"","context_id":"%s","origin":"person"},"confidence":1.0,"confirmations":0,"confirmed_at":"",'
    '"activations":0,"successes":0,"failures":0,"outcome":null,"verbatim":false,"supersedes":"","superseded_by":"",'
    '"trigger":"","reason":"","severity":"warn","false_positives":0,"kind":"task","due":"","version":1}'
)
"""As the version before audiences wrote it."""
OLD = {
    "r1": ("Close the plant in Lyon", "slack:U1", "slack:C1/1.1"),
    "r2": ("Move the team to Bergen", "telegram:7", "telegram:-100/3"),
    "r3": ("Paint the boat", "http:lena", ""),
    "r4": ("The port is 5433", "token:admin", ""),
}
EXPECTED = {"r1": "place:slack:C1", "r2": "place:telegram:-100", "r3": "http:lena", "r4": ""}
LINES = {"1": ("Likes tea", "http:lena"), "2": ("Answer in English", "token:admin")}


@pytest_asyncio.fixture
async def passages(tmp_path: Path) -> AsyncIterator[EmbeddedIndex]:
    embedder = HashedWords()
    index = EmbeddedIndex(tmp_path, embedder.name, embedder.dimensions, timeout_seconds=30)
    await index.ensure()
    yield index
    await index.close()


async def test_what_an_earlier_version_kept_goes_to_where_it_was_said(redis: Redis, passages: EmbeddedIndex) -> None:
    """What administrators wrote stays everybody's. What is shared again is not counted as private any more."""
    kept = redis_key("records", ACME.tag, "kept", "")
    for id_, (text, author, context_id) in OLD.items():
        record = RECORD % (id_, text, author, context_id)
        # Whatever wrote it: how JSON is spaced and ordered means nothing.
        spaced = json.dumps(json.loads(record), sort_keys=True)
        await redis.hset(kept, id_, spaced if id_ == "r2" else record)
    for id_, (text, author) in LINES.items():
        line = {"f": 1, "c": text, "k": 3, "v": int(id_), "a": author, "t": "", "at": 1, "o": "person"}
        await redis.hset(redis_key("global_context", ACME.tag, "lines", ""), id_, json.dumps(line))
    records = RecordStore(redis)
    found = Records(records, load_tokens(), RecordIndex(passages, HashedWords(), records))
    lines = GlobalContexts(redis, load_tokens(), max_tokens=800, idle_seconds=60)
    audiences = Audiences(records, lines, MarkStore(redis), Manifests(redis))

    before = await records.read(Scope("acme", None, EVERYONE), list(OLD))
    assert [one.id for one in before] == ["r4"]
    for _ in range(2):
        await audiences.settle(ACME)
        after = await records.read(Scope("acme", None, EVERYONE), list(OLD))
        assert {one.id: one.audience for one in after} == EXPECTED
        assert {one.id: one.text for one in after} == {id_: text for id_, (text, _, _) in OLD.items()}
        assert await audiences.private(ACME) == PrivateCounts(records=3, lines=1)

    seen = {
        audience: [one.id for one in await records.read(Scope("acme", None, audience or None), list(OLD))]
        for audience in ("", "place:slack:C1", "place:telegram:-100", "http:lena", "http:bo")
    }
    assert seen == {
        "": ["r4"],
        "place:slack:C1": ["r1", "r4"],
        "place:telegram:-100": ["r2", "r4"],
        "http:lena": ["r3", "r4"],
        "http:bo": ["r4"],
    }
    own = {"http:lena": {"Likes tea", "Answer in English"}, "place:slack:C1": {"Answer in English"}}
    for audience, contents in own.items():
        shown = await lines.open(Editor(Scope("acme", "slack:C1/1.1", audience), "api"), store=False)
        assert {one.content for one in shown} == contents

    assert await found.catch_up(ACME)
    for audience, ids in seen.items():
        hits = await found.search(Scope("acme", None, audience or None), "plant team boat port", 10)
        assert {one.record.id for one in hits} <= set(ids)
    assert [one.record.id for one in await found.search(Scope("acme", None, "place:slack:C1"), "the plant", 1)] == [
        "r1"
    ]
    await found.share(Scope("acme", None, "place:slack:C1"), "r1", Provenance(author="slack:U1"))
    assert [one.record.id for one in await found.search(ACME, "the plant", 1)] == ["r1"]
    assert (await audiences.private(ACME)).records == 2
