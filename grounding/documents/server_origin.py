"""How a collection of a Qdrant server tells that it is another one than it was: emptied, deleted or made anew.

A point of its own says so. It has no vector and is nobody's, so that no search finds it.
"""

from __future__ import annotations

import asyncio
import uuid

from qdrant_client import AsyncQdrantClient, models

from grounding.documents.stored import PAYLOAD_VERSION

POINT = str(uuid.UUID(int=1))
"""Those of passages are made of digests."""
SETTLED_SECONDS = 0.2
"""From when a token was written until it is read: whoever found none at the same time has written its own by then."""


async def origin_of(client: AsyncQdrantClient, collection: str) -> str:
    """The token in *collection*; a new one where it has none. Raises what the client does."""
    if token := await _told(client, collection):
        return token
    payload = {"v": PAYLOAD_VERSION, "origin": uuid.uuid4().hex}
    await client.upsert(collection, [models.PointStruct(id=POINT, vector={}, payload=payload)], wait=True)
    await asyncio.sleep(SETTLED_SECONDS)  # of two that make one at once the last stays, and both have to know that one
    return await _told(client, collection)


async def _told(client: AsyncQdrantClient, collection: str) -> str:
    found = await client.retrieve(collection, [POINT], with_payload=True, with_vectors=False)
    return str((found[0].payload or {}).get("origin", "")) if found else ""
