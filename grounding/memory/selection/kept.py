"""The last selection of each conversation, so that the next message can reuse it.

Key (owner ``selection``, under the conversation's tag): ``kept:<conversation>``, which expires with the session. It
holds ids and levels of detail but no text; texts are read from the records.
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
    """One record that was shown; see `grounding.run_context.SelectedRecord`."""

    id: str
    level: Literal["summary", "micro"]
    state: str
    score: float
    similarity: float


class Kept(_Strict):
    """The last selection: the frame, the records, the best first, and the budget in tokens."""

    v: Literal[1] = 1
    frame: str
    records: tuple[KeptRecord, ...] = ()
    pinned: tuple[str, ...] = ()
    """Ids of the records that stood in every prompt then, whether they fitted or not."""
    budget: int


class KeptSelections:
    """The last selections of all conversations. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis, idle_seconds: int) -> None:
        self._redis = redis
        self._idle_seconds = idle_seconds

    async def get(self, key: ConversationKey) -> Kept | None:
        """Return the last selection; None after a pause, or if another release stored it."""
        raw = await self._redis.getex(self._key(key), ex=self._idle_seconds)
        try:
            return None if raw is None else Kept.model_validate_json(raw)
        except ValidationError:
            return None

    async def keep(self, key: ConversationKey, kept: Kept) -> None:
        """Store *kept* in place of the last selection."""
        await self._redis.set(self._key(key), kept.model_dump_json(), ex=self._idle_seconds)

    async def forget(self, key: ConversationKey) -> None:
        """Delete the last selection, so that the next message selects anew."""
        await self._redis.delete(self._key(key))

    @staticmethod
    def _key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "kept", key.encoded)
