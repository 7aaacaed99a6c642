"""Lists the conversations of each person on the chat page, with their titles.

Key (owner ``conversations``, under the workspace's tag): ``titles`` and the person, a hash by conversation. The field
`ADOPTED` says that conversations from before there was this list were looked for.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, Scope, encode_id, redis_key
from connectors.web import NAME, ListedConversation, place
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


UNTITLED = "Conversation"
TITLE_CHARACTERS = 60
ADOPTED = "."
_FORMAT = 1


class ConversationList:
    """The list of each person. All methods raise `connectors.message.StoreUnavailable`; times are epoch seconds."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def all(self, workspace_id: str, person: str) -> tuple[list[ListedConversation], bool]:
        """Return the conversations of *person*, the last used first, and whether `adopted` was called."""
        stored: Any = await self._redis.hgetall(_key(workspace_id, person))
        found = [_conversation(str(name), text) for name, text in stored.items() if name != ADOPTED]
        return sorted(found, key=lambda conversation: conversation.at, reverse=True), ADOPTED in stored

    async def adopted(self, workspace_id: str, person: str) -> None:
        """Store that conversations of *person* from before there was this list were looked for."""
        await self._redis.hset(_key(workspace_id, person), ADOPTED, pack(_FORMAT))

    async def get(self, key: ConversationKey) -> ListedConversation | None:
        _, conversation = place(key)
        stored = await self._load(key)
        return _conversation(conversation, stored) if stored else None

    async def keep(self, key: ConversationKey, title: str, at: float, message_id: str = "") -> ListedConversation:
        """Store a conversation with its title, which comes from the message *message_id*, or was chosen by a person."""
        person, conversation = place(key)
        words = " ".join(title.split()) or UNTITLED
        short = words if len(words) <= TITLE_CHARACTERS else f"{words[: TITLE_CHARACTERS - 1].rstrip()}…"
        stored = pack(_FORMAT, title=short, at=at, message=message_id)
        await self._redis.hset(_key(key.workspace_id, person), conversation, stored)
        return _conversation(conversation, stored)

    async def say(self, key: ConversationKey, message_id: str, title: str, at: float) -> ListedConversation:
        """Store that something was said at *at*; *title* becomes the title if there is none yet."""
        stored = await self._load(key)
        fields = unpack(stored, _FORMAT, "a title") if stored else {}
        if fields.get("title", UNTITLED) == UNTITLED:
            return await self.keep(key, title, at, message_id)
        return await self.keep(key, fields["title"], at, fields.get("message", ""))

    async def delete(self, key: ConversationKey) -> None:
        if key.connector == NAME:
            person, conversation = place(key)
            await self._redis.hdel(_key(key.workspace_id, person), conversation)

    async def forget(self, key: ConversationKey, message_ids: Collection[str]) -> None:
        """Remove the title if it comes from one of these messages."""
        if key.connector != NAME:
            return
        stored = await self._load(key)
        fields = unpack(stored, _FORMAT, "a title") if stored else {}
        if fields.get("message") in message_ids:
            await self.keep(key, UNTITLED, fields["at"])

    async def _load(self, key: ConversationKey) -> Any:
        person, conversation = place(key)
        return await self._redis.hget(_key(key.workspace_id, person), conversation)


def _conversation(conversation: str, stored: str | bytes) -> ListedConversation:
    fields = unpack(stored, _FORMAT, "a title")
    at = datetime.fromtimestamp(fields["at"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return ListedConversation(conversation, fields["title"], at)


def _key(workspace_id: str, person: str) -> str:
    return redis_key("conversations", Scope(workspace_id).tag, "titles", encode_id(person))
