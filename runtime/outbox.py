"""Delivers what the runtime says, part by part, and keeps what became of each part (`runtime.part_states`)."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog

from connectors.connector import (
    AppendsText,
    Connector,
    EditsMessages,
    Reacts,
    ReadsBack,
    SendFailed,
    ShowsTyping,
    StreamsText,
)
from connectors.message import AgentRuntimeError, ConversationKey, OutboundMessage, OutboundPart, Receipt
from runtime.identifiers import new_turn_id
from runtime.pacing import Pace
from runtime.part_states import PartState, PartStates, Stage
from runtime.preview import Appending, Growing, Passing, Preview

if TYPE_CHECKING:
    from redis.asyncio import Redis

_BACKOFF_SECONDS = (1.0, 30.0)
"""First and longest pause between attempts, where the platform asks for none."""
_GIVE_UP_SECONDS = 600.0
"""How long a part that the platform does not take now is offered again: a platform's usual outage."""
_SEND_SECONDS = 90.0
"""Longer than any connector's own time-out: what a send may take before its outcome counts as unknown."""
_NOTICE_SECONDS = 10.0
"""What a notice may take with all its attempts: messages of other people wait behind it."""
_SETTLING_SECONDS = 2.0
"""How long a platform gets to show what may be on its way, before it is asked for it."""
_BURST = 3
"""Messages that may go to one place at once before its pace holds; all platforms name a sustained rate."""
_NONCE_SECONDS = 120.0
"""For how long a platform surely knows a part again by its nonce; Discord says "a few minutes"."""
LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a reply is rendered off the event loop."""
_Result = TypeVar("_Result")
_log = structlog.get_logger()


class NoConnector(AgentRuntimeError):
    """There is no connector of that name in this process."""

    user_text = "I have no way to answer here."


class Outbox:
    """Everything that leaves. Needs the process's *connectors* by name.

    *ambiguous* says what is done with a part of which nobody can find out whether it was sent. With *streams*
    replies are shown while they are written, where the platform can; *acknowledgement* is an emoji that is put on
    the messages of a turn when it begins, or empty.
    """

    def __init__(
        self,
        redis: Redis,
        connectors: Mapping[str, Connector],
        ambiguous: Literal["skip", "resend"],
        *,
        streams: bool = True,
        acknowledgement: str = "",
    ) -> None:
        self._states = PartStates(redis)
        self._connectors = connectors
        self._ambiguous = ambiguous
        self._streams = streams
        self._acknowledgement = acknowledgement
        self._pace = Pace()

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far."""
        return await self._states.load(key, turn_id)

    async def forget(self, key: ConversationKey, turn_id: str = "") -> None:
        """Drop the stored reply of a turn, or, without one, all that was ever said in *key*."""
        await (self._states.forget_turn(key, turn_id) if turn_id else self._states.forget(key))

    async def deliver(self, message: OutboundMessage) -> int:
        """Send *message*, or what of it was not sent yet; how many parts it has.

        Each part's state is stored before it is sent; what people have seen growing gets its last form. Raises
        `SendFailed` when a part is refused for good, `NoConnector`, and `connectors.message.StoreUnavailable`.
        """
        connector = self._connectors.get(message.key.connector)
        if connector is None:
            raise NoConnector(f"no connector {message.key.connector!r} runs in this process")
        if len(message.text) > LONG_TEXT_CHARACTERS:
            parts = await asyncio.to_thread(connector.render, message)
        else:
            parts = connector.render(message)
        states = await self._states.keep(message)
        for part in parts:
            state = states.pop(part.index, PartState())
            if state.stage in (Stage.SENT, Stage.AMBIGUOUS):
                continue
            receipt = await self._settle(connector, message, part, state)
            if receipt is None:
                await self._states.mark(message, part.index, Stage.AMBIGUOUS)
            else:
                await self._states.mark(message, part.index, Stage.SENT, receipt.message_id)
        for state in states.values():  # shown while it grew, and no part of what it became
            await self._take_back(connector, message, state)
        _log.info("reply.delivered", parts=len(parts), kind=message.kind)
        return len(parts)

    async def notice(self, key: ConversationKey, text: str, answers: tuple[str, ...] = (), turn_id: str = "") -> None:
        """Tell people something that is no turn; lost if the platform refuses it. Once for one *turn_id*, if given."""
        message = OutboundMessage(key, turn_id or new_turn_id(), text, kind="notice", answers=answers)
        try:
            async with asyncio.timeout(_NOTICE_SECONDS):
                await self.deliver(message)
        except (SendFailed, NoConnector, TimeoutError) as error:
            _log.warning("notice.lost", why=str(error) or f"not taken within {_NOTICE_SECONDS:g} s")

    @asynccontextmanager
    async def preview(self, message: OutboundMessage) -> AsyncIterator[Preview | None]:
        """Show the reply that *message* will be (its text is empty yet) while the body writes it.

        None where nobody would see it. `deliver` gives what was shown its last form.
        """
        connector = self._connectors.get(message.key.connector)
        preview: Preview | None = None
        if isinstance(connector, StreamsText):
            if connector.is_watched(message.key, message.answers):
                preview = Passing(connector, message)
        elif not self._streams:
            preview = None
        elif isinstance(connector, AppendsText) and connector.appends(message):
            preview = Appending(connector, message, self._states, self._pace)
        elif isinstance(connector, EditsMessages) and connector.capabilities.edits_per_second > 0:
            preview = Growing(connector, message, self._states, self._pace)
        if preview is None:
            yield None
            return
        async with preview.shown():
            yield preview

    @asynccontextmanager
    async def typing(self, key: ConversationKey, answers: tuple[str, ...] = ()) -> AsyncIterator[None]:
        """Acknowledge the messages *answers*, and keep the sign of an answer on its way alive while the body runs."""
        connector = self._connectors.get(key.connector)
        # Not in a TaskGroup: that would wrap what the body raises. This block owns the task and ends it.
        sign = asyncio.create_task(self._show_signs(connector, key, answers))
        try:
            yield
        finally:
            sign.cancel()
            await asyncio.wait({sign})  # raises nothing of the sign's, and hides no cancellation of ours

    async def _show_signs(self, connector: Connector | None, key: ConversationKey, answers: tuple[str, ...]) -> None:
        if self._acknowledgement and isinstance(connector, Reacts):
            for message_id in answers:
                await connector.react(key, message_id, self._acknowledgement)
        if isinstance(connector, ShowsTyping):
            while True:
                await connector.typing(key)
                await asyncio.sleep(connector.typing_lasts_seconds)

    async def _settle(
        self, connector: Connector, message: OutboundMessage, part: OutboundPart, state: PartState
    ) -> Receipt | None:
        """Have *part* shown in its last form, from whichever state; None where it stays unknown whether it was."""
        if state.stage is Stage.SHOWN:
            receipt = await self._finish(connector, message, part, state)
            if receipt is not None:
                return receipt
        if state.stage is Stage.SENDING and not self._is_known_again(connector, state):
            # The process died between the call and its receipt.
            receipt, known = await self._read_back(connector, message, part)
            if receipt is not None or (not known and self._ambiguous == "skip"):
                return receipt
        return await self._send(connector, message, part)

    async def _finish(
        self, connector: Connector, message: OutboundMessage, part: OutboundPart, state: PartState
    ) -> Receipt | None:
        """Give what is shown its last form; None where that cannot be, and it is gone."""
        receipt = Receipt(state.message_id)
        if isinstance(connector, EditsMessages) and not part.file_name:
            try:
                await self._until_taken(
                    connector, message, part, lambda: _within(connector.edit(message, part, receipt))
                )
            except SendFailed as error:
                _log.info("reply.resent", part=part.index, why=str(error))
            else:
                return receipt
        await self._take_back(connector, message, state)
        return None

    async def _take_back(self, connector: Connector, message: OutboundMessage, state: PartState) -> None:
        if state.stage is not Stage.SHOWN or not isinstance(connector, EditsMessages):
            return
        try:
            await _within(connector.take_back(message, Receipt(state.message_id)))
        except SendFailed as error:
            _log.warning("reply.left_over", why=str(error))

    async def _send(self, connector: Connector, message: OutboundMessage, part: OutboundPart) -> Receipt | None:
        """The receipt; None where the outcome is unknown and the part is not to be sent again."""

        async def once() -> Receipt | None:
            await self._states.mark(message, part.index, Stage.SENDING)
            try:
                return await _within(connector.send(message, part))
            except SendFailed as error:
                if not error.ambiguous:
                    await self._states.mark(message, part.index, Stage.UNSENT)
                elif connector.capabilities.idempotency != "nonce":
                    if isinstance(connector, ReadsBack):
                        await asyncio.sleep(_SETTLING_SECONDS)
                    receipt, known = await self._read_back(connector, message, part)
                    if receipt is None and not known and self._ambiguous == "skip":
                        _log.warning("reply.ambiguous", part=part.index, why=str(error))
                    if receipt is not None or (not known and self._ambiguous == "skip"):
                        return receipt
                raise

        return await self._until_taken(connector, message, part, once)

    async def _until_taken(
        self,
        connector: Connector,
        message: OutboundMessage,
        part: OutboundPart,
        call: Callable[[], Awaitable[_Result]],
    ) -> _Result:
        """What *call* gives, tried again while that may help. Raises its last `SendFailed`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _GIVE_UP_SECONDS
        for attempt in itertools.count(1):
            await self._pace.wait(message.key, connector.capabilities.sends_per_second, _BURST)
            try:
                return await call()
            except SendFailed as error:
                wait = error.retry_after_seconds or _backoff_seconds(attempt)
                if not (error.retryable or error.ambiguous) or loop.time() + wait > give_up_at:
                    raise
                _log.info(
                    "reply.retried", part=part.index, attempt=attempt, why=str(error), wait_seconds=round(wait, 2)
                )
                await asyncio.sleep(wait)
        raise AssertionError("the loop returns or raises")

    async def _read_back(
        self, connector: Connector, message: OutboundMessage, part: OutboundPart
    ) -> tuple[Receipt | None, bool]:
        """The receipt of a part of which nobody knows, if the platform shows it; and whether it could be asked."""
        if not isinstance(connector, ReadsBack):
            return None, False
        try:
            found = await self._until_taken(
                connector, message, part, lambda: _within(connector.find(message.key, part))
            )
        except SendFailed as error:
            _log.warning("reply.not_read_back", part=part.index, why=str(error))
            return None, False
        return found, True

    @staticmethod
    def _is_known_again(connector: Connector, state: PartState) -> bool:
        """Whether the platform would recognise the part, so that sending it again shows it once."""
        return connector.capabilities.idempotency == "nonce" and time.time() - state.since < _NONCE_SECONDS


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
