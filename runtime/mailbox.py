"""The durable inbox: one mailbox per conversation and lane, emptied in order.

Keys (owner ``mailbox``, in the conversation's partition): ``inbox`` the waiting messages, ``current``
the turn that was made of the first of them, ``seen`` one per message identity with the turn that
answered it, ``ready`` the conversations that have something waiting, ``last`` each one's newest message.
What belongs to the lane of commands has ``commands-`` before its word.

A message leaves the inbox only when its turn is done, so a turn that was interrupted is taken up again
under the same turn id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.message import (
    PARTITIONS,
    ConversationKey,
    InboundMessage,
    Role,
    encode_id,
    partition_tag,
    redis_key,
)
from runtime.identifiers import new_turn_id
from runtime.stored import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "mailbox"
_VERSION = 1
_SEEN_SECONDS = 7 * 24 * 3600
"""How long a message's identity is remembered: longer than any platform delivers again."""
MAX_BATCH = 20

_STORE = """
if redis.call('SET', KEYS[1], '', 'NX', 'EX', ARGV[1]) then
  redis.call('RPUSH', KEYS[2], ARGV[2])
  redis.call('SADD', KEYS[3], ARGV[3])
  redis.call('HSET', KEYS[4], ARGV[3], ARGV[4])
  return {1, ''}
end
return {0, redis.call('GET', KEYS[1])}
"""

_TAKE = """
local turn = redis.call('HGET', KEYS[1], 'turn')
if not turn then
  local waiting = redis.call('LLEN', KEYS[2])
  if waiting == 0 then
    redis.call('SREM', KEYS[3], ARGV[3])
    return false
  end
  turn = ARGV[1]
  redis.call('HSET', KEYS[1], 'turn', turn, 'count', math.min(waiting, tonumber(ARGV[2])), 'attempts', 0)
end
local attempts = redis.call('HINCRBY', KEYS[1], 'attempts', 1)
local count = tonumber(redis.call('HGET', KEYS[1], 'count'))
return {turn, attempts, redis.call('LRANGE', KEYS[2], 0, count - 1)}
"""

_EXTEND = """
if redis.call('HGET', KEYS[1], 'turn') ~= ARGV[1] then return {} end
local count = math.min(redis.call('LLEN', KEYS[2]), tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'count', count)
return redis.call('LRANGE', KEYS[2], 0, count - 1)
"""

_DONE = """
if redis.call('HGET', KEYS[1], 'turn') ~= ARGV[1] then return 0 end
redis.call('LTRIM', KEYS[2], redis.call('HGET', KEYS[1], 'count'), -1)
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SREM', KEYS[3], ARGV[2]) end
for at = 4, #KEYS do redis.call('SET', KEYS[at], ARGV[1], 'XX', 'KEEPTTL') end
return 1
"""


_AMEND = """
local taken = tonumber(redis.call('HGET', KEYS[1], 'count') or '0')
for at, text in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  if cjson.decode(text)['message']['message_id'] == ARGV[1] then
    if at <= taken then return 'answering' end
    if ARGV[2] ~= '' then
      redis.call('LSET', KEYS[2], at - 1, ARGV[2])
    else
      redis.call('LREM', KEYS[2], 1, text)
      if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SREM', KEYS[3], ARGV[3]) end
    end
    return 'amended'
  end
end
return redis.call('EXISTS', KEYS[4]) == 1 and 'answered' or 'unknown'
"""


class Lane(StrEnum):
    """What is worked through in order by itself: a command is not held up by an answer that is being written."""

    TURNS = ""
    COMMANDS = "commands-"


class Amended(StrEnum):
    """Where a message was when it was changed: waiting still, in an answer's making, answered, or never seen."""

    AMENDED = "amended"
    ANSWERING = "answering"
    ANSWERED = "answered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Envelope:
    """A stored inbound message: what was authorised, as what, and when (seconds since the epoch)."""

    message: InboundMessage
    role: Role
    accepted_at: float
    v: int = _VERSION


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages that one turn answers, oldest first. ``attempt`` counts from 1."""

    key: ConversationKey
    turn_id: str
    attempt: int
    envelopes: tuple[Envelope, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Whether a message was new; ``turn_id`` is the turn that answered it before, if one did."""

    new: bool
    turn_id: str = ""


_ENVELOPE = TypeAdapter(Envelope)


class Mailbox:
    """All mailboxes of one *lane*. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, lane: Lane = Lane.TURNS) -> None:
        self._redis = redis
        self._lane = lane
        self._amend = redis.register_script(_AMEND)
        self._store = redis.register_script(_STORE)
        self._take = redis.register_script(_TAKE)
        self._extend = redis.register_script(_EXTEND)
        self._done = redis.register_script(_DONE)

    async def store(self, key: ConversationKey, envelope: Envelope) -> Stored:
        """Put *envelope* into its mailbox as one atomic step, unless its identity was seen before."""
        new, turn_id = await self._store(
            keys=[
                self._seen(key, envelope.message.message_id),
                self._key(key, "inbox"),
                self._ready(key),
                self._last(key.tag),
            ],
            args=[_SEEN_SECONDS, _ENVELOPE.dump_json(envelope), key.encoded, envelope.message.message_id],
        )
        return Stored(bool(new), turn_id)

    async def last_seen(self, connector: str) -> dict[ConversationKey, str]:
        """The newest message that was stored of each conversation of *connector*."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(PARTITIONS):
                pipe.hgetall(self._last(partition_tag(partition)))
            found = await pipe.execute()
        newest = {ConversationKey.decode(encoded): message for one in found for encoded, message in one.items()}
        return {key: message for key, message in newest.items() if key.connector == connector}

    async def known(self, key: ConversationKey, message_id: str) -> str | None:
        """None for a message identity not seen before, else the turn that answered it ("" while none has)."""
        seen: Any = await self._redis.get(self._seen(key, message_id))
        return None if seen is None else str(seen)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """The turn that answered a message that was seen before; while it is not over, the turn at hand in
        the conversation, which may be the one or an earlier one; "" where there is none."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._seen(key, message_id))
            pipe.hget(self._key(key, "current"), "turn")
            answered, at_hand = await pipe.execute()
        return str(answered or at_hand or "")

    async def take(self, key: ConversationKey) -> Batch | None:
        """The turn to be answered now: the one that was interrupted, else one of all that waits."""
        taken: Any = await self._take(
            keys=[self._key(key, "current"), self._key(key, "inbox"), self._ready(key)],
            args=[new_turn_id(), 1 if self._lane is Lane.COMMANDS else MAX_BATCH, key.encoded],
        )
        if not taken:
            return None
        turn_id, attempt, envelopes = taken
        return Batch(key, turn_id, int(attempt), tuple(_envelope(text) for text in envelopes))

    async def extend(self, batch: Batch) -> Batch:
        """*batch* with what has arrived since it was taken."""
        texts: Any = await self._extend(
            keys=[self._key(batch.key, "current"), self._key(batch.key, "inbox")], args=[batch.turn_id, MAX_BATCH]
        )
        envelopes = tuple(_envelope(text) for text in texts)
        return replace(batch, envelopes=envelopes) if envelopes else batch

    async def done(self, batch: Batch) -> bool:
        """Let go of the messages of *batch*: its turn is over. False if another has done so."""
        seen = [self._seen(batch.key, envelope.message.message_id) for envelope in batch.envelopes]
        ended = await self._done(
            keys=[self._key(batch.key, "current"), self._key(batch.key, "inbox"), self._ready(batch.key), *seen],
            args=[batch.turn_id, batch.key.encoded],
        )
        return bool(ended)

    async def amend(self, key: ConversationKey, message_id: str, envelope: Envelope | None) -> Amended:
        """Put *envelope* in the place of a message that still waits, or take that out where it is None."""
        found: Any = await self._amend(
            keys=[self._key(key, "current"), self._key(key, "inbox"), self._ready(key), self._seen(key, message_id)],
            args=[message_id, _ENVELOPE.dump_json(envelope) if envelope else "", key.encoded],
        )
        return Amended(found)

    async def at_hand(self, key: ConversationKey) -> str:
        """The turn that is being answered in *key*; empty where none is."""
        turn_id: Any = await self._redis.hget(self._key(key, "current"), "turn")
        return str(turn_id or "")

    async def ready(self) -> list[ConversationKey]:
        """The conversations that have something waiting."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(PARTITIONS):
                pipe.smembers(redis_key(_OWNER, partition_tag(partition), f"{self._lane}ready"))
            found = await pipe.execute()
        return [ConversationKey.decode(encoded) for encodings in found for encoded in sorted(encodings)]

    def _seen(self, key: ConversationKey, message_id: str) -> str:
        return redis_key(_OWNER, key.tag, f"{self._lane}seen", key.encoded, encode_id(message_id))

    def _key(self, key: ConversationKey, part: str) -> str:
        return redis_key(_OWNER, key.tag, f"{self._lane}{part}", key.encoded)

    def _last(self, tag: str) -> str:
        return redis_key(_OWNER, tag, f"{self._lane}last")

    def _ready(self, key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, f"{self._lane}ready")


def _envelope(text: str) -> Envelope:
    envelope = _ENVELOPE.validate_json(text)
    if envelope.v > _VERSION:
        raise NewerFormat(f"a waiting message has version {envelope.v}; this runtime reads {_VERSION}: upgrade it")
    return envelope
