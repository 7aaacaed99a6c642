"""Delivers what the runtime says, part by part, by the connectors of this process.

What became of each part is kept in `runtime.part_states`: a reply that is delivered again, by whichever process, goes
on where it stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeVar

import structlog

from connectors.connector import Connector, EditsMessages, ReadsBack, SendFailed
from connectors.message import AgentRuntimeError, ConversationKey, OutboundMessage, OutboundPart, Receipt
from runtime.governor import Governor, Governors
from runtime.part_states import Held, PartState, PartStates, Stage
from runtime.schedule import Urgency

_BACKOFF_SECONDS = (1.0, 30.0)
"""First and longest pause between attempts, where the platform asks for none."""
_GIVE_UP_SECONDS = 600.0
"""How long a part that the platform does not take now is offered again: a platform's usual outage."""
_SEND_SECONDS = 90.0
"""Longer than any connector's own time-out: what a send may take before its outcome counts as unknown."""
_SETTLING_SECONDS = 2.0
"""How long a platform gets to show what may be on its way, before it is asked for it."""
_NONCE_SECONDS = 120.0
"""For how long a platform surely knows a part again by its nonce; Discord says "a few minutes"."""
LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a reply is rendered off the event loop."""
_Result = TypeVar("_Result")
_log = structlog.get_logger()


class NoConnector(AgentRuntimeError):
    """There is no connector of that name in this process."""

    user_text = "I have no way to answer here."


class Delivery:
    """Sends replies by the process's *connectors* (by name), within the limits of their platforms.

    *ambiguous* says what is done with a part of which nobody can find out whether it was sent.
    """

    def __init__(
        self,
        states: PartStates,
        connectors: Mapping[str, Connector],
        governors: Governors,
        ambiguous: Literal["skip", "resend"],
    ) -> None:
        self._states = states
        self._connectors = connectors
        self._governors = governors
        self._ambiguous = ambiguous

    async def deliver(self, key: ConversationKey, turn_id: str) -> int:
        """Send the stored reply of a turn, or what of it was not sent yet; how many parts it has.

        Each part's state is stored before it is sent; what people have seen growing gets its last form. Raises
        `SendFailed` when a part is refused for good, `NoConnector`, `connectors.message.Superseded` and
        `connectors.message.StoreUnavailable`.
        """
        connector = self._connectors.get(key.connector)
        if connector is None:
            raise NoConnector(f"no connector {key.connector!r} runs in this process")
        if connector.capabilities.local:
            return await self._hand_over(connector, key, turn_id)
        held = await self._states.hold(key, turn_id)
        if held.message is None:
            return 0  # it was forgotten
        message = held.message
        if len(message.text) > LONG_TEXT_CHARACTERS:
            parts = await asyncio.to_thread(connector.render, message)
        else:
            parts = connector.render(message)
        sending = _Sending(self._states, self._governors.of(connector), self._ambiguous, connector, held, message)
        for part in parts:
            await sending.settle(part)
        await sending.take_back_the_rest(len(parts))
        _log.info("reply.delivered", parts=len(parts), kind=message.kind)
        return len(parts)

    async def _hand_over(self, connector: Connector, key: ConversationKey, turn_id: str) -> int:
        """Answer people who are connected to this process; who has gone finds the reply in the conversation."""
        message = await self._states.load(key, turn_id)
        parts = connector.render(message) if message is not None else ()
        for part in parts:
            assert message is not None
            await connector.send(message, part)
        _log.info("reply.delivered", parts=len(parts), kind=message.kind if message else "")
        return len(parts)


class _Sending:
    """One reply on its way."""

    def __init__(
        self,
        states: PartStates,
        governor: Governor,
        ambiguous: Literal["skip", "resend"],
        connector: Connector,
        held: Held,
        message: OutboundMessage,
    ) -> None:
        self._states = states
        self._governor = governor
        self._ambiguous = ambiguous
        self._connector = connector
        self._held = held
        self._message = message

    async def settle(self, part: OutboundPart) -> None:
        """Have *part* shown in its last form, from whichever state."""
        state = self._held.states.get(part.index, PartState())
        if state.stage in (Stage.SENT, Stage.AMBIGUOUS):
            return
        receipt = await self._settled(part, state)
        if receipt is None:
            await self._mark(part, Stage.AMBIGUOUS)
        else:
            await self._mark(part, Stage.SENT, receipt.message_id)

    async def take_back_the_rest(self, parts: int) -> None:
        """What was shown while the reply grew, and is no part of what it became."""
        for index, state in self._held.states.items():
            if index >= parts:
                await self._take_back(state)

    async def _settled(self, part: OutboundPart, state: PartState) -> Receipt | None:
        """The receipt of *part* in its last form; None where it stays unknown whether it was sent."""
        if state.stage is Stage.SHOWN:
            receipt = await self._finish(part, state)
            if receipt is not None:
                return receipt
        if state.stage is Stage.SENDING and not self._is_known_again(state):
            # The process died between the call and its receipt.
            receipt, known = await self._read_back(part)
            if not known:
                self._count(part, "interrupted")
            if receipt is not None or (not known and self._ambiguous == "skip"):
                return receipt
        return await self._send(part)

    def _count(self, part: OutboundPart, why: str) -> None:
        _log.warning("reply.ambiguous", part=part.index, why=why, then=self._ambiguous)

    async def _finish(self, part: OutboundPart, state: PartState) -> Receipt | None:
        """Give what is shown its last form; None where that cannot be, and it is gone."""
        receipt, connector, message = Receipt(state.message_id), self._connector, self._message
        if isinstance(connector, EditsMessages) and not part.file_name:
            try:
                await self._until_taken(part, lambda: _within(connector.edit(message, part, receipt)))
            except SendFailed as error:
                _log.info("reply.resent", part=part.index, why=str(error))
            else:
                return receipt
        await self._take_back(state)
        return None

    async def _take_back(self, state: PartState) -> None:
        if state.stage is not Stage.SHOWN or not isinstance(self._connector, EditsMessages):
            return
        try:
            await _within(self._connector.take_back(self._message, Receipt(state.message_id)))
        except SendFailed as error:
            _log.warning("reply.left_over", why=str(error))

    async def _send(self, part: OutboundPart) -> Receipt | None:
        """The receipt; None where the outcome is unknown and the part is not to be sent again."""

        async def once() -> Receipt | None:
            await self._mark(part, Stage.SENDING)
            try:
                return await _within(self._connector.send(self._message, part))
            except SendFailed as error:
                if not error.ambiguous:
                    await self._mark(part, Stage.UNSENT)
                elif self._connector.capabilities.idempotency != "nonce":
                    if isinstance(self._connector, ReadsBack):
                        await asyncio.sleep(_SETTLING_SECONDS)
                    receipt, known = await self._read_back(part)
                    if not known:
                        self._count(part, str(error))
                    if receipt is not None or (not known and self._ambiguous == "skip"):
                        return receipt
                raise

        return await self._until_taken(part, once)

    async def _until_taken(self, part: OutboundPart, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """What *call* gives, tried again while that may help. Raises its last `SendFailed`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _GIVE_UP_SECONDS
        for attempt in itertools.count(1):
            await self._governor.turn(self._message.key, Urgency.FINAL)
            try:
                return await call()
            except SendFailed as error:
                self._governor.told(self._message.key, error)
                wait = error.retry_after_seconds or _backoff_seconds(attempt)
                if not (error.retryable or error.ambiguous) or loop.time() + wait > give_up_at:
                    raise
                _log.info(
                    "reply.retried", part=part.index, attempt=attempt, why=str(error), wait_seconds=round(wait, 2)
                )
                await asyncio.sleep(wait)
        raise AssertionError("the loop returns or raises")

    async def _read_back(self, part: OutboundPart) -> tuple[Receipt | None, bool]:
        """The receipt of a part of which nobody knows, if the platform shows it; and whether it could be asked."""
        connector = self._connector
        if not isinstance(connector, ReadsBack):
            return None, False
        try:
            found = await self._until_taken(part, lambda: _within(connector.find(self._message.key, part)))
        except SendFailed as error:
            _log.warning("reply.not_read_back", part=part.index, why=str(error))
            return None, False
        return found, True

    async def _mark(self, part: OutboundPart, stage: Stage, message_id: str = "") -> None:
        await self._states.mark(self._message, part.index, stage, message_id, self._held.token)

    def _is_known_again(self, state: PartState) -> bool:
        """Whether the platform would recognise the part, so that sending it again shows it once."""
        return self._connector.capabilities.idempotency == "nonce" and time.time() - state.since < _NONCE_SECONDS


def _backoff_seconds(attempt: int) -> float:
    """Full jitter: anything up to a bound that doubles with each attempt."""
    first, longest = _BACKOFF_SECONDS
    return random.uniform(0, min(longest, first * 2.0 ** min(attempt - 1, 20)))  # noqa: S311 - jitter, no secret


async def _within(sending: Awaitable[_Result]) -> _Result:
    """What *sending* returns. A send that never ends is one of unknown outcome."""
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            return await sending
    except TimeoutError as error:
        raise SendFailed(f"no answer within {_SEND_SECONDS:g} s", retryable=True, ambiguous=True) from error
