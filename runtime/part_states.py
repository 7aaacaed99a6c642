"""What became of each part of what the runtime said, kept in Redis around every call to a platform.

Keys (owner ``outbox``, in the conversation's partition): ``turn`` one hash per turn, with the message and,
for each part, one state (`Stage`), ``out`` one stream per address of what is to be delivered there, ``line`` for an
address at which any process may deliver one list per conversation of what waits there of it, oldest first. A turn that
is delivered again goes on where it stopped; who begins to deliver it has the hold of it: nobody else can mark its
parts. ``awaited`` says by message at which further address its answer is waited for, once it is there.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.message import (
    ConversationKey,
    Fence,
    OutboundMessage,
    OutboundPart,
    Superseded,
    partition_tag,
    redis_key,
)
from runtime import outbox_scripts as scripts
from runtime.stored import NewerFormat
from runtime.work_streams import GROUP, Given, entries_of

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
_NOT_NEXT, _ANOTHERS, _OVER = 0, -1, -2


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


@dataclass(frozen=True, slots=True)
class Held:
    """A reply that is being delivered: the reply if it is stored, and its parts' states. ``begun`` says that the first
    part is marked as `Stage.SENDING` by this very step; ``unrecorded`` are states that are known here alone."""

    message: OutboundMessage | None
    states: dict[int, PartState]
    begun: bool = False
    unrecorded: Mapping[int, PartState] = field(default_factory=dict)


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
    """*part* as its first words are sent: a platform that knows tokens again would take its last form for a repeat."""
    return replace(part, token=f"{part.token}.draft")


class NotNext(Exception):
    """An older reply of the conversation is not delivered yet, by whichever process has it."""


class Forgotten(Exception):
    """What was being delivered is not stored any more: nothing is left to do for it."""


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
        self._surely: dict[tuple[str, int], PartState] = {}
        """By turn and part: what has become of those that may stand as being sent, because the store was away when it
        was to be told: certainly not sent, where it may have taken the mark all the same, or sent."""
        self._begun: dict[str, set[str]] = {}
        """By turn: attempts to begin with its first part of which nobody has said whether the store took them."""
        self._attempts = itertools.count()

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
        return _message(*stored)

    async def arrived(self, streams: Sequence[str]) -> list[tuple[Given, OutboundMessage | None]]:
        """Every entry of *streams*, which are for this process alone and of one partition, with its reply where that
        is stored in the format that this runtime reads."""
        found: Any = await self._arrived(keys=streams)
        return [
            (
                Given(streams[number - 1], entry_id, dict(_pairs(fields))),
                _message(*stored) if stored[0] == _VERSION else None,
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
        marked as `Stage.SENDING` unless something became of it before.
        Raises `NotNext`, `connectors.message.Superseded` and `runtime.stored.NewerFormat`.
        """
        keys, entry, sending, attempt = [self._key(key, turn_id)], ["", ""], "", ""
        if given is not None:
            keys += [_line_of(given.stream, key), given.stream]
            entry = [given.id, GROUP]
        if begin:
            attempt, sending = (
                f"{self.name}:{next(self._attempts)}",
                PartState(Stage.SENDING, since=self._clock()).text(),
            )
            self._begun.setdefault(turn_id, set()).add(attempt)
        flat: Any = await self._hold(
            keys=keys, args=[self.name, _KEPT_SECONDS, sending, "1" if known else "", *entry, attempt]
        )
        attempts = self._begun.pop(turn_id, set())
        if flat == _NOT_NEXT:
            raise NotNext
        if flat == _ANOTHERS:
            self._unsent_no_more(turn_id)
            raise Superseded("another process delivers this now")
        fields = {} if flat == _OVER else dict(_pairs(flat))
        return self._held(turn_id, fields, attempts, known, begin=begin)

    def _held(
        self,
        turn_id: str,
        fields: Mapping[str, str],
        attempts: Collection[str],
        known: OutboundMessage | None,
        *,
        begin: bool,
    ) -> Held:
        """What *fields* say, and what is known here alone of parts that stand as being sent. *attempts* are those to
        begin with the first part, of which nothing was sent."""
        states = _states(fields)
        if fields.get("holder", self.name) != self.name:  # it may have been sent there, after it was not sent here
            attempts = ()
            self._unsent_no_more(turn_id)
        surely = {index: self._surely[turn_id, index] for index in states if (turn_id, index) in self._surely}
        if fields.get("began") in attempts:
            surely.setdefault(0, PartState(Stage.UNSENT))
        unrecorded = {index: state for index, state in surely.items() if states[index].stage is Stage.SENDING}
        message = known if known and fields else _message(fields.get("v"), fields.get("message"))
        return Held(message, states | unrecorded, begin and bool(fields) and 0 not in states, unrecorded)

    def _unsent_no_more(self, turn_id: str) -> None:
        """Another process has held the turn: that this one sent nothing of it says no more what people see."""
        for one in [one for one, state in self._surely.items() if one[0] == turn_id and state.stage is Stage.UNSENT]:
            del self._surely[one]

    async def of_turn(self, key: ConversationKey, turn_id: str) -> dict[int, PartState]:
        """The states of a turn's parts, whether or not its reply is stored yet."""
        fields: Any = await self._redis.hgetall(self._key(key, turn_id))
        return _states(fields)

    async def mark(
        self, message: OutboundMessage, index: int, stage: Stage, message_id: str = "", *, held: bool = False
    ) -> None:
        """Say that part *index* has come to *stage*; without the hold (*held*) only until somebody delivers.

        Raises `connectors.message.Superseded`, and `Forgotten` where the reply that is held is gone.
        """
        state = PartState(stage, message_id, self._clock())
        with self._remembered(message.turn_id, {index: state}):
            done = await self._mark(
                keys=[self._key(message.key, message.turn_id)],
                args=[self.name if held else "", f"part:{index}", state.text(), _KEPT_SECONDS],
            )
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
        parts = parts or {}
        marks = [text for index, state in parts.items() for text in (f"part:{index}", state.text())]
        with self._remembered(turn_id, parts):
            done = await self._done(
                keys=[self._key(key, turn_id), _line_of(given.stream, key), given.stream],
                args=[self.name, given.id, GROUP, *marks],
            )
        for one in [one for one in self._surely if one[0] == turn_id]:
            del self._surely[one]
        if done == -1:
            raise Superseded("another process delivers this now")

    @contextmanager
    def _remembered(self, turn_id: str, parts: Mapping[int, PartState]) -> Iterator[None]:
        """While the store is told of *parts*, and after that did not succeed, what is certain of them is known here."""
        for index, state in parts.items():
            if state.stage in (Stage.SENDING, Stage.UNSENT):
                self._surely[turn_id, index] = PartState(Stage.UNSENT)
            elif state.stage is Stage.SENT:
                self._surely[turn_id, index] = state
        yield
        for index in parts:
            self._surely.pop((turn_id, index), None)

    async def forget(self, key: ConversationKey) -> None:
        """Drop everything that was said in a conversation."""
        pattern = self._key(key, "*")  # ids are encoded: nothing before it means anything to a pattern
        async for name in self._redis.scan_iter(match=pattern, count=_SCANNED):
            await self._redis.delete(name)

    async def forget_turn(self, key: ConversationKey, turn_id: str) -> None:
        """Drop what was said in a turn."""
        await self._redis.delete(self._key(key, turn_id))

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


def _states(fields: Mapping[str, str]) -> dict[int, PartState]:
    return {
        int(name.removeprefix("part:")): PartState.parse(text)
        for name, text in fields.items()
        if name.startswith("part:")
    }


def _message(version: str | None, message: str | None) -> OutboundMessage | None:
    if message is None:
        return None
    if version != _VERSION:
        raise NewerFormat(f"a reply was stored in format {version}; this runtime reads {_VERSION}: upgrade it")
    return _MESSAGE.validate_json(message)
