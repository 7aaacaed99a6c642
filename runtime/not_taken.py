"""Which messages were not taken, and of which of them people are still to be told: kept, so that it outlives a process.

Keys (owner ``missed``, tag of the conversation): ``told``, one per message of which people are told that it is not
taken, from when that is certain; ``untold``, one hash per conversation of those of which they were not told yet;
``places``, one set per partition of the conversations that have such.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from connectors.message import PARTITIONS, ConversationKey, InboundMessage, encode_id, partition_tag, redis_key
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "missed"
_VERSION = 1
_TOLD_SECONDS = 7 * 24 * 3600
"""How long is known of what people were told: as long as the identity of a message that was taken."""

# With when, in whole milliseconds by the server's clock: processes on several machines compare it.
_KEEP = """
if not redis.call('SET', KEYS[1], '', 'NX', 'EX', ARGV[1]) then return 0 end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[2], ARGV[2], now .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[4])
return 1
"""
_OVER = """
for at = 2, #ARGV do redis.call('HDEL', KEYS[1], ARGV[at]) end
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end
return 1
"""
_LEFT = """
local time = redis.call('TIME')
return {time[1] * 1000 + math.floor(time[2] / 1000), redis.call('HVALS', KEYS[1])}
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that was not taken: its id, how it begins, and what the notice of it hangs at, if anything."""

    message_id: str
    beginning: str
    hangs_at: str | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """Messages of which people are to be told together under one *id*, oldest first; ``seconds`` until they may be sent
    again, ``why`` what stands in front, empty where they know it."""

    key: ConversationKey
    id: str
    refused: tuple[Refused, ...]
    why: str
    seconds: int


class NotTaken:
    """What was not taken. Raises `connectors.message.StoreUnavailable` throughout. *name* is this process."""

    def __init__(self, redis: Redis, name: str = "") -> None:
        self._redis = redis
        self._name = name
        self._keep = redis.register_script(_KEEP)
        self._over = redis.register_script(_OVER)
        self._left = redis.register_script(_LEFT)

    async def keep(self, key: ConversationKey, refused: Refused, told_as: str, why: str, seconds: int) -> bool:
        """Have people told of *refused*, together with all others of *told_as*, whatever becomes of this process;
        False where that was seen to before. *why* goes in front, if given; it may be sent again in *seconds*."""
        packed = pack(
            _VERSION,
            by=self._name,
            told_as=told_as,
            message=refused.message_id,
            beginning=refused.beginning,
            hangs_at=refused.hangs_at,
            why=why,
            seconds=seconds,
        )
        kept = await self._keep(
            keys=[_told(key, refused.message_id), _untold(key), _places(key.tag)],
            args=[_TOLD_SECONDS, encode_id(refused.message_id), packed, key.encoded],
        )
        return bool(kept)

    async def over(self, key: ConversationKey, refused: Sequence[Refused]) -> None:
        """People were told of *refused*."""
        fields = [encode_id(one.message_id) for one in refused]
        await self._over(keys=[_untold(key), _places(key.tag)], args=[key.encoded, *fields])

    async def left(self, own_seconds: float, others_seconds: float) -> list[Left]:
        """Those of which nobody was told, because what was to tell them ended: of this process those that are older
        than *own_seconds*, of others *others_seconds*. Raises `runtime.stored.NewerFormat`."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(PARTITIONS):
                pipe.smembers(_places(partition_tag(partition)))
            places: Any = await pipe.execute()
        found: list[Left] = []
        for encoded in sorted(encoded for some in places for encoded in some):
            key = ConversationKey.decode(encoded)
            now, texts = await self._left(keys=[_untold(key)])
            if not texts:  # they ended by themselves
                await self.over(key, [])
            found += _groups(key, now, texts, self._name, own_seconds, others_seconds)
        return found

    def trace(self, key: ConversationKey, message: InboundMessage) -> str:
        """The key that there is where people were told of *message*, or will be."""
        return _told(key, message.message_id)

    async def was_told(self, key: ConversationKey, message: InboundMessage) -> bool:
        """Whether people were told of *message*, or will be."""
        return bool(await self._redis.exists(self.trace(key, message)))


def _groups(
    key: ConversationKey, now: int, texts: Sequence[str], name: str, own_seconds: float, others_seconds: float
) -> list[Left]:
    groups: defaultdict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for text in texts:
        at, _, packed = text.partition(" ")
        fields = unpack(packed, _VERSION, "a message that was not taken")
        groups[fields["told_as"]].append((int(at), fields))
    found: list[Left] = []
    for told_as, some in sorted(groups.items()):
        some.sort(key=lambda one: one[0])
        last, fields = some[-1]
        if now - last < 1000 * (own_seconds if fields["by"] == name else others_seconds):
            continue
        refused = tuple(Refused(one["message"], one["beginning"], one["hangs_at"]) for _, one in some)
        seconds = max(0, round(fields["seconds"] - (now - last) / 1000))
        found.append(Left(key, told_as, refused, fields["why"], seconds))
    return found


def _told(key: ConversationKey, message_id: str) -> str:
    return redis_key(_OWNER, key.tag, "told", key.encoded, encode_id(message_id))


def _untold(key: ConversationKey) -> str:
    return redis_key(_OWNER, key.tag, "untold", key.encoded)


def _places(tag: str) -> str:
    return redis_key(_OWNER, tag, "places")
