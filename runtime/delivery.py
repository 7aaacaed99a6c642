"""Delivers what the runtime says by the connectors of this process.

What became of each part is kept in `runtime.part_states`: a reply that is delivered again, by whichever process, goes
on where it stopped. How it is sent, part by part, is in `runtime.sending`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

import structlog

from connectors.connector import Connector
from connectors.message import AgentRuntimeError, ConversationKey, OutboundMessage, OutboundPart
from runtime.part_states import PartStates
from runtime.parts import Forgotten
from runtime.rate_limiter import RateLimiters
from runtime.sending import Sending
from runtime.work_streams import Given

LONG_TEXT_CHARACTERS = 20_000
"""Beyond this a reply is rendered off the event loop."""
_log = structlog.get_logger()


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
        `SendFailed` when a part is refused for good, `NoConnector`, `runtime.parts.NotNext`,
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
