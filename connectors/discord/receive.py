"""Hand Discord's events to the runtime until it accepts them, in order within a channel. I/O.

Discord sends nothing twice and has no acknowledgement. So `Intake` keeps in this process what the runtime has not
accepted yet. `messages_after` reads what no session brought.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import discord
import structlog

from connectors.connector import Accept
from connectors.discord.errors import DISCORD_ERRORS
from connectors.discord.events import CONNECTOR, to_inbound
from connectors.discord.login import GatewayClient
from connectors.health import Backoff, ConnectionHealth
from connectors.message import Accepted, InboundMessage, StoreUnavailable
from connectors.sdk_errors import origin

log = structlog.get_logger()

MAX_WAITING = 10_000

_ATTEMPTS_PER_MESSAGE = 3
"""How often a message is offered if it fails for any reason but an unavailable store."""


class Intake:
    """Takes the events of the gateway and keeps them until they are accepted.

    Each channel has a lane: its messages are offered in order, and no channel waits for another. If *max_waiting*
    messages wait, newer ones are left at Discord: they are missed as if there had been no session, and a session is
    counted once there is room again.
    """

    def __init__(self, vitals: ConnectionHealth, backoff: Backoff, max_waiting: int = MAX_WAITING) -> None:
        self.sessions = 0
        self._vitals = vitals
        self._backoff = backoff
        self._max_waiting = max_waiting
        self._lanes: dict[str, deque[InboundMessage]] = {}
        self._waiting = 0
        self._overflowed = False
        self._accept: Accept = _refuse
        self._tasks: asyncio.TaskGroup | None = None

    def session_began(self) -> None:
        """Note a new session. What was written since the end of the last one is missing."""
        self.sessions += 1

    def take(self, client: GatewayClient, event: str, args: tuple[Any, ...]) -> None:
        """Put an event into its lane. Neither blocks nor raises."""
        for message in convert(client, event, args):
            if self._overflowed or self._waiting >= self._max_waiting:
                self._overflowed = True
            else:
                self._waiting += 1
                self._put(message)

    async def accept_all(self, accept: Accept) -> None:
        """Offer everything in the lanes until cancelled. What is being offered then stays the first of its lane."""
        self._accept = accept
        async with asyncio.TaskGroup() as self._tasks:
            for place in self._lanes:
                self._tasks.create_task(self._empty_lane(place))
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None

    def _put(self, message: InboundMessage) -> None:
        place = message.external_id
        if place in self._lanes:
            self._lanes[place].append(message)
            return
        self._lanes[place] = deque([message])
        if self._tasks is not None:
            self._tasks.create_task(self._empty_lane(place), name=f"discord lane {place}")

    async def _empty_lane(self, place: str) -> None:
        lane = self._lanes[place]
        while lane:
            await self._offer(lane[0])
            lane.popleft()
            self._waiting -= 1
            if self._overflowed and self._waiting <= self._max_waiting // 2:
                self._overflowed = False
                self.sessions += 1
        del self._lanes[place]

    async def _offer(self, message: InboundMessage) -> None:
        """Offer *message* until it is accepted. After some failures of ours, give it up."""
        place, backoff, faults = message.external_id, self._backoff.fresh(), 0
        while True:
            try:
                await self._accept(message)
            except StoreUnavailable:
                self._vitals.trouble(place, "the store is unavailable; messages wait in this process")
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                faults += 1
                _log_fault(error, message.message_id)
                if faults == _ATTEMPTS_PER_MESSAGE:
                    break
                self._vitals.trouble(place, f"a message could not be accepted ({type(error).__name__})")
            else:
                break
            await asyncio.sleep(backoff.next_seconds())
        self._vitals.well(place)


async def _refuse(message: InboundMessage) -> Accepted:
    raise StoreUnavailable("the connector is not receiving")


def convert(client: GatewayClient, event: str, args: tuple[Any, ...]) -> tuple[InboundMessage, ...]:
    """Return what the runtime needs of *event*, see `to_inbound`; nothing if it cannot be read."""
    if client.user is None:
        return ()
    try:
        return to_inbound(client, client.user.id, event, args)
    except Exception as error:  # noqa: BLE001 - the boundary: one event must not end the session
        log.warning("message.ignored", connector=CONNECTOR, why="unreadable", error=type(error).__name__)
        return ()


async def messages_after(client: GatewayClient, channel_id: int, after: int) -> AsyncIterator[discord.Message]:
    """Yield the messages of a channel after the id *after*, oldest first; none if the bot may not read there.

    A message that discord.py cannot read is left out. Raises one of `DISCORD_ERRORS`.
    """
    try:
        channel = client.get_channel(channel_id) or await client.fetch_channel(channel_id)
        if not isinstance(channel, discord.abc.Messageable):
            return
        newest: int | None = getattr(channel, "last_message_id", None)  # private channels have none
        if newest is not None and newest <= after:
            return
        has_more = True
        while has_more:
            try:
                async for message in channel.history(limit=None, after=discord.Object(after), oldest_first=True):
                    after = message.id
                    yield message
                has_more = False
            except DISCORD_ERRORS:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: one message must not stop all others
                _log_fault(error, f"after {after}")
                found = await client.http.logs_from(channel_id, 1, after=after)
                after = max((int(message["id"]) for message in found), default=after)
                has_more = bool(found)
    except (discord.Forbidden, discord.NotFound) as error:
        log.info("connector.unreadable", connector=CONNECTOR, why=error.text)


def _log_fault(error: Exception, message_id: str) -> None:
    log.error(
        "message.failed",
        connector=CONNECTOR,
        why=type(error).__name__,  # not the error's text, which may quote the message
        where=origin(error),
        message_id=message_id,
    )
