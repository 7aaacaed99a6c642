"""Where everything that leaves is stored first, and handed to the process that has the way to its people.

What is stored, and under which keys, is in `runtime.delivery.outbox`.

An address is a connector's name, where any process that runs the connector can deliver, or ``<connector>@<process>``,
where the people are connected to one process.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import TypeAdapter

from connectors.connector import Connector
from connectors.message import (
    PARTITIONS,
    Button,
    ConversationKey,
    Fence,
    OutboundMessage,
    OutboundPart,
    StoreUnavailable,
    Superseded,
    new_turn_id,
    partition_tag,
    redis_key,
)
from runtime.coordination import EVERYBODY, GROUP, Given, Hub, WorkStreams, entries_of
from runtime.delivery import outbox_scripts as scripts
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis


# ---- parts ----
#
# How far the parts of a reply have come, and what is found out about that: the nouns of `runtime.delivery.outbox`.


VERSION = "1"
_MESSAGE = TypeAdapter(OutboundMessage)


class Stage(StrEnum):
    """How far a part has come."""

    NEW = ""
    DRAFTING = "drafting"
    """The first message of a preview is being sent. If that is lost, nothing is: the delivery sends the part."""
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


@dataclass(frozen=True, slots=True)
class Held:
    """A reply that is being delivered: the reply if it is stored, and its parts' states. ``begun`` says that the first
    part is marked as being sent by this very step."""

    message: OutboundMessage | None
    states: dict[int, PartState]
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Entered:
    """What came of storing a reply: whether it was the first for its turn, by address the ids of the entries that were
    made, and what this process was given to deliver by the same step. Where nothing was new, ``waiting`` are the
    addresses at which it is not delivered yet."""

    stored: bool
    addresses: Mapping[str, str]
    given: Sequence[Given] = ()
    waiting: Sequence[str] = ()


def drafted(part: OutboundPart) -> OutboundPart:
    """*part* with the token of a preview: a platform that knows tokens again would take its last form for a repeat."""
    return replace(part, token=f"{part.token}.draft")


class NotNext(Exception):
    """An older reply of the conversation is not delivered yet, by whichever process has it."""


class Forgotten(Exception):
    """What was being delivered is not stored any more: nothing is left to do for it."""


def packed(message: OutboundMessage) -> str:
    """*message* as it is stored."""
    return _MESSAGE.dump_json(message).decode()


def message_in(version: str | None, message: str | None) -> OutboundMessage | None:
    """The inverse of `packed`, None where nothing is stored. Raises `runtime.stores.NewerFormat`."""
    if message is None:
        return None
    if version != VERSION:
        raise NewerFormat(f"a reply was stored in format {version}; this runtime reads {VERSION}: upgrade it")
    return _MESSAGE.validate_json(message)


def states_in(fields: Mapping[str, str]) -> dict[int, PartState]:
    """The states of parts, by their index, among the fields that are stored of a turn."""
    return {
        int(name.removeprefix("part:")): PartState.parse(text)
        for name, text in fields.items()
        if name.startswith("part:")
    }


# ---- part states ----
#
# What became of each part of what the runtime said, kept in Redis around every call to a platform.
#
# Keys (owner ``outbox``, in the conversation's partition): ``turn`` one hash per turn, with the message and,
# for each part, one state (`Stage`), ``turns`` one sorted set per conversation of those turns, by when they end,
# ``out``
# one stream per address of what is to be delivered there, ``line`` for an address at which any process may deliver one
# list per conversation of what waits there of it, oldest first. A turn that is delivered again goes on where it
# stopped;
# who begins to deliver it has the hold of it: nobody else can mark its parts. ``awaited`` says by message at which
# further address its answer is waited for, once it is there.


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
        """The stored reply of a turn, if it has come that far. Raises `runtime.stores.NewerFormat`."""
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
        Raises `NotNext`, `connectors.message.Superseded` and `runtime.stores.NewerFormat`.
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


# ---- outbox ----


REPLY = "reply"
"""The hub's topic for replies that wait to be delivered."""


class DeliversHere(Protocol):
    """Who delivers at some addresses in this very process."""

    def delivers_at(self, address: str) -> bool:
        """Whether *address* is one of them."""

    def room(self, address: str) -> int:
        """How many entries of what waits at an address that any process may deliver at it would take now."""

    def take(self, given: Sequence[Given], known: OutboundMessage | None = None) -> None:
        """Deliver what was given, of which *known*, if given, need not be read again."""

    def look(self, partition: int, address: str) -> None:
        """Something waits at an address, and may have been given already without anybody having been told."""

    def missed(self) -> None:
        """The same, wherever it may be."""


class Outbox:
    """Everything that leaves. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, hub: Hub) -> None:
        self.states = PartStates(redis)
        self.streams = WorkStreams(redis, self.states.name)
        self._hub = hub
        self._here: DeliversHere | None = None

    @contextmanager
    def delivered_here(self, by: DeliversHere) -> Iterator[None]:
        """While inside, what is stored for an address of *by* is given to it by the same step."""
        self._here = by
        try:
            yield
        finally:
            self._here = None

    async def put(self, message: OutboundMessage, addresses: Iterable[str], fence: Fence | None = None) -> bool:
        """Store *message* for delivery at *addresses*, once for its turn; False if it was stored before.

        Stored before, but not delivered yet, it is announced again.

        Raises `connectors.message.Superseded` where *fence* does not hold any more.
        """
        new, stored = False, False
        for address in dict.fromkeys(addresses):
            entered = await self._put(message, address, fence)
            stored = stored or entered.stored
            new = new or bool(entered.addresses)
            await self._announce(message, entered, stored=stored)
            for left in entered.waiting:  # who stored it may have ended before anybody was told
                await self._remind(message.key.partition, left)
        return new

    async def _put(self, message: OutboundMessage, address: str, fence: Fence | None) -> Entered:
        here = self._here if self._here and self._here.delivers_at(address) else None
        take = here.room(address) if here and "@" not in address else 0
        try:
            return await self.states.put(message, address, fence, take=take)
        except (StoreUnavailable, asyncio.CancelledError):  # it may be stored all the same
            if here is not None:
                here.missed()
            raise

    async def _announce(self, message: OutboundMessage, entered: Entered, *, stored: bool) -> None:
        """Have what was entered delivered: here, where that can be, or by whoever hears of it."""
        here, given, elsewhere = self._here, list(entered.given), []
        fields = {"key": message.key.encoded, "turn": message.turn_id}
        for address, entry_id in entered.addresses.items():
            one = Given(stream_of(message.key.partition, address), entry_id, fields)
            if here is not None and "@" in address and here.delivers_at(address):
                given.append(one)
            elif one not in given:
                elsewhere.append(address)
        if given and here is not None:  # before anything is waited for: whoever stores it may end there
            here.take(given, message if stored else None)
        for address in elsewhere:
            await self._ring(message.key.partition, address)

    async def _remind(self, partition: int, address: str) -> None:
        """Have what waits at *address* looked for: whoever has it already is not disturbed."""
        if self._here is not None and self._here.delivers_at(address):
            self._here.look(partition, address)
        else:
            await self._ring(partition, address)

    async def expect(self, key: ConversationKey, message_id: str, address: str) -> None:
        """Have the answer to a message delivered at *address*, too: somebody asked for it again there.

        Holds for an answer that is stored after this returns; one that is there already can be loaded.
        """
        await self.states.expect(key, message_id, address)

    async def _ring(self, partition: int, address: str) -> None:
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
        """Tell people something that is no turn. Once for one *turn_id*, if given."""
        turn_id = turn_id or new_turn_id()
        notice = OutboundMessage(key, turn_id, text, kind="notice", answers=answers, reply_to=reply_to, buttons=buttons)
        await self.put(notice, [address])

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far."""
        return await self.states.load(key, turn_id)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """See `runtime.delivery.outbox.PartStates.turn_of`."""
        return await self.states.turn_of(key, message_id)

    async def arrived(self, streams: Sequence[str]) -> list[tuple[Given, OutboundMessage | None]]:
        """Every entry of *streams*, which are for this process alone, with its reply if that is still stored."""
        return [one for some in self.streams.together(streams) for one in await self.states.arrived(some)]

    async def forget(self, key: ConversationKey, turn_ids: Sequence[str] | None = None) -> None:
        """Drop the stored replies of turns, or, without any named, all that was ever said in *key*."""
        await (self.states.forget(key) if turn_ids is None else self.states.forget_turns(key, turn_ids))


def address_of(connector: Connector, process: str) -> str:
    """Where what is said through *connector* is delivered, for people whose messages came to *process*."""
    return f"{connector.name}@{process}" if connector.capabilities.local else connector.name


def addresses_of(connectors: Mapping[str, Connector], process: str) -> list[str]:
    """The addresses at which *process* delivers."""
    return [address_of(connector, process) for connector in connectors.values()]


def streams_of(addresses: Sequence[str]) -> list[str]:
    """The streams of all partitions for *addresses*."""
    return [stream_of(partition, address) for address in addresses for partition in range(PARTITIONS)]
