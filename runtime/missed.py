"""Hears what was said while no process listened, on platforms that keep it and do not deliver it again."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog

from connectors.connector import Accept, Connector, FetchesMissed, State
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    InboundKind,
    InboundMessage,
)
from runtime.turns import Mailbox

T = TypeVar("T")
_LOOK_SECONDS = 0.2
_RETRY_SECONDS = (1.0, 60.0)
_AT_ONCE = 4
_WAIT_SECONDS = 60.0
"""How long what is said now in a place waits for what was missed there, where a platform does not hand that out."""
_THEN_SECONDS = 5.0
"""How long it waits after that was in vain somewhere: a platform that brings one message after the other is held up."""
_log = structlog.get_logger()


class Order:
    """Lets a message that is said now wait until what was missed before it in its conversation was heard, so that
    neither the order is lost nor, with a newer message stored, the trace of what was missed. Where somebody waits, what
    was missed is heard first."""

    def __init__(
        self, accept: Accept, wait_seconds: float = _WAIT_SECONDS, then_seconds: float = _THEN_SECONDS
    ) -> None:
        self._accept = accept
        self._wait_seconds = wait_seconds
        self._then_seconds = then_seconds
        self._begun = asyncio.Event()
        self._unheard: dict[str, tuple[set[ConversationKey], asyncio.Event]] = {}
        self._free = _AT_ONCE
        self._queue: OrderedDict[ConversationKey, asyncio.Event] = OrderedDict()
        self._waits: set[str] = set()
        """Places in which something waits: in each the first that waited too long lets the others go, too."""

    async def accept(self, message: InboundMessage) -> Accepted:
        """As `connectors.connector.Accept`; waits so long at most, and says when that was not enough."""
        place = message.external_id
        if message.kind is InboundKind.MESSAGE and (place in self._unheard or not self._begun.is_set()):
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._begun.wait()
                    if place in self._unheard:
                        await self._until_heard(place)
            except TimeoutError:
                if (given_up := self._unheard.pop(place, None)) is not None:
                    _log.warning("message.overtakes", connector=message.connector, external_id=place)
                    given_up[1].set()
                self._wait_seconds = min(self._wait_seconds, self._then_seconds)
        return await self._accept(message)

    def begin(self, keys: Iterable[ConversationKey]) -> None:
        """What was missed in *keys* is to be heard."""
        for key in keys:
            self._unheard.setdefault(key.external_id, (set(), asyncio.Event()))[0].add(key)
        self._begun.set()

    def heard(self, key: ConversationKey) -> None:
        """It was heard in *key*, or cannot be."""
        keys, event = self._unheard.get(key.external_id, (set(), None))
        keys.discard(key)
        if event is not None and not keys:
            del self._unheard[key.external_id]
            event.set()

    @asynccontextmanager
    async def turn(self, key: ConversationKey) -> AsyncIterator[None]:
        """Inside, what was missed in *key* may be asked for."""
        if self._free:
            self._free -= 1
        else:
            await self._queued(key)
        try:
            yield
        finally:
            self._hand_on()

    async def _until_heard(self, place: str) -> None:
        keys, event = self._unheard[place]
        self._waits.add(place)
        for key in keys & self._queue.keys():
            self._queue.move_to_end(key, last=False)
        try:
            await event.wait()
        finally:
            self._waits.discard(place)

    async def _queued(self, key: ConversationKey) -> None:
        turn = self._queue[key] = asyncio.Event()
        if key.external_id in self._waits:
            self._queue.move_to_end(key, last=False)
        try:
            await turn.wait()
        except asyncio.CancelledError:
            if self._queue.pop(key, None) is None:
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        if self._queue:
            self._queue.popitem(last=False)[1].set()
        else:
            self._free += 1


async def hear_missed(connector: Connector, mailbox: Mailbox, accept: Accept, order: Order) -> None:
    """Once *connector* is connected, accept what came after the newest stored message of each conversation.

    Does nothing for platforms without `FetchesMissed`. What was heard or refused already is a duplicate to *accept*.
    What is said meanwhile comes through *order*.
    """
    if not isinstance(connector, FetchesMissed):
        order.begin(())
        return
    newest = await _until_it_works(lambda: mailbox.last_seen(connector.name))
    order.begin(newest)
    while connector.health.state is not State.CONNECTED:  # noqa: ASYNC110 - a connector has no event to wait for
        await asyncio.sleep(_LOOK_SECONDS)

    async def hear(key: ConversationKey, message_id: str) -> None:
        try:
            await _hear(connector, key, message_id, accept, order)
        finally:
            order.heard(key)

    async with asyncio.TaskGroup() as group:
        for key, message_id in newest.items():
            group.create_task(hear(key, message_id))


async def _hear(connector: FetchesMissed, key: ConversationKey, message_id: str, accept: Accept, order: Order) -> None:
    async def once() -> int:
        heard = 0
        async with order.turn(key):  # and not while waiting to ask again, so that one place holds up no other
            async for message in connector.missed(key, message_id):
                accepted = await accept(message)
                heard += accepted.outcome != "duplicate"
        return heard

    try:
        heard = await _until_it_works(once)
    except AgentRuntimeError as error:
        _log.warning("message.ignored", why="missed", context_id=key.context_id, detail=str(error))
        return
    except Exception:  # noqa: BLE001 - one place that cannot be read keeps no other from being heard
        _log.exception("message.ignored", why="missed", context_id=key.context_id)
        return
    if heard:
        _log.info("message.missed", context_id=key.context_id, workspace_id=key.workspace_id, heard=heard)


async def _until_it_works(call: Callable[[], Awaitable[T]]) -> T:
    """What *call* gives, tried again with backoff while its error may pass. Raises `AgentRuntimeError` else."""
    wait, longest = _RETRY_SECONDS
    while True:
        try:
            return await call()
        except AgentRuntimeError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311 - jitter, no secret
        wait = min(wait * 2, longest)
