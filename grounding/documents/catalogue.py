"""Which collections of passages there are, and which of them answers each workspace.

Another embedding model makes another collection. While it is filled, a workspace is answered from the one before.

Keys (owner ``documents``): under ``{index}`` ``collections``, a hash of name to `Identity`, ``idle``, a hash of name to
the time, in seconds since the epoch, since which nobody is answered from it, and ``in_use:<name>``, which a process
keeps for as long as it fills that collection; in the workspace's tag ``current``, the name of the collection that
answers, ``remembered:<name>:<form of turns>``, set once all that was said and noted is in it, and ``behind:<name>``, a
set of what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, redis_key
from grounding.documents.ledger import OWNER, Ledger
from grounding.retrieval import FORM, PAYLOAD_VERSION, collection_name

if TYPE_CHECKING:
    from redis.asyncio import Redis

CATALOGUE_VERSION = 1
AT_ONCE = 200
"""Workspaces that are asked about together: the answers of more take the event loop too long."""
IN_USE_SECONDS = 60.0
"""How long a process that was killed keeps its collection from being dropped."""
_TAG = "{index}"
_COLLECTIONS, _IDLE = (redis_key(OWNER, _TAG, name) for name in ("collections", "idle"))


class Lacks(StrEnum):
    """What a collection that answers may lack, because it could not be stored there."""

    DOCUMENTS = "documents"
    TURNS = "turns"
    CONTEXTS = "contexts"
    """Context documents."""
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a collection was made with: all that it takes to ask it again."""

    model: str
    dimensions: int
    payload_version: int = PAYLOAD_VERSION

    @property
    def name(self) -> str:
        """The collection's name."""
        return collection_name(self.model, self.dimensions, self.payload_version)

    @property
    def is_readable(self) -> bool:
        """Whether this version understands what is stored there."""
        return self.payload_version == PAYLOAD_VERSION


class Catalogue:
    """Of all workspaces. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def register(self, identity: Identity) -> None:
        """A process fills this collection: it is no longer idle."""
        stored = {"v": CATALOGUE_VERSION, "model": identity.model, "dimensions": identity.dimensions}
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(_COLLECTIONS, identity.name, json.dumps(stored | {"payload_version": identity.payload_version}))
            pipe.hdel(_IDLE, identity.name)
            await pipe.execute()

    async def known(self) -> dict[str, Identity]:
        """All collections by name, but for what a newer version wrote."""
        entries = {str(name): json.loads(text) for name, text in (await self._redis.hgetall(_COLLECTIONS)).items()}
        return {
            name: Identity(entry["model"], entry["dimensions"], entry["payload_version"])
            for name, entry in entries.items()
            if entry["v"] == CATALOGUE_VERSION
        }

    async def keep(self, name: str) -> None:
        """A process still fills the collection: for `IN_USE_SECONDS` it must not be dropped."""
        await self._redis.set(_in_use(name), "1", px=round(IN_USE_SECONDS * 1000))

    async def leave(self, name: str) -> None:
        """The process fills it no more."""
        await self._redis.delete(_in_use(name))

    async def is_kept(self, name: str) -> bool:
        """Whether some process fills it."""
        return bool(await self._redis.exists(_in_use(name)))

    async def idle_since(self, name: str, now: float) -> float:
        """Since when nobody is answered from it: *now*, if that was not known before."""
        await self._redis.hsetnx(_IDLE, name, repr(now))
        return float(await self._redis.hget(_IDLE, name) or now)

    async def idle(self) -> dict[str, float]:
        """All that are known to be idle, and since when."""
        found = await self._redis.hgetall(_IDLE)
        return {str(name): float(since) for name, since in found.items()}

    async def is_answering_again(self, name: str) -> None:
        """It is not idle."""
        await self._redis.hdel(_IDLE, name)

    async def remove(self, name: str) -> None:
        """The collection is gone."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(_COLLECTIONS, name)
            pipe.hdel(_IDLE, name)
            await pipe.execute()

    async def lost(self, name: str, scopes: Sequence[Scope]) -> None:
        """Say that the collection has nothing of the workspaces of *scopes*, which it may have had: what was said and
        noted there counts as not put into it, and it `is_behind` until `caught_up` says that it is not. Nothing is said
        of a workspace of which it never had anything."""
        for scope in scopes:
            if not await self.remembers(scope, name):
                continue
            await self._redis.sadd(_key(scope, "behind", name), Lacks.DOCUMENTS.value, Lacks.TURNS.value)
            await self._redis.delete(_key(scope, "remembered", name, FORM))
        await self._redis.delete(_everywhere(name))

    async def current(self, scope: Scope) -> str:
        """The collection that answers the scope's workspace; empty before there was any."""
        (name,) = await self.currents([scope])
        return name

    async def currents(self, scopes: Sequence[Scope]) -> list[str]:
        """`current` of each of *scopes*; a round trip for some at once."""
        answers: list[Any] = []
        for start in range(0, len(scopes), AT_ONCE):
            async with self._redis.pipeline(transaction=False) as pipe:
                for scope in scopes[start : start + AT_ONCE]:
                    pipe.get(_key(scope, "current"))
                answers += await pipe.execute()
        return [str(answer or "") for answer in answers]

    async def claim(self, scope: Scope, name: str) -> None:
        """Where no collection answers the workspace yet, *name* does."""
        await self._redis.set(_key(scope, "current"), name, nx=True)

    async def switch(self, scope: Scope, former: str, name: str) -> None:
        """From now on *name* answers, in the place of *former*, which is no longer told all that is said."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(_key(scope, "current"), name)
            pipe.delete(_key(scope, "remembered", former, FORM))
            pipe.delete(_key(scope, "behind", former))
            pipe.delete(_key(scope, "behind", name))
            await pipe.execute()
        await self._redis.delete(_everywhere(former))

    async def remembers(self, scope: Scope, name: str) -> bool:
        """Whether all that was said in the workspace has been put into the collection."""
        if await self._redis.exists(_key(scope, "remembered", name, FORM)):
            return True
        return bool(await self._redis.exists(_everywhere(name)))

    async def has_remembered(self, scope: Scope, name: str) -> None:
        """Say that it has."""
        await self._redis.set(_key(scope, "remembered", name, FORM), "1")
        await self.caught_up(scope, name, Lacks.TURNS)

    async def documents(self, scope: Scope, name: str) -> int:
        """How many documents of the workspace are in the collection."""
        return await Ledger(self._redis, name).documents(scope)

    async def fell_behind(self, scope: Scope, name: str, lacks: Lacks) -> None:
        """Something could not be stored in the collection that answers."""
        await self._redis.sadd(_key(scope, "behind", name), lacks.value)
        if lacks is not Lacks.DOCUMENTS:
            await self._redis.delete(_key(scope, "remembered", name, FORM))
            await self._redis.delete(_everywhere(name))

    async def caught_up(self, scope: Scope, name: str, lacks: Lacks) -> None:
        """It has it all now."""
        await self._redis.srem(_key(scope, "behind", name), lacks.value)

    async def is_behind(self, scope: Scope, name: str, *lacks: Lacks) -> bool:
        """Whether it lacks some of those."""
        found: Any = await self._redis.smismember(_key(scope, "behind", name), [one.value for one in lacks])
        return any(found)

    async def forget(self, scope: Scope, name: str) -> None:
        """The collection holds nothing of the workspace any more."""
        await Ledger(self._redis, name).forget(scope)
        for what in (("remembered", name, FORM), ("behind", name)):  # one by one: see `Ledger.forget`
            await self._redis.delete(_key(scope, *what))


def _key(scope: Scope, *parts: str) -> str:
    return redis_key(OWNER, scope.tag, *parts)


def _in_use(name: str) -> str:
    return redis_key(OWNER, _TAG, "in_use", name)


def _everywhere(name: str) -> str:
    """What former versions set for all workspaces at once."""
    return redis_key(OWNER, _TAG, "remembered", name, FORM)
