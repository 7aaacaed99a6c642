"""What became of each part of what the runtime said, kept in Redis around every call to a platform.

Keys (owner ``outbox``, in the conversation's partition): ``turn`` one hash per turn, with the message and,
for each part, one state (`Stage`), ``turns`` one sorted set per conversation of those turns, by when they end, ``out``
one stream per address of what is to be delivered there, ``line`` for an address at which any process may deliver one
list per conversation of what waits there of it, oldest first. A turn that is delivered again goes on where it stopped;
who begins to deliver it has the hold of it: nobody else can mark its parts. ``awaited`` says by message at which
further address its answer is waited for, once it is there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from connectors.message import ConversationKey, Fence, OutboundMessage, Superseded, partition_tag, redis_key
from runtime import outbox_scripts as scripts
from runtime.parts import (
    VERSION,
    Entered,
    Forgotten,
    Held,
    NotNext,
    PartState,
    Stage,
    message_in,
    packed,
    states_in,
)
from runtime.work_streams import GROUP, Given, entries_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "outbox"
_KEPT_SECONDS = 7 * 24 * 3600
UNREAD_SECONDS = 3600
"""How long what was meant for one process is kept for it."""
_FORGOTTEN_AT_ONCE = 500
"""Turns that are dropped in one step, so that none holds up the others that use the store."""
_LOOKED_AT, _LOOKED_AT_ONCE = 1000, 250
"""Turns among which the one of a message is looked for, and those of one step."""
_FIRST_PARTS = tuple(f"part:{index}" for index in range(12))
_NO_MORE = -1
_NOT_NEXT, _ANOTHERS, _OVER = 0, -1, -2


class PartStates:
    """The states of all turns' parts, as the process marks them. Raises `connectors.message.StoreUnavailable`
    throughout."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        self.name = uuid.uuid4().hex
        """Who has what is held by this object, and what is given to it."""
        self._redis = redis
        self._clock = clock
        self._put = redis.register_script(scripts.PUT)
        self._await = redis.register_script(scripts.AWAIT)
        self._hold = redis.register_script(scripts.HOLD)
        self._mark = redis.register_script(scripts.MARK)
        self._done = redis.register_script(scripts.DONE)
        self._arrived = redis.register_script(scripts.ARRIVED)
        self._forget = redis.register_script(scripts.FORGET)
        self._turn_of = redis.register_script(scripts.TURN_OF)

    async def put(
        self, message: OutboundMessage, address: str, fence: Fence | None = None, *, take: int = 0
    ) -> Entered:
        """Store *message* for delivery at *address*, and wherever else it is awaited, in one step and once for each.

        With *take* this process is given up to as many entries of what waits at *address* by the same step. Raises
        `connectors.message.Superseded` where *fence* does not hold.
        """
        stream = stream_of(message.key.partition, address)
        added: Any = await self._put(
            keys=[
                self._key(message.key, message.turn_id),
                stream,
                self._awaited(message.key),
                self._turns(message.key),
                *([fence.name] if fence else ()),
            ],
            args=[
                VERSION,
                packed(message),
                _KEPT_SECONDS,
                message.key.encoded,
                message.turn_id,
                fence.token if fence else "",
                UNREAD_SECONDS if "@" in address else "",
                address,
                UNREAD_SECONDS,
                self.name if take else "",
                take,
                GROUP,
                *message.answers,
            ],
        )
        if added == -1:
            raise Superseded("another worker holds the conversation now")
        stored, entered, taken, waiting = added
        return Entered(bool(stored), dict(_pairs(entered)), entries_of(stream, taken), waiting)

    async def expect(self, key: ConversationKey, message_id: str, address: str) -> None:
        """Have the answer to a message entered at *address*, too, when it is stored."""
        await self._await(keys=[self._awaited(key)], args=[message_id, address, UNREAD_SECONDS])

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far. Raises `runtime.stored.NewerFormat`."""
        stored: Any = await self._redis.hmget(self._key(key, turn_id), ["v", "message"])
        return message_in(*stored)

    async def is_waiting(self, key: ConversationKey) -> bool:
        """Whether something for *key* that any process may deliver is not delivered yet."""
        return bool(await self._redis.exists(_line_of(stream_of(key.partition, key.connector), key)))

    async def arrived(self, streams: Sequence[str]) -> list[tuple[Given, OutboundMessage | None]]:
        """Every entry of *streams*, which are for this process alone and of one partition, with its reply where that
        is stored in the format that this runtime reads."""
        found: Any = await self._arrived(keys=streams)
        return [
            (
                Given(streams[number - 1], entry_id, dict(_pairs(fields))),
                message_in(*stored) if stored[0] == VERSION else None,
            )
            for number, entry_id, fields, stored in found
        ]

    async def hold(
        self,
        key: ConversationKey,
        turn_id: str,
        given: Given | None = None,
        known: OutboundMessage | None = None,
        *,
        begin: bool = False,
    ) -> Held:
        """Begin to deliver: from now on only who has this hold can mark parts.

        With *given*, the entry by which the reply is to be delivered, only while it is this process's, and after the
        older ones of its conversation. *known* is the reply, where it need not be read. With *begin* its first part is
        marked as being sent by the same step, unless something became of it before.
        Raises `NotNext`, `connectors.message.Superseded` and `runtime.stored.NewerFormat`.
        """
        keys, entry = [self._key(key, turn_id), self._turns(key)], ["", ""]
        if given is not None:
            keys += [_line_of(given.stream, key), given.stream]
            entry = [given.id, GROUP]
        sending = PartState(Stage.SENDING, since=self._clock()).text() if begin else ""
        flat: Any = await self._hold(
            keys=keys, args=[self.name, _KEPT_SECONDS, sending, "1" if known else "", *entry, turn_id]
        )
        if flat == _NOT_NEXT:
            raise NotNext
        if flat == _ANOTHERS:
            raise Superseded("another process delivers this now")
        fields = {} if flat == _OVER else dict(_pairs(flat))
        states = states_in(fields)
        message = known if known and fields else message_in(fields.get("v"), fields.get("message"))
        return Held(message, states, begin and bool(fields) and 0 not in states)

    async def of_turn(self, key: ConversationKey, turn_id: str) -> dict[int, PartState]:
        """The states of a turn's parts, whether or not its reply is stored yet."""
        fields: Any = await self._redis.hgetall(self._key(key, turn_id))
        return states_in(fields)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """The turn of *key* of whose reply the platform's message *message_id* is one of the first parts, among the
        newest turns that are kept; empty where it is none's. Looked for, not kept: people seldom point at a reply, and
        parts are many."""
        for start in range(0, _LOOKED_AT, _LOOKED_AT_ONCE):
            found: Any = await self._turn_of(
                keys=[self._turns(key)], args=[self._key(key, ""), message_id, start, _LOOKED_AT_ONCE, *_FIRST_PARTS]
            )
            if found:
                return "" if found == _NO_MORE else str(found)
        return ""

    async def mark(
        self,
        message: OutboundMessage,
        index: int,
        stage: Stage,
        message_id: str = "",
        *,
        held: bool = False,
        address: str = "",
    ) -> None:
        """Say that part *index* has come to *stage*; without the hold (*held*) only until somebody delivers, and with
        *address* only while no older reply of the conversation waits there.

        Raises `NotNext`, `connectors.message.Superseded`, and `Forgotten` where the reply that is held is gone.
        """
        state = PartState(stage, message_id, self._clock())
        keys = [self._key(message.key, message.turn_id), self._turns(message.key)]
        if address:
            stream = stream_of(message.key.partition, address)
            keys += [_line_of(stream, message.key), stream]
        done = await self._mark(
            keys=keys,
            args=[self.name if held else "", f"part:{index}", state.text(), _KEPT_SECONDS, message.turn_id],
        )
        if done == _NOT_NEXT:
            raise NotNext
        if done == _OVER:
            raise Forgotten
        if done == -1:
            raise Superseded("another process delivers this now")

    async def done(
        self, key: ConversationKey, turn_id: str, given: Given, parts: Mapping[int, PartState] | None = None
    ) -> None:
        """Say what became of the last *parts*, and take the entry *given* away: nothing of the reply is left to do.

        Raises `connectors.message.Superseded` where another process has the hold of it.
        """
        marks = [text for index, state in (parts or {}).items() for text in (f"part:{index}", state.text())]
        done = await self._done(
            keys=[self._key(key, turn_id), _line_of(given.stream, key), given.stream],
            args=[self.name, given.id, GROUP, *marks],
        )
        if done == -1:
            raise Superseded("another process delivers this now")

    async def forget(self, key: ConversationKey) -> None:
        """Drop everything that was said in a conversation."""
        page = _FORGOTTEN_AT_ONCE
        while page == _FORGOTTEN_AT_ONCE:
            page = await self._forget(keys=[self._turns(key)], args=[self._key(key, ""), _FORGOTTEN_AT_ONCE])

    async def forget_turns(self, key: ConversationKey, turn_ids: Sequence[str]) -> None:
        """Drop what was said in turns."""
        for start in range(0, len(turn_ids), _FORGOTTEN_AT_ONCE):
            page = turn_ids[start : start + _FORGOTTEN_AT_ONCE]
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(*(self._key(key, turn_id) for turn_id in page))
                pipe.zrem(self._turns(key), *page)
                await pipe.execute()

    @staticmethod
    def _turns(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "turns", key.encoded)

    @staticmethod
    def _awaited(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "awaited", key.encoded)

    @staticmethod
    def _key(key: ConversationKey, turn_id: str) -> str:
        return redis_key(_OWNER, key.tag, "turn", key.encoded, turn_id)


def stream_of(partition: int, address: str) -> str:
    """The stream of what waits in a partition for an address."""
    return redis_key(_OWNER, partition_tag(partition), "out", address)


def address_in(stream: str) -> str:
    """The inverse of `stream_of`: the address."""
    return stream.partition(":out:")[2]


def _line_of(stream: str, key: ConversationKey) -> str:
    """The list of what of *key* waits in the stream of an address."""
    return redis_key(_OWNER, key.tag, "line", address_in(stream), key.encoded)


def _pairs(flat: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)
