"""Events over HTTP in the order in which they were said. I/O.

What was not acknowledged Slack sends again at once, after a minute and after five, and what is said meanwhile would be
taken before it. So after a request that was not acknowledged the first message of each conversation brings what is
missing before it from the history, as after a socket that broke; what Slack then repeats is known.
"""

from __future__ import annotations

from typing import Any

import structlog

from connectors.slack.convert import CONNECTOR
from connectors.slack.gaps import Gaps, as_payload
from connectors.slack.history import History
from connectors.slack.http_events import Take
from connectors.slack.recent import Recent

log = structlog.get_logger()

_PATIENCE_SECONDS = 1.2
"""For the history: less than half of what Slack gives an answer to a request."""


class InOrder:
    """Passes events on to *take*, each after what is missing before it."""

    def __init__(self, history: History, take: Take) -> None:
        self._gaps = Gaps(history, _PATIENCE_SECONDS)
        self._take = take
        self._passed: Recent[tuple[object, object], None] = Recent()

    async def take(self, payload: dict[str, Any]) -> bool:
        """As `connectors.slack.http_events.Take`."""
        event = payload.get("event")
        if not isinstance(event, dict):
            return await self._take(payload)
        taken = False
        try:
            taken = await self._take_in_order(payload, event)
        finally:
            if not taken:  # whatever the reason: Slack sends it again, and later than what is said meanwhile
                self._gaps.broke(event)
        return taken

    async def _take_in_order(self, payload: dict[str, Any], event: dict[str, Any]) -> bool:
        for one in await self._gaps.filled(event, self._gaps.breaks):
            said = (one.get("channel"), one.get("ts"))
            late = self._gaps.is_late(one) and said not in self._passed
            if not await self._take(payload if one is event else as_payload(one)):
                return False
            if late:
                log.info("message.late", connector=CONNECTOR, message_id=said[1])
            self._passed.put(said, None)
            self._gaps.passed_on(one)
        return True
