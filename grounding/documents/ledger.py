"""What the index holds of each workspace, written down in Redis after the index has it.

Keys (owner ``documents``, in the workspace's tag), each for one collection: ``registry:<collection>`` a hash of path to
`grounding.documents.ledger.Registered`; ``skipped:<collection>`` a hash of path to why a file is no document;
``status:<collection>`` the lag of the last change.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.message import AgentRuntimeError, Scope, redis_key
from grounding.documents.library import Found, Skipped

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- backlog ----
#
# Documents that changed and are not yet in the index as they are, and since when.
#
# Key (owner ``documents``, in the workspace's tag): ``backlog``, a sorted set of paths by the time of the last change,
# in seconds since the epoch. It outlives the process: what was not finished is found here by the next.


OWNER = "documents"
_AT_ONCE = 250

# What changed again in the meantime stays.
_DONE = """
local gone = 0
for at = 1, #ARGV, 2 do
  local since = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if since and tonumber(since) <= tonumber(ARGV[at + 1]) then gone = gone + redis.call('ZREM', KEYS[1], ARGV[at]) end
end
return gone
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many documents wait, and since when the first of them does, in seconds since the epoch; 0 if none."""

    documents: int = 0
    since: float = 0.0


class Backlog:
    """Of all workspaces. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._done = redis.register_script(_DONE)

    async def add(self, scope: Scope, paths: Collection[str], at: float) -> None:
        """*paths* changed *at* that time."""
        ordered = sorted(paths)
        for start in range(0, len(ordered), _AT_ONCE):
            await self._redis.zadd(key(scope), dict.fromkeys(ordered[start : start + _AT_ONCE], at))

    async def since(self, scope: Scope, paths: Sequence[str]) -> dict[str, float]:
        """When those of *paths* that wait changed."""
        found: Any = await self._redis.zmscore(key(scope), list(paths)) if paths else []
        return {path: float(at) for path, at in zip(paths, found, strict=True) if at is not None}

    async def done(self, scope: Scope, since: Mapping[str, float]) -> None:
        """Those are as they were at the time that `since` told; what changed after that goes on waiting."""
        flat = [part for path, at in since.items() for part in (path, repr(at))]
        for start in range(0, len(flat), 2 * _AT_ONCE):
            await self._done(keys=[key(scope)], args=flat[start : start + 2 * _AT_ONCE])

    async def paths(self, scope: Scope, most: int) -> list[str]:
        """Those that wait longest, at most so many."""
        found: Any = await self._redis.zrange(key(scope), 0, most - 1)
        return [str(path) for path in found]

    async def waiting(self, scopes: Sequence[Scope]) -> list[Waiting]:
        """How much waits in each of *scopes*; one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.zcard(key(scope))
                pipe.zrange(key(scope), 0, 0, withscores=True)
            answers: Any = await pipe.execute() if scopes else []
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return [Waiting(int(count), float(first[0][1]) if first else 0.0) for count, first in pairs]

    async def forget(self, scope: Scope) -> None:
        """Nothing waits in the workspace any more."""
        await self._redis.delete(key(scope))


def key(scope: Scope) -> str:
    """The sorted set of the scope's workspace."""
    return redis_key(OWNER, scope.tag, "backlog")


# ---- registry ----
#
# What the index holds, document by document, as it is written down in Redis. Pure.


REGISTRY_VERSION = 1


class RegistryTooNew(AgentRuntimeError):
    """The registry was written by a newer version."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A document as the index has it: hash of its text, how it was cut and embedded, and the file it came from."""

    sha256: str
    fingerprint: str
    chunks: int
    size_bytes: int
    modified_ns: int

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(
            {
                "v": REGISTRY_VERSION,
                "sha256": self.sha256,
                "fingerprint": self.fingerprint,
                "chunks": self.chunks,
                "size_bytes": self.size_bytes,
                "modified_ns": self.modified_ns,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Registered:
        """The inverse of `to_json`. Raises `RegistryTooNew` for a format that this version does not know."""
        stored = json.loads(text)
        if stored.get("v") != REGISTRY_VERSION:
            raise RegistryTooNew(
                f"the registry of documents has format {stored.get('v')!r}, this version reads {REGISTRY_VERSION}: "
                "run `agent-runtime index --fresh`, or the version that wrote it"
            )
        return cls(
            stored["sha256"], stored["fingerprint"], stored["chunks"], stored["size_bytes"], stored["modified_ns"]
        )


def pending(
    registry: Mapping[str, Registered],
    skipped: Mapping[str, Skipped],
    there: Collection[Found],
    unfit: Collection[Skipped],
    fingerprint: str,
) -> set[str]:
    """Documents that are new, changed, gone, or cut and embedded otherwise than they would be now; and what is no
    document, or no longer none, without that being known."""
    # A name that is none of a document's is seen at once: whatever lies there now is no longer left out for it.
    named = {path: item for path, item in skipped.items() if item.why != "name"}
    waiting = {item.path for item in there if not _is_known(item, registry.get(item.path), fingerprint)}
    waiting -= {item.path for item in there if _looks_like(item, named.get(item.path))}
    waiting |= {item.path for item in unfit if not _looks_like(item, skipped.get(item.path))}
    here = {item.path for item in there} | {item.path for item in unfit}
    return waiting | (registry.keys() - here) | (skipped.keys() - here)


def _is_known(found: Found, known: Registered | None, fingerprint: str) -> bool:
    if known is None or known.fingerprint != fingerprint:
        return False
    if found.sha256:
        return known.sha256 == found.sha256
    return (known.size_bytes, known.modified_ns) == (found.size_bytes, found.modified_ns)


def _looks_like(found: Found | Skipped, known: Skipped | None) -> bool:
    return known is not None and (known.size_bytes, known.modified_ns) == (found.size_bytes, found.modified_ns)


# ---- ledger ----


_IN_FOLDERS = ("*.[mM][dD]/*", "*.[tT][xX][tT]/*")
"""Paths in folders that are named like documents (`grounding.documents.library.SUFFIXES`), as Redis compares them."""


class Ledger:
    """Of one *collection*. Raises `connectors.message.StoreUnavailable` throughout, and where it reads entries
    `grounding.documents.ledger.RegistryTooNew`."""

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
