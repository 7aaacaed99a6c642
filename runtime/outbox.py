"""Delivers what the runtime says, part by part, and keeps what became of each part.

Keys (owner ``outbox``, in the conversation's partition): ``turn`` one hash per turn: the message and,
for each part, ``sending`` from before the call to the platform until its receipt is known, then
``sent:<platform's message id>``; ``unsent`` where the platform has said that it did not take the part, so
that an end of the process while the next attempt is awaited loses nothing. A turn that is delivered again
starts where it stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import structlog
from pydantic import TypeAdapter

from connectors.connector import Connector, SendFailed, ShowsTyping, StreamsText
from connectors.message import (
    AgentRuntimeError,
    ConversationKey,
    OutboundMessage,
    OutboundPart,
    Receipt,
    redis_key,
)
from runtime.identifiers import new_turn_id
from runtime.stored import NewerFormat

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "outbox"
_VERSION = "1"
_KEPT_SECONDS = 7 * 24 * 3600
_BACKOFF_SECONDS = (1.0, 30.0)
"""First and longest pause between attempts, where the platform asks for none."""
_GIVE_UP_SECONDS = 600.0
"""How long a part that the platform does not take now is offered again: a platform's usual outage."""
_SEND_SECONDS = 90.0
"""Longer than any connector's own time-out: what a send may take before its outcome counts as unknown."""
_NOTICE_SECONDS = 10.0
"""What a notice may take with all its attempts: messages of other people wait behind it."""
LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a reply is rendered off the event loop."""
_SENT = "sent:"
_SENDING = "sending"
_UNSENT = "unsent"
_AMBIGUOUS = "ambiguous"
_MESSAGE = TypeAdapter(OutboundMessage)
_log = structlog.get_logger()


class NoConnector(AgentRuntimeError):
    """There is no connector of that name in this process."""

    user_text = "I have no way to answer here."


class Outbox:
    """Everything that leaves. Needs the process's *connectors* by name."""

    def __init__(self, redis: Redis, connectors: Mapping[str, Connector], ambiguous: Literal["skip", "resend"]) -> None:
        self._redis = redis
        self._connectors = connectors
        self._ambiguous = ambiguous
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

    async def deliver(self, message: OutboundMessage) -> int:
        """Send *message*, or what of it was not sent yet; how many parts it has.

        Each part's state is stored before it is sent. Raises `SendFailed` when a part is refused for
        good, `NoConnector`, and `connectors.message.StoreUnavailable`.
        """
        connector = self._connectors.get(message.key.connector)
        if connector is None:
            raise NoConnector(f"no connector {message.key.connector!r} runs in this process")
        if len(message.text) > LONG_TEXT_CHARACTERS:
            parts = await asyncio.to_thread(connector.render, message)
        else:
            parts = connector.render(message)
        states = await self._keep(message)
        for part in parts:
            state = states.get(f"part:{part.index}", "")
            if state.startswith(_SENT) or state == _AMBIGUOUS:
                continue
            unknown = state == _SENDING and (message.turn_id, part.index) not in self._surely_unsent
            if unknown and self._ambiguous == "skip":
                # The process died between the call and its receipt: nobody can know.
                await self._mark(message, part, _AMBIGUOUS)
                continue
            receipt = await self._send(connector, message, part)
            await self._mark(message, part, _AMBIGUOUS if receipt is None else _SENT + receipt.message_id)
        _log.info("reply.delivered", parts=len(parts), kind=message.kind)
        return len(parts)

    async def notice(self, key: ConversationKey, text: str, answers: tuple[str, ...] = ()) -> None:
        """Tell people something that is no turn; lost if the platform refuses it."""
        message = OutboundMessage(key, new_turn_id(), text, kind="notice", answers=answers)
        try:
            async with asyncio.timeout(_NOTICE_SECONDS):
                await self.deliver(message)
        except (SendFailed, NoConnector, TimeoutError) as error:
            _log.warning("notice.lost", why=str(error) or f"not taken within {_NOTICE_SECONDS:g} s")

    def is_watched(self, key: ConversationKey, answers: tuple[str, ...]) -> bool:
        """Whether anybody sees the reply to *answers* while it is written."""
        connector = self._connectors.get(key.connector)
        return isinstance(connector, StreamsText) and connector.is_watched(key, answers)

    async def stream(self, key: ConversationKey, answers: tuple[str, ...], delta: str) -> None:
        """Show a piece of a reply that is being written, where the platform can."""
        connector = self._connectors.get(key.connector)
        if isinstance(connector, StreamsText):
            await connector.stream(key, answers, delta)

    @asynccontextmanager
    async def typing(self, key: ConversationKey) -> AsyncIterator[None]:
        """Keep the sign of an answer on its way alive while the body runs."""
        connector = self._connectors.get(key.connector)
        if not isinstance(connector, ShowsTyping):
            yield
            return
        # Not in a TaskGroup: that would wrap what the body raises. This block owns the task and ends it.
        sign = asyncio.create_task(_keep_typing(connector, key))
        try:
            yield
        finally:
            sign.cancel()
            await asyncio.wait({sign})  # raises nothing of the sign's, and hides no cancellation of ours

    async def _keep(self, message: OutboundMessage) -> dict[str, str]:
        name = self._key(message.key, message.turn_id)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(name, mapping={"v": _VERSION, "message": _MESSAGE.dump_json(message).decode()})
            pipe.expire(name, _KEPT_SECONDS)
            pipe.hgetall(name)
            _, _, states = await pipe.execute()
        return dict(states)

    async def _mark_sending(self, message: OutboundMessage, part: OutboundPart) -> None:
        self._surely_unsent.add((message.turn_id, part.index))
        await self._mark(message, part, _SENDING)
        self._surely_unsent.discard((message.turn_id, part.index))

    async def _mark_unsent(self, message: OutboundMessage, part: OutboundPart) -> None:
        self._surely_unsent.add((message.turn_id, part.index))
        await self._mark(message, part, _UNSENT)
        self._surely_unsent.discard((message.turn_id, part.index))

    async def _mark(self, message: OutboundMessage, part: OutboundPart, state: str) -> None:
        field = f"part:{part.index}"
        await self._redis.hset(self._key(message.key, message.turn_id), mapping={field: state})

    async def _send(self, connector: Connector, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """The receipt; None where the outcome is unknown and the part is not to be sent again."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _GIVE_UP_SECONDS
        for attempt in itertools.count(1):
            await self._mark_sending(message, part)
            try:
                return await _within(connector.send(message, part))
            except SendFailed as error:
                if error.ambiguous and self._ambiguous == "skip":
                    _log.warning("reply.ambiguous", part=part.index, why=str(error))
                    return None
                if not error.ambiguous:
                    await self._mark_unsent(message, part)
                wait = error.retry_after_seconds or _backoff_seconds(attempt)
                if not (error.retryable or error.ambiguous) or loop.time() + wait > give_up_at:
                    raise
                _log.info(
                    "reply.retried", part=part.index, attempt=attempt, why=str(error), wait_seconds=round(wait, 2)
                )
                await asyncio.sleep(wait)
        raise AssertionError("the loop returns or raises")

    @staticmethod
    def _key(key: ConversationKey, turn_id: str) -> str:
        return redis_key(_OWNER, key.tag, "turn", key.encoded, turn_id)


def _backoff_seconds(attempt: int) -> float:
    """Full jitter: anything up to a bound that doubles with each attempt."""
    first, longest = _BACKOFF_SECONDS
    return random.uniform(0, min(longest, first * 2.0 ** min(attempt - 1, 20)))  # noqa: S311 - jitter, no secret


async def _within(sending: Awaitable[Receipt]) -> Receipt:
    """What *sending* returns. A send that never ends is one of unknown outcome."""
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            return await sending
    except TimeoutError as error:
        raise SendFailed(f"no answer within {_SEND_SECONDS:g} s", retryable=True, ambiguous=True) from error


async def _keep_typing(connector: ShowsTyping, key: ConversationKey) -> None:
    while True:
        await connector.typing(key)
        await asyncio.sleep(connector.typing_lasts_seconds)
