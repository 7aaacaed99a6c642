"""The transcript in Redis: one append-only stream per conversation.

Keys (owner ``transcript``, in the conversation's partition): ``log`` holds the entries, ``meta`` their counts, ``turn``
the turns that were recorded, ``export`` what must still be copied to Markdown. ``amended`` holds later edits by people:
by message its new text, empty if it was deleted. Edits do not change the log itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, Fence, Scope, Superseded, partition_tag, redis_key
from connectors.redis_calls import RedisCall, ask
from grounding.transcript.entry import EntryRole, Forget, Reach, ToCopy, TranscriptEntry

if TYPE_CHECKING:
    from redis.asyncio import Redis


# The Lua scripts. Each is one atomic step; its caller documents the keys and arguments.

APPEND = """
if KEYS[5] and redis.call('HGET', KEYS[5], 'token') ~= ARGV[5] then return -1 end
if not redis.call('SET', KEYS[4], '1', 'NX', 'EX', ARGV[1]) then return 0 end
local fields_per_entry = tonumber(ARGV[4])
local at, entries = 6, 0
while at <= #ARGV do
  local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, at, at + fields_per_entry - 1))
  redis.call('XADD', KEYS[3], '*', 'key', ARGV[3], 'id', id)
  at = at + fields_per_entry
  entries = entries + 1
end
redis.call('HINCRBY', KEYS[2], 'entries', entries)
redis.call('HINCRBY', KEYS[2], 'turns', ARGV[2])
redis.call('HSET', KEYS[2], 'v', '1')
return entries
"""

# Returns a page of this session, newest first, with later edits, in one round trip: every turn reads it.
TAIL_PAGE = """
local after = redis.call('HGET', KEYS[2], 'session_after') or '0-0'
local page = redis.call('XREVRANGE', KEYS[1], ARGV[1], '(' .. after, 'COUNT', ARGV[2])
if redis.call('EXISTS', KEYS[3]) == 0 then return page end
for _, entry in ipairs(page) do
  local fields, text = entry[2], nil
  for at = 1, #fields, 2 do
    if fields[at] == 'message' and fields[at + 1] ~= '' then text = redis.call('HGET', KEYS[3], fields[at + 1]) end
  end
  for at = 1, #fields, 2 do
    if fields[at] == 'text' and text then fields[at + 1] = text end
  end
end
return page
"""

# Stores who began the session, so that the same command, delivered again later, does not begin another one.
BEGIN_SESSION = """
if ARGV[1] ~= '' and redis.call('HGET', KEYS[2], 'session_by') == ARGV[1] then return 0 end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local after = newest[1] and newest[1][1] or '0-0'
redis.call('HSET', KEYS[2], 'v', '1', 'session_after', after, 'session_by', ARGV[1])
return 1
"""

# Deletes the entries of the turn ARGV[1], whose ids the caller found. The instruction to the Markdown copy comes after
# those that copy the entries.
FORGET_TURN = """
local gone, answered = 0, 0
for at = 3, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at])
  if entry[1] then
    gone = gone + redis.call('XDEL', KEYS[1], ARGV[at])
    for field = 1, #entry[1][2], 2 do
      local name, value = entry[1][2][field], entry[1][2][field + 1]
      if name == 'role' and value == 'inbound' then answered = 1 end
      if name == 'message' and value ~= '' then redis.call('HDEL', KEYS[4], value) end
    end
  end
end
if gone > 0 then
  redis.call('HINCRBY', KEYS[2], 'entries', -gone)
  redis.call('HINCRBY', KEYS[2], 'turns', -answered)
end
redis.call('XADD', KEYS[3], '*', 'key', ARGV[2], 'forget', ARGV[1])
return gone
"""

FORGET_ALL = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[4])
redis.call('XADD', KEYS[3], '*', 'key', ARGV[1], 'forget', '')
return 1
"""

# Replaces the log by the one assembled under another key, if nothing was appended meanwhile.
RESTORE = """
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if redis.call('XLEN', KEYS[1]) ~= tonumber(ARGV[1]) or (newest[1] and newest[1][1] or '') ~= ARGV[2] then return 0 end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('HSET', KEYS[3], 'v', '1', 'entries', ARGV[3], 'turns', ARGV[4])
return 1
"""

_OWNER = "transcript"
_RECORDED_SECONDS = 7 * 24 * 3600
"""How long a turn is known as recorded. No turn is resumed later than that."""
_PAGE = 64
_FIRST_PAGE = 4
"""Mostly the turn is the newest: its messages and the answer."""
_LONG_PAGE = 1000
_RESTORE_ATTEMPTS = 5
_SEARCHED_PAGES = 80
"""The most pages of the log that work following the turns may lag behind, in a flood or an outage."""

_SKIPPED_ENTRIES = 8
"""Entries that `Transcript.tail` reads in addition, because some of them may be left out."""
TailPage = Sequence[tuple[str, Sequence[str]]]
"""Entries of the log, the newest first: each its id and its fields, names and values in turn."""
EntryId = tuple[int, int]
"""The id of an entry in Redis: milliseconds since the epoch, and a number within the millisecond."""
Turn = tuple[ConversationKey, str]
"""A conversation and the id of one of its turns."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A conversation's restored log, and how many turns and entries were missing."""

    entries: list[tuple[EntryId, TranscriptEntry]]
    turns: int
    restored: int


class Transcript:
    """The logs of all conversations. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._begin_session = redis.register_script(BEGIN_SESSION)
        self._forget_turn = redis.register_script(FORGET_TURN)
        self._forget_all = redis.register_script(FORGET_ALL)
        self._restore = redis.register_script(RESTORE)

    async def append(
        self, key: ConversationKey, turn_id: str, entries: Sequence[TranscriptEntry], fence: Fence | None = None
    ) -> bool:
        """Append a turn's entries to the log, in order and in one step. Entries without text are left out.

        A turn is recorded once: returns False if it was recorded before. Raises `connectors.message.Superseded` if
        *fence* no longer holds.
        """
        return await ask(self._redis, self.append_call(key, turn_id, entries, fence))

    def append_call(
        self, key: ConversationKey, turn_id: str, entries: Sequence[TranscriptEntry], fence: Fence | None = None
    ) -> RedisCall[bool]:
        """Return the call of `append`."""

        def is_new(added: int) -> bool:
            if added == -1:
                raise Superseded("another worker holds the conversation now")
            return bool(added)

        kept = [entry for entry in entries if entry.text.strip()]
        if not kept:
            return RedisCall((), lambda _: False)
        flat = [part for entry in kept for pair in entry.fields().items() for part in pair]
        answered = 1 if any(entry.role is EntryRole.INBOUND for entry in kept) else 0
        return RedisCall.script(
            APPEND,
            keys=[
                self._key(key, "log"),
                self._key(key, "meta"),
                redis_key(_OWNER, key.tag, "export"),
                self._key(key, "turn", turn_id),
                *([fence.name] if fence else ()),
            ],
            args=[
                _RECORDED_SECONDS,
                answered,
                key.encoded,
                len(kept[0].fields()) * 2,
                fence.token if fence else "",
                *flat,
            ],
            parse=is_new,
        )

    async def amend(self, key: ConversationKey, message_id: str, text: str) -> None:
        """Set the text with which a message is read from now on. An empty text hides it."""
        await self._redis.hset(self._key(key, "amended"), message_id, text)

    async def as_amended(self, key: ConversationKey, entries: list[TranscriptEntry]) -> list[TranscriptEntry]:
        """Return *entries* of *key* with the later edits by people."""
        ids = [entry.message_id for entry in entries if entry.message_id]
        if not ids:
            return entries
        texts: Any = await self._redis.hmget(self._key(key, "amended"), ids)
        return _amended(entries, dict(zip(ids, texts, strict=True)))

    async def tail(
        self, key: ConversationKey, max_entries: int, except_turn: str = "", *, page: TailPage | None = None
    ) -> list[TranscriptEntry]:
        """Return the last *max_entries* entries of this session, oldest first.

        Tool entries, deleted messages and the turn *except_turn* are left out. *page* is the result of
        `tail_page_call` for the same *max_entries*, if it was read before: mostly it has the whole tail.
        """
        found: list[TranscriptEntry] = []
        newest, count = "+", max_entries + _SKIPPED_ENTRIES
        for _ in range(8):  # more consecutive skipped lines than this end the tail
            if page is None:
                page = await ask(self._redis, self.tail_page_call(key, max_entries, newest))
            for _, flat in page:
                entry = TranscriptEntry.from_fields(dict(zip(flat[::2], flat[1::2], strict=True)))
                if entry.role is not EntryRole.TOOL and entry.turn_id != except_turn and entry.text.strip():
                    found.append(entry)
            if len(found) >= max_entries or len(page) < count:
                break
            newest, page = f"({page[-1][0]}", None
        return found[:max_entries][::-1]

    def tail_page_call(self, key: ConversationKey, max_entries: int, newest: str = "+") -> RedisCall[TailPage]:
        """Return the call that reads the entries for `tail`, down from the id *newest*."""
        keys = [self._key(key, part) for part in ("log", "meta", "amended")]
        return RedisCall.script(TAIL_PAGE, keys, [newest, max_entries + _SKIPPED_ENTRIES], lambda page: page)

    async def newest(self, key: ConversationKey, count: int) -> list[TranscriptEntry]:
        """Return the last *count* entries of any role, oldest first."""
        page: Any = await self._redis.xrevrange(self._key(key, "log"), count=count)
        return await self.as_amended(key, [TranscriptEntry.from_fields(fields) for _, fields in reversed(page)])

    async def last_turn(self, key: ConversationKey) -> str:
        """Return the newest turn of a conversation; empty if there is none."""
        page: Any = await self._redis.xrevrange(self._key(key, "log"), count=1)
        return str(page[0][1].get("turn", "")) if page else ""

    async def of_turn(self, key: ConversationKey, turn_id: str) -> list[TranscriptEntry]:
        """Return the entries of one of the conversation's last turns, oldest first; none for an old turn."""
        return await self.as_amended(key, await self._of_turn(key, turn_id))

    async def _of_turn(self, key: ConversationKey, turn_id: str) -> list[TranscriptEntry]:
        found: list[TranscriptEntry] = []
        async for _, fields in self._backwards(key):
            if fields["turn"] == turn_id:
                found.append(TranscriptEntry.from_fields(fields))
            elif found:
                break
        return found[::-1]

    async def _backwards(self, key: ConversationKey) -> AsyncIterator[tuple[str, dict[str, str]]]:
        """Yield the entries of the log, each its id and its fields, the newest first, as far back as work that follows
        the turns may lag behind."""
        newest, count = "+", _FIRST_PAGE
        for _ in range(_SEARCHED_PAGES):
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=count)
            for entry in page:
                yield entry
            if len(page) < count:
                break
            newest, count = f"({page[-1][0]}", _PAGE

    async def of_turns(self, turns: Sequence[Turn]) -> dict[Turn, list[TranscriptEntry]]:
        """Return the entries of many turns, as `of_turn` does; turns without entries are left out."""
        found = await self._newest_of(turns)
        async with self._redis.pipeline(transaction=False) as pipe:
            asked = {turn: [one.message_id for one in entries if one.message_id] for turn, entries in found.items()}
            asked = {turn: ids for turn, ids in asked.items() if ids}
            for (key, _), ids in asked.items():
                pipe.hmget(self._key(key, "amended"), ids)
            texts: Any = await pipe.execute() if asked else []
        for turn, (ids, amended) in zip(asked, zip(asked.values(), texts, strict=True), strict=True):
            found[turn] = _amended(found[turn], dict(zip(ids, amended, strict=True)))
        return {turn: entries for turn, entries in found.items() if entries}

    async def preceding(self, turns: Sequence[Turn]) -> dict[Turn, str]:
        """Return the turn before each of *turns*, which must be among the last of their conversations.

        First turns are left out.
        """
        sizes = {key: _FIRST_PAGE * (count + 1) for key, count in Counter(key for key, _ in turns).items()}
        before: dict[Turn, str] = {}
        for key, page in (await self._ends(sizes)).items():
            found = list(dict.fromkeys(fields.get("turn", "") for _, fields in page))
            older = dict(itertools.pairwise(found))
            for turn_id in (turn_id for other, turn_id in turns if other == key):
                if turn_id not in older and len(page) == sizes[key]:  # further back
                    older[turn_id] = await self._turn_before(key, turn_id)
                before[key, turn_id] = older.get(turn_id, "")
        return {turn: previous for turn, previous in before.items() if previous}

    async def _turn_before(self, key: ConversationKey, turn_id: str) -> str:
        is_past = False
        async for _, fields in self._backwards(key):
            if fields["turn"] == turn_id:
                is_past = True
            elif is_past:
                return fields["turn"]
        return ""

    async def recorded(self, turns: Sequence[Turn]) -> set[Turn]:
        """Return those of *turns* that the log holds. They must be among the last of their conversations."""
        return set(await self._newest_of(turns))

    async def _newest_of(self, turns: Sequence[Turn]) -> dict[Turn, list[TranscriptEntry]]:
        """Return the entries of *turns* as recorded. Mostly one read of each conversation's end is enough."""
        sizes = {key: _FIRST_PAGE * count for key, count in Counter(key for key, _ in turns).items()}
        found: dict[Turn, list[TranscriptEntry]] = {}
        for key, page in (await self._ends(sizes)).items():
            spoken = [TranscriptEntry.from_fields(fields) for _, fields in reversed(page)]
            is_whole = len(page) < sizes[key]
            for turn_id in (turn_id for other, turn_id in turns if other == key):
                entries = [entry for entry in spoken if entry.turn_id == turn_id]
                if not is_whole and (not entries or spoken[0].turn_id == turn_id):  # the turn begins further back
                    entries = await self._of_turn(key, turn_id)
                if entries:
                    found[key, turn_id] = entries
        return found

    async def _ends(self, sizes: Mapping[ConversationKey, int]) -> dict[ConversationKey, Any]:
        """Return the newest entries of each log, newest first, at most as many as *sizes* says."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, size in sizes.items():
                pipe.xrevrange(self._key(key, "log"), count=size)
            pages: Any = await pipe.execute() if sizes else []
        return dict(zip(sizes, pages, strict=True))

    async def reach(self, key: ConversationKey) -> Reach:
        """Return the number of turns and entries of the conversation."""
        return (await self.reaches([key]))[0]

    def reach_call(self, key: ConversationKey) -> RedisCall[Reach]:
        """Return the call of `reach`."""
        return RedisCall.of("HMGET", self._key(key, "meta"), "turns", "entries", parse=_reach)

    async def reaches(self, keys: Sequence[ConversationKey]) -> list[Reach]:
        """Return `reach` of each of *keys*."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hmget(self._key(key, "meta"), ["turns", "entries"])
            found: Any = await pipe.execute() if keys else []
        return list(map(_reach, found))

    async def begin_session(self, key: ConversationKey, by: str = "") -> bool:
        """Begin a session: the tail shows nothing older than this moment.

        *by* identifies the request (a message's id). Returns False and changes nothing if the same request began the
        present session.
        """
        began = await self._begin_session(keys=[self._key(key, "log"), self._key(key, "meta")], args=[by])
        return bool(began)

    async def turn_ids(self, key: ConversationKey, most: int | None = None) -> list[str]:
        """Return the conversation's turn ids, or the newest *most* of them, each once, newest first."""
        found: dict[str, None] = {}
        newest = "+"
        while True:
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=_LONG_PAGE)
            found |= dict.fromkeys(fields.get("turn", "") for _, fields in page)
            if len(page) < _LONG_PAGE or (most is not None and len(found) > most):
                return [turn_id for turn_id in found if turn_id][:most]
            newest = f"({page[-1][0]}"

    async def conversations(self, scope: Scope) -> list[ConversationKey]:
        """Return all conversations of the scope's workspace with a log. Scans all keys: for background work."""
        found = set()
        async for name in self._redis.scan_iter(match=f"ar:{_OWNER}:*:log:{scope.workspace_id}/*", count=_LONG_PAGE):
            found.add(str(name).rpartition(":")[2])
        return [ConversationKey.decode(encoded) for encoded in sorted(found)]

    async def whole(self, key: ConversationKey) -> AsyncIterator[list[tuple[EntryId, TranscriptEntry]]]:
        """Yield the whole log in pages, oldest first, without later edits; entries have their ids."""
        oldest = "-"
        while True:
            page: Any = await self._redis.xrange(self._key(key, "log"), min=oldest, count=_LONG_PAGE)
            if page:
                yield [(_parsed_id(entry_id), TranscriptEntry.from_fields(fields)) for entry_id, fields in page]
            if len(page) < _LONG_PAGE:
                return
            oldest = f"({page[-1][0]}"

    async def forget_turn(self, key: ConversationKey, turn_id: str) -> int:
        """Remove a turn from the log and, soon after, from its Markdown copy. Returns the number of entries removed."""
        entry_ids: list[str] = []
        async for entry_id, fields in self._backwards(key):
            if fields["turn"] == turn_id:
                entry_ids.append(entry_id)
            elif entry_ids:
                break
        return int(await self._forget_turn(keys=self._forgotten_keys(key), args=[turn_id, key.encoded, *entry_ids]))

    async def forget(self, key: ConversationKey) -> None:
        """Delete the whole log of a conversation and, soon after, its Markdown copy."""
        await self._forget_all(keys=self._forgotten_keys(key), args=[key.encoded])

    def _forgotten_keys(self, key: ConversationKey) -> list[str]:
        export = redis_key(_OWNER, key.tag, "export")
        return [self._key(key, "log"), self._key(key, "meta"), export, self._key(key, "amended")]

    async def restore(
        self, key: ConversationKey, logged: Sequence[TranscriptEntry], now_ms: int, *, dry_run: bool
    ) -> Merged:
        """Put turns of *logged* that the log lacks back into it. With *dry_run* only return the result. Idempotent.

        Raises `connectors.message.Superseded` if the conversation keeps changing meanwhile.
        """
        for _ in range(_RESTORE_ATTEMPTS):
            stored = [one async for page in self.whole(key) for one in page]
            merged = await asyncio.to_thread(merge, stored, logged, now_ms)
            if dry_run or not merged.restored or await self._replace_log(key, stored, merged):
                return merged
        raise Superseded(f"{key.context_id} goes on while it is restored: try again")

    async def _replace_log(
        self, key: ConversationKey, stored: Sequence[tuple[EntryId, TranscriptEntry]], merged: Merged
    ) -> bool:
        beside = self._key(key, "restoring")
        await self._redis.delete(beside)
        for start in range(0, len(merged.entries), _LONG_PAGE):
            async with self._redis.pipeline(transaction=False) as pipe:
                for (milliseconds, number), entry in merged.entries[start : start + _LONG_PAGE]:
                    fields: Any = entry.fields()
                    pipe.xadd(beside, fields, id=f"{milliseconds}-{number}")
                await pipe.execute()
        answered = {entry.turn_id for _, entry in merged.entries if entry.role is EntryRole.INBOUND}
        newest = "{}-{}".format(*stored[-1][0]) if stored else ""
        return bool(
            await self._restore(
                keys=[self._key(key, "log"), beside, self._key(key, "meta")],
                args=[len(stored), newest, len(merged.entries), len(answered)],
            )
        )

    async def to_copy(self, partitions: Sequence[int], count: int) -> dict[int, list[ToCopy]]:
        """Return the oldest *count* pending changes to the Markdown copies of each partition, in their order.

        Partitions without pending changes are left out.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in partitions:
                pipe.xrange(_export(partition), count=count)
            found: Any = await pipe.execute() if partitions else []
        waiting = {
            partition: [(export_id, ConversationKey.decode(fields["key"]), fields) for export_id, fields in some]
            for partition, some in zip(partitions, found, strict=True)
            if some
        }
        wanted: dict[ConversationKey, list[str]] = {}
        for _, key, fields in itertools.chain.from_iterable(waiting.values()):
            if "id" in fields:
                wanted.setdefault(key, []).append(fields["id"])
        entries = await self._between(wanted)
        return {
            partition: [
                ToCopy(export_id, key, _change_of(fields, entries.get(key, {}))) for export_id, key, fields in some
            ]
            for partition, some in waiting.items()
        }

    async def _between(self, wanted: Mapping[ConversationKey, Sequence[str]]) -> dict[ConversationKey, dict[str, Any]]:
        """Return the fields of entries by their ids, with one read per log: the entries are close together there."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, ids in wanted.items():
                # Not the first and the last id: a clock that was set back may have reversed them.
                pipe.xrange(self._key(key, "log"), min(ids, key=_parsed_id), max(ids, key=_parsed_id))
            found: Any = await pipe.execute() if wanted else []
        return {key: dict(entries) for key, entries in zip(wanted, found, strict=True)}

    async def copied(self, export_ids: Mapping[int, Sequence[str]]) -> None:
        """Drop finished changes to the Markdown copies, by partition."""
        done = {partition: ids for partition, ids in export_ids.items() if ids}
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition, ids in done.items():
                pipe.xdel(_export(partition), *ids)
            if done:
                await pipe.execute()

    @staticmethod
    def _key(key: ConversationKey, *parts: str) -> str:
        return redis_key(_OWNER, key.tag, *parts[:1], key.encoded, *parts[1:])


def _reach(found: Sequence[str | None]) -> Reach:
    turns, entries = found
    return Reach(turns=int(turns or 0), entries=int(entries or 0))


def _amended(entries: list[TranscriptEntry], texts: Mapping[str, str | None]) -> list[TranscriptEntry]:
    """Return *entries* with the edited *texts*, without those whose text was emptied."""
    if not any(text is not None for text in texts.values()):
        return entries
    now: list[TranscriptEntry] = []
    for entry in entries:
        text = texts.get(entry.message_id)
        now.append(entry if text is None else replace(entry, text=text))
    return [entry for entry in now if entry.text.strip()]


def merge(stored: Sequence[tuple[EntryId, TranscriptEntry]], logged: Sequence[TranscriptEntry], now_ms: int) -> Merged:
    """Return *stored*, the log in Redis, together with the turns of *logged*, the file, that it lacks.

    Stored entries keep their ids and their order. A restored entry stands between its neighbours in the file, with its
    own time if that fits between theirs. A turn that is partly stored is left as it is.
    """
    left = Counter(entry.turn_id for _, entry in stored)
    known = frozenset(left)
    merged: list[tuple[EntryId, TranscriptEntry]] = []
    waiting = deque(stored)
    turns = restored = 0
    for turn_id, group in groupby(logged, key=lambda entry: entry.turn_id):
        if turn_id in known:
            while left[turn_id]:
                merged.append(waiting.popleft())
                left[merged[-1][1].turn_id] -= 1
            continue
        placed = _placed([entry for entry in group if entry.text.strip()], merged, waiting, now_ms)
        merged += placed
        restored += len(placed)
        turns += bool(placed)
    return Merged([*merged, *waiting], turns, restored)


def _placed(
    entries: Sequence[TranscriptEntry],
    before: Sequence[tuple[EntryId, TranscriptEntry]],
    after: Sequence[tuple[EntryId, TranscriptEntry]],
    now_ms: int,
) -> list[tuple[EntryId, TranscriptEntry]]:
    """Return *entries* with ids between those of *before* and *after*; none if there are too few ids for all."""
    last = before[-1][0] if before else (0, 0)
    limit = after[0][0] if after else (now_ms + 1, 0)
    placed: list[tuple[EntryId, TranscriptEntry]] = []
    for entry in entries:
        at = (_milliseconds(entry.at, now_ms), 0)
        last = at if last < at < limit else (last[0], last[1] + 1)
        placed.append((last, entry))
    return placed if last < limit else []


def _milliseconds(at: str, now_ms: int) -> int:
    """Return when a message was written, but never a future time, because nothing could be appended after it."""
    try:
        return max(0, min(round(datetime.fromisoformat(at).timestamp() * 1000), now_ms))
    except (ValueError, OverflowError):
        return 0


def _change_of(fields: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]) -> TranscriptEntry | Forget | None:
    if "forget" in fields:
        return Forget(fields["forget"])
    found = entries.get(fields["id"])
    return TranscriptEntry.from_fields(found) if found else None


def _export(partition: int) -> str:
    return redis_key(_OWNER, partition_tag(partition), "export")


def _parsed_id(entry_id: str) -> tuple[int, int]:
    milliseconds, number = entry_id.split("-")
    return int(milliseconds), int(number)
