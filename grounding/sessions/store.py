"""The sessions of all conversations in Redis.

Key (owner ``sessions``, under the conversation's tag): ``shown:<conversation>``, for as long as a session lasts. It is
written by whoever builds a prompt, without a lock: a worker that is late leaves what was true a turn ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from connectors.message import ConversationKey, redis_key
from grounding.sessions.shown import Shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "sessions"


class Sessions:
    """Raises `connectors.message.StoreUnavailable` throughout. *idle_seconds* is the pause that ends a session."""

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    async def get(self, key: ConversationKey) -> Shown | None:
        """What the last prompt showed; None after a pause, and where another release kept it."""
        raw = await self._redis.get(self._key(key))
        try:
            return None if raw is None else Shown.model_validate_json(raw)
        except ValidationError:
            return None

    async def keep(self, key: ConversationKey, shown: Shown) -> None:
        """Keep *shown* in the place of what was."""
        await self._redis.set(self._key(key), shown.model_dump_json(), ex=self._idle_seconds)

    async def end(self, key: ConversationKey) -> None:
        """Let the next turn begin a session; what was kept of the last one is gone."""
        await self._redis.delete(self._key(key))

    @staticmethod
    def _key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "shown", key.encoded)
