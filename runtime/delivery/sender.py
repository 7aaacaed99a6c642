"""Sends stored replies through the connectors of this process, part by part.

Each part's state is stored in the outbox before and after the platform is called, so a reply that is delivered again,
by whichever process, goes on from where it stopped. A call that the platform refuses for now is repeated after the
pause that the platform asks for (`runtime.delivery.rate_limiter`), or after a growing random pause. If the outcome of a
call is unknown, the platform is asked for the part; if it cannot be asked, ``DELIVERY_AMBIGUOUS`` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import structlog

from connectors.connector import AppendsText, Connector, EditsMessages, FindsSentParts, SendFailed
from connectors.health import Backoff
from connectors.message import AgentRuntimeError, ConversationKey, OutboundMessage, OutboundPart, Receipt
from runtime.coordination import StreamEntry
from runtime.delivery.outbox import Outbox, PartStage, PartState, ReplyForgotten
from runtime.delivery.rate_limiter import RateLimiter, RateLimiters
from runtime.stores import retry_until_stored

LONG_TEXT_CHARACTERS = 20_000
"""A longer reply is rendered off the event loop."""
_BACKOFF_SECONDS = (1.0, 30.0)
"""First and longest pause between attempts, if the platform asks for none."""
_GIVE_UP_SECONDS = 600.0
"""How long a part that the platform does not take now is tried again: a platform's usual outage. Waiting for the rate
limiter does not count, so neither do the pauses that the platform asks for."""
_SEND_SECONDS = 90.0
"""Longer than any connector's own time-out; after that the outcome of a call counts as unknown."""
_SETTLING_SECONDS = 2.0
"""How long a platform gets to show a message before it is asked for it."""
_NONCE_SECONDS = 120.0
"""How long a platform certainly recognises a part by its nonce; Discord says "a few minutes"."""
_Result = TypeVar("_Result")
_log = structlog.get_logger()


class NoConnector(AgentRuntimeError):
    """There is no connector of that name in this process."""

    user_text = "I cannot send a reply here."


class Delivery:
    """Delivers replies through *connectors* (by name), within the limits of their platforms.

    *ambiguous* says what happens to a part if nobody can find out whether it was sent. A call that takes longer than
    *send_seconds* counts as one of unknown outcome. *backoff_seconds* are the first and the longest pause between
    attempts if the platform asks for none. After *give_up_seconds* of such attempts a part counts as refused.
    """

    def __init__(
        self,
        outbox: Outbox,
        connectors: Mapping[str, Connector],
        rate_limiters: RateLimiters,
        ambiguous: Literal["skip", "resend"],
        *,
        send_seconds: float = _SEND_SECONDS,
        backoff_seconds: tuple[float, float] = _BACKOFF_SECONDS,
        give_up_seconds: float = _GIVE_UP_SECONDS,
    ) -> None:
        self._outbox = outbox
        self._connectors = connectors
        self._rate_limiters = rate_limiters
        self._ambiguous = ambiguous
        self._send_seconds = send_seconds
        self._backoff_seconds = backoff_seconds
        self._give_up_seconds = give_up_seconds

    async def deliver(self, key: ConversationKey, turn_id: str, entry: StreamEntry | None = None) -> int:
        """Send what is unsent of a turn's stored reply, and return its number of parts.

        With *entry*, the reply waits for older entries of its conversation, and the entry is taken away afterwards. No
        part of a silent reply is sent, but a preview of it gets its last form. Raises `SendFailed` if a part is
        refused for good, `NoConnector`, `runtime.delivery.outbox.OlderReplyWaits`, `connectors.message.Superseded` and
        `connectors.message.StoreUnavailable`.
        """
        connector = self._connectors.get(key.connector)
        if connector is None:
            raise NoConnector(f"no connector {key.connector!r} runs in this process")
        if connector.capabilities.local:
            return await self._hand_over(connector, key, turn_id)
        reply = await self._outbox.hold(key, turn_id, entry)
        parts: Sequence[OutboundPart] = ()
        if reply.message is not None:
            if not reply.message.silent or reply.states:
                parts = await render_reply(connector, reply.message)
            rate_limiter = self._rate_limiters.of(connector)
            sender = _ReplySender(
                self._outbox,
                rate_limiter,
                self._ambiguous,
                connector,
                reply.message,
                self._send_seconds,
                self._backoff_seconds,
                self._give_up_seconds,
            )
            try:
                await sender.send_all(parts, reply.states)
                _log.info("reply.delivered", parts=len(parts), kind=reply.message.kind)
            except ReplyForgotten:
                pass
        if entry is not None:
            await self._outbox.done(key, turn_id, entry)
        return len(parts)

    async def _hand_over(self, connector: Connector, key: ConversationKey, turn_id: str) -> int:
        """Give a reply to people who are connected to this process; others find it in the conversation's history."""
        message = await self._outbox.load(key, turn_id)
        if message is None:
            return 0
        parts = connector.render(message)
        for part in parts:
            await connector.send(message, part)
        _log.info("reply.delivered", parts=len(parts), kind=message.kind)
        return len(parts)


@dataclass(frozen=True, slots=True)
class _ReplySender:
    """Brings all parts of one reply to their last form."""

    outbox: Outbox
    rate_limiter: RateLimiter
    ambiguous: Literal["skip", "resend"]
    connector: Connector
    message: OutboundMessage
    send_seconds: float
    backoff_seconds: tuple[float, float]
    give_up_seconds: float

    async def send_all(self, parts: Sequence[OutboundPart], states: Mapping[int, PartState]) -> None:
        """Bring *parts* from *states* to their last form, and take back what a longer preview has shown."""
        for part in parts:
            state = states.get(part.index, PartState())
            if state.stage in (PartStage.SENT, PartStage.AMBIGUOUS):
                continue
            receipt = await self._complete(part, state)
            if receipt is None:
                await self._mark(part, PartStage.AMBIGUOUS)
            else:
                await self._mark(part, PartStage.SENT, receipt.message_id)
        for index, state in states.items():
            if index >= len(parts):
                await self._take_back(state)

    async def _complete(self, part: OutboundPart, state: PartState) -> Receipt | None:
        """Return the receipt of *part* in its last form; None if it stays unknown whether it was sent."""
        receipt = None
        if state.stage is PartStage.SHOWN:
            receipt = await self._finish_preview(part, state)
        elif state.stage is PartStage.DRAFTING and not part.file_name:
            receipt = await self._finish_draft(part)
        elif state.stage is PartStage.SENDING and not self._has_live_nonce(state):
            # The process ended between the call and its receipt.
            receipt, is_known = await self._read_back(part)
            if not is_known:
                self._log_ambiguous(part, "interrupted")
                if self.ambiguous == "skip":
                    return None
        return receipt if receipt is not None else await self._send(part)

    def _has_live_nonce(self, state: PartState) -> bool:
        """Return whether the platform recognises the part, so that sending it again shows it once."""
        # A start in the future (beyond a second of rounding) comes from another clock: the send may be long ago.
        age = time.time() - state.since
        return self.connector.capabilities.idempotency == "nonce" and -1.0 <= age < _NONCE_SECONDS

    async def _finish_preview(self, part: OutboundPart, state: PartState) -> Receipt | None:
        """Edit a shown preview to its last form; return None if that is impossible, after taking the preview back."""
        receipt, connector, message = Receipt(state.message_id), self.connector, self.message
        if isinstance(connector, EditsMessages) and not part.file_name:  # a text cannot become a file
            self.rate_limiter.count_edit()
            try:
                await self._retry(part, lambda: self._limit_time(connector.edit(message, part, receipt)))
            except SendFailed as error:
                _log.info("reply.resent", part=part.index, why=str(error))
            else:
                return receipt
        await self._take_back(state)
        return None

    async def _finish_draft(self, part: OutboundPart) -> Receipt | None:
        """Edit a preview to its last form if it is unknown whether its first message arrived.

        Return None if the platform does not show the preview, or cannot be asked.
        """
        connector, message, draft = self.connector, self.message, draft_of(part)
        if not isinstance(connector, EditsMessages):
            return None
        shown: Receipt | None
        if connector.capabilities.idempotency == "nonce":
            # Returns the preview's receipt if the preview arrived; else, or after too long, this sends the part.
            shown = await self._retry(part, lambda: self._limit_time(connector.send(message, draft)))
        else:
            shown, is_known = await self._read_back(draft)
            if shown is None and isinstance(connector, AppendsText):
                shown, is_known = await self._find_beginning(connector, part), False
            if shown is None:
                # The reply is sent below the preview, if that arrived: it says more, and is never skipped.
                if not is_known:
                    _log.warning("reply.ambiguous", part=part.index, why="preview", then="resend")
                return None
        return await self._finish_preview(part, PartState(PartStage.SHOWN, shown.message_id))

    async def _find_beginning(self, connector: AppendsText, part: OutboundPart) -> Receipt | None:
        """Return the message that seems to be the beginning of *part*, if the platform shows any."""
        try:
            return await self._retry(part, lambda: self._limit_time(connector.find_beginning(self.message, part)))
        except SendFailed as error:
            _log.warning("reply.not_read_back", part=part.index, why=str(error))
            return None

    async def _take_back(self, state: PartState) -> None:
        if state.stage is not PartStage.SHOWN or not isinstance(self.connector, EditsMessages):
            return
        try:
            await self._limit_time(self.connector.take_back(self.message, Receipt(state.message_id)))
        except SendFailed as error:
            _log.warning("reply.left_over", why=str(error))

    async def _send(self, part: OutboundPart) -> Receipt | None:
        """Return the receipt; None if the outcome is unknown and the part is not to be sent again."""

        async def send_once() -> Receipt | None:
            await self._mark(part, PartStage.SENDING)
            try:
                return await self._limit_time(self.connector.send(self.message, part))
            except SendFailed as error:
                if not error.ambiguous:
                    await self._mark(part, PartStage.UNSENT)
                elif self.connector.capabilities.idempotency != "nonce":
                    if isinstance(self.connector, FindsSentParts):
                        await asyncio.sleep(_SETTLING_SECONDS)
                    receipt, is_known = await self._read_back(part)
                    if not is_known:
                        self._log_ambiguous(part, str(error))
                    if receipt is not None or (not is_known and self.ambiguous == "skip"):
                        return receipt
                raise

        return await self._retry(part, send_once)

    async def _read_back(self, part: OutboundPart) -> tuple[Receipt | None, bool]:
        """Return the receipt of *part* if the platform shows it, and whether the platform could be asked."""
        connector = self.connector
        if not isinstance(connector, FindsSentParts):
            return None, False
        try:
            found = await self._retry(part, lambda: self._limit_time(connector.find(self.message.key, part)))
        except SendFailed as error:
            _log.warning("reply.not_read_back", part=part.index, why=str(error))
            return None, False
        return found, True

    async def _retry(self, part: OutboundPart, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of *call*, repeated while that may help. Raises its last `SendFailed`."""
        loop, backoff = asyncio.get_running_loop(), Backoff(*self.backoff_seconds)
        give_up_at = loop.time() + self.give_up_seconds
        while True:
            asked_at = loop.time()
            await self.rate_limiter.wait_for_turn(self.message.key)
            give_up_at += loop.time() - asked_at
            try:
                return await call()
            except SendFailed as error:
                self.rate_limiter.hold(self.message.key, error)
                wait = backoff.next_seconds(error.retry_after_seconds)
                pause = 0.0 if error.retry_after_seconds else wait  # else the rate limiter waits
                if not (error.retryable or error.ambiguous) or loop.time() + pause > give_up_at:
                    raise
                _log.info(
                    "reply.retried",
                    part=part.index,
                    attempt=backoff.failures,
                    why=str(error),
                    wait_seconds=round(wait, 2),
                )
                await asyncio.sleep(pause)

    async def _limit_time(self, call: Awaitable[_Result]) -> _Result:
        """Return the result of *call*; a call that never ends has an unknown outcome (`SendFailed`)."""
        try:
            async with asyncio.timeout(self.send_seconds):
                return await call
        except TimeoutError as error:
            why = f"no answer within {self.send_seconds:g} s"
            raise SendFailed(why, retryable=True, ambiguous=True) from error

    async def _mark(self, part: OutboundPart, stage: PartStage, message_id: str = "") -> None:
        """Store the stage of *part*, and wait for a store that is away: this process knows what became of the part."""

        async def mark() -> None:
            await self.outbox.mark(self.message, part.index, stage, message_id, as_holder=True)

        await retry_until_stored(mark)

    def _log_ambiguous(self, part: OutboundPart, why: str) -> None:
        _log.warning("reply.ambiguous", part=part.index, why=why, then=self.ambiguous)


def draft_of(part: OutboundPart) -> OutboundPart:
    """Return *part* with a preview's own token: a platform that knows the token again would drop the last form."""
    return replace(part, token=f"{part.token}.draft")


async def render_reply(connector: Connector, message: OutboundMessage) -> Sequence[OutboundPart]:
    """Return *message* in the parts that *connector* sends; a long text is rendered in a thread."""
    if len(message.text) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(connector.render, message)
    return connector.render(message)
