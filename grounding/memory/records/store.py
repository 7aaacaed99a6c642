"""The typed records in Redis. Redis is the source of truth; the passage index is built from it.

Keys (owner ``records``, under the workspace's tag). ``of`` is the owner's encoded audience, empty for the workspace:

- ``kept:<of>``: a hash of ids to records
- ``texts:<of>``: a hash of digests of the records' texts to ids
- ``list:<of>:<type>:<state>``, ``standing:<of>``: sorted sets of places (time and id), in their order
- ``history:<of>:<id>``: a stream of the newest changes
- ``said:<of>:<id>``: the newest turns that said the record
- ``came:<of>:<context>``: a set of the ids of the records that came from a conversation
- ``done:<key>``: the result of a call

Keys of the whole workspace:

- ``due``: records by the time when the sweep must look at them
- ``unindexed``: records that the index must still follow
- ``owners``: every ``of``
- ``settled``: records of earlier versions that became private

Under a tag of its own, for all workspaces: ``behind``, the workspaces that need a sweep or indexing soon.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote

from pydantic import ValidationError

from connectors.message import CALLER_PREFIX, EVERYONE, Scope, encode_id, redis_key
from connectors.redis_calls import RedisCall, ask
from grounding.memory.records.lifecycle import is_standing
from grounding.memory.records.model import HIDDEN, STATES, Record, State, Type
from grounding.transcript import UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


# The Lua scripts. Each is one atomic step on the keys of one workspace.

WRITE = """
-- KEYS: due, unindexed, owners, done, said of the known record; then for each record: kept, texts, its old list, its
--   new list, standing, history, said
-- ARGV: number of records, result to store for the call ('': none), seconds to store it, most history entries, most
--   stored turns, turn that must not have said the known record ('': any); then for each record 13:
--   1 owner, 2 id, 3 version it must have now (0: none), 4 packed, 5 place in lists, 6 old digest, 7 new digest,
--   8 id that the new digest must have now ('*': any), 9 due in milliseconds or '', 10 '1' if standing,
--   11 version to index or '', 12 turn or '', 13 packed history entry or ''
local count, per_key, per_arg = tonumber(ARGV[1]), 7, 13
if ARGV[2] ~= '' and redis.call('EXISTS', KEYS[4]) == 1 then return 'moved' end
if ARGV[6] ~= '' and redis.call('ZSCORE', KEYS[5], ARGV[6]) then return 'said' end
for at = 0, count - 1 do
  local k, a = 5 + at * per_key, 6 + at * per_arg
  local packed = redis.call('HGET', KEYS[k + 1], ARGV[a + 2])
  local version = packed and cjson.decode(packed).version or 0
  if version ~= tonumber(ARGV[a + 3]) then return 'moved' end
  local digest, expected = ARGV[a + 7], ARGV[a + 8]
  if digest ~= '' and expected ~= '*' and (redis.call('HGET', KEYS[k + 2], digest) or '') ~= expected then
    return 'moved'
  end
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for at = 0, count - 1 do
  local k, a = 5 + at * per_key, 6 + at * per_arg
  local kept, texts, leaves, joins = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local standing, history, said = KEYS[k + 5], KEYS[k + 6], KEYS[k + 7]
  local of, id, place, had, gets = ARGV[a + 1], ARGV[a + 2], ARGV[a + 5], ARGV[a + 6], ARGV[a + 7]
  local name = of .. '/' .. id
  redis.call('HSET', kept, id, ARGV[a + 4])
  redis.call('SADD', KEYS[3], of)
  if gets ~= '' then
    if had ~= '' and had ~= gets and redis.call('HGET', texts, had) == id then redis.call('HDEL', texts, had) end
    redis.call('HSET', texts, gets, id)
  end
  if leaves ~= joins then redis.call('ZREM', leaves, place) end
  redis.call('ZADD', joins, 0, place)
  if ARGV[a + 9] ~= '' then
    redis.call('ZADD', KEYS[1], ARGV[a + 9], name)
  else
    redis.call('ZREM', KEYS[1], name)
  end
  if ARGV[a + 10] == '1' then
    redis.call('ZADD', standing, 0, place)
  else
    redis.call('ZREM', standing, place)
  end
  if ARGV[a + 11] ~= '' then redis.call('ZADD', KEYS[2], ARGV[a + 11], name) end
  if ARGV[a + 12] ~= '' then
    redis.call('ZADD', said, now, ARGV[a + 12])
    redis.call('ZREMRANGEBYRANK', said, 0, -1 - tonumber(ARGV[5]))
  end
  if ARGV[a + 13] ~= '' then
    redis.call('XADD', history, 'MAXLEN', '~', ARGV[4], '*', 'change', ARGV[a + 13])
  end
end
if ARGV[2] ~= '' then redis.call('SET', KEYS[4], ARGV[2], 'EX', ARGV[3]) end
return 'ok'
"""
"""Writes all the records if every one still has the version that the caller read; else writes nothing."""

PAGE = """
-- KEYS: for each list the list and the hash of its records. ARGV: limit, place to begin before, or ''
-- Returns the packed records of all lists, the newest first
local limit, bound = tonumber(ARGV[1]), ARGV[2] == '' and '+' or '(' .. ARGV[2]
local found = {}
for at = 1, #KEYS, 2 do
  for _, place in ipairs(redis.call('ZREVRANGEBYLEX', KEYS[at], bound, '-', 'LIMIT', 0, limit)) do
    found[#found + 1] = {place, KEYS[at + 1]}
  end
end
table.sort(found, function(one, other) return one[1] > other[1] end)
local answer = {}
for at = 1, math.min(#found, limit) do
  local id = string.match(found[at][1], '|(.*)$')
  answer[#answer + 1] = redis.call('HGET', found[at][2], id) or ''
end
return answer
"""

ERASE = """
-- KEYS: due, unindexed, kept, texts, list, standing, history, said, came. ARGV: of, id, version, place, digest
local packed = redis.call('HGET', KEYS[3], ARGV[2])
if not packed then return 'gone' end
if cjson.decode(packed).version ~= tonumber(ARGV[3]) then return 'moved' end
local name = ARGV[1] .. '/' .. ARGV[2]
redis.call('HDEL', KEYS[3], ARGV[2])
if redis.call('HGET', KEYS[4], ARGV[5]) == ARGV[2] then redis.call('HDEL', KEYS[4], ARGV[5]) end
redis.call('ZREM', KEYS[5], ARGV[4])
redis.call('ZREM', KEYS[6], ARGV[4])
redis.call('ZREM', KEYS[1], name)
redis.call('DEL', KEYS[7], KEYS[8])
redis.call('SREM', KEYS[9], ARGV[2])
redis.call('ZADD', KEYS[2], 0, name)
return 'ok'
"""
"""Deletes a record and marks it as still to be deleted from the index."""

MOVE = """
-- KEYS: due, unindexed, owners, settled; then for the old and for the new owner: kept, texts, list, standing,
--   history, said, came
-- ARGV: old owner, new owner, id, version it must have now, packed, place in lists, digest, new version, history
--   entry or '', most history entries
local packed = redis.call('HGET', KEYS[5], ARGV[3])
if not packed or cjson.decode(packed).version ~= tonumber(ARGV[4]) then return 'moved' end
local former, latter, place = ARGV[1] .. '/' .. ARGV[3], ARGV[2] .. '/' .. ARGV[3], ARGV[6]
redis.call('HDEL', KEYS[5], ARGV[3])
redis.call('HSET', KEYS[12], ARGV[3], ARGV[5])
if redis.call('HGET', KEYS[6], ARGV[7]) == ARGV[3] then redis.call('HDEL', KEYS[6], ARGV[7]) end
redis.call('HSETNX', KEYS[13], ARGV[7], ARGV[3])
redis.call('ZREM', KEYS[7], place)
redis.call('ZADD', KEYS[14], 0, place)
if redis.call('ZREM', KEYS[8], place) == 1 then redis.call('ZADD', KEYS[15], 0, place) end
for at = 9, 10 do
  if redis.call('EXISTS', KEYS[at]) == 1 then redis.call('RENAME', KEYS[at], KEYS[at + 7]) end
end
if ARGV[9] ~= '' then redis.call('XADD', KEYS[16], 'MAXLEN', '~', ARGV[10], '*', 'change', ARGV[9]) end
if redis.call('SREM', KEYS[11], ARGV[3]) == 1 then redis.call('SADD', KEYS[18], ARGV[3]) end
local due = redis.call('ZSCORE', KEYS[1], former)
if due then
  redis.call('ZREM', KEYS[1], former)
  redis.call('ZADD', KEYS[1], due, latter)
end
redis.call('ZADD', KEYS[2], 0, former, ARGV[8], latter)
redis.call('SADD', KEYS[3], ARGV[2])
if ARGV[2] == '' then redis.call('SREM', KEYS[4], ARGV[3]) end
return 'ok'
"""
"""Moves a record to another owner and marks it to be indexed anew for both."""

FORGET = """
-- KEYS: owners, kept, all other keys of one owner. ARGV: owner, '1' if the index holds nothing of theirs
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
for at = 3, #KEYS do redis.call('DEL', KEYS[at]) end
if ARGV[2] == '1' then redis.call('SREM', KEYS[1], ARGV[1]) end
return 1
"""
"""Deletes the remaining keys of an owner who has no records left."""

INDEXED = """
-- KEYS: unindexed, kept. ARGV: owner, then pairs of an id and its indexed version (0: removed from the index)
-- Returns the ids of those that changed since
local again = {}
for at = 2, #ARGV, 2 do
  local packed = redis.call('HGET', KEYS[2], ARGV[at])
  local version = packed and cjson.decode(packed).version or 0
  local name = ARGV[1] .. '/' .. ARGV[at]
  if version ~= tonumber(ARGV[at + 1]) then
    redis.call('ZADD', KEYS[1], version, name)
    again[#again + 1] = ARGV[at]
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return again
"""
"""Marks records as indexed; those that changed since stay marked as not indexed."""

_OWNER = "records"
_DONE_SECONDS = 7 * 24 * 3600
HISTORY_MAX_CHANGES = 100
SAID_MAX_TURNS = 256
STANDING_MAX_RECORDS = 500
_PAGE = 200
_BEHIND = redis_key(_OWNER, "{index}", "behind")
WriteResult = Literal["ok", "moved", "said"]
"""The result of a write.

``ok``: the records are stored. ``moved``: a record changed after it was read; nothing was stored. ``said``: the turn
had said the record before; nothing was stored.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of a record's history. ``from_state`` is empty for a new record."""

    at: str
    by: str
    turn_id: str
    from_state: str
    to_state: str
    why: str


@dataclass(frozen=True, slots=True)
class AddLookup:
    """The stored data that adding a record depends on.

    ``done`` is the result of an earlier identical call (None if the record was erased since), ``same`` the record with
    the same text, ``same_id`` the id stored for its digest, and ``other`` the further record that was requested.
    """

    was_done: bool
    done: Record | None
    same_id: str
    same: Record | None
    other: Record | None


@dataclass(frozen=True, slots=True)
class RecordWrite:
    """One record to write in place of *before* (None: it is new).

    *digest* is empty if the record's text does not change. The write fails unless *same_id* is the id now stored for
    the digest; None skips that check. *said_in* is the turn that says the record. *indexed*: the index must follow.
    """

    after: Record
    before: Record | None
    change: Change
    digest: str = ""
    digest_before: str = ""
    same_id: str | None = None
    said_in: str = ""
    due: datetime | None = None
    indexed: bool = True


class RecordStore:
    """The records of all workspaces. Every method raises `connectors.message.StoreUnavailable` and `UnknownFormat`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(WRITE)
        self._move = redis.register_script(MOVE)
        self._erase = redis.register_script(ERASE)
        self._forget = redis.register_script(FORGET)
        self._indexed = redis.register_script(INDEXED)

    async def look(self, scope: Scope, key: str, digest: str, other_id: str) -> AddLookup:
        """Read what adding a record of the scope's owner depends on. *key* identifies the call; it may be empty.

        `write` makes sure that nothing of it has changed since.
        """
        kept = _key(scope, "kept", _of(scope))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.get(_call_key(scope, key))
            pipe.hget(_key(scope, "texts", _of(scope)), digest)
            done, same_id = await pipe.execute()
        ids = [json.loads(done)["id"] if done else "", same_id or "", other_id]
        found: Any = await self._redis.hmget(kept, ids)
        said, same, other = (_record(packed or "") for packed in found)
        return AddLookup(bool(done), said, same_id or "", same, other)

    async def was_done(self, scope: Scope, key: str) -> bool:
        """Say whether the call with that key has taken effect."""
        return bool(key and await self._redis.exists(_call_key(scope, key)))

    async def write(
        self, scope: Scope, puts: Sequence[RecordWrite], *, key: str = "", turn_id: str = "", known: str = ""
    ) -> WriteResult:
        """Write all of *puts* or nothing. Calls with the same non-empty *key* take effect once.

        Writes nothing if the turn has said the record *known* before.
        """
        keys = [
            *(_key(scope, name) for name in ("due", "unindexed", "owners")),
            _call_key(scope, key),
            _key(scope, "said", _of(scope), known),
        ]
        done = json.dumps({"id": puts[0].after.id}) if key else ""
        guard = turn_id if known else ""
        args: list[Any] = [len(puts), done, _DONE_SECONDS, HISTORY_MAX_CHANGES, SAID_MAX_TURNS, guard]
        for put in puts:
            keys += _keys(scope, put)
            args += _args(put)
        return cast("WriteResult", await self._write(keys=keys, args=args))

    async def read(self, scope: Scope, ids: Sequence[str], *, own: bool = False) -> list[Record]:
        """Return the records of *ids* that the scope may see (*own*: only its own), in that order."""
        if not ids:
            return []
        owners = await self._visible_owners(scope, own=own)
        async with self._redis.pipeline(transaction=False) as pipe:
            for of in owners:
                pipe.hmget(_key(scope, "kept", of), list(ids))
            found: Any = await pipe.execute()
        packed = [next((one for one in of_one if one), "") for of_one in zip(*found, strict=True)]
        found_here = [record for record in map(_record, packed) if record is not None]
        return found_here if own else [record for record in found_here if not _is_unsettled(record)]

    async def page(
        self,
        scope: Scope,
        types: Collection[Type],
        states: Collection[State],
        limit: int,
        before: str = "",
        *,
        own: bool = False,
    ) -> list[Record]:
        """Return the newest *limit* records after the place *before*, the newest first. No *states* means all but
        hidden ones."""
        keys: list[str] = []
        for of in await self._visible_owners(scope, own=own):
            for type_ in types or Type:
                for state in STATES[type_]:
                    if state in states or (not states and state not in HIDDEN):
                        keys += [_key(scope, "list", of, type_, state), _key(scope, "kept", of)]
        return await self._read_page(keys, limit, before)

    async def standing(self, scope: Scope, newest: list[Record] | None = None) -> list[Record]:
        """Return the standing records (see `is_standing`), the oldest first.

        Of more than `STANDING_MAX_RECORDS` per owner only the newest are read. Censors are read separately in that
        case, so that verbatim records never crowd them out. *newest* is the result of `standing_call`, if it was read
        before.
        """
        owners = await self._visible_owners(scope)
        keys = _standing_keys(scope, owners)
        found = await self._read_page(keys, STANDING_MAX_RECORDS, "") if newest is None else newest
        if len(found) < STANDING_MAX_RECORDS:
            return found[::-1]
        pages = [found]
        for start in range(0, len(keys), 2):
            pages.append(await self._read_page(keys[start : start + 2], STANDING_MAX_RECORDS, ""))
            owner = _owner_scope(scope, owners[start // 2])
            pages.append(await self.page(owner, (Type.CENSOR,), (), STANDING_MAX_RECORDS, own=True))
        return sorted({one.id: one for page in pages for one in page}.values(), key=place)

    def standing_call(self, scope: Scope) -> RedisCall[list[Record]]:
        """Return the call that reads the newest standing records, the newest first. *scope* is not `EVERYONE`'s."""
        return _page_call(_standing_keys(scope, _owners(scope)), STANDING_MAX_RECORDS, "")

    async def _read_page(self, keys: Sequence[str], limit: int, before: str) -> list[Record]:
        if not keys or limit < 1:
            return []
        return await ask(self._redis, _page_call(keys, limit, before))

    async def counts(self, scope: Scope) -> Mapping[tuple[Type, State], int]:
        """Count the scope's own records by type and state; the cost does not grow with their number."""
        pairs = [(type_, state) for type_ in Type for state in STATES[type_]]
        async with self._redis.pipeline(transaction=False) as pipe:
            for type_, state in pairs:
                pipe.zcard(_key(scope, "list", _of(scope), type_, state))
            found: Any = await pipe.execute()
        return dict(zip(pairs, found, strict=True))

    async def count(self, scope: Scope) -> int:
        """Count the records that the scope sees."""
        return await ask(self._redis, _count_call(scope, await self._visible_owners(scope)))

    def count_call(self, scope: Scope) -> RedisCall[int]:
        """Return the call of `count`. *scope* is not `EVERYONE`'s."""
        return _count_call(scope, _owners(scope))

    async def history(self, scope: Scope, record: Record, limit: int = HISTORY_MAX_CHANGES) -> list[Change]:
        """Return the newest changes of *record*, the newest first."""
        name = _key(scope, "history", encode_id(record.audience), record.id)
        found: Any = await self._redis.xrevrange(name, count=limit)
        changes = [_checked(json.loads(one["change"]), "a change of a record") for _, one in found]
        return [Change(**{name: one[name] for name in Change.__slots__}) for one in changes]

    async def erase(self, scope: Scope, record: Record, digest: str) -> bool:
        """Delete *record* with its history. Returns False if it changed meanwhile."""
        of = encode_id(record.audience)
        keys = [_key(scope, "due"), _key(scope, "unindexed"), *_keys_of(scope, of, record)]
        answer = await self._erase(keys=keys, args=[of, record.id, record.version, place(record), digest])
        return bool(answer != "moved")

    async def move(
        self, scope: Scope, before: Record, after: Record, digest: str, change: Change | None = None
    ) -> bool:
        """Move *before*, as *after*, to another audience with its history, and append *change*.

        Returns False if it changed meanwhile.
        """
        former, latter = encode_id(before.audience), encode_id(after.audience)
        keys = [_key(scope, name) for name in ("due", "unindexed", "owners", "settled")]
        keys += [*_keys_of(scope, former, after), *_keys_of(scope, latter, after)]
        packed = json.dumps(after.model_dump(mode="json"), separators=(",", ":"))
        args: list[str | int] = [former, latter, after.id, before.version, packed, place(after), digest, after.version]
        args += [_packed_change(change) if change else "", HISTORY_MAX_CHANGES]
        return bool(await self._move(keys=keys, args=args) == "ok")

    async def unsettled(self, scope: Scope) -> list[Record]:
        """Return the records that an earlier version showed to the whole workspace though a conversation made them."""
        every = self._redis.hscan_iter(_key(scope, "kept", ""), count=_PAGE)
        records = [_record(packed) async for _, packed in every]
        return [record for record in records if record is not None and record.v == 1 and _is_unsettled(record)]

    async def settle(self, scope: Scope, record: Record) -> None:
        """Mark *record*, which an earlier version showed to the whole workspace, as private."""
        await self._redis.sadd(_key(scope, "settled"), record.id)

    async def settled(self, scope: Scope) -> list[str]:
        """Return the ids of the records that `settle` marked."""
        found: Any = await self._redis.smembers(_key(scope, "settled"))
        return sorted(found)

    async def note_source(self, scope: Scope, context_id: str, record_id: str) -> None:
        """Note that the scope's own record, which is about to be written, came from that conversation."""
        await self._redis.sadd(_key(scope, "came", _of(scope), encode_id(context_id)), record_id)

    async def ids_from_context(self, scope: Scope) -> list[str]:
        """Return the ids of the scope's own records that came from its context. Some may never have been written."""
        found: Any = await self._redis.smembers(_key(scope, "came", _of(scope), encode_id(scope.context_id or "")))
        return sorted(found)

    async def forget_source(self, scope: Scope, record_ids: Sequence[str]) -> None:
        """Delete the notes of `note_source` for these ids."""
        await self._redis.srem(_key(scope, "came", _of(scope), encode_id(scope.context_id or "")), *record_ids)

    async def sample(self, scope: Scope) -> list[Record]:
        """Return some of the scope's own records; empty only if there are none."""
        packed: Any = await self._redis.hrandfield(_key(scope, "kept", _of(scope)), _PAGE, withvalues=True)
        return [record for record in map(_record, _values(packed)) if record is not None]

    async def owners(self, scope: Scope) -> list[Scope]:
        """Return a scope for the workspace and for each audience that ever had a record in it."""
        found: Any = await self._redis.smembers(_key(scope, "owners"))
        return [_owner_scope(scope, of) for of in sorted(found)]

    async def all_ids(self, scope: Scope) -> list[str]:
        """Return the ids of the scope's own records."""
        return sorted([one async for one, _ in self._redis.hscan_iter(_key(scope, "kept", _of(scope)), count=_PAGE)])

    async def forget_owner(self, scope: Scope, contexts: Collection[str], *, is_indexed: bool) -> None:
        """Delete the remaining keys of the scope's owner, also the notes about *contexts*, if no record is left.

        Removes the owner from the list of owners only if the index holds nothing of theirs (*is_indexed*).
        """
        of = _of(scope)
        keys = [_key(scope, "owners"), *(_key(scope, name, of) for name in ("kept", "texts", "standing"))]
        keys += [_key(scope, "came", of, encode_id(context)) for context in sorted(contexts)]
        await self._forget(keys=keys, args=[of, int(is_indexed)])

    async def due(self, scope: Scope, at: datetime) -> list[Record]:
        """Return some of the records of the workspace that the sweep must look at, the earliest due first."""
        until = round(at.timestamp() * 1000)
        names: Any = await self._redis.zrangebyscore(_key(scope, "due"), "-inf", until, start=0, num=_PAGE)
        found = await self._read_named(scope, names)
        lost = [name for name, (_, _, record) in zip(names, found, strict=True) if record is None]
        if lost:
            await self._redis.zrem(_key(scope, "due"), *lost)
        return [record for _, _, record in found if record is not None]

    async def set_due(self, scope: Scope, record: Record, due: datetime | None) -> None:
        """Let the sweep look at *record* at *due*, or never."""
        name = f"{encode_id(record.audience)}/{record.id}"
        if due is None:
            await self._redis.zrem(_key(scope, "due"), name)
        else:
            await self._redis.zadd(_key(scope, "due"), {name: round(due.timestamp() * 1000)})

    async def unindexed(self, scope: Scope) -> list[tuple[Scope, str, Record | None]]:
        """Return some of the records that the index must follow: owner, id, and the record if it still exists."""
        names: Any = await self._redis.zrange(_key(scope, "unindexed"), 0, _PAGE - 1)
        return await self._read_named(scope, names)

    async def indexed(self, scope: Scope, versions: Mapping[str, int]) -> list[str]:
        """Mark these versions of the scope's own records as indexed (0: as deleted from the index).

        Returns the ids of those that changed since.
        """
        of, ids = _of(scope), list(versions)
        keys = [_key(scope, "unindexed"), _key(scope, "kept", of)]
        answer: Any = await self._indexed(keys=keys, args=[of, *(one for pair in versions.items() for one in pair)])
        return [one for one in ids if one in set(answer)]

    async def mark_behind(self, scope: Scope) -> None:
        """Mark the workspace as needing attention soon: the index could not follow, or a record is due."""
        await self._redis.sadd(_BEHIND, scope.workspace_id)

    async def behind(self) -> list[str]:
        """Return the workspaces that `mark_behind` marked."""
        found: Any = await self._redis.smembers(_BEHIND)
        return sorted(found)

    async def unmark_behind(self, workspace_id: str) -> None:
        """Remove the mark of `mark_behind`."""
        await self._redis.srem(_BEHIND, workspace_id)

    async def _visible_owners(self, scope: Scope, *, own: bool = False) -> list[str]:
        """Return the owners whose records the scope sees: its own and, unless *own*, the workspace."""
        if scope.audience == EVERYONE:
            owners: Any = await self._redis.smembers(_key(scope, "owners"))
            return sorted({"", *owners})
        return [_of(scope)] if own else _owners(scope)

    async def _read_named(self, scope: Scope, names: Sequence[str]) -> list[tuple[Scope, str, Record | None]]:
        parted = [name.split("/", 1) for name in names]
        async with self._redis.pipeline(transaction=False) as pipe:
            for of, record_id in parted:
                pipe.hget(_key(scope, "kept", of), record_id)
            found: Any = await pipe.execute() if parted else []
        return [
            (_owner_scope(scope, of), record_id, _record(packed or ""))
            for (of, record_id), packed in zip(parted, found, strict=True)
        ]


def _is_unsettled(record: Record) -> bool:
    """Say whether an earlier version stored a person's record for everybody.

    `runtime.ingress.upgrade` finds its owner. Records that programs wrote belong to the workspace.
    """
    came = record.provenance
    is_person = ":" in came.author and not came.author.startswith(CALLER_PREFIX)
    is_said = bool(came.context_id) or is_person
    return record.v == 1 and not record.audience and is_said


def place(record: Record) -> str:
    """Return the key by which lists order *record*: its time, then its id."""
    return f"{record.created_at}|{record.id}"


def _of(scope: Scope) -> str:
    return encode_id(scope.audience or "")


def _owner_scope(scope: Scope, of: str) -> Scope:
    return Scope(scope.workspace_id, None, unquote(of, errors="surrogatepass") if of else None)


def _key(scope: Scope, *parts: str) -> str:
    return redis_key(_OWNER, scope.tag, *parts)


def _call_key(scope: Scope, key: str) -> str:
    """Return the key for a call's result. Owners are kept apart: nobody sees the result of another's call."""
    named = hashlib.sha256(f"{_of(scope)}\0{key}".encode("utf-8", "surrogatepass")).hexdigest() if key else ""
    return _key(scope, "done", named)


def _keys_of(scope: Scope, of: str, record: Record) -> list[str]:
    """Return all keys with data of *record*, if *of* owns it: kept, texts, list, standing, history, said, came."""
    return [
        _key(scope, "kept", of),
        _key(scope, "texts", of),
        _key(scope, "list", of, record.type, record.state),
        _key(scope, "standing", of),
        _key(scope, "history", of, record.id),
        _key(scope, "said", of, record.id),
        _key(scope, "came", of, encode_id(record.provenance.context_id)),
    ]


def _keys(scope: Scope, put: RecordWrite) -> list[str]:
    of, leaves = encode_id(put.after.audience), put.before or put.after
    kept, texts, joins, standing, history, said, _ = _keys_of(scope, of, put.after)
    return [kept, texts, _key(scope, "list", of, leaves.type, leaves.state), joins, standing, history, said]


def _owners(scope: Scope) -> list[str]:
    return [""] if scope.audience is None else [_of(scope), ""]


def _standing_keys(scope: Scope, owners: Sequence[str]) -> list[str]:
    return [key for of in owners for key in (_key(scope, "standing", of), _key(scope, "kept", of))]


def _page_call(keys: Sequence[str], limit: int, before: str) -> RedisCall[list[Record]]:
    def records(found: Sequence[str]) -> list[Record]:
        return [one for one in map(_record, found) if one is not None and not _is_unsettled(one)]

    return RedisCall.script(PAGE, keys, [limit, before], records)


def _count_call(scope: Scope, owners: Sequence[str]) -> RedisCall[int]:
    return RedisCall(tuple(("HLEN", _key(scope, "kept", of)) for of in owners), sum)


def _args(put: RecordWrite) -> Iterable[str | int]:
    after = put.after
    return (
        encode_id(after.audience),
        after.id,
        put.before.version if put.before else 0,
        json.dumps(after.model_dump(mode="json"), separators=(",", ":")),
        place(after),
        put.digest_before,
        put.digest,
        "*" if put.same_id is None else put.same_id,
        round(put.due.timestamp() * 1000) if put.due else "",
        int(is_standing(after)),
        after.version if put.indexed else "",
        put.said_in,
        _packed_change(put.change),
    )


def _packed_change(change: Change) -> str:
    fields = {"v": 1, **{name: getattr(change, name) for name in Change.__slots__}}
    return json.dumps(fields, separators=(",", ":"))


def _record(packed: str) -> Record | None:
    if not packed:
        return None
    try:
        return Record.model_validate_json(packed)
    except ValidationError:
        _checked(json.loads(packed), "a record")
        raise


def _checked(fields: dict[str, Any], what: str) -> dict[str, Any]:
    if fields.get("v") not in (1, 2):
        raise UnknownFormat(f"{what} was kept in a format that this runtime does not read: upgrade it")
    return fields


def _values(packed: Any) -> Sequence[str]:
    """Return the values of a flat or paired field list: Redis protocols differ."""
    if packed and isinstance(packed[0], list | tuple):
        return [one[1] for one in packed]
    return list(packed[1::2]) if packed else []
