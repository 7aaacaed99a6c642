"""The signs by which people see that a message was read and that somebody is writing, until the reply is there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from connectors.connector import Connector, Reacts, SendFailed, ShowsTyping
from connectors.message import OutboundMessage
from runtime.delivery.rate_limiter import Extra, RateLimiter

FIRST_SIGN_SECONDS = 0.3
"""How long an answer may take before the platform is called for a typing sign."""
LAST_SIGN_SECONDS = 0.5
"""How long a reply waits for a typing call in hand. A typing sign that the platform handles after the reply would say
for some seconds more that somebody is writing; a slow platform must not hold up the reply."""


class TypingIndicator:
    """The signs for one reply: the emoji *acknowledgement*, if not empty, on each message it answers; then typing."""

    def __init__(
        self, connector: Connector, message: OutboundMessage, rate_limiter: RateLimiter, acknowledgement: str
    ) -> None:
        self._connector = connector
        self._message = message
        self._rate_limiter = rate_limiter
        self._acknowledgement = acknowledgement
        self._task: asyncio.Task[None] | None = None
        self._is_calling = False
        """Whether a call for a typing sign is in hand."""
        self._has_ended = False

    def begin(self) -> None:
        """Show the signs until `end`; none if `end` came first."""
        if not self._has_ended:
            self._task = asyncio.create_task(self._run())

    def end(self) -> None:
        """Begin no other sign. A typing call in hand ends by itself."""
        self._has_ended = True
        if self._task is not None and not self._is_calling:
            self._task.cancel()

    async def close(self) -> None:
        """Call `end`, and wait until no call to the platform is in hand: `LAST_SIGN_SECONDS` at most."""
        self.end()
        if self._task is None:
            return
        try:
            await asyncio.wait({self._task}, timeout=LAST_SIGN_SECONDS)
        finally:
            self._task.cancel()
        await asyncio.wait({self._task})  # raises no error of the task, and hides no cancellation of this one

    async def _run(self) -> None:
        connector, key = self._connector, self._message.key
        if self._acknowledgement and isinstance(connector, Reacts):
            for message_id in self._message.answers:
                await self._call(connector.react(key, message_id, self._acknowledgement))
        if isinstance(connector, ShowsTyping):
            await asyncio.sleep(FIRST_SIGN_SECONDS)
            while not self._has_ended:
                self._is_calling = True
                try:
                    await self._call(connector.typing(key))
                finally:
                    self._is_calling = False
                if not self._has_ended:
                    await asyncio.sleep(connector.typing_lasts_seconds)

    async def _call(self, sign: Coroutine[Any, Any, None]) -> None:
        """Await *sign*, unless that could keep a final part waiting."""
        try:
            if not self._rate_limiter.take_extra(self._message.key, Extra.SIGN):
                await sign
        except SendFailed as error:
            self._rate_limiter.hold(self._message.key, error)
        finally:
            sign.close()  # it was not awaited if it may not go
