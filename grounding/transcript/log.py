"""The transcript in Redis: one append-only stream per conversation.

Keys (owner ``transcript``, in the conversation's partition): ``log`` the entries, ``meta`` their counts,
``turn`` which turns were recorded, ``export`` what still has to be copied to Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, partition_tag, redis_key
from grounding.transcript.entry import Entry, EntryRole, Reach

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "transcript"
_RECORDED_SECONDS = 7 * 24 * 3600
"""How long a turn is remembered as recorded; no turn is taken up again after that."""
_PAGE = 64
_SEARCHED_PAGES = 80
"""Work that follows turns may lag behind them by this many pages of the log: a flood, an outage."""

_APPEND = """
if not redis.call('SET', KEYS[4], '1', 'NX', 'EX', ARGV[1]) then return 0 end
local fields_per_entry = tonumber(ARGV[4])
local at, entries = 5, 0
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


class Transcript:
    """The logs of all conversations. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._append = redis.register_script(_APPEND)

    async def append(self, key: ConversationKey, turn_id: str, entries: Sequence[Entry]) -> bool:
        """Record a turn's entries at the end of the log, in order and as one step.

        A turn is recorded once: False if it was recorded before. Entries without text are left out.
        """
        kept = [entry for entry in entries if entry.text.strip()]
        if not kept:
            return False
        flat = [part for entry in kept for pair in entry.fields().items() for part in pair]
        answered = 1 if any(entry.role is EntryRole.INBOUND for entry in kept) else 0
        added = await self._append(
            keys=[
                self._key(key, "log"),
                self._key(key, "meta"),
                redis_key(_OWNER, key.tag, "export"),
                self._key(key, "turn", turn_id),
            ],
            args=[_RECORDED_SECONDS, answered, key.encoded, len(kept[0].fields()) * 2, *flat],
        )
        return bool(added)

    async def tail(self, key: ConversationKey, max_entries: int, except_turn: str = "") -> list[Entry]:
        """The last *max_entries* spoken entries, oldest first; tool lines and *except_turn* left out."""
        found: list[Entry] = []
        newest = "+"
        for _ in range(8):  # a run of tool lines longer than this many pages ends the tail
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=max_entries + 8)
            for entry_id, fields in page:
                newest = f"({entry_id}"
                entry = Entry.from_fields(fields)
                if entry.role is not EntryRole.TOOL and entry.turn_id != except_turn:
                    found.append(entry)
            if len(found) >= max_entries or len(page) < max_entries + 8:
                break
        return found[:max_entries][::-1]

    async def newest(self, key: ConversationKey, count: int) -> list[Entry]:
        """The last *count* entries of any role, oldest first."""
        page: Any = await self._redis.xrevrange(self._key(key, "log"), count=count)
        return [Entry.from_fields(fields) for _, fields in reversed(page)]

    async def of_turn(self, key: ConversationKey, turn_id: str) -> list[Entry]:
        """The entries of one of the conversation's last turns, oldest first; none of a turn far back."""
        found: list[Entry] = []
        newest = "+"
        for _ in range(_SEARCHED_PAGES):
            page: Any = await self._redis.xrevrange(self._key(key, "log"), max=newest, count=_PAGE)
            for entry_id, fields in page:
                newest = f"({entry_id}"
                if fields.get("turn") == turn_id:
                    found.append(Entry.from_fields(fields))
                elif found:
                    return found[::-1]
            if len(page) < _PAGE:
                break
        return found[::-1]

    async def reach(self, key: ConversationKey) -> Reach:
        """How many turns and entries the conversation has."""
        meta: Any = await self._redis.hgetall(self._key(key, "meta"))
        return Reach(turns=int(meta.get("turns", 0)), entries=int(meta.get("entries", 0)))

    async def to_copy(self, partition: int, count: int) -> list[tuple[str, ConversationKey, Entry]]:
        """The oldest entries that still have to be copied to Markdown: export id, conversation, entry."""
        export = redis_key(_OWNER, partition_tag(partition), "export")
        waiting: Any = await self._redis.xrange(export, count=count)
        if not waiting:
            return []
        keys = [ConversationKey.decode(fields["key"]) for _, fields in waiting]
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, (_, fields) in zip(keys, waiting, strict=True):
                pipe.xrange(self._key(key, "log"), fields["id"], fields["id"])
            found = await pipe.execute()
        return [
            (export_id, key, Entry.from_fields(entries[0][1]))
            for (export_id, _), key, entries in zip(waiting, keys, found, strict=True)
            if entries
        ]

    async def copied(self, partition: int, export_ids: Sequence[str]) -> None:
        """Forget what was copied to Markdown."""
        if export_ids:
            await self._redis.xdel(redis_key(_OWNER, partition_tag(partition), "export"), *export_ids)

    @staticmethod
    def _key(key: ConversationKey, *parts: str) -> str:
        return redis_key(_OWNER, key.tag, *parts[:1], key.encoded, *parts[1:])
