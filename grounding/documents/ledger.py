"""What the index holds of each workspace, written down in Redis after the index has it.

Keys (owner ``documents``, in the workspace's tag), each for one collection: ``registry:<collection>`` a hash of path to
`grounding.documents.registry.Registered`; ``skipped:<collection>`` a hash of path to why a file is no document;
``status:<collection>`` the lag of the last change.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, redis_key
from grounding.documents.backlog import OWNER
from grounding.documents.library import Skipped
from grounding.documents.registry import REGISTRY_VERSION, Registered

if TYPE_CHECKING:
    from redis.asyncio import Redis


_IN_FOLDERS = ("*.[mM][dD]/*", "*.[tT][xX][tT]/*")
"""Paths in folders that are named like documents (`grounding.documents.library.SUFFIXES`), as Redis compares them."""


class Ledger:
    """Of one *collection*. Raises `connectors.message.StoreUnavailable` throughout, and where it reads entries
    `grounding.documents.registry.RegistryTooNew`."""

    def __init__(self, redis: Redis, collection: str) -> None:
        self._redis = redis
        self._collection = collection

    async def entries(self, scope: Scope, paths: Sequence[str]) -> dict[str, Registered]:
        """Those of *paths* that the index has."""
        found: Any = await self._redis.hmget(self._key(scope, "registry"), list(paths)) if paths else []
        return {path: Registered.from_json(entry) for path, entry in zip(paths, found, strict=True) if entry}

    async def all(self, scope: Scope) -> dict[str, Registered]:
        """Everything that the index has."""
        stored = await self._redis.hgetall(self._key(scope, "registry"))
        return await asyncio.to_thread(_registered, stored)  # thousands take the event loop too long

    async def paths(self, scope: Scope) -> set[str]:
        """The paths of `all`, whatever the form of their entries."""
        return {str(path) for path in await self._redis.hkeys(self._key(scope, "registry"))}

    async def some(self, scope: Scope, paths: Sequence[str]) -> set[str]:
        """Those of *paths* that the index has, whatever the form of their entries."""
        found: Any = await self._redis.hmget(self._key(scope, "registry"), list(paths)) if paths else []
        return {path for path, entry in zip(paths, found, strict=True) if entry is not None}

    async def inside_documents(self, scope: Scope) -> set[str]:
        """Those of `paths` that lie in a folder which is named like a document."""
        name = self._key(scope, "registry")
        found: set[str] = set()
        for pattern in _IN_FOLDERS:  # the store compares: thousands of names take the event loop too long
            async for path, _ in self._redis.hscan_iter(name, match=pattern, count=1000):
                found.add(str(path))
        return found

    async def documents(self, scope: Scope) -> int:
        """How many the index has."""
        return int(await self._redis.hlen(self._key(scope, "registry")))

    async def record(
        self, scope: Scope, stored: Mapping[str, Registered], skipped: Collection[Skipped], gone: Collection[str]
    ) -> None:
        """The index now has *stored*, and neither *skipped* nor *gone*. In one step."""
        registry, names = self._key(scope, "registry"), self._key(scope, "skipped")
        absent = {*gone, *(one.path for one in skipped)}
        async with self._redis.pipeline(transaction=True) as pipe:
            if stored:
                pipe.hset(registry, mapping={path: entry.to_json() for path, entry in stored.items()})
            if absent:
                pipe.hdel(registry, *absent)
            if forgotten := (set(gone) | stored.keys()) - {one.path for one in skipped}:
                pipe.hdel(names, *forgotten)
            if skipped:
                pipe.hset(names, mapping={one.path: _packed(one) for one in skipped})
            if stored or absent:
                await pipe.execute()

    async def skipped(self, scope: Scope) -> dict[str, Skipped]:
        """Files that are no documents, by path."""
        stored = await self._redis.hgetall(self._key(scope, "skipped"))
        return {str(path): _unpacked(str(path), str(entry)) for path, entry in stored.items()}

    async def keep_lag(self, scope: Scope, lag_ms: int) -> None:
        """Milliseconds from the last change to when it could be found."""
        await self._redis.hset(self._key(scope, "status"), mapping={"v": REGISTRY_VERSION, "lag_ms": lag_ms})

    async def lag_ms(self, scope: Scope) -> int:
        """What `keep_lag` kept last; 0 before."""
        return int(await self._redis.hget(self._key(scope, "status"), "lag_ms") or 0)

    async def forget(self, scope: Scope) -> None:
        """The index has nothing of the workspace any more."""
        # One by one: no command may name several keys on every kind of store.
        for name in ("registry", "skipped", "status"):
            await self._redis.delete(self._key(scope, name))

    def _key(self, scope: Scope, name: str) -> str:
        return redis_key(OWNER, scope.tag, name, self._collection)


def _registered(stored: Mapping[Any, Any]) -> dict[str, Registered]:
    return {str(path): Registered.from_json(str(entry)) for path, entry in stored.items()}


def _packed(one: Skipped) -> str:
    return json.dumps({"v": REGISTRY_VERSION, "why": one.why, "bytes": one.size_bytes, "modified_ns": one.modified_ns})


def _unpacked(path: str, text: str) -> Skipped:
    stored = json.loads(text)
    return Skipped(path, stored["why"], stored["bytes"], stored["modified_ns"])
