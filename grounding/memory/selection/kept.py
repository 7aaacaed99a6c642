"""What was selected last in a conversation, so that the next message may be given the same.

Key (owner ``selection``, under the conversation's tag): ``kept:<conversation>``, for as long as a session lasts. Ids
and levels of detail, no text: what a record says is read from the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from connectors.message import ConversationKey, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "selection"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeptRecord(_Strict):
    """One that was shown; see `grounding.run_context.SelectedRecord`."""

    id: str
    level: Literal["summary", "micro"]
    state: str
    score: float
    similarity: float


class Kept(_Strict):
    """What was shown: in which frame, the best first, out of which budget in tokens."""

    v: Literal[1] = 1
    frame: str
    records: tuple[KeptRecord, ...] = ()
    pinned: tuple[str, ...] = ()
    """Ids of what stood in every prompt then, whether there was room for it or not."""
    budget: int


class KeptSelections:
    """The last selections of all conversations. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    async def get(self, key: ConversationKey) -> Kept | None:
        """What was kept; None after a pause, and where another release kept it."""
        raw = await self._redis.getex(self._key(key), ex=self._idle_seconds)
        try:
            return None if raw is None else Kept.model_validate_json(raw)
        except ValidationError:
            return None

    async def keep(self, key: ConversationKey, kept: Kept) -> None:
        """Keep *kept* in the place of what was."""
        await self._redis.set(self._key(key), kept.model_dump_json(), ex=self._idle_seconds)

    async def forget(self, key: ConversationKey) -> None:
        """Select anew with the next message."""
        await self._redis.delete(self._key(key))

    @staticmethod
    def _key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "kept", key.encoded)
