"""Which exchanges stand in a conversation's session: the same from its first turn to its last.

Key (owner ``karma``, under the conversation's tag): ``floor:<conversation>``, for as long as a session lasts. Turn ids,
no text: what they say is read from the marks, so that what is taken back or forgotten stands no more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from connectors.message import ConversationKey, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "karma"


class Floors:
    """Of all conversations. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    async def get(self, key: ConversationKey, session: str) -> list[str] | None:
        """The turns that stand in *session*; None where it has just begun, or the one before is over."""
        raw = await self._redis.getex(_key(key), ex=self._idle_seconds)
        kept = json.loads(raw) if raw else {}
        return [str(one) for one in kept["turns"]] if kept.get("v") == 1 and kept["session"] == session else None

    async def keep(self, key: ConversationKey, session: str, turns: Sequence[str]) -> None:
        """Let *turns* stand in *session*."""
        kept = json.dumps({"v": 1, "session": session, "turns": list(turns)})
        await self._redis.set(_key(key), kept, ex=self._idle_seconds)

    async def forget(self, key: ConversationKey) -> None:
        """A new session begins."""
        await self._redis.delete(_key(key))


def _key(key: ConversationKey) -> str:
    return redis_key(_OWNER, key.tag, "floor", key.encoded)
