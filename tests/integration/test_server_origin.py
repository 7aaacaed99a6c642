"""How a collection of a Qdrant server tells that it was restored, and what is no reason to say so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from qdrant_client import AsyncQdrantClient, models

from grounding.documents import server_origin
from grounding.documents.origin import Mark

HERE = "passages"
TURN = "11111111-1111-1111-1111-111111111111"


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncQdrantClient]:
    monkeypatch.setattr(server_origin, "SETTLED_SECONDS", 0.0)
    one = AsyncQdrantClient(":memory:")
    await one.create_collection(HERE, {"dense": models.VectorParams(size=2, distance=models.Distance.COSINE)})
    said = models.PointStruct(id=TURN, vector={"dense": [1.0, 0.0]}, payload={"kind": "turn"})
    await one.upsert(HERE, [said])
    yield one
    await one.close()


async def mark(client: AsyncQdrantClient) -> int:
    (found,) = await client.retrieve(HERE, [server_origin.POINT])
    return int((found.payload or {})["mark"])


async def test_a_replica_that_is_behind_is_no_former_snapshot(
    client: AsyncQdrantClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await server_origin.origin_of(client, HERE)
    assert await server_origin.origin_of(client, HERE, Mark(0, 10)) == token
    up_to_date = client.retrieve

    async def retrieve(*args: Any, consistency: Any = None, **more: Any) -> Any:
        found = await up_to_date(*args, **more)
        if consistency is None:
            (found[0].payload or {})["mark"] = 5
        return found

    with monkeypatch.context() as behind:
        behind.setattr(client, "retrieve", retrieve)
        assert await server_origin.origin_of(client, HERE, Mark(10, 20)) == token
    assert await client.retrieve(HERE, [TURN])
    assert await mark(client) == 20


async def test_a_process_that_was_held_up_takes_no_later_mark_back(client: AsyncQdrantClient) -> None:
    token = await server_origin.origin_of(client, HERE)
    await server_origin.origin_of(client, HERE, Mark(0, 20))
    assert await server_origin.origin_of(client, HERE, Mark(10, 11)) == token
    assert await mark(client) == 20


async def test_what_was_said_goes_where_a_former_snapshot_is_seen_and_the_token_is_another_one(
    client: AsyncQdrantClient,
) -> None:
    token = await server_origin.origin_of(client, HERE)
    await server_origin.origin_of(client, HERE, Mark(0, 10))
    assert await server_origin.origin_of(client, HERE, Mark(15, 20)) not in {token, ""}
    assert not await client.retrieve(HERE, [TURN])
