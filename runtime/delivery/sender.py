"""Sends one reply, part by part: each part's state is stored before the platform is called."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeVar

import structlog

from connectors.connector import AppendsText, Connector, EditsMessages, ReadsBack, SendFailed
from connectors.message import AgentRuntimeError, ConversationKey, OutboundMessage, OutboundPart, Receipt
from runtime.coordination import Given
from runtime.delivery.outbox import Forgotten, Held, PartState, PartStates, Stage, drafted
from runtime.delivery.rate_limiter import RateLimiter, RateLimiters

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
_Result = TypeVar("_Result")
_log = structlog.get_logger()


class Sending:
    """One reply on its way."""

    def __init__(
        self,
        states: PartStates,
        rate_limiter: RateLimiter,
        ambiguous: Literal["skip", "resend"],
        connector: Connector,
        held: Held,
        message: OutboundMessage,
        *,
        may_go: bool,
    ) -> None:
        self._states = states
        self._rate_limiter = rate_limiter
        self._ambiguous = ambiguous
        self._connector = connector
        self._held = held
        self._message = message
        self._may_go = may_go
        """Whether the next call has had its turn already."""
        self._begun = held.begun

    async def settle_all(self, parts: Sequence[OutboundPart], *, keep_last: bool) -> dict[int, PartState]:
        """Have *parts* shown in their last form, from whichever states. With *keep_last* what became of the last one is
        not stored but returned, where nothing is left to be done after it."""
        left_over = [state for index, state in self._held.states.items() if index >= len(parts)]
        for part in parts:
            become = await self._settle(part)
            if become is None:
                continue
            if keep_last and part is parts[-1] and not left_over:
                return {part.index: become}
            await self._states.mark(self._message, part.index, become.stage, become.message_id, held=True)
        for state in left_over:  # what was shown while the reply grew, and is no part of what it became
            await self._take_back(state)
        return {}

    async def _settle(self, part: OutboundPart) -> PartState | None:
        """What became of *part*; None where that is stored already."""
        state = self._held.states.get(part.index, PartState())
        if state.stage in (Stage.SENT, Stage.AMBIGUOUS):
            return None
        receipt = await self._settled(part, state)
        return PartState(Stage.AMBIGUOUS) if receipt is None else PartState(Stage.SENT, receipt.message_id)

    async def _settled(self, part: OutboundPart, state: PartState) -> Receipt | None:
        """The receipt of *part* in its last form; None where it stays unknown whether it was sent."""
        if state.stage is Stage.SHOWN:
            receipt = await self._finish(part, state)
            if receipt is not None:
                return receipt
        if state.stage is Stage.DRAFTING and not part.file_name:
            receipt = await self._finish_draft(part)
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
        """Give what is shown its last form; None where that cannot be, and it is gone. A text never becomes a file."""
        receipt, connector, message = Receipt(state.message_id), self._connector, self._message
        if isinstance(connector, EditsMessages) and not part.file_name:
            self._rate_limiter.count_edit()
            for waits in (True, False):
                try:
                    await self._until_taken(part, lambda: _within(connector.edit(message, part, receipt)))
                except SendFailed as error:
                    if waits and error.retry_after_seconds:
                        continue  # it stands there: a message in its place would have to wait as long
                    _log.info("reply.resent", part=part.index, why=str(error))
                    break
                return receipt
        await self._take_back(state)
        return None

    async def _finish_draft(self, part: OutboundPart) -> Receipt | None:
        """Give a preview its last form, if nobody knows whether its first message arrived; None where the platform
        does not show it, or cannot be asked."""
        connector, message, draft = self._connector, self._message, drafted(part)
        if not isinstance(connector, EditsMessages):
            return None
        if connector.capabilities.idempotency == "nonce":
            # If the preview is there, its receipt comes back; if not, or it is too long ago, this sends the part.
            shown = await self._until_taken(part, lambda: _within(connector.send(message, draft)))
        else:
            found, known = await self._read_back(draft)
            if found is None and isinstance(connector, AppendsText):
                found, known = await self._begun_by_words(connector, part), False
            if found is None:
                # The reply is sent below the preview, if that arrived: it says more, and is never skipped.
                if not known:
                    _log.warning("reply.ambiguous", part=part.index, why="preview", then="resend")
                return None
            shown = found
        return await self._finish(part, PartState(Stage.SHOWN, shown.message_id))

    async def _begun_by_words(self, connector: AppendsText, part: OutboundPart) -> Receipt | None:
        """What seems to be the beginning of *part*, where the platform shows any."""
        try:
            return await self._until_taken(part, lambda: _within(connector.find_beginning(self._message, part)))
        except SendFailed as error:
            _log.warning("reply.not_read_back", part=part.index, why=str(error))
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
            await self._mark_sending(part)
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
            if not self._may_go:
                await self._rate_limiter.wait_for_turn(self._message.key)
            self._may_go = False
            try:
                return await call()
            except SendFailed as error:
                self._rate_limiter.hold(self._message.key, error)
                wait = error.retry_after_seconds or _backoff_seconds(attempt)
                if not (error.retryable or error.ambiguous) or loop.time() + wait > give_up_at:
                    raise
                _log.info(
                    "reply.retried", part=part.index, attempt=attempt, why=str(error), wait_seconds=round(wait, 2)
                )
                if not error.retry_after_seconds:  # else the rate limiter waits
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

    async def _mark_sending(self, part: OutboundPart) -> None:
        if part.index == 0 and self._begun:
            self._begun = False  # it was marked with the hold; a repetition marks anew
        else:
            await self._mark(part, Stage.SENDING)

    async def _mark(self, part: OutboundPart, stage: Stage) -> None:
        await self._states.mark(self._message, part.index, stage, held=True)

    def _is_known_again(self, state: PartState) -> bool:
        """Whether the platform would recognise the part, so that sending it again shows it once."""
        # In the future where clocks differ (a second of that is rounding): then it may be long ago.
        age = time.time() - state.since
        return self._connector.capabilities.idempotency == "nonce" and -1.0 <= age < _NONCE_SECONDS


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


# ---- delivery ----
#
# Delivers what the runtime says by the connectors of this process.
#
# What became of each part is kept in `runtime.delivery.outbox`: a reply that is delivered again, by whichever
# process, goes
# on where it stopped. How it is sent, part by part, is in `runtime.delivery.sender`.


LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a reply is rendered off the event loop."""


class NoConnector(AgentRuntimeError):
    """There is no connector of that name in this process."""

    user_text = "I cannot send a reply here."


class Delivery:
    """Sends replies by the process's *connectors* (by name), within the limits of their platforms.

    *ambiguous* says what is done with a part of which nobody can find out whether it was sent.
    """

    def __init__(
        self,
        states: PartStates,
        connectors: Mapping[str, Connector],
        rate_limiters: RateLimiters,
        ambiguous: Literal["skip", "resend"],
    ) -> None:
        self._states = states
        self._connectors = connectors
        self._rate_limiters = rate_limiters
        self._ambiguous = ambiguous

    async def deliver(
        self, key: ConversationKey, turn_id: str, given: Given | None = None, known: OutboundMessage | None = None
    ) -> int:
        """Send the stored reply of a turn, or what of it was not sent yet; how many parts it has.

        With *given*, the entry by which the reply waits, its turn in the conversation is kept, and the entry is done
        afterwards. *known* is the reply, where it need not be read. Of a silent reply nothing is sent.
        Each part's state is stored before it is sent; what people have seen growing gets its last form. Raises
        `SendFailed` when a part is refused for good, `NoConnector`, `runtime.delivery.outbox.NotNext`,
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`.
        """
        connector = self._connectors.get(key.connector)
        if connector is None:
            raise NoConnector(f"no connector {key.connector!r} runs in this process")
        if connector.capabilities.local:
            return await self._hand_over(connector, key, turn_id, known)
        rate_limiter = self._rate_limiters.of(connector)
        # To say at once that the first part is being sent, it has to be: nothing may come between.
        parts = await rendered(connector, known) if known is not None and not known.silent else ()
        at_once = bool(parts) and rate_limiter.take_turn(key)
        held = await self._states.hold(key, turn_id, given, known, begin=at_once)
        if held.message is not None:
            if not held.message.silent or held.states:  # what was shown of it before gets its last form
                parts = parts or await rendered(connector, held.message)
            sending = Sending(
                self._states, rate_limiter, self._ambiguous, connector, held, held.message, may_go=at_once
            )
            try:
                last = await sending.settle_all(parts, keep_last=given is not None)
                _log.info("reply.delivered", parts=len(parts), kind=held.message.kind)
            except Forgotten:
                last = {}  # what is left of it is not to be seen, and holds up nobody
        else:
            parts, last = (), {}  # it was forgotten, or is delivered
        if given is not None:
            await self._states.done(key, turn_id, given, last)
        return len(parts)

    async def give_up(self, key: ConversationKey, turn_id: str, given: Given) -> None:
        """Take the entry of a reply away that cannot be delivered. Raises `connectors.message.Superseded` where another
        process delivers it now, and `connectors.message.StoreUnavailable`."""
        await self._states.done(key, turn_id, given)

    async def _hand_over(
        self, connector: Connector, key: ConversationKey, turn_id: str, known: OutboundMessage | None
    ) -> int:
        """Answer people who are connected to this process; who has gone finds the reply in the conversation."""
        message = known if known is not None else await self._states.load(key, turn_id)
        parts = connector.render(message) if message is not None else ()
        for part in parts:
            assert message is not None
            await connector.send(message, part)
        await asyncio.sleep(0)  # who waits for it has it first
        _log.info("reply.delivered", parts=len(parts), kind=message.kind if message else "")
        return len(parts)


async def rendered(connector: Connector, message: OutboundMessage) -> Sequence[OutboundPart]:
    """*message* in the parts that *connector* sends, worked out in a thread where the text is long."""
    if len(message.text) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(connector.render, message)
    return connector.render(message)
