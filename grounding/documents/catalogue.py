"""Which collections of passages exist, and which of them answers each workspace.

Another embedding model needs another collection. While it is filled, the former one answers.

Keys (owner ``documents``). Under ``{index}``: ``collections``, a hash of name to `Identity`; ``idle``, a hash of name
to the time, in seconds since the epoch, since which the collection answers no workspace. In the workspace's tag:
``current``, the name of the collection that answers; ``remembered:<name>:<form of turns>``, ``1`` if the collection
has all turns, context documents and records of the workspace, ``0`` while they are being put into it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, redis_key
from grounding.documents.ledger import OWNER, Ledger
from grounding.retrieval import PAYLOAD_VERSION, TURN_INDEX_VERSION, collection_name

if TYPE_CHECKING:
    from redis.asyncio import Redis

CATALOGUE_VERSION = 1
BATCH_WORKSPACES = 200
"""Workspaces in one pipeline: parsing the replies for more of them would block the event loop for too long."""
_TAG = "{index}"
_COLLECTIONS, _IDLE = (redis_key(OWNER, _TAG, name) for name in ("collections", "idle"))


@dataclass(frozen=True, slots=True)
class Identity:
    """The embedding model and payload format of a collection: all that is needed to open it again."""

    model: str
    dimensions: int
    payload_version: int = PAYLOAD_VERSION

    @property
    def name(self) -> str:
        """Return the collection's name."""
        return collection_name(self.model, self.dimensions, self.payload_version)

    @property
    def is_readable(self) -> bool:
        """Return whether this version reads the collection's payloads."""
        return self.payload_version == PAYLOAD_VERSION


class Catalogue:
    """The collections of all workspaces. Every method may raise `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def register(self, identity: Identity, scopes: Sequence[Scope]) -> None:
        """Record that this collection is filled from now on.

        Other collections no longer get the turns of *scopes*, so they count as incomplete.
        """
        stored = {"v": CATALOGUE_VERSION, "model": identity.model, "dimensions": identity.dimensions}
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(_COLLECTIONS, identity.name, json.dumps(stored | {"payload_version": identity.payload_version}))
            pipe.hdel(_IDLE, identity.name)
            await pipe.execute()
        for name in (await self.known()).keys() - {identity.name}:
            for scope in scopes:
                await self._redis.delete(_key(scope, "remembered", name, TURN_INDEX_VERSION))

    async def known(self) -> dict[str, Identity]:
        """Return all collections by name, except those that a newer version registered."""
        entries = {str(name): json.loads(text) for name, text in (await self._redis.hgetall(_COLLECTIONS)).items()}
        return {
            name: Identity(entry["model"], entry["dimensions"], entry["payload_version"])
            for name, entry in entries.items()
            if entry["v"] == CATALOGUE_VERSION
        }

    async def idle_since(self, name: str, now: float) -> float:
        """Return since when the collection has answered no workspace; record *now* if it did until now."""
        await self._redis.hsetnx(_IDLE, name, repr(now))
        return float(await self._redis.hget(_IDLE, name) or now)

    async def idle(self) -> dict[str, float]:
        """Return the collections that answer no workspace, and since when."""
        found = await self._redis.hgetall(_IDLE)
        return {str(name): float(since) for name, since in found.items()}

    async def mark_used(self, name: str) -> None:
        """Record that the collection answers some workspace."""
        await self._redis.hdel(_IDLE, name)

    async def remove(self, name: str) -> None:
        """Remove a collection that was deleted."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(_COLLECTIONS, name)
            pipe.hdel(_IDLE, name)
            await pipe.execute()

    async def current(self, scope: Scope) -> str:
        """Return the name of the collection that answers the workspace; empty if none does yet."""
        (name,) = await self.currents([scope])
        return name

    async def currents(self, scopes: Sequence[Scope]) -> list[str]:
        """Return `current` for each of *scopes*."""
        answers: list[Any] = []
        for start in range(0, len(scopes), BATCH_WORKSPACES):
            async with self._redis.pipeline(transaction=False) as pipe:
                for scope in scopes[start : start + BATCH_WORKSPACES]:
                    pipe.get(_key(scope, "current"))
                answers += await pipe.execute()
        return [str(answer or "") for answer in answers]

    async def claim(self, scope: Scope, name: str) -> None:
        """Let the collection *name* answer the workspace if none does yet."""
        await self._redis.set(_key(scope, "current"), name, nx=True)

    async def switch(self, scope: Scope, name: str) -> None:
        """Let the collection *name* answer the workspace from now on."""
        await self._redis.set(_key(scope, "current"), name)

    async def is_complete(self, scope: Scope, name: str) -> bool:
        """Return whether the collection has all turns, context documents and records of the workspace."""
        return bool(await self._redis.get(_key(scope, "remembered", name, TURN_INDEX_VERSION)) == "1")

    async def is_filling(self, scope: Scope, name: str) -> bool:
        """Return whether the turns, context documents and records of the workspace are being put into it."""
        return bool(await self._redis.get(_key(scope, "remembered", name, TURN_INDEX_VERSION)) == "0")

    async def mark_filling(self, scope: Scope, name: str) -> None:
        """Record that the collection lacks some of them."""
        await self._redis.set(_key(scope, "remembered", name, TURN_INDEX_VERSION), "0")

    async def mark_complete(self, scope: Scope, name: str) -> None:
        """Record that the collection has all of them."""
        await self._redis.set(_key(scope, "remembered", name, TURN_INDEX_VERSION), "1")

    async def documents(self, scope: Scope, name: str) -> int:
        """Return how many documents of the workspace are in the collection."""
        return await Ledger(self._redis, name).documents(scope)

    async def forget(self, scope: Scope, name: str) -> None:
        """Record that the collection has nothing of the workspace."""
        await Ledger(self._redis, name).forget(scope)
        await self._redis.delete(_key(scope, "remembered", name, TURN_INDEX_VERSION))

    async def lose(self, name: str, scopes: Collection[Scope]) -> None:
        """Record that the collection, which was filled before, is missing: it has to be filled again.

        Several processes may find that out at the same time.
        """
        for scope in scopes:
            await Ledger(self._redis, name).forget(scope)
            await self._redis.set(_key(scope, "remembered", name, TURN_INDEX_VERSION), "0", xx=True)


def _key(scope: Scope, *parts: str) -> str:
    return redis_key(OWNER, scope.tag, *parts)
