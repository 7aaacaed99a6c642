"""Sends one reply, part by part: each part's state is stored before the platform is called."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import structlog

from connectors.connector import AppendsText, Connector, EditsMessages, ReadsBack, SendFailed
from connectors.message import OutboundMessage, OutboundPart, Receipt
from runtime.part_states import PartStates
from runtime.parts import Held, PartState, Stage, drafted
from runtime.rate_limiter import RateLimiter

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
