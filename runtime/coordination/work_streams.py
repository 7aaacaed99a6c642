"""Hands work to one of many processes: Redis streams with a consumer group, as the mailbox and the outbox use them.

An entry belongs to the process that read it until it is removed. The process renews it; an entry that nobody has
renewed for a while goes to a process that reclaims.

While the store is away or fails over nobody can renew, and afterwards every process seems dead. So each reclaim stores
its time (key ``<first stream>:asked``). If the last reclaim was longer ago than the usual interval, the store was away,
and nothing is reclaimed until the living have had time to renew. The check is made in the same atomic step as the
reclaim, because the call may have been sent before the store failed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript


GROUP = "workers"
_UPDATED_AT_ONCE = 500
_OWN_AT_ONCE = 10_000
_RETRY_SECONDS = 1.0
_AWAY = 1 / 3
"""Part of a lease: if nobody reclaimed for longer, the store was away."""
_SPARED = 1 / 2
"""Part of a lease: how long the living have after that to renew their entries."""


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of *stream* that this process has read."""

    stream: str
    id: str
    fields: Mapping[str, str]

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the entries of one stream by their age."""
        milliseconds, _, number = self.id.partition("-")
        return int(milliseconds), int(number)


# Read new entries (``>``), or the consumer's own (``0``). A missing group is created.
_READ = """
local found = {}
for number, stream in ipairs(KEYS) do
  local function read()
    return redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', stream, ARGV[4])
  end
  local answer = read()
  if answer and answer.err and string.find(answer.err, 'NOGROUP', 1, true) then
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
    answer = read()
  end
  if answer and answer.err then return answer end
  if answer and #answer[1][2] > 0 then found[#found + 1] = {number, answer[1][2]} end
end
return found
"""

# One XAUTOCLAIM examines only some of the pending entries, and renewed ones may stand before abandoned ones: so repeat
# it until its cursor is back at the start.
_RECLAIM = """
local left, longest, rest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local found = {}
local asked = table.remove(KEYS)
if longest > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local before = redis.call('HMGET', asked, 'at', 'spared')
  local at, spared = tonumber(before[1] or 0), tonumber(before[2] or 0)
  local was_away = math.abs(now - at) > longest
  if was_away then spared = now + rest end
  if was_away or now - at > longest / 8 then
    redis.call('HSET', asked, 'at', string.format('%.0f', now), 'spared', string.format('%.0f', spared))
  end
  if now < spared then return found end
end
for number, stream in ipairs(KEYS) do
  local cursor, here = '0-0', {}
  while #here < left do
    local function claim()
      return redis.pcall('XAUTOCLAIM', stream, ARGV[1], ARGV[2], ARGV[3], cursor, 'COUNT', left - #here)
    end
    local answer = claim()
    if answer.err and string.find(answer.err, 'NOGROUP', 1, true) then
      redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
      answer = claim()
    end
    if answer.err then return answer end
    for _, entry in ipairs(answer[2]) do here[#here + 1] = entry end
    cursor = answer[1]
    if cursor == '0-0' then break end
  end
  left = left - #here
  if #here > 0 then found[#found + 1] = {number, here} end
end
return found
"""

# An entry that another process has reclaimed meanwhile stays with that process.
_RENEW = """
local renewed = 0
for at = 3, #ARGV, 2 do
  local stream, id = KEYS[tonumber(ARGV[at])], ARGV[at + 1]
  local pending = redis.pcall('XPENDING', stream, ARGV[1], id, id, 1, ARGV[2])
  if not pending.err and #pending > 0 then
    redis.call('XCLAIM', stream, ARGV[1], ARGV[2], 0, id, 'JUSTID')
    renewed = renewed + 1
  end
end
return renewed
"""

# As above.
_REQUEUE = """
for at = 3, #ARGV, 2 do
  local stream, id = KEYS[tonumber(ARGV[at])], ARGV[at + 1]
  local pending = redis.pcall('XPENDING', stream, ARGV[1], id, id, 1, ARGV[2])
  if not pending.err and #pending > 0 then
    local entry = redis.call('XRANGE', stream, id, id)[1]
    redis.call('XACK', stream, ARGV[1], id)
    redis.call('XDEL', stream, id)
    if entry then redis.call('XADD', stream, '*', unpack(entry[2])) end
  end
end
return 1
"""


class WorkStreams:
    """Streams by name; *consumer* is this process's name in their groups.

    All methods raise `connectors.message.StoreUnavailable`.
    """

    def __init__(self, redis: Redis, consumer: str = "") -> None:
        self._redis = redis
        self.consumer = consumer or uuid.uuid4().hex
        self._read = redis.register_script(_READ)
        self._reclaim = redis.register_script(_RECLAIM)
        self._renew = redis.register_script(_RENEW)
        self._requeue = redis.register_script(_REQUEUE)

    async def prepare(self, streams: Iterable[str]) -> None:
        """Create missing groups in one round trip; reading would create them one by one."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xgroup_create(stream, GROUP, id="0", mkstream=True)
            # A group that exists is an error reply; any other trouble shows when the stream is read.
            await pipe.execute(raise_on_error=False)

    async def read_new(self, streams: Sequence[str], each: int) -> list[StreamEntry]:
        """Read entries that no process has read: at most *each* of every stream."""
        return await self._read_with(streams, each, ">")

    async def read_own(self, streams: Sequence[str]) -> list[StreamEntry]:
        """Read the entries of this process again; it may not know of one if the answer to a read was lost."""
        return await self._read_with(streams, _OWN_AT_ONCE, "0")

    async def _read_with(self, streams: Sequence[str], each: int, start: str) -> list[StreamEntry]:
        found: list[StreamEntry] = []
        for group in self._by_slot(streams):
            found += _entries(group, await self._read(keys=group, args=[GROUP, self.consumer, each, start]))
        return found

    async def reclaim(
        self, streams: Sequence[str], silent_seconds: float, most: int, *, spares: bool = False
    ) -> list[StreamEntry]:
        """Take over up to *most* entries that nobody has renewed for *silent_seconds*.

        With *spares*, nothing is taken for half of that time after the store was away, so that the living can renew.
        All processes that do so pass the same streams, at least every `reclaim_interval` seconds.
        """
        milliseconds = round(silent_seconds * 1000)
        pauses = [round(milliseconds * part) if spares else 0 for part in (_AWAY, _SPARED)]
        found: list[StreamEntry] = []
        for group in self._by_slot(streams):
            if len(found) < most:
                args: list[str | int] = [GROUP, self.consumer, milliseconds, most - len(found), *pauses]
                found += _entries(group, await self._reclaim(keys=[*group, f"{group[0]}:asked"], args=args))
        return found

    async def renew(self, entries: Iterable[StreamEntry]) -> None:
        """Say that *entries* are still worked on; one that another process has reclaimed stays with that process."""
        await self._update(self._renew, entries)

    async def requeue(self, entries: Iterable[StreamEntry]) -> None:
        """Put *entries* at the end of their streams for any process; one that another has reclaimed stays there."""
        await self._update(self._requeue, entries)

    async def _update(self, script: AsyncScript, entries: Iterable[StreamEntry]) -> None:
        rest = list(entries)
        while rest:
            batch, rest = rest[:_UPDATED_AT_ONCE], rest[_UPDATED_AT_ONCE:]
            for streams in self._by_slot(list(dict.fromkeys(entry.stream for entry in batch))):
                number = {stream: number for number, stream in enumerate(streams, 1)}
                pairs = [part for one in batch if one.stream in number for part in (number[one.stream], one.id)]
                await script(keys=streams, args=[GROUP, self.consumer, *pairs])

    async def remove(self, entry: StreamEntry) -> None:
        """Take an entry away for good."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(entry.stream, GROUP, entry.id)
            pipe.xdel(entry.stream, entry.id)
            await pipe.execute()

    async def all(self, streams: Sequence[str]) -> list[StreamEntry]:
        """Return every entry of the streams, whoever has read it."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xrange(stream)
            found = await pipe.execute()
        return [
            StreamEntry(stream, entry_id, fields)
            for stream, entries in zip(streams, found, strict=True)
            for entry_id, fields in entries
        ]

    def _by_slot(self, streams: Sequence[str]) -> Iterable[Sequence[str]]:
        """Group *streams* as one script may touch them: on a cluster by hash tag, else all together."""
        if not streams or not hasattr(self._redis, "keyslot"):  # only a cluster's client has it
            return [streams] if streams else []
        by_tag: dict[str, list[str]] = {}
        for stream in streams:
            by_tag.setdefault(stream[: stream.find("}")], []).append(stream)
        return by_tag.values()


def _entries(streams: Sequence[str], answer: Any) -> list[StreamEntry]:
    """Return the entries in a script's answer; the fields of an entry that was deleted are nil."""
    return [
        StreamEntry(streams[number - 1], entry_id, dict(zip(flat[::2], flat[1::2], strict=True)))
        for number, entries in answer
        for entry_id, flat in entries
        if flat
    ]


def reclaim_interval(lease_seconds: float) -> float:
    """Return how often, in seconds, a process whose entries have this lease must reclaim."""
    return lease_seconds * _AWAY / 2


def renew_interval(lease_seconds: float, *, failed: bool = False) -> float:
    """Return in how many seconds an entry is renewed again.

    After a renewal that *failed* it is short: when the store is back, the living are spared for part of a lease only.
    """
    return min(_RETRY_SECONDS, lease_seconds / 15) if failed else lease_seconds / 3
