"""The signs by which people see that a message was read and that somebody is writing, until the reply is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from connectors.connector import Connector, Reacts, SendFailed, ShowsTyping
from connectors.message import ConversationKey, OutboundMessage
from runtime.delivery.rate_limiter import Extra, RateLimiter

FIRST_SIGN_SECONDS = 0.3
"""How long an answer may take before people are shown that it is on its way: each sign is a call to the platform."""
LAST_SIGN_SECONDS = 0.5
"""How long a reply waits for a typing sign that is being called for: handled after the reply, it would say for some
seconds more that somebody is writing. Where the platform takes longer, it would hold up the reply."""


class Signs:
    """Those for one reply: *acknowledgement*, an emoji, on each message that it answers, unless empty; then typing."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, rate_limiter: RateLimiter, acknowledgement: str
    ) -> None:
        self._connector = connector
        self._message = message
        self._rate_limiter = rate_limiter
        self._acknowledgement = acknowledgement
        self._task: asyncio.Task[None] | None = None
        self._is_called_for = False
        """Whether the platform is being asked to show that somebody types."""
        self._ended = False

    def begin(self) -> None:
        """Give them until `end`; none where that came before."""
        if not self._ended:
            self._task = asyncio.create_task(self._give())
            self._task.add_done_callback(self._is_over)

    def end(self) -> None:
        """Begin no other. A typing sign that is being called for is left to end by itself."""
        self._ended = True
        if self._task is not None and not self._is_called_for:
            self._task.cancel()

    def _is_over(self, _: asyncio.Task[None]) -> None:
        self._task = None  # which knows these by where it was cancelled: nobody else would take the ring apart

    async def over(self) -> None:
        """`end` them, and wait until the platform is not called any more by them: `LAST_SIGN_SECONDS` at most."""
        self.end()
        task = self._task
        if task is None or task.done():
            return
        try:
            await asyncio.wait({task}, timeout=LAST_SIGN_SECONDS)
        finally:
            task.cancel()
        await asyncio.wait({task})  # raises nothing of theirs, and hides no cancellation of ours

    async def _give(self) -> None:
        connector, key = self._connector, self._message.key
        if self._acknowledgement and isinstance(connector, Reacts):
            for message_id in self._message.answers:
                await self._sign(connector.react(key, message_id, self._acknowledgement))
        if isinstance(connector, ShowsTyping):
            await asyncio.sleep(FIRST_SIGN_SECONDS)
            while not self._ended:
                await self._sign(self._typing(connector, key))
                if not self._ended:
                    await asyncio.sleep(connector.typing_lasts_seconds)

    async def _typing(self, connector: ShowsTyping, key: ConversationKey) -> None:
        self._is_called_for = True
        try:
            await connector.typing(key)
        finally:
            self._is_called_for = False

    async def _sign(self, sign: Coroutine[Any, Any, None]) -> None:
        """Call for *sign*, unless that could keep a final part waiting."""
        try:
            if not self._rate_limiter.take_extra(self._message.key, Extra.SIGN):
                await sign
        except SendFailed as error:
            self._rate_limiter.hold(self._message.key, error)
        finally:
            sign.close()  # nobody awaits it if it may not go
