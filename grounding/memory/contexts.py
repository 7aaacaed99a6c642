"""The context documents in Redis: the latest of each conversation, and every version that was.

Keys (owner ``contexts``, in the conversation's partition): ``latest`` a hash, ``history`` a stream, ``forgotten`` a
set of turns of which no document may be made any more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from connectors.message import ConversationKey, redis_key
from grounding.transcript.entry import Reach, UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "contexts"
_VERSION = "1"

_STORE = """
local current = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if current ~= tonumber(ARGV[1]) then return 0 end
for _, turn in ipairs(cjson.decode(ARGV[2])) do
  if redis.call('SISMEMBER', KEYS[3], turn) == 1 then return 0 end
end
local fields = {}
for at = 3, #ARGV do fields[#fields + 1] = ARGV[at] end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('XADD', KEYS[2], '*', unpack(fields))
return 1
"""

# Every version from the first that was made of the turn on has it, because each is made of the one before. Only the
# newest are looked at: a turn that is forgotten is one of the last.
_FORGET_TURN = """
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[2])
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', ARGV[3])
local tainted = 0
for place, one in ipairs(newest) do
  for at = 1, #one[2], 2 do
    if one[2][at] == 'turn_ids' then
      for _, turn in ipairs(cjson.decode(one[2][at + 1])) do
        if turn == ARGV[1] then tainted = place end
      end
    end
  end
end
if tainted == 0 then return 0 end
for place = 1, tainted do redis.call('XDEL', KEYS[2], newest[place][1]) end
redis.call('DEL', KEYS[1])
if newest[tainted + 1] then redis.call('HSET', KEYS[1], unpack(newest[tainted + 1][2])) end
return tainted
"""
_SEARCHED_VERSIONS = 200
_FORGOTTEN_SECONDS = 24 * 3600
"""How long a document that was in the making may take to arrive."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Which document it is of a conversation's, by its version and when it was made, and how far it reaches."""

    version: int
    at: str
    reach: Reach


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

    @property
    def mark(self) -> Mark:
        return Mark(self.version, self.at, Reach(self.turns, self.entries))


class ContextDocuments:
    """All context documents. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._store = redis.register_script(_STORE)
        self._forget_turn = redis.register_script(_FORGET_TURN)

    async def latest(self, key: ConversationKey) -> ContextDocument | None:
        """The conversation's document, if it has one. Raises `UnknownFormat`."""
        fields: Any = await self._redis.hgetall(self._key(key, "latest"))
        if not fields:
            return None
        _check(fields["v"])
        return ContextDocument(
            text=fields["text"],
            version=int(fields["version"]),
            turns=int(fields["turns"]),
            entries=int(fields["entries"]),
            made_by=fields["made_by"],
            at=fields["at"],
            turn_ids=tuple(json.loads(fields["turn_ids"])),
        )

    async def marks(self, keys: Sequence[ConversationKey]) -> list[Mark | None]:
        """What tells the latest document of each of *keys* from every other; None where there is none.

        Raises `UnknownFormat`."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(self._key(key, "latest"), ["v", "version", "at", "turns", "entries"])
            found: Any = await pipe.execute() if keys else []
        marks: list[Mark | None] = []
        for version_of_format, version, at, turns, entries in found:
            if version_of_format is not None:
                _check(version_of_format)
            marks.append(
                Mark(int(version), at, Reach(int(turns), int(entries))) if version_of_format is not None else None
            )
        return marks

    async def store(self, key: ConversationKey, document: ContextDocument) -> bool:
        """Make *document* the latest if the one before it still is; False where another came first, or a turn of
        which it was made is forgotten."""
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
            keys=self._keys(key), args=[document.version - 1, json.dumps(document.turn_ids), *flat]
        )
        return bool(stored)

    async def forget_turn(self, key: ConversationKey, turn_id: str) -> int:
        """Drop every version that was made of the turn, one of the last, or of a version that was; the version before
        them is the latest again. How many were dropped."""
        return int(
            await self._forget_turn(keys=self._keys(key), args=[turn_id, _FORGOTTEN_SECONDS, _SEARCHED_VERSIONS])
        )

    async def forget(self, key: ConversationKey, turn_ids: Sequence[str]) -> None:
        """Drop the document with all its versions; none is made of *turn_ids*, the newest turns, any more."""
        latest, history, forgotten = self._keys(key)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(latest, history)
            if turn_ids:
                pipe.sadd(forgotten, *turn_ids)
                pipe.expire(forgotten, _FORGOTTEN_SECONDS)
            await pipe.execute()

    def _keys(self, key: ConversationKey) -> list[str]:
        return [self._key(key, part) for part in ("latest", "history", "forgotten")]

    @staticmethod
    def _key(key: ConversationKey, part: str) -> str:
        return redis_key(_OWNER, key.tag, part, key.encoded)


def _check(version: str) -> None:
    if version != _VERSION:
        raise UnknownFormat(f"a context document has version {version!r}; this runtime reads {_VERSION}")
