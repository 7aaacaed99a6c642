"""How a collection of a Qdrant server tells that it is another one than it was: emptied, deleted, made anew, restored.

A point of its own says so. It has no vector and is nobody's, so that no search finds it.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from qdrant_client import AsyncQdrantClient, models

from grounding.documents.index import Kind
from grounding.documents.origin import Mark
from grounding.documents.stored import PAYLOAD_VERSION

POINT = str(uuid.UUID(int=1))
"""Those of passages are made of digests."""
SETTLED_SECONDS = 0.2
"""From when a token was written until it is read: whoever found none at the same time has written its own by then."""
_NO_DOCUMENTS = models.Filter(
    must_not=[
        models.FieldCondition(key="kind", match=models.MatchValue(value=Kind.DOCUMENT.value)),
        models.HasIdCondition(has_id=[POINT]),
    ]
)


async def origin_of(client: AsyncQdrantClient, collection: str, mark: Mark | None = None) -> str:
    """The token in *collection*; a new one where it has none, or where its mark is an earlier one than was left: then
    a former snapshot of it was restored, and all but documents is deleted there, because what was forgotten since came
    back with it and may be left nowhere else to be looked for. Else the new *mark* is left. Raises what the client
    does."""
    found = await _told(client, collection)
    if _is_former(found, mark):  # or a replica that is behind: most of them have to say it
        await asyncio.sleep(SETTLED_SECONDS)
        found = await _told(client, collection, consistency=models.ReadConsistencyType.MAJORITY)
    token = str(found.get("origin", ""))
    if token and not _is_former(found, mark):
        if mark is not None and mark.new > int(found.get("mark", 0)):  # else another process left a later one
            await client.set_payload(collection, {"mark": mark.new}, points=[POINT], wait=True)
        return token
    if mark is not None and mark.left:
        selector = models.FilterSelector(filter=_NO_DOCUMENTS)
        await client.delete(collection, selector, wait=True)  # first: interrupted, it is done again
    payload = {"v": PAYLOAD_VERSION, "origin": uuid.uuid4().hex}
    await client.upsert(collection, [models.PointStruct(id=POINT, vector={}, payload=payload)], wait=True)
    await asyncio.sleep(SETTLED_SECONDS)  # of two that make one at once the last stays, and both have to know that one
    return str((await _told(client, collection)).get("origin", ""))


def _is_former(found: dict[str, Any], mark: Mark | None) -> bool:
    """Whether what was *found* is less than was left there."""
    return mark is not None and mark.left > 0 and int(found.get("mark", 0)) < mark.left


async def _told(
    client: AsyncQdrantClient, collection: str, *, consistency: models.ReadConsistencyType | None = None
) -> dict[str, Any]:
    found = await client.retrieve(
        collection, [POINT], with_payload=True, with_vectors=False, consistency=consistency
    )  # fmt: skip
    return (found[0].payload or {}) if found else {}
