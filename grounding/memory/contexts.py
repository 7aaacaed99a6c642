"""The context documents in Redis: the latest of each conversation, and every version that was.

Keys (owner ``contexts``, in the conversation's partition): ``latest`` a hash, ``history`` a stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from connectors.message import ConversationKey, redis_key
from grounding.transcript.entry import UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "contexts"
_VERSION = "1"

_STORE = """
local current = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if current ~= tonumber(ARGV[1]) then return 0 end
local fields = {}
for at = 2, #ARGV do fields[#fields + 1] = ARGV[at] end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('XADD', KEYS[2], '*', unpack(fields))
return 1
"""


@dataclass(frozen=True, slots=True)
class ContextDocument:
    """One version of a conversation's document. ``turns`` and ``entries`` say how far it reaches."""

    text: str
    version: int
    turns: int
    entries: int
    made_by: Literal["model", "extraction"]
    at: str
    turn_ids: tuple[str, ...] = ()


class ContextDocuments:
    """All context documents. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._store = redis.register_script(_STORE)

    async def latest(self, key: ConversationKey) -> ContextDocument | None:
        """The conversation's document, if it has one. Raises `UnknownFormat`."""
        fields: Any = await self._redis.hgetall(self._key(key, "latest"))
        if not fields:
            return None
        if fields["v"] != _VERSION:
            raise UnknownFormat(f"a context document has version {fields['v']!r}; this runtime reads {_VERSION}")
        return ContextDocument(
            text=fields["text"],
            version=int(fields["version"]),
            turns=int(fields["turns"]),
            entries=int(fields["entries"]),
            made_by=fields["made_by"],
            at=fields["at"],
            turn_ids=tuple(json.loads(fields["turn_ids"])),
        )

    async def store(self, key: ConversationKey, document: ContextDocument) -> bool:
        """Make *document* the latest if the one before it still is; False where another came first."""
        fields = {
            "v": _VERSION,
            "text": document.text,
            "version": str(document.version),
            "turns": str(document.turns),
            "entries": str(document.entries),
            "made_by": document.made_by,
            "at": document.at,
            "turn_ids": json.dumps(document.turn_ids),
        }
        flat = [part for pair in fields.items() for part in pair]
        stored = await self._store(
            keys=[self._key(key, "latest"), self._key(key, "history")], args=[document.version - 1, *flat]
        )
        return bool(stored)

    @staticmethod
    def _key(key: ConversationKey, part: str) -> str:
        return redis_key(_OWNER, key.tag, part, key.encoded)
