"""The context documents in Redis: the latest of each conversation and all earlier versions.

Keys (owner ``contexts``, in the conversation's partition): ``latest`` is a hash, ``history`` a stream, ``forgotten`` a
set of turns that no new document may contain. A version's id is the id of its stream entry, so no id is used twice,
even after versions were deleted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, redis_key
from grounding.memory.versions import ContextDocument, Mark, Version, fields_of, from_fields, mark_of
from grounding.transcript.entry import Reach

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["ContextDocument", "ContextDocuments", "Mark", "Version"]

_OWNER = "contexts"

_STORE = """
local current = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if current ~= tonumber(ARGV[1]) then return '' end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'id') ~= ARGV[2] then return '' end
for _, turn in ipairs(cjson.decode(ARGV[3])) do
  if redis.call('SISMEMBER', KEYS[3], turn) == 1 then return '' end
end
local fields = {}
for at = 4, #ARGV do fields[#fields + 1] = ARGV[at] end
local id = redis.call('XADD', KEYS[2], '*', unpack(fields))
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'id', id, unpack(fields))
return id
"""

# A check found nothing to change in the document: extend the range of turns that it covers.
_COVER = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
if (redis.call('HGET', KEYS[1], 'id') or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'turns', ARGV[3], 'entries', ARGV[4])
return 1
"""

_INDEXED = """
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'indexed', ARGV[1])
return 1
"""

# Returns sizes instead of texts, which can be megabytes.
_VERSIONS = """
local found = {}
for _, one in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  local row = {one[1], '', '', '', '0'}
  for at = 1, #one[2], 2 do
    local name, value = one[2][at], one[2][at + 1]
    if name == 'at' then row[2] = value
    elseif name == 'author' then row[3] = value
    elseif name == 'made_by' then row[4] = value
    elseif name == 'text' then row[5] = tostring(#value) end
  end
  found[#found + 1] = row
end
return found
"""

# Each version builds on the one before, so all versions from the first with the turn on contain it. Only the newest are
# searched, because a turn to forget is one of the last.
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
local before = newest[tainted + 1]
if before then redis.call('HSET', KEYS[1], 'id', before[1], unpack(before[2])) end
return tainted
"""
_SEARCHED_VERSIONS = 200
_FORGOTTEN_SECONDS = 24 * 3600
"""The longest time that a document in the making may take to arrive."""


class ContextDocuments:
    """All context documents. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._store = redis.register_script(_STORE)
        self._cover = redis.register_script(_COVER)
        self._indexed = redis.register_script(_INDEXED)
        self._versions = redis.register_script(_VERSIONS)
        self._forget_turn = redis.register_script(_FORGET_TURN)

    async def latest(self, key: ConversationKey) -> ContextDocument | None:
        """Return the conversation's latest document, or None. Raises `UnknownFormat`."""
        fields: Any = await self._redis.hgetall(self._key(key, "latest"))
        return from_fields(fields, fields.get("id", "")) if fields else None

    async def marks(self, keys: Sequence[ConversationKey]) -> list[Mark | None]:
        """Return the mark of the latest document of each of *keys*, None if there is no document.

        Raises `UnknownFormat`.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(self._key(key, "latest"), Mark.FIELDS)
            found: Any = await pipe.execute() if keys else []
        return [mark_of(values) for values in found]

    async def store(self, key: ConversationKey, document: ContextDocument, base: str = "") -> ContextDocument | None:
        """Store *document* as the latest version and return it with its id.

        Returns None if its predecessor is no longer the latest (or no longer has the id *base*, if one is given), or if
        one of its turns is forgotten.
        """
        flat = [part for pair in fields_of(document).items() for part in pair]
        args: list[int | str] = [document.version - 1, base, json.dumps(document.turn_ids), *flat]
        stored = await self._store(keys=self._keys(key), args=args)
        return replace(document, id=str(stored)) if stored else None

    async def cover(self, key: ConversationKey, document: ContextDocument, reach: Reach) -> bool:
        """Extend the range of *document* to *reach* without changing its text.

        Returns False and changes nothing if it is no longer the latest.
        """
        args: list[int | str] = [document.version, document.id, reach.turns, reach.entries]
        return bool(await self._cover(keys=self._keys(key), args=args))

    async def versions(self, key: ConversationKey, limit: int, before: str = "") -> list[Version]:
        """Return the newest *limit* versions older than the one with id *before*, the newest first, without texts."""
        newest = f"({before}" if before else "+"
        rows: Any = await self._versions(keys=[self._key(key, "history")], args=[newest, limit])
        return [Version(id_, at, author or made_by, int(size)) for id_, at, author, made_by, size in rows]

    async def version(self, key: ConversationKey, version_id: str) -> ContextDocument | None:
        """Return the version with that id (milliseconds, "-", number), or None. Raises `UnknownFormat`."""
        found: Any = await self._redis.xrange(self._key(key, "history"), version_id, version_id)
        return from_fields(found[0][1], found[0][0]) if found else None

    async def was_indexed(self, key: ConversationKey, document: ContextDocument) -> bool:
        """Note that the search index holds *document*. Returns False if it is no longer the latest."""
        return bool(await self._indexed(keys=self._keys(key), args=[document.id]))

    async def places(self, workspace_id: str) -> list[ConversationKey]:
        """Return all conversations with a document in a workspace or another vault. Scans all keys: for background
        work."""
        found = set()
        async for name in self._redis.scan_iter(match=f"ar:{_OWNER}:*:latest:{workspace_id}/*", count=1000):
            found.add(str(name).rpartition(":")[2])
        return [ConversationKey.decode(encoded) for encoded in sorted(found)]

    async def forget_turn(self, key: ConversationKey, turn_id: str) -> int:
        """Delete every version that contains the turn, which must be one of the last; return their number.

        The version before them becomes the latest again.
        """
        return int(
            await self._forget_turn(keys=self._keys(key), args=[turn_id, _FORGOTTEN_SECONDS, _SEARCHED_VERSIONS])
        )

    async def forget(self, key: ConversationKey, turn_ids: Sequence[str] = ()) -> bool:
        """Delete the document with all its versions; return whether there was one.

        No new document may contain *turn_ids*, the newest turns.
        """
        latest, history, forgotten = self._keys(key)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(latest, history)
            if turn_ids:
                pipe.sadd(forgotten, *turn_ids)
                pipe.expire(forgotten, _FORGOTTEN_SECONDS)
            dropped, *_ = await pipe.execute()
        return bool(dropped)

    def _keys(self, key: ConversationKey) -> list[str]:
        return [self._key(key, part) for part in ("latest", "history", "forgotten")]

    @staticmethod
    def _key(key: ConversationKey, part: str) -> str:
        return redis_key(_OWNER, key.tag, part, key.encoded)
