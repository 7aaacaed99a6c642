"""The outbox: stores every reply and notice before it is sent, and the state of each of its parts while it is sent.

A worker calls `Outbox.put`; the deliverer of a process that has the right connector hears of it over the hub, holds the
reply and sends it part by part (`runtime.delivery.deliverer`, `runtime.delivery.sender`). A reply is stored under its
turn, once, and expires after `_KEPT_SECONDS`.

An address says who delivers: a connector's name, if any process that runs the connector may deliver, or
``<connector>@<process>``, if the people are connected to one process.

Keys (owner ``outbox``, in the conversation's partition):

- ``turn``: a hash for each turn: the message, the holder, and the state of each part (`PartState`). A process that
  begins to deliver becomes the holder, and no other process can mark parts. A later delivery goes on from the states.
- ``turns``: a sorted set for each conversation: its turns by the time they expire.
- ``out``: a stream for each address: what is to be delivered there.
- ``line``: a list for each conversation and shared address: its entries in ``out``, oldest first, which keeps replies
  in order across processes.
- ``awaited``: a hash for each conversation: message id to a further address at which its answer is awaited.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.connector import Connector
from connectors.message import (
    PARTITIONS,
    Button,
    ConversationKey,
    Fence,
    OutboundMessage,
    StoreUnavailable,
    Superseded,
    new_turn_id,
    partition_tag,
    redis_key,
)
from connectors.redis_calls import RedisCall, RoundTrip
from runtime.coordination import EVERYBODY, GROUP, Hub, StreamEntry, WorkStreams
from runtime.delivery import outbox_scripts as scripts
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


REPLY = "reply"
"""The hub's topic for replies that wait to be delivered."""
VERSION = "1"
UNREAD_SECONDS = 3600
"""How long an entry for one process is kept."""
_OWNER = "outbox"
_MESSAGE = TypeAdapter(OutboundMessage)
_KEPT_SECONDS = 7 * 24 * 3600
_FORGOTTEN_AT_ONCE = 500
"""Turns that are dropped in one step; a larger step would block other users of the store."""
_LOOKED_AT, _LOOKED_AT_ONCE = 1000, 250
"""Turns that `Outbox.turn_of` looks at in all, and in one step."""
_FIRST_PARTS = tuple(f"part:{index}" for index in range(12))
_NO_MORE = -1
_NOT_NEXT, _ANOTHERS, _OVER = 0, -1, -2


class PartStage(StrEnum):
    """How far a part has come."""

    NEW = ""
    DRAFTING = "drafting"
    """The first message of a preview is being sent. If it is lost, the delivery sends the part."""
    SHOWN = "shown"
    """People see it growing, in the message of this id."""
    SENDING = "sending"
    """From before the call to the platform until its receipt. If the process ends meanwhile, the outcome is unknown."""
    UNSENT = "unsent"
    """The platform has said that it did not take it."""
    SENT = "sent"
    AMBIGUOUS = "ambiguous"
    """Nobody knows whether it was sent, and it is not sent again."""


@dataclass(frozen=True, slots=True)
class PartState:
    """A stage; the platform's message id for ``SHOWN`` and ``SENT``; the start (epoch seconds) for ``SENDING``."""

    stage: PartStage = PartStage.NEW
    message_id: str = ""
    since: float = 0.0

    def text(self) -> str:
        match self.stage:
            case PartStage.SENT | PartStage.SHOWN:
                return f"{self.stage}:{self.message_id}"
            case PartStage.SENDING:
                return f"{self.stage}:{self.since:.0f}"
            case _:
                return self.stage.value

    @classmethod
    def parse(cls, text: str) -> PartState:
        """Return the inverse of `text`; a stage of a newer runtime is `PartStage.NEW`."""
        stage, _, more = text.partition(":")
        match stage:
            case PartStage.SENT | PartStage.SHOWN:
                return cls(PartStage(stage), more)
            case PartStage.SENDING:
                return cls(PartStage.SENDING, since=float(more or 0))
            case PartStage.UNSENT | PartStage.AMBIGUOUS | PartStage.DRAFTING:
                return cls(PartStage(stage))
            case _:
                return cls()


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply and the states of its parts by index; ``message`` is None if the reply was forgotten or delivered."""

    message: OutboundMessage | None
    states: dict[int, PartState]


class OlderReplyWaits(Exception):
    """An older reply of the conversation is not delivered yet, by whichever process has it."""


class ReplyForgotten(Exception):
    """The reply that was being delivered is not stored any more: nothing is left to do for it."""


class Outbox:
    """Every reply and notice. All methods raise `connectors.message.StoreUnavailable`.

    *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, hub: Hub, *, clock: Callable[[], float] = time.time) -> None:
        self.name = uuid.uuid4().hex
        """The name under which this object holds replies and is given entries of streams."""
        self.streams = WorkStreams(redis, self.name)
        self._redis = redis
        self._hub = hub
        self._clock = clock
        self._hold = redis.register_script(scripts.HOLD)
        self._mark = redis.register_script(scripts.MARK)
        self._done = redis.register_script(scripts.DONE)
        self._forget = redis.register_script(scripts.FORGET)
        self._turn_of = redis.register_script(scripts.TURN_OF)

    # Storing

    async def put(
        self,
        message: OutboundMessage,
        addresses: Iterable[str],
        fence: Fence | None = None,
        trip: RoundTrip | None = None,
    ) -> bool:
        """Store *message* for delivery at *addresses*, once for its turn; return False if it was stored before.

        If it was stored before but is not delivered yet, it is announced again. The calls of *trip* are sent, too,
        behind those of the message. Raises `connectors.message.Superseded` if *fence* does not hold any more.
        """
        stored_with = RoundTrip(self._redis)
        stored = {address: stored_with.add(self.put_call(message, address, fence)) for address in addresses}
        if trip is not None:
            stored_with.join(trip)
        is_new = False
        try:
            await stored_with.send()
            for answer in stored.values():
                entered, waiting = answer.result()
                is_new = is_new or bool(entered)
                for each in (*entered, *waiting):
                    await self._announce(message.key.partition, each)
        except (StoreUnavailable, asyncio.CancelledError):  # it may be stored all the same
            for address in stored:
                await self._announce(message.key.partition, address)
            raise
        return is_new

    def put_call(
        self, message: OutboundMessage, address: str, fence: Fence | None
    ) -> RedisCall[tuple[Sequence[str], Sequence[str]]]:
        """Return the call that stores *message* for one *address*. Its result: the addresses where it waits now, and
        those where it waited before."""

        def stored(answer: Any) -> tuple[Sequence[str], Sequence[str]]:
            if answer == _ANOTHERS:
                raise Superseded("another worker holds the conversation now")
            entered, waiting = answer
            return entered, waiting

        return RedisCall.script(
            scripts.PUT,
            keys=[
                self._turn_key(message.key, message.turn_id),
                stream_of(message.key.partition, address),
                self._awaited_key(message.key),
                self._turns_key(message.key),
                *([fence.name] if fence else ()),
            ],
            args=[
                VERSION,
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
            parse=stored,
        )

    async def _announce(self, partition: int, address: str) -> None:
        _, _, process = address.partition("@")
        await self._hub.tell(REPLY, {"partition": partition, "address": address}, process or EVERYBODY)

    async def notice(
        self,
        key: ConversationKey,
        address: str,
        text: str,
        answers: tuple[str, ...] = (),
        turn_id: str = "",
        reply_to: str | None = None,
        buttons: tuple[Button, ...] = (),
    ) -> None:
        """Store a message that belongs to no turn; with *turn_id*, only the first for that id."""
        turn_id = turn_id or new_turn_id()
        notice = OutboundMessage(key, turn_id, text, kind="notice", answers=answers, reply_to=reply_to, buttons=buttons)
        await self.put(notice, [address])

    async def expect(self, key: ConversationKey, message_id: str, address: str) -> None:
        """Have the answer to a message delivered at *address*, too.

        This holds for an answer that is stored after this returns; `load` finds one that is stored already.
        """
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(self._awaited_key(key), message_id, address)
            pipe.expire(self._awaited_key(key), UNREAD_SECONDS)
            await pipe.execute()

    # Delivering

    async def hold(self, key: ConversationKey, turn_id: str, entry: StreamEntry | None = None) -> StoredReply:
        """Begin to deliver a reply: from now on only this object can mark its parts.

        With *entry*, only while the entry is this process's, and after the older entries of its conversation. Raises
        `OlderReplyWaits`, `connectors.message.Superseded` and `runtime.stores.NewerFormat`.
        """
        keys = [self._turn_key(key, turn_id), self._turns_key(key)]
        args: list[str | int] = [self.name, _KEPT_SECONDS, turn_id]
        if entry is not None:
            keys += [_line_key(entry.stream, key), entry.stream]
            args += [entry.id, GROUP]
        flat: Any = await self._hold(keys=keys, args=args)
        if flat == _NOT_NEXT:
            raise OlderReplyWaits
        if flat == _ANOTHERS:
            raise Superseded("another process delivers this now")
        fields = {} if flat == _OVER else dict(zip(flat[::2], flat[1::2], strict=True))
        return StoredReply(_message_of(fields.get("v"), fields.get("message")), _states_of(fields))

    async def mark(
        self,
        message: OutboundMessage,
        index: int,
        stage: PartStage,
        message_id: str = "",
        *,
        as_holder: bool = False,
        address: str = "",
    ) -> None:
        """Store that part *index* has come to *stage*.

        A preview marks without being the holder (*as_holder*): only until a delivery holds the reply, and with
        *address* only while no older reply of the conversation waits there. Raises `OlderReplyWaits`,
        `connectors.message.Superseded`, and `ReplyForgotten` if the held reply is gone.
        """
        state = PartState(stage, message_id, self._clock())
        keys = [self._turn_key(message.key, message.turn_id), self._turns_key(message.key)]
        if address:
            stream = stream_of(message.key.partition, address)
            keys += [_line_key(stream, message.key), stream]
        result = await self._mark(
            keys=keys,
            args=[self.name if as_holder else "", f"part:{index}", state.text(), _KEPT_SECONDS, message.turn_id],
        )
        if result == _NOT_NEXT:
            raise OlderReplyWaits
        if result == _OVER:
            raise ReplyForgotten
        if result == _ANOTHERS:
            raise Superseded("another process delivers this now")

    async def done(self, key: ConversationKey, turn_id: str, entry: StreamEntry) -> None:
        """Take *entry* away: nothing of the reply is left to do there.

        Raises `connectors.message.Superseded` if another process holds the reply.
        """
        result = await self._done(
            keys=[self._turn_key(key, turn_id), _line_key(entry.stream, key), entry.stream],
            args=[self.name, entry.id, GROUP],
        )
        if result == _ANOTHERS:
            raise Superseded("another process delivers this now")

    # Reading and forgetting

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """Return the stored reply of a turn, if there is one. Raises `runtime.stores.NewerFormat`."""
        stored: Any = await self._redis.hmget(self._turn_key(key, turn_id), ["v", "message"])
        return _message_of(*stored)

    async def part_states(self, key: ConversationKey, turn_id: str) -> dict[int, PartState]:
        """Return the states of a turn's parts by index, whether or not its reply is stored yet."""
        fields: Any = await self._redis.hgetall(self._turn_key(key, turn_id))
        return _states_of(fields)

    async def is_waiting(self, key: ConversationKey) -> bool:
        """Return whether a reply of *key* waits at the address that any process may serve."""
        return bool(await self._redis.exists(_line_key(stream_of(key.partition, key.connector), key)))

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """Return the turn whose reply the platform's message *message_id* is a part of; empty if none is found.

        Looks at the first parts of the newest turns. There is no index for this: people seldom point at a reply.
        """
        for start in range(0, _LOOKED_AT, _LOOKED_AT_ONCE):
            found: Any = await self._turn_of(
                keys=[self._turns_key(key)],
                args=[self._turn_key(key, ""), message_id, start, _LOOKED_AT_ONCE, *_FIRST_PARTS],
            )
            if found:
                return "" if found == _NO_MORE else str(found)
        return ""

    async def forget(self, key: ConversationKey, turn_ids: Sequence[str] | None = None) -> None:
        """Delete the stored replies of *turn_ids*, or with None all of the conversation."""
        if turn_ids is None:
            page = _FORGOTTEN_AT_ONCE
            while page == _FORGOTTEN_AT_ONCE:
                page = await self._forget(
                    keys=[self._turns_key(key)], args=[self._turn_key(key, ""), _FORGOTTEN_AT_ONCE]
                )
            return
        for start in range(0, len(turn_ids), _FORGOTTEN_AT_ONCE):
            ids = turn_ids[start : start + _FORGOTTEN_AT_ONCE]
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(*(self._turn_key(key, turn_id) for turn_id in ids))
                pipe.zrem(self._turns_key(key), *ids)
                await pipe.execute()

    @staticmethod
    def _turn_key(key: ConversationKey, turn_id: str) -> str:
        return redis_key(_OWNER, key.tag, "turn", key.encoded, turn_id)

    @staticmethod
    def _turns_key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "turns", key.encoded)

    @staticmethod
    def _awaited_key(key: ConversationKey) -> str:
        return redis_key(_OWNER, key.tag, "awaited", key.encoded)


def _line_key(stream: str, key: ConversationKey) -> str:
    return redis_key(_OWNER, key.tag, "line", stream.partition(":out:")[2], key.encoded)


def _message_of(version: str | None, message: str | None) -> OutboundMessage | None:
    if message is None:
        return None
    if version != VERSION:
        raise NewerFormat(f"a reply was stored in format {version}; this runtime reads {VERSION}: upgrade it")
    return _MESSAGE.validate_json(message)


def _states_of(fields: Mapping[str, str]) -> dict[int, PartState]:
    return {
        int(name.removeprefix("part:")): PartState.parse(text)
        for name, text in fields.items()
        if name.startswith("part:")
    }


def address_of(connector: Connector, process: str) -> str:
    """Return the address at which replies through *connector* are delivered to people who came to *process*."""
    return f"{connector.name}@{process}" if connector.capabilities.local else connector.name


def stream_of(partition: int, address: str) -> str:
    """Return the name of the stream for an address in a partition."""
    return redis_key(_OWNER, partition_tag(partition), "out", address)


def streams_of(addresses: Sequence[str]) -> list[str]:
    """Return the names of the streams for *addresses* in all partitions."""
    return [stream_of(partition, address) for address in addresses for partition in range(PARTITIONS)]
