"""Turns that failed for good, kept until a person has looked at them.

Keys (owner ``dead``, under the workspace's tag): ``letters`` one hash of turn to what it was to answer and why it was
given up. The newest `KEPT` of a workspace are kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.message import AgentRuntimeError, ConversationKey, Scope, redis_key
from runtime.mailbox import Batch, Envelope
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "dead"
_VERSION = 1
KEPT = 1000
_ENVELOPES = TypeAdapter(tuple[Envelope, ...])


class UnknownLetter(AgentRuntimeError):
    """No turn of that id was given up in that workspace, or a person has dealt with it already."""

    user_text = "There is no such turn among those that failed."


@dataclass(frozen=True, slots=True)
class Letter:
    """A turn that was given up: what it was to answer, why, after how many attempts, and when (epoch seconds)."""

    turn_id: str
    key: ConversationKey
    why: str
    attempts: int
    at: float
    envelopes: tuple[Envelope, ...]


class DeadLetters:
    """The letters of all workspaces. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def add(self, batch: Batch, why: str) -> None:
        """Keep what *batch* was to answer. Again does no harm."""
        packed = pack(
            _VERSION,
            key=batch.key.encoded,
            why=why,
            attempts=batch.attempt,
            at=time.time(),
            envelopes=_ENVELOPES.dump_python(batch.envelopes, mode="json"),
        )
        name = _key(batch.key.scope)
        await self._redis.hset(name, batch.turn_id, packed)
        if await self._redis.hlen(name) > KEPT:
            oldest = min(await self._redis.hkeys(name))  # turn ids sort by time
            await self._redis.hdel(name, oldest)

    async def all(self, scope: Scope) -> list[Letter]:
        """Those of a workspace, the oldest first. Raises `runtime.stored.NewerFormat`."""
        stored: Any = await self._redis.hgetall(_key(scope))
        return [_letter(turn_id, stored[turn_id]) for turn_id in sorted(stored)]

    async def get(self, scope: Scope, turn_id: str) -> Letter:
        """One of them. Raises `UnknownLetter` and `runtime.stored.NewerFormat`."""
        stored: Any = await self._redis.hget(_key(scope), turn_id)
        if stored is None:
            raise UnknownLetter(f"no turn {turn_id!r} was given up in workspace {scope.workspace_id!r}")
        return _letter(turn_id, stored)

    async def drop(self, scope: Scope, turn_id: str) -> None:
        """Forget one. Raises `UnknownLetter`."""
        if not await self._redis.hdel(_key(scope), turn_id):
            raise UnknownLetter(f"no turn {turn_id!r} was given up in workspace {scope.workspace_id!r}")


def _letter(turn_id: str, text: str) -> Letter:
    fields = unpack(text, _VERSION, "a dead letter")
    return Letter(
        turn_id,
        ConversationKey.decode(fields["key"]),
        fields["why"],
        fields["attempts"],
        fields["at"],
        _ENVELOPES.validate_python(fields["envelopes"]),
    )


def _key(scope: Scope) -> str:
    return redis_key(_OWNER, scope.tag, "letters")
