"""Keeps to the pace that a platform asks for in one place."""

from __future__ import annotations

import asyncio

from connectors.message import ConversationKey

_REMEMBERED = 4096


class Pace:
    """When each place may be written to again, on the event loop's clock.

    The generic cell rate algorithm (ITU-T I.371): each write moves the place's theoretical arrival time on by
    1 / rate, and a burst of *burst* writes may run ahead of it.
    """

    def __init__(self) -> None:
        self._arrival: dict[ConversationKey, float] = {}

    def delay_seconds(self, key: ConversationKey, per_second: float, burst: int = 1) -> float:
        """How long to wait before *key* may be written to; 0.0 where *per_second* is 0: no limit."""
        if per_second <= 0:
            return 0.0
        ahead = (burst - 1) / per_second
        return max(0.0, self._arrival.get(key, 0.0) - ahead - asyncio.get_running_loop().time())

    def count(self, key: ConversationKey, per_second: float) -> None:
        """*key* is written to now, or once the wait that was asked for is over."""
        if per_second <= 0:
            return
        now = asyncio.get_running_loop().time()
        self._arrival[key] = max(now, self._arrival.get(key, 0.0)) + 1.0 / per_second
        if len(self._arrival) > _REMEMBERED:
            self._arrival = {place: at for place, at in self._arrival.items() if at > now}

    async def wait(self, key: ConversationKey, per_second: float, burst: int = 1) -> None:
        """Wait until *key* may be written to, and count it."""
        seconds = self.delay_seconds(key, per_second, burst)
        self.count(key, per_second)
        if seconds:
            await asyncio.sleep(seconds)
