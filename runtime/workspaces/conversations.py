"""The conversations of each person on the chat page, with their titles.

Key (owner ``conversations``, under the workspace's tag): ``titles`` and the person, a hash by conversation. The field
`ADOPTED` says that conversations from before there was this list were looked for.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, Scope, encode_id, redis_key
from connectors.web import NAME, Conversation, place
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


UNTITLED = "Conversation"
TITLE_CHARACTERS = 60
ADOPTED = "."
_FORMAT = 1


class ConversationList:
    """Raises `connectors.message.StoreUnavailable` throughout. ``at`` is in seconds since the epoch."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def all(self, workspace_id: str, person: str) -> tuple[list[Conversation], bool]:
        """The conversations of *person*, the last used first, and whether former ones were looked for."""
        stored: Any = await self._redis.hgetall(_key(workspace_id, person))
        found = [_conversation(str(one), text) for one, text in stored.items() if one != ADOPTED]
        return sorted(found, key=lambda one: one.at, reverse=True), ADOPTED in stored

    async def adopted(self, workspace_id: str, person: str) -> None:
        """Former conversations of *person* were looked for."""
        await self._redis.hset(_key(workspace_id, person), ADOPTED, pack(_FORMAT))

    async def get(self, key: ConversationKey) -> Conversation | None:
        whose, conversation = place(key)
        stored: Any = await self._redis.hget(_key(key.workspace_id, whose), conversation)
        return _conversation(conversation, stored) if stored else None

    async def keep(self, key: ConversationKey, title: str, at: float, message_id: str = "") -> Conversation:
        """*message_id*: the message from which the title comes; empty for one that was chosen."""
        whose, conversation = place(key)
        words = " ".join(title.split()) or UNTITLED
        short = words if len(words) <= TITLE_CHARACTERS else f"{words[: TITLE_CHARACTERS - 1].rstrip()}…"
        stored = pack(_FORMAT, title=short, at=at, message=message_id)
        await self._redis.hset(_key(key.workspace_id, whose), conversation, stored)
        return _conversation(conversation, stored)

    async def say(self, key: ConversationKey, message_id: str, title: str, at: float) -> Conversation:
        """Something was said at *at*; where there is no title yet, it is *title*."""
        whose, conversation = place(key)
        stored: Any = await self._redis.hget(_key(key.workspace_id, whose), conversation)
        known = unpack(stored, _FORMAT, "a title") if stored else {}
        if known.get("title", UNTITLED) == UNTITLED:
            return await self.keep(key, title, at, message_id)
        return await self.keep(key, known["title"], at, known.get("message", ""))

    async def delete(self, key: ConversationKey) -> None:
        if key.connector == NAME:
            whose, conversation = place(key)
            await self._redis.hdel(_key(key.workspace_id, whose), conversation)

    async def forget(self, key: ConversationKey, message_ids: Collection[str]) -> None:
        """Take a title away that comes from one of these messages."""
        if key.connector != NAME:
            return
        whose, conversation = place(key)
        stored: Any = await self._redis.hget(_key(key.workspace_id, whose), conversation)
        known = unpack(stored, _FORMAT, "a title") if stored else {}
        if known.get("message") in message_ids:
            await self.keep(key, UNTITLED, known["at"])


def _conversation(conversation: str, stored: str | bytes) -> Conversation:
    fields = unpack(stored, _FORMAT, "a title")
    at = datetime.fromtimestamp(fields["at"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Conversation(conversation, fields["title"], at)


def _key(workspace_id: str, person: str) -> str:
    return redis_key("conversations", Scope(workspace_id).tag, "titles", encode_id(person))
