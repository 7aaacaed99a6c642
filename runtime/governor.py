"""Keeps everything that is said to a platform within its limits: typing signs, previews and final parts alike.

The rules are in `runtime.schedule`. They hold for one process: a platform is served by one gateway at a time.
"""

from __future__ import annotations

import asyncio

from connectors.connector import Connector, CountsByMinute, SendFailed, SharesPace
from connectors.message import ConversationKey
from runtime.schedule import Rates, Schedule, Ticket, Urgency


class Governor:
    """When each call to the platform of *connector* may be made, on the event loop's clock."""

    def __init__(self, connector: Connector) -> None:
        able = connector.capabilities
        self._connector = connector
        rates = Rates(
            able.sends_per_second,
            able.edits_per_second,
            able.sends_per_second_overall,
            able.edits_per_second_overall,
            able.openings_per_second_overall,
            able.additions_per_second_overall,
        )
        self._schedule = (
            Schedule(rates, connector.most_in_a_minute) if isinstance(connector, CountsByMinute) else Schedule(rates)
        )
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, key: ConversationKey, urgency: Urgency) -> None:
        """Wait until a call for *key* may be made; it counts as made when this returns."""
        loop = asyncio.get_running_loop()
        if self.goes_at_once(key, urgency):
            return
        ticket = self._schedule.add(self._chat(key), urgency, loop.time())
        allowed = self._waiting[ticket] = loop.create_future()
        self._allow()
        try:
            await allowed
        finally:
            if self._waiting.pop(ticket, None) is not None:
                self._schedule.remove(ticket)

    def goes_at_once(self, key: ConversationKey, urgency: Urgency) -> bool:
        """Whether a call for *key* may be made now, without waiting; it counts as made then."""
        return self._schedule.take(self._chat(key), urgency, asyncio.get_running_loop().time())

    def follows(self, key: ConversationKey) -> bool:
        """Whether a call for *key* may be made at once that belongs to the one before it, in the same place: it counts
        for the platform, and where a place's minute is bounded for that, but not for the pace there."""
        return self._schedule.follows(self._chat(key), asyncio.get_running_loop().time())

    def edited(self) -> None:
        """A last form is given by an edit: where the platform bounds all edits together, previews make room for it."""
        self._schedule.edited(asyncio.get_running_loop().time())

    def told(self, key: ConversationKey, error: SendFailed) -> None:
        """Let nothing go there, or anywhere where the platform means that, for as long as *error* asks for."""
        if error.retry_after_seconds:
            until = asyncio.get_running_loop().time() + error.retry_after_seconds
            self._schedule.hold(None if error.everywhere else self._chat(key), until)

    def _chat(self, key: ConversationKey) -> str:
        return self._connector.paced_as(key) if isinstance(self._connector, SharesPace) else key.external_id

    def _allow(self) -> None:
        """Let go what may go, and come back when the next may."""
        loop = asyncio.get_running_loop()
        for ticket in self._schedule.due(loop.time()):
            allowed = self._waiting.pop(ticket)
            if not allowed.done():
                allowed.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        at = self._schedule.next_at()
        self._timer = None if at is None else loop.call_at(at, self._allow)


class Governors:
    """One for each connector of the process."""

    def __init__(self) -> None:
        self._governors: dict[str, Governor] = {}

    def of(self, connector: Connector) -> Governor:
        """The governor of all calls to *connector*'s platform."""
        governor = self._governors.get(connector.name)
        if governor is None:
            governor = self._governors[connector.name] = Governor(connector)
        return governor
