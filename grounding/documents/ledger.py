"""Records in Redis which documents wait to be indexed (`Backlog`), what a collection of passages has of them
(`Ledger`), which collections there are, and which of them answers each workspace (`Catalogue`).

Another embedding model needs another collection. While it is filled, the former one answers.

Keys (owner ``documents``, in the workspace's tag): ``backlog``, a sorted set of paths by the time of the last change,
in seconds since the epoch. For each collection: ``registry:<collection>``, a hash of path to `Registered`;
``skipped:<collection>``, a hash of path to why a file is no document; ``status:<collection>``, the lag of the last
change. The ledger is written after the index, so that an interrupted run is continued by the next one.

``current``, the name of the collection that answers; ``remembered:<collection>:<form of turns>``, ``1`` if the
collection has all turns, context documents and records of the workspace, ``0`` while they are being put into it. Under
``{index}``: ``collections``, a hash of name to `Identity`; ``idle``, a hash of name to the time, in seconds since the
epoch, since which the collection answers no workspace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from connectors.message import AgentRuntimeError, Scope, redis_key
from grounding.documents.library import Found, Skipped
from grounding.retrieval import PAYLOAD_VERSION, TURN_INDEX_VERSION, collection_name

if TYPE_CHECKING:
    from redis.asyncio import Redis


OWNER = "documents"
REGISTRY_VERSION = 1
CATALOGUE_VERSION = 1
BATCH_WORKSPACES = 200
"""Workspaces in one pipeline: parsing the replies for more of them would block the event loop for too long."""
_TAG = "{index}"
_COLLECTIONS, _IDLE = (redis_key(OWNER, _TAG, name) for name in ("collections", "idle"))
_BATCH = 250

# A path that changed again in the meantime keeps waiting.
_REMOVE_DONE = """
local removed = 0
for at = 1, #ARGV, 2 do
  local since = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if since and tonumber(since) <= tonumber(ARGV[at + 1]) then
    removed = removed + redis.call('ZREM', KEYS[1], ARGV[at])
  end
end
return removed
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many documents wait, and since when the first of them does, in seconds since the epoch; 0 if none."""

    documents: int = 0
    since: float = 0.0


class Backlog:
    """The documents that changed and are not yet indexed. Every method may raise
    `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._remove_done = redis.register_script(_REMOVE_DONE)

    async def add(self, scope: Scope, paths: Collection[str], at: float) -> None:
        """Record that *paths* changed *at* that time."""
        ordered = sorted(paths)
        for start in range(0, len(ordered), _BATCH):
            await self._redis.zadd(backlog_key(scope), dict.fromkeys(ordered[start : start + _BATCH], at))

    async def since(self, scope: Scope, paths: Sequence[str]) -> dict[str, float]:
        """Return the time of the last change of those *paths* that wait."""
        found: Any = await self._redis.zmscore(backlog_key(scope), list(paths)) if paths else []
        return {path: float(at) for path, at in zip(paths, found, strict=True) if at is not None}

    async def done(self, scope: Scope, since: Mapping[str, float]) -> None:
        """Remove paths that are indexed as they were at the time that `since` returned."""
        flat = [part for path, at in since.items() for part in (path, repr(at))]
        for start in range(0, len(flat), 2 * _BATCH):
            await self._remove_done(keys=[backlog_key(scope)], args=flat[start : start + 2 * _BATCH])

    async def paths(self, scope: Scope, most: int) -> list[str]:
        """Return at most so many paths, those that wait longest."""
        found: Any = await self._redis.zrange(backlog_key(scope), 0, most - 1)
        return [str(path) for path in found]

    async def waiting(self, scopes: Sequence[Scope]) -> list[Waiting]:
        """Return how much waits in each of *scopes*, in one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.zcard(backlog_key(scope))
                pipe.zrange(backlog_key(scope), 0, 0, withscores=True)
            answers: Any = await pipe.execute() if scopes else []
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return [Waiting(int(count), float(first[0][1]) if first else 0.0) for count, first in pairs]

    async def forget(self, scope: Scope) -> None:
        """Remove everything that waits in the workspace."""
        await self._redis.delete(backlog_key(scope))


def backlog_key(scope: Scope) -> str:
    """Return the key of the workspace's backlog."""
    return redis_key(OWNER, scope.tag, "backlog")


class RegistryTooNew(AgentRuntimeError):
    """The registry was written by a newer version."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A document as the index has it: hash of its text, how it was cut and embedded, and size and time of its file."""

    sha256: str
    fingerprint: str
    chunks: int
    size_bytes: int
    modified_ns: int

    def to_json(self) -> str:
        """Return the stored form."""
        return json.dumps({"v": REGISTRY_VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Registered:
        """Parse the stored form. Raises `RegistryTooNew` if its version is unknown."""
        stored = json.loads(text)
        if stored.get("v") != REGISTRY_VERSION:
            raise RegistryTooNew(
                f"the registry of documents has format {stored.get('v')!r}, this version reads {REGISTRY_VERSION}: "
                "run `agent-runtime index --fresh`, or the version that wrote it"
            )
        return cls(
            stored["sha256"], stored["fingerprint"], stored["chunks"], stored["size_bytes"], stored["modified_ns"]
        )


class Ledger:
    """What one *collection* has of the documents.

    Every method may raise `connectors.message.StoreUnavailable`; those that read entries raise `RegistryTooNew` too.
    """

    def __init__(self, redis: Redis, collection: str) -> None:
        self._redis = redis
        self._collection = collection

    async def entries(self, scope: Scope, paths: Sequence[str]) -> dict[str, Registered]:
        """Return the entries of those *paths* that the index has."""
        found: Any = await self._redis.hmget(self._key(scope, "registry"), list(paths)) if paths else []
        return {path: Registered.from_json(entry) for path, entry in zip(paths, found, strict=True) if entry}

    async def all(self, scope: Scope) -> dict[str, Registered]:
        """Return all entries by path."""
        stored = await self._redis.hgetall(self._key(scope, "registry"))
        return await asyncio.to_thread(_parse_entries, stored)  # thousands would block the event loop

    async def paths(self, scope: Scope) -> set[str]:
        """Return the paths of all entries, whatever their version."""
        return {str(path) for path in await self._redis.hkeys(self._key(scope, "registry"))}

    async def registered(self, scope: Scope, paths: Sequence[str]) -> set[str]:
        """Return those *paths* that have an entry, whatever its version."""
        found: Any = await self._redis.hmget(self._key(scope, "registry"), list(paths)) if paths else []
        return {path for path, entry in zip(paths, found, strict=True) if entry is not None}

    async def documents(self, scope: Scope) -> int:
        """Return how many documents the index has."""
        return int(await self._redis.hlen(self._key(scope, "registry")))

    async def record(
        self, scope: Scope, stored: Mapping[str, Registered], skipped: Collection[Skipped], gone: Collection[str]
    ) -> None:
        """Record in one step that the index has *stored*, and neither *skipped* nor *gone*."""
        registry, reasons = self._key(scope, "registry"), self._key(scope, "skipped")
        reason_of = {item.path: item for item in skipped}
        absent = {*gone, *reason_of}
        if not stored and not absent:
            return
        async with self._redis.pipeline(transaction=True) as pipe:
            if stored:
                pipe.hset(registry, mapping={path: entry.to_json() for path, entry in stored.items()})
            if absent:
                pipe.hdel(registry, *absent)
            if obsolete := ({*gone} | stored.keys()) - reason_of.keys():
                pipe.hdel(reasons, *obsolete)
            if reason_of:
                pipe.hset(reasons, mapping={path: _pack_skipped(item) for path, item in reason_of.items()})
            await pipe.execute()

    async def skipped(self, scope: Scope) -> dict[str, Skipped]:
        """Return the files that are no documents, by path."""
        stored = await self._redis.hgetall(self._key(scope, "skipped"))
        return {str(path): _parse_skipped(str(path), str(entry)) for path, entry in stored.items()}

    async def set_lag(self, scope: Scope, lag_ms: int) -> None:
        """Store the milliseconds from the last change until it could be found."""
        await self._redis.hset(self._key(scope, "status"), mapping={"v": REGISTRY_VERSION, "lag_ms": lag_ms})

    async def lag_ms(self, scope: Scope) -> int:
        """Return the lag of the last change; 0 if there was none."""
        return int(await self._redis.hget(self._key(scope, "status"), "lag_ms") or 0)

    async def forget(self, scope: Scope) -> None:
        """Record that the index has nothing of the workspace."""
        # One by one: a cluster takes no command with several keys.
        for name in ("registry", "skipped", "status"):
            await self._redis.delete(self._key(scope, name))

    def _key(self, scope: Scope, name: str) -> str:
        return redis_key(OWNER, scope.tag, name, self._collection)


def pending(
    registry: Mapping[str, Registered],
    skipped: Mapping[str, Skipped],
    found: Collection[Found],
    unfit: Collection[Skipped],
    fingerprint: str,
) -> set[str]:
    """Return the paths that have to be looked at, judged by hash or by size and time.

    These are documents that are new, changed, gone, or were cut and embedded otherwise than with *fingerprint*; and
    files that became, or ceased to be, no documents. *found* and *unfit* are all files that there are.
    """
    waiting = {
        item.path
        for item in found
        if not _is_indexed(item, registry.get(item.path), fingerprint) and not _looks_like(item, skipped.get(item.path))
    }
    waiting |= {item.path for item in unfit if not _looks_like(item, skipped.get(item.path))}
    here = {item.path for item in found} | {item.path for item in unfit}
    return waiting | (registry.keys() - here) | (skipped.keys() - here)


def _is_indexed(found: Found, entry: Registered | None, fingerprint: str) -> bool:
    if entry is None or entry.fingerprint != fingerprint:
        return False
    if found.sha256:
        return entry.sha256 == found.sha256
    return (entry.size_bytes, entry.modified_ns) == (found.size_bytes, found.modified_ns)


def _looks_like(found: Found | Skipped, known: Skipped | None) -> bool:
    return known is not None and (known.size_bytes, known.modified_ns) == (found.size_bytes, found.modified_ns)


def _parse_entries(stored: Mapping[Any, Any]) -> dict[str, Registered]:
    return {str(path): Registered.from_json(str(entry)) for path, entry in stored.items()}


def _pack_skipped(item: Skipped) -> str:
    return json.dumps(
        {"v": REGISTRY_VERSION, "why": item.why, "bytes": item.size_bytes, "modified_ns": item.modified_ns}
    )


def _parse_skipped(path: str, text: str) -> Skipped:
    stored = json.loads(text)
    return Skipped(path, stored["why"], stored["bytes"], stored["modified_ns"])


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
                await self._redis.delete(_remembered_key(scope, name))

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
                    pipe.get(_current_key(scope))
                answers += await pipe.execute()
        return [str(answer or "") for answer in answers]

    async def claim(self, scope: Scope, name: str) -> None:
        """Let the collection *name* answer the workspace if none does yet."""
        await self._redis.set(_current_key(scope), name, nx=True)

    async def switch(self, scope: Scope, name: str) -> None:
        """Let the collection *name* answer the workspace from now on."""
        await self._redis.set(_current_key(scope), name)

    async def is_complete(self, scope: Scope, name: str) -> bool:
        """Return whether the collection has all turns, context documents and records of the workspace."""
        return bool(await self._redis.get(_remembered_key(scope, name)) == "1")

    async def is_filling(self, scope: Scope, name: str) -> bool:
        """Return whether the turns, context documents and records of the workspace are being put into it."""
        return bool(await self._redis.get(_remembered_key(scope, name)) == "0")

    async def mark_filling(self, scope: Scope, name: str) -> None:
        """Record that the collection lacks some of them."""
        await self._redis.set(_remembered_key(scope, name), "0")

    async def mark_complete(self, scope: Scope, name: str) -> None:
        """Record that the collection has all of them."""
        await self._redis.set(_remembered_key(scope, name), "1")

    async def documents(self, scope: Scope, name: str) -> int:
        """Return how many documents of the workspace are in the collection."""
        return await Ledger(self._redis, name).documents(scope)

    async def forget(self, scope: Scope, name: str) -> None:
        """Record that the collection has nothing of the workspace."""
        await Ledger(self._redis, name).forget(scope)
        await self._redis.delete(_remembered_key(scope, name))

    async def lose(self, name: str, scopes: Collection[Scope]) -> None:
        """Record that the collection, which was filled before, is missing: it has to be filled again.

        Several processes may find that out at the same time.
        """
        for scope in scopes:
            await Ledger(self._redis, name).forget(scope)
            await self._redis.set(_remembered_key(scope, name), "0", xx=True)


def _current_key(scope: Scope) -> str:
    return redis_key(OWNER, scope.tag, "current")


def _remembered_key(scope: Scope, name: str) -> str:
    return redis_key(OWNER, scope.tag, "remembered", name, TURN_INDEX_VERSION)
