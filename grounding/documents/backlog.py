"""Documents that changed and are not yet in the index as they are, and since when.

Key (owner ``documents``, in the workspace's tag): ``backlog``, a sorted set of paths by the time of the last change,
in seconds since the epoch. It outlives the process: what was not finished is found here by the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
