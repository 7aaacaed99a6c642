"""The context documents in Redis, the latest of each conversation and all earlier versions, and their copies in files.

Keys (owner ``contexts``, in the conversation's partition): ``latest`` is a hash, ``history`` a stream, ``forgotten`` a
set of turns that no new document may contain. A version's id is the id of its stream entry, so no id is used twice,
even after versions were deleted. ``problems`` is a set for each partition: the conversations whose latest version may
have a problem.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from connectors.message import PARTITIONS, ConversationKey, file_stem, partition_tag, redis_key, replace_file
from connectors.redis_calls import RedisCall, ask
from grounding.memory.context_document.document import DocumentLine
from grounding.memory.context_document.problem import Problem, ProblemKind
from grounding.transcript import Reach, UnknownFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


# One version of a context document, and its form in Redis

_VERSION = "1"
_PROBLEM_FIELDS = ("problem", "problem_detail", "failures")

MadeBy = Literal["model", "extraction", "person"]


@dataclass(frozen=True, slots=True)
class Mark:
    """What the latest version of a conversation's document covers: the reach from which it ages, and its id.

    ``indexed`` is the id of the version that the search index holds.
    """

    FIELDS: ClassVar = ["v", "turns", "entries", "id", "put_turns", "put_entries", "indexed"]

    reach: Reach
    id: str = ""
    indexed: str = ""

    @property
    def is_indexed(self) -> bool:
        return bool(self.id) and self.indexed == self.id


@dataclass(frozen=True, slots=True)
class Version:
    """A version without its text. ``size_bytes`` is the size of the text in UTF-8."""

    id: str
    at: str
    author: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ContextDocument:
    """One version of a conversation's document.

    - ``turns`` and ``entries`` say how much of the conversation it covers.
    - ``turn_ids`` are the turns it was made from.
    - ``author`` is the person or program that stored it, or what made it.
    - ``kept`` are the lines that people wrote themselves.
    - ``put`` is the length of the conversation when a person stored it, ``after_turn`` the last turn then.
    - ``id`` comes from the store.
    - ``problem`` is noted on the latest version only: why it was not refreshed, or is not shown whole.
    """

    text: str
    version: int
    turns: int
    entries: int
    made_by: MadeBy
    at: str
    turn_ids: tuple[str, ...] = ()
    author: str = ""
    kept: tuple[DocumentLine, ...] = ()
    put: Reach | None = None
    after_turn: str = ""
    id: str = field(default="", compare=False)
    problem: Problem | None = field(default=None, compare=False)

    @property
    def reach(self) -> Reach:
        """How much of the conversation it covers."""
        return Reach(self.turns, self.entries)

    @property
    def due_from(self) -> Reach:
        """The reach from which it ages. A document that a person has just stored is not replaced at once."""
        return _later(self.reach, self.put)

    @property
    def newest_turn_id(self) -> str:
        """The last turn before it was made; empty if there was none."""
        return max(self.turn_ids, default=self.after_turn)

    @property
    def lasting_problem(self) -> Problem | None:
        """The problem, if people must be told of it."""
        return self.problem if self.problem and self.problem.is_lasting else None

    @property
    def etag(self) -> str:
        """A strong entity tag: it differs if the bytes differ."""
        return '"' + hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()[:32] + '"'


def fields_of(document: ContextDocument) -> dict[str, str]:
    """Return *document* as stored, without its id."""
    fields = {
        "v": _VERSION,
        "text": document.text,
        "version": str(document.version),
        "turns": str(document.turns),
        "entries": str(document.entries),
        "made_by": document.made_by,
        "author": document.author,
        "at": document.at,
        "turn_ids": json.dumps(document.turn_ids),
    }
    if document.kept:
        fields["kept"] = json.dumps([[line.section, line.text] for line in document.kept])
    if document.put is not None:
        fields |= {"put_turns": str(document.put.turns), "put_entries": str(document.put.entries)}
    if document.after_turn:
        fields["after_turn"] = document.after_turn
    return fields


def from_fields(fields: Mapping[str, str], version_id: str) -> ContextDocument:
    """Return the document stored as *fields*. Raises `UnknownFormat`."""
    _check(fields["v"])
    return ContextDocument(
        text=fields["text"],
        version=int(fields["version"]),
        turns=int(fields["turns"]),
        entries=int(fields["entries"]),
        made_by=cast("MadeBy", fields["made_by"]),
        at=fields["at"],
        turn_ids=tuple(json.loads(fields["turn_ids"])),
        author=fields.get("author", ""),
        kept=tuple(DocumentLine(section, text) for section, text in json.loads(fields.get("kept", "[]"))),
        put=_put(fields.get("put_turns"), fields.get("put_entries")),
        after_turn=fields.get("after_turn", ""),
        id=version_id,
        problem=_problem(*map(fields.get, _PROBLEM_FIELDS)),
    )


def mark_of(values: Sequence[str | None]) -> Mark | None:
    """Return the mark in the values of `Mark.FIELDS`; None if there is no document. Raises `UnknownFormat`."""
    format_, turns, entries, version_id, put_turns, put_entries, indexed = values
    if format_ is None:
        return None
    _check(format_)
    reach = _later(Reach(int(turns or 0), int(entries or 0)), _put(put_turns, put_entries))
    return Mark(reach, version_id or "", indexed or "")


def _problem(kind: str | None, detail: str | None, failures: str | None) -> Problem | None:
    return Problem(cast("ProblemKind", kind), detail or "", int(failures or 0)) if kind else None


def _put(turns: str | None, entries: str | None) -> Reach | None:
    return None if turns is None or entries is None else Reach(int(turns), int(entries))


def _later(reach: Reach, put: Reach | None) -> Reach:
    return reach if put is None else Reach(max(reach.turns, put.turns), max(reach.entries, put.entries))


def _check(version: str) -> None:
    if version != _VERSION:
        raise UnknownFormat(f"a context document has version {version!r}; this runtime reads {_VERSION}")


# The documents of all conversations

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
redis.call('HDEL', KEYS[1], 'problem', 'problem_detail', 'failures')
return 1
"""

_NOTE_PROBLEM = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
if (redis.call('HGET', KEYS[1], 'id') or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'problem', ARGV[3], 'problem_detail', ARGV[4], 'failures', ARGV[5])
redis.call('SADD', KEYS[2], ARGV[6])
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
        self._note_problem = redis.register_script(_NOTE_PROBLEM)
        self._indexed = redis.register_script(_INDEXED)
        self._versions = redis.register_script(_VERSIONS)
        self._forget_turn = redis.register_script(_FORGET_TURN)

    async def latest(self, key: ConversationKey) -> ContextDocument | None:
        """Return the conversation's latest document, or None. Raises `UnknownFormat`."""
        return await ask(self._redis, self.latest_call(key))

    def latest_call(self, key: ConversationKey) -> RedisCall[ContextDocument | None]:
        """Return the call of `latest`."""
        return RedisCall.of(
            "HGETALL",
            self._key(key, "latest"),
            parse=lambda fields: from_fields(fields, fields.get("id", "")) if fields else None,
        )

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
        """Extend the range of *document* to *reach* without changing its text. It has no problem then.

        Returns False and changes nothing if it is no longer the latest.
        """
        args: list[int | str] = [document.version, document.id, reach.turns, reach.entries]
        return bool(await self._cover(keys=self._keys(key), args=args))

    async def note_problem(self, key: ConversationKey, document: ContextDocument, problem: Problem) -> bool:
        """Note *problem* on *document* until it is refreshed. Returns False if it is no longer the latest."""
        args: list[int | str] = [
            document.version,
            document.id,
            problem.kind,
            problem.detail,
            problem.failures,
            key.encoded,
        ]
        return bool(await self._note_problem(keys=[self._key(key, "latest"), _problems(key.tag)], args=args))

    async def problems(self) -> dict[ConversationKey, Problem]:
        """Return the problems that people must be told of, of all conversations. For background work."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(PARTITIONS):
                pipe.smembers(_problems(partition_tag(partition)))
            keys = [ConversationKey.decode(name) for names in await pipe.execute() for name in sorted(names)]
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(self._key(key, "latest"), _PROBLEM_FIELDS)
            rows: Any = await pipe.execute() if keys else []
        found = {key: _problem(*row) for key, row in zip(keys, rows, strict=True)}
        for key in (key for key, problem in found.items() if problem is None):
            await self._redis.srem(_problems(key.tag), key.encoded)
        return {key: problem for key, problem in found.items() if problem is not None and problem.is_lasting}

    async def versions(self, key: ConversationKey, limit: int, before: str = "") -> list[Version]:
        """Return the newest *limit* versions older than the one with id *before*, the newest first, without texts."""
        newest = f"({before}" if before else "+"
        rows: Any = await self._versions(keys=[self._key(key, "history")], args=[newest, limit])
        return [Version(id_, at, author or made_by, int(size)) for id_, at, author, made_by, size in rows]

    async def version(self, key: ConversationKey, version_id: str) -> ContextDocument | None:
        """Return the version with that id (milliseconds, "-", number), or None. Raises `UnknownFormat`."""
        found: Any = await self._redis.xrange(self._key(key, "history"), version_id, version_id)
        return from_fields(found[0][1], found[0][0]) if found else None

    async def note_indexed(self, key: ConversationKey, document: ContextDocument) -> bool:
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
            pipe.srem(_problems(key.tag), key.encoded)
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


def _problems(tag: str) -> str:
    return redis_key(_OWNER, tag, "problems")


# A copy of each conversation's context document for people to read: one Markdown file with the latest version


def path(key: ConversationKey) -> PurePosixPath:
    """Return the path of the copy for *key* under DATA_DIR. Different conversations never share a file."""
    stem = file_stem(f"{key.connector}:{key.external_id}")
    return PurePosixPath("workspaces", key.workspace_id, "memory", "contexts", stem + ".md")


class ContextCopy:
    """Writes context documents to ``memory/contexts/*.md`` under *data_dir*.

    Redis is the source of truth; nothing reads these files back.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    async def write(self, key: ConversationKey, text: str) -> bool:
        """Write *text* to the file atomically; return False if the file already held it. Raises OSError."""
        return await asyncio.to_thread(_write, self._data_dir / path(key), text.encode("utf-8", "surrogatepass"))

    async def remove(self, key: ConversationKey) -> None:
        """Delete the file if it exists. Raises OSError."""
        await asyncio.to_thread((self._data_dir / path(key)).unlink, missing_ok=True)


def _write(file: Path, content: bytes) -> bool:
    if file.is_file() and not file.is_symlink() and file.read_bytes() == content:
        return False
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, content)
    return True
