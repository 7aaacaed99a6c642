"""Hands work to one of many processes: Redis streams with a consumer group, as mailbox and outbox use them.

An entry stays with the process that was given it until it is done. One that has not been renewed for a while is given
to whoever asks for what was abandoned.

While the store is away, stands still or fails over nobody can renew anything, and afterwards all seem dead. So whoever
asks for what was abandoned leaves the time of it in the store (``<stream>:asked``, beside the first of the streams):
where that is longer ago than it ever is while the store serves, nothing is taken from anybody until the living have had
time to renew. It is looked for in the step that would take it: that may have been sent before the store stood still, or
by a process that has just started.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.commands.core import AsyncScript


GROUP = "workers"
_AT_ONCE = 500
_MINE_AT_ONCE = 10_000
_ALL_AT_ONCE = 1_000_000
_AGAIN_SECONDS = 1.0
_AWAY = 1 / 3
"""Of a lease: where nobody asked for what was abandoned for longer, the store was away, or everybody."""
_SPARED = 1 / 2
"""Of a lease: how long the living have after that to renew what is theirs."""


@dataclass(frozen=True, slots=True)
class Given:
    """An entry of *stream* that this process was given."""

    stream: str
    id: str
    fields: Mapping[str, str]

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the entries of one stream by their age."""
        milliseconds, _, number = self.id.partition("-")
        return int(milliseconds), int(number)


# What is read is nobody's yet (``>``), or this consumer's own. A group that is missing is made.
_OFFER = """
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

# A step of XAUTOCLAIM looks at a part of what is in hand only: what is still renewed may stand before what is not.
_ABANDONED = """
local left, longest, rest = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
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
  local cursor, here, most = '0-0', {}, math.min(tonumber(ARGV[4]), left)
  while #here < most do
    local function claim()
      return redis.pcall('XAUTOCLAIM', stream, ARGV[1], ARGV[2], ARGV[3], cursor, 'COUNT', most - #here)
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

# An entry that was given to another meanwhile stays there.
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


# An entry that was given to another meanwhile stays there.
_BEHIND = """
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

    Raises `connectors.message.StoreUnavailable` throughout.
    """

    def __init__(self, redis: Redis, consumer: str = "") -> None:
        self._redis = redis
        self.consumer = consumer or uuid.uuid4().hex
        self._offer = redis.register_script(_OFFER)
        self._abandoned = redis.register_script(_ABANDONED)
        self._renew = redis.register_script(_RENEW)
        self._behind = redis.register_script(_BEHIND)

    async def prepare(self, streams: Iterable[str]) -> None:
        """Make the groups that are not there yet: reading makes what it misses, this saves it the detour."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xgroup_create(stream, GROUP, id="0", mkstream=True)
            # A group that is there already is an error reply; every other trouble shows when it is read.
            await pipe.execute(raise_on_error=False)

    async def offered(self, streams: Sequence[str], each: int) -> list[Given]:
        """Entries that nobody was given yet: at most *each* of every stream."""
        return await self._found(self._offer, streams, [GROUP, self.consumer, each, ">"])

    async def mine(self, streams: Sequence[str]) -> list[Given]:
        """Entries that this process was given, and may not know of because it could not be told."""
        return await self._found(self._offer, streams, [GROUP, self.consumer, _MINE_AT_ONCE, "0"])

    async def abandoned(
        self,
        streams: Sequence[str],
        silent_seconds: float,
        each: int,
        most: int = _ALL_AT_ONCE,
        *,
        spares: bool = False,
    ) -> list[Given]:
        """Entries that were not renewed for *silent_seconds*: now given to this process, at most *each* of every
        stream and *most* of all.

        Where it *spares* others, none while they may not yet have renewed theirs after the store was away: for half as
        long again. All who do so ask for the same streams, every `asks_after` seconds or more often.
        """
        idle = round(silent_seconds * 1000)
        away = [round(silent_seconds * 1000 * part) if spares else 0 for part in (_AWAY, _SPARED)]
        found: list[Given] = []
        for some in self.together(streams):
            if len(found) < most:
                args: list[str | int] = [GROUP, self.consumer, idle, each, most - len(found), *away]
                answer: Any = await self._abandoned(keys=[*some, f"{some[0]}:asked"], args=args)
                found += _found(some, answer)
        return found

    async def renew(self, given: Iterable[Given]) -> None:
        """Say that what was given is still worked on. What was given to another process meanwhile stays that one's."""
        await self._each(self._renew, given)

    async def behind(self, given: Iterable[Given]) -> None:
        """Put what was given behind what else waits in its stream, for whoever asks next. What was given to another
        process meanwhile stays that one's."""
        await self._each(self._behind, given)

    async def _each(self, script: AsyncScript, given: Iterable[Given]) -> None:
        for some in _batched(given, _AT_ONCE):
            for streams in self.together(list(dict.fromkeys(one.stream for one in some))):
                place = {stream: number for number, stream in enumerate(streams, 1)}
                pairs = [part for one in some if one.stream in place for part in (place[one.stream], one.id)]
                await script(keys=streams, args=[GROUP, self.consumer, *pairs])

    async def done(self, given: Given) -> None:
        """Take an entry away for good."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(given.stream, GROUP, given.id)
            pipe.xdel(given.stream, given.id)
            await pipe.execute()

    async def dropped(self, ids: Mapping[str, Sequence[str]]) -> None:
        """Take entries away that belong to no group, by their streams."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream, some in ids.items():
                pipe.xdel(stream, *some)
            await pipe.execute()

    async def all(self, streams: Sequence[str]) -> list[Given]:
        """Every entry of the streams, whoever was given it."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xrange(stream)
            found = await pipe.execute()
        return [
            Given(stream, entry_id, fields)
            for stream, entries in zip(streams, found, strict=True)
            for entry_id, fields in entries
        ]

    async def _found(self, script: AsyncScript, streams: Sequence[str], args: Sequence[str | int]) -> list[Given]:
        found: list[Given] = []
        for some in self.together(streams):
            found += _found(some, await script(keys=some, args=args))
        return found

    def together(self, streams: Sequence[str]) -> Iterable[Sequence[str]]:
        """*streams*, as one step may touch them: on a cluster those of one hash tag, else all."""
        if not streams or not hasattr(self._redis, "keyslot"):  # which only a cluster's client has
            return [streams] if streams else []
        by_tag: dict[str, list[str]] = {}
        for stream in streams:
            by_tag.setdefault(stream[: stream.find("}")], []).append(stream)
        return by_tag.values()


def asks_after(lease_seconds: float) -> float:
    """How often, at least, who is given things for *lease_seconds* asks for what others abandoned."""
    return lease_seconds * _AWAY / 2


def renews_after(lease_seconds: float, *, failed: bool = False) -> float:
    """In how many seconds what is held for *lease_seconds* is renewed again; where that just *failed*, soon: when the
    store is back, the living are spared for a part of the lease only."""
    return min(_AGAIN_SECONDS, lease_seconds / 15) if failed else lease_seconds / 3


def _found(streams: Sequence[str], answer: Any) -> list[Given]:
    return [given for number, entries in answer for given in entries_of(streams[number - 1], entries)]


def entries_of(stream: str, found: Iterable[Any]) -> list[Given]:
    """The entries of *stream* in a script's answer: pairs of an id and its fields, which are nil where the entry was
    taken away."""
    return [Given(stream, entry_id, dict(zip(flat[::2], flat[1::2], strict=True))) for entry_id, flat in found if flat]


def _batched(given: Iterable[Given], most: int) -> Iterator[list[Given]]:
    rest = iter(given)
    while some := list(itertools.islice(rest, most)):
        yield some
