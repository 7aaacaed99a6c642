"""What the gateway said and nobody has accepted yet, in order; and from where on something is missing.

Discord has no acknowledgement: what the gateway has sent, it does not send again. So it waits here,
in this process, until it is accepted. What does not fit any more is left out, and read later over
REST like everything that was said while there was no session.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from connectors.message import InboundMessage

MAX_WAITING = 10_000
MAX_IN_HAND = 2_000
"""Messages that were given out and are not accepted yet: one that waits must not keep others from being given out."""
MAX_CHANNELS = 10_000

SLACK_MILLISECONDS = 60_000
"""How much older than the newest message seen one may be that was not sent yet."""

_TIME_SHIFT = 22
"""Reference, "Snowflakes": the bits above these are milliseconds."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages may be missing: in each channel of ``seen`` those after the id there, in others those
    after ``floor``."""

    seen: Mapping[int, int]
    floor: int


class Inbox:
    """One consumer takes by `get`, and says of each message when it is `done` with it; putting never waits.

    *limit* messages may wait, and *at_once* may be in hand.
    """

    def __init__(self, limit: int = MAX_WAITING, at_once: int = MAX_IN_HAND) -> None:
        self._limit = limit
        self._at_once = at_once
        self._in_hand = 0
        self._waiting: deque[InboundMessage | Gap] = deque()
        self._moved = asyncio.Event()
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._start = 0
        self._newest = 0
        self._overflowed = False

    def start_at(self, snowflake: int) -> None:
        """Nothing before *snowflake* is missing. The first call counts."""
        self._start = self._start or snowflake

    def saw(self, channel_id: int, message_id: int) -> None:
        """The gateway sent a message, whosoever it is: what comes after it is new. To be said after `put`."""
        if self._overflowed:
            return  # it is among those that are to be read again
        self._newest = max(self._newest, message_id)
        self._seen[channel_id] = max(message_id, self._seen.get(channel_id, 0))
        self._seen.move_to_end(channel_id)
        if len(self._seen) > MAX_CHANNELS:
            self._seen.popitem(last=False)

    def put(self, message: InboundMessage) -> None:
        """*message* waits to be accepted, or is left out and belongs to a gap."""
        if self._overflowed:
            return
        if len(self._waiting) >= self._limit:
            self._put(self._gap())
            self._overflowed = True
            return
        self._put(message)

    def put_gap(self) -> None:
        """From here on nothing may be missing, before it something may."""
        if self._start and not self._overflowed:
            self._put(self._gap())

    async def get(self) -> InboundMessage | Gap:
        """The next; waits for one. After the `Gap` of what did not fit there is room again."""
        while not self._waiting or self._in_hand >= self._at_once:
            self._moved.clear()
            await self._moved.wait()
        item = self._waiting.popleft()
        if isinstance(item, Gap):
            self._overflowed = False
        else:
            self._in_hand += 1
        return item

    def done(self) -> None:
        """A message that was given out is accepted, or given up."""
        self._in_hand -= 1
        self._moved.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def _gap(self) -> Gap:
        # By the clock of Discord, if it has shown any.
        floor = (self._newest or self._start) - (SLACK_MILLISECONDS << _TIME_SHIFT)
        return Gap(seen=dict(self._seen), floor=max(floor, 0))

    def _put(self, item: InboundMessage | Gap) -> None:
        self._waiting.append(item)
        self._moved.set()
