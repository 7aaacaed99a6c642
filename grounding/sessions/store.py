"""The sessions of all conversations in Redis.

Key (owner ``sessions``, under the conversation's tag): ``shown:<conversation>``, which expires with the session. The
builder of a prompt writes it without a lock: a late worker at worst restores the state of one turn ago.
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
    """The stored sessions. Every method raises `connectors.message.StoreUnavailable`.

    *idle_seconds* is the pause that ends a session.
    """

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    async def get(self, key: ConversationKey) -> Shown | None:
        """Return what the last prompt showed; None after a pause, or if another release stored it."""
        raw = await self._redis.get(self._key(key))
        try:
            return None if raw is None else Shown.model_validate_json(raw)
        except ValidationError:
            return None

    async def keep(self, key: ConversationKey, shown: Shown) -> None:
        """Store *shown* in place of the last state."""
        await self._redis.set(self._key(key), shown.model_dump_json(), ex=self._idle_seconds)

    async def end(self, key: ConversationKey) -> None:
        """Delete the session, so that the next turn begins a new one."""
        await self._redis.delete(self._key(key))

    @staticmethod
    def _key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "shown", key.encoded)
