"""What became of each part of what the runtime said, kept in Redis around every call to a platform.

Keys (owner ``outbox``, in the conversation's partition): ``turn`` one hash per turn, with the message and,
for each part, one state (`Stage`). A turn that is delivered again goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from connectors.message import ConversationKey, OutboundMessage, redis_key
from runtime.stored import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "outbox"
_VERSION = "1"
_KEPT_SECONDS = 7 * 24 * 3600
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


class PartStates:
    """The states of all turns' parts. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock
        self._surely_unsent: set[tuple[str, int]] = set()
        """Turn and part of those that may stand as being sent although the platform certainly has not got them:
        the store was away when it was to be told, and may have taken the mark all the same."""

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far."""
        stored: Any = await self._redis.hmget(self._key(key, turn_id), ["v", "message"])
        version, message = stored
        if message is None:
            return None
        if version != _VERSION:
            raise NewerFormat(f"a reply was stored in format {version}; this runtime reads {_VERSION}: upgrade it")
        return _MESSAGE.validate_json(message)

    async def keep(self, message: OutboundMessage) -> dict[int, PartState]:
        """Store *message*; the states of its parts so far."""
        name = self._key(message.key, message.turn_id)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(name, mapping={"v": _VERSION, "message": _MESSAGE.dump_json(message).decode()})
            pipe.expire(name, _KEPT_SECONDS)
            pipe.hgetall(name)
            _, _, fields = await pipe.execute()
        return self._states(message.turn_id, fields)

    async def of_turn(self, key: ConversationKey, turn_id: str) -> dict[int, PartState]:
        """The states of a turn's parts, whether or not its reply is stored yet."""
        fields: Any = await self._redis.hgetall(self._key(key, turn_id))
        return self._states(turn_id, fields)

    async def mark(self, message: OutboundMessage, index: int, stage: Stage, message_id: str = "") -> None:
        """Say that part *index* has come to *stage*."""
        known_unsent = stage in (Stage.SENDING, Stage.UNSENT)
        if known_unsent:
            self._surely_unsent.add((message.turn_id, index))
        name = self._key(message.key, message.turn_id)
        state = PartState(stage, message_id, self._clock())
        await self._redis.hset(name, mapping={f"part:{index}": state.text()})
        if stage is Stage.DRAFTING:  # there is no message with it yet, whose time would count
            await self._redis.expire(name, _KEPT_SECONDS)
        if known_unsent:
            self._surely_unsent.discard((message.turn_id, index))

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
    def _key(key: ConversationKey, turn_id: str) -> str:
        return redis_key(_OWNER, key.tag, "turn", key.encoded, turn_id)
