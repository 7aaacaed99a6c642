"""What became of each part of what the runtime said, kept in Redis around every call to a platform.

Keys (owner ``outbox``, in the conversation's partition): ``turn`` one hash per turn, with the message and,
for each part, one state (`Stage`), ``out`` one stream per address of what is to be delivered there. A turn that is
delivered again goes on where it stopped; who begins to deliver it has the hold of it: nobody else can mark its parts.
``awaited`` says by message at which further address its answer is waited for, once it is there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.message import ConversationKey, Fence, OutboundMessage, Superseded, partition_tag, redis_key
from runtime.stored import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "outbox"
_VERSION = "1"
_KEPT_SECONDS = 7 * 24 * 3600
UNREAD_SECONDS = 3600
"""How long what was meant for one process is kept for it."""
_SCANNED = 500
"""Keys that are looked at in one step, where all of a conversation are wanted."""
_MESSAGE = TypeAdapter(OutboundMessage)


class Stage(StrEnum):
    """How far a part has come."""

    NEW = ""
    DRAFTING = "drafting"
    """Its first words are being sent, to be replaced by its last form: if that is lost, nothing is."""
    SHOWN = "shown"
    """People see it growing, in the message of this id."""
    SENDING = "sending"
    """From before the call to the platform until its receipt: after an end of the process nobody knows."""
    UNSENT = "unsent"
    """The platform has said that it did not take it."""
    SENT = "sent"
    AMBIGUOUS = "ambiguous"
    """Nobody knows whether it was sent, and it is not sent again."""


@dataclass(frozen=True, slots=True)
class PartState:
    """A stage; the platform's id of the message for ``SHOWN`` and ``SENT``; for ``SENDING`` since when (epoch)."""

    stage: Stage = Stage.NEW
    message_id: str = ""
    since: float = 0.0

    def text(self) -> str:
        match self.stage:
            case Stage.SENT | Stage.SHOWN:
                return f"{self.stage}:{self.message_id}"
            case Stage.SENDING:
                return f"{self.stage}:{self.since:.0f}"
            case _:
                return self.stage.value

    @classmethod
    def parse(cls, text: str) -> PartState:
        """The inverse of `text`; what a newer runtime may have written counts as `Stage.NEW`."""
        stage, _, more = text.partition(":")
        match stage:
            case Stage.SENT | Stage.SHOWN:
                return cls(Stage(stage), more)
            case Stage.SENDING:
                return cls(Stage.SENDING, since=float(more or 0))
            case Stage.UNSENT | Stage.AMBIGUOUS | Stage.DRAFTING:
                return cls(Stage(stage))
            case _:
                return cls()


# The streams of those who wait for it elsewhere lie beside the one that is named: their names end otherwise.
_PUT = """
if KEYS[4] and redis.call('HGET', KEYS[4], 'token') ~= ARGV[6] then return -1 end
local beside = string.sub(KEYS[2], 1, -1 - #ARGV[8])
local entered = {}
local function enter(address, seconds)
  if redis.call('HSETNX', KEYS[1], 'to:' .. address, '1') == 0 then return end
  redis.call('XADD', beside .. address, '*', 'key', ARGV[4], 'turn', ARGV[5])
  if seconds ~= '' then redis.call('EXPIRE', beside .. address, seconds) end
  entered[#entered + 1] = address
end
enter(ARGV[8], ARGV[7])
if #entered == 0 then return entered end
redis.call('HSET', KEYS[1], 'v', ARGV[1])
redis.call('HSETNX', KEYS[1], 'message', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
for at = 10, #ARGV do
  local address = redis.call('HGET', KEYS[3], ARGV[at])
  if address then
    redis.call('HDEL', KEYS[3], ARGV[at])
    enter(address, ARGV[9])
  end
end
return entered
"""

_AWAIT = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""

_HOLD = """
redis.call('HSET', KEYS[1], 'holder', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return redis.call('HGETALL', KEYS[1])
"""

# What only grows is nobody's: it may be marked until somebody delivers.
_MARK = """
local holder = redis.call('HGET', KEYS[1], 'holder')
if ARGV[1] == '' and holder or ARGV[1] ~= '' and holder ~= ARGV[1] then return -1 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
if ARGV[1] == '' then redis.call('EXPIRE', KEYS[1], ARGV[4]) end
return 1
"""


@dataclass(frozen=True, slots=True)
class Held:
    """A reply that is being delivered: the hold's token, the reply if it is stored, and its parts' states."""

    token: str
    message: OutboundMessage | None
    states: dict[int, PartState]


class PartStates:
    """The states of all turns' parts. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._put = redis.register_script(_PUT)
        self._await = redis.register_script(_AWAIT)
        self._hold = redis.register_script(_HOLD)
        self._mark = redis.register_script(_MARK)
        self._surely_unsent: set[tuple[str, int]] = set()
        """Turn and part of those that may stand as being sent although the platform certainly has not got them:
        the store was away when it was to be told, and may have taken the mark all the same."""

    async def put(self, message: OutboundMessage, address: str, fence: Fence | None = None) -> list[str]:
        """Store *message* for delivery at *address*, and wherever else it is awaited, in one step and once for each.

        Where it was entered now; nowhere if it was before. Raises `connectors.message.Superseded` where *fence* does
        not hold.
        """
        added: Any = await self._put(
            keys=[
                self._key(message.key, message.turn_id),
                stream_of(message.key.partition, address),
                self._awaited(message.key),
                *([fence.name] if fence else ()),
            ],
            args=[
                _VERSION,
                _MESSAGE.dump_json(message).decode(),
                _KEPT_SECONDS,
                message.key.encoded,
                message.turn_id,
                fence.token if fence else "",
                UNREAD_SECONDS if "@" in address else "",
                address,
                UNREAD_SECONDS,
                *message.answers,
            ],
        )
        if added == -1:
            raise Superseded("another worker holds the conversation now")
        return [str(entered) for entered in added]

    async def expect(self, key: ConversationKey, message_id: str, address: str) -> None:
        """Have the answer to a message entered at *address*, too, when it is stored."""
        await self._await(keys=[self._awaited(key)], args=[message_id, address, UNREAD_SECONDS])

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far. Raises `runtime.stored.NewerFormat`."""
        stored: Any = await self._redis.hmget(self._key(key, turn_id), ["v", "message"])
        return _message(*stored)

    async def hold(self, key: ConversationKey, turn_id: str) -> Held:
        """Begin to deliver: from now on only who has this hold can mark parts. Raises `runtime.stored.NewerFormat`."""
        token = uuid.uuid4().hex
        flat: Any = await self._hold(keys=[self._key(key, turn_id)], args=[token, _KEPT_SECONDS])
        fields = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        return Held(token, _message(fields.get("v"), fields.get("message")), self._states(turn_id, fields))

    async def of_turn(self, key: ConversationKey, turn_id: str) -> dict[int, PartState]:
        """The states of a turn's parts, whether or not its reply is stored yet."""
        fields: Any = await self._redis.hgetall(self._key(key, turn_id))
        return self._states(turn_id, fields)

    async def mark(
        self, message: OutboundMessage, index: int, stage: Stage, message_id: str = "", token: str = ""
    ) -> None:
        """Say that part *index* has come to *stage*; without the *token* of a hold only until somebody delivers.

        Raises `connectors.message.Superseded`.
        """
        known_unsent = stage in (Stage.SENDING, Stage.UNSENT)
        if known_unsent:
            self._surely_unsent.add((message.turn_id, index))
        state = PartState(stage, message_id, self._clock())
        done = await self._mark(
            keys=[self._key(message.key, message.turn_id)], args=[token, f"part:{index}", state.text(), _KEPT_SECONDS]
        )
        if known_unsent:
            self._surely_unsent.discard((message.turn_id, index))
        if done == -1:
            raise Superseded("another process delivers this now")

    async def forget(self, key: ConversationKey) -> None:
        """Drop everything that was said in a conversation."""
        pattern = self._key(key, "*")  # ids are encoded: nothing before it means anything to a pattern
        async for name in self._redis.scan_iter(match=pattern, count=_SCANNED):
            await self._redis.delete(name)

    async def forget_turn(self, key: ConversationKey, turn_id: str) -> None:
        """Drop what was said in a turn."""
        await self._redis.delete(self._key(key, turn_id))

    def _states(self, turn_id: str, fields: Mapping[str, str]) -> dict[int, PartState]:
        found = {
            int(field.removeprefix("part:")): PartState.parse(text)
            for field, text in fields.items()
            if field.startswith("part:")
        }
        for index, state in found.items():
            if state.stage is Stage.SENDING and (turn_id, index) in self._surely_unsent:
                found[index] = PartState(Stage.UNSENT)
        return found

    @staticmethod
    def _awaited(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "awaited", key.encoded)

    @staticmethod
    def _key(key: ConversationKey, turn_id: str) -> str:
        return redis_key(_OWNER, key.tag, "turn", key.encoded, turn_id)


def stream_of(partition: int, address: str) -> str:
    """The stream of what waits in a partition for an address."""
    return redis_key(_OWNER, partition_tag(partition), "out", address)


def _message(version: str | None, message: str | None) -> OutboundMessage | None:
    if message is None:
        return None
    if version != _VERSION:
        raise NewerFormat(f"a reply was stored in format {version}; this runtime reads {_VERSION}: upgrade it")
    return _MESSAGE.validate_json(message)
