"""Which passages may lack their deeper vector, written down before they are stored, so that nobody looks through all
of them to find that out.

Keys (owner ``documents``, in the workspace's tag), each for one collection: ``deepened:<collection>`` the time, in
seconds since the epoch, at which all passages of the workspace were looked through last; ``shallow:<collection>`` a
hash of source to a token, of what was stored without a deeper vector since. Without the first nothing is known.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from connectors.message import Scope, redis_key
from grounding.documents.backlog import OWNER
from grounding.documents.index import Kind

if TYPE_CHECKING:
    from redis.asyncio import Redis

_DONE = (
    "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then return redis.call('HDEL', KEYS[1], ARGV[1]) end return 0"
)
AT_ONCE = 200
"""Workspaces that are asked about together: the answers of more take the event loop too long."""


class Lacking(NamedTuple):
    """A source whose passages may lack deeper vectors, and the token of when that was noted last."""

    scope: Scope
    kind: Kind
    source: str
    token: str


class Undeepened:
    """Of one *collection*. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, collection: str) -> None:
        self._redis = redis
        self._collection = collection
        self._done = redis.register_script(_DONE)

    @asynccontextmanager
    async def storing(
        self, scope: Scope, kind: Kind, sources: Collection[str], *, deepens: bool
    ) -> AsyncIterator[None]:
        """Passages of *sources* are stored by the block without deeper vectors; where nobody *deepens*, no names are
        kept. They are noted before, because it may be interrupted, and after, because somebody may look meanwhile."""
        if not deepens and sources:
            await self.unknown(scope)
            yield
            return
        await self.note(scope, kind, sources)
        try:
            yield
        finally:
            await self.note(scope, kind, sources)

    async def note(self, scope: Scope, kind: Kind, sources: Collection[str]) -> None:
        """Passages of *sources* may lack deeper vectors."""
        if sources:
            names: dict[Any, Any] = {_name(scope, kind, source): uuid.uuid4().hex for source in sources}
            await self._redis.hset(self._key(scope, "shallow"), mapping=names)

    async def unknown(self, scope: Scope) -> None:
        """Which passages of the workspace do is not known any more: all are to be looked through."""
        await self._redis.delete(self._key(scope, "deepened"))

    async def look(self, scopes: Sequence[Scope], oldest: float) -> list[int | None]:
        """How many sources of each workspace may lack deeper vectors; None where all of it is to be looked through,
        because nobody did since *oldest*. A round trip for `AT_ONCE` of them."""
        answers: list[Any] = []
        for start in range(0, len(scopes), AT_ONCE):
            async with self._redis.pipeline(transaction=False) as pipe:
                for scope in scopes[start : start + AT_ONCE]:
                    pipe.get(self._key(scope, "deepened"))
                    pipe.hlen(self._key(scope, "shallow"))
                answers += await pipe.execute()
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return [int(count) if at is not None and float(at) >= oldest else None for at, count in pairs]

    async def lacking(self, scope: Scope) -> list[Lacking]:
        """Those of the scope's workspace."""
        found = await self._redis.hgetall(self._key(scope, "shallow"))
        return await asyncio.to_thread(_all_lacking, scope, found)  # thousands take the event loop too long

    async def done(self, one: Lacking) -> None:
        """All passages of *one* have theirs, unless that was noted again meanwhile."""
        name = _name(one.scope, one.kind, one.source)
        await self._done(keys=[self._key(one.scope, "shallow")], args=[name, one.token])

    async def looked_through(self, scope: Scope, at: float) -> None:
        """Whatever was stored in the workspace before *at* and is not noted has its deeper vectors."""
        await self._redis.set(self._key(scope, "deepened"), repr(at))

    async def forget(self, scope: Scope) -> None:
        """The index has nothing of the workspace any more."""
        for name in ("deepened", "shallow"):  # one by one: see `grounding.documents.ledger.Ledger.forget`
            await self._redis.delete(self._key(scope, name))

    def _key(self, scope: Scope, name: str) -> str:
        return redis_key(OWNER, scope.tag, name, self._collection)


def _name(scope: Scope, kind: Kind, source: str) -> str:
    return json.dumps([kind.value, scope.context_id, source])


def _all_lacking(scope: Scope, found: Mapping[Any, Any]) -> list[Lacking]:
    return [_lacking(scope, str(name), str(token)) for name, token in found.items()]


def _lacking(scope: Scope, name: str, token: str) -> Lacking:
    kind, context_id, source = json.loads(name)
    return Lacking(Scope(scope.workspace_id, context_id), Kind(kind), source, token)
