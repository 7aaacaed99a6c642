"""Keeps connectors running: one that fails is named, and the others go on."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog

from connectors.connector import (
    Accept,
    CommandHint,
    Connector,
    ConnectorFailed,
    FetchesMissed,
    Health,
    RegistersCommands,
    SendFailed,
    State,
)
from connectors.message import Accepted, AgentRuntimeError, ConversationKey, InboundKind, InboundMessage
from runtime.turns import Mailbox

# ---- missed ----
#
# Hears what was said while no process listened, on platforms that keep it and do not deliver it again.


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


# ---- supervisor ----


_WATCH_SECONDS = 0.5
_RESTART_SECONDS = (1.0, 60.0)


class Supervisor:
    """Runs connectors side by side and says aloud when the state of one changes.

    With a *mailbox*, platforms that keep what was said meanwhile are asked for it once they are connected; those that
    show commands to people are told *commands*.
    """

    def __init__(
        self,
        connectors: Iterable[Connector],
        mailbox: Mailbox | None = None,
        commands: Sequence[CommandHint] = (),
    ) -> None:
        self._connectors = tuple(connectors)
        self._mailbox = mailbox
        self._commands = tuple(commands)
        self._failed: dict[str, str] = {}
        self._told: dict[str, Health] = {}
        self.settled = asyncio.Event()
        """Set once it was said of each connector how its first connecting ended."""

    def health(self, connector: Connector) -> Health:
        """The connector's own word, or that it failed for good."""
        why = self._failed.get(connector.name)
        return Health(State.FAILED, why) if why is not None else connector.health

    def all_health(self) -> dict[str, Health]:
        """Return the health of each connector by name."""
        return {connector.name: self.health(connector) for connector in self._connectors}

    async def run(self, accept: Accept) -> None:
        """Run all connectors until cancelled."""
        async with asyncio.TaskGroup() as group:
            for connector in self._connectors:
                live = accept
                if self._mailbox is not None:
                    order = Order(accept)
                    missed = hear_missed(connector, self._mailbox, accept, order)
                    group.create_task(missed, name=f"missed {connector.name}")
                    live = order.accept
                group.create_task(self._keep_running(connector, live), name=f"connector {connector.name}")
                if self._commands:
                    group.create_task(self._register_commands(connector), name=f"commands {connector.name}")
            while True:
                self._tell()
                await asyncio.sleep(_WATCH_SECONDS)

    async def _keep_running(self, connector: Connector, accept: Accept) -> None:
        wait, longest = _RESTART_SECONDS
        while True:
            try:
                await connector.run(accept)
            except ConnectorFailed as error:
                self._failed[connector.name] = str(error)
                self._tell()
                return
            except Exception as error:  # noqa: BLE001 - logged whole; a broken connector is started again
                self._failed[connector.name] = f"broke: {type(error).__name__}: {error}"
                self._tell()
                _log.exception("connector.broke", connector=connector.name)
            else:
                return  # it has nothing more to receive: a console whose person left
            await asyncio.sleep(random.uniform(wait / 2, wait))  # noqa: S311 - jitter, no secret
            self._failed.pop(connector.name, None)
            wait = min(wait * 2, longest)

    async def _register_commands(self, connector: Connector) -> None:
        if not isinstance(connector, RegistersCommands):
            return None
        wait, longest = _RESTART_SECONDS
        while True:
            if connector.health.state is State.CONNECTED:
                try:
                    return await connector.register_commands(self._commands)
                except SendFailed as error:
                    _log.warning("connector.commands_refused", connector=connector.name, why=str(error))
                    if not error.retryable:
                        return None  # people can still write them out
                    await asyncio.sleep(error.retry_after_seconds or random.uniform(wait / 2, wait))  # noqa: S311 - jitter
                    wait = min(wait * 2, longest)
            await asyncio.sleep(_WATCH_SECONDS)

    def _tell(self) -> None:
        for connector in self._connectors:
            health = self.health(connector)
            if self._told.get(connector.name) != health:
                self._told[connector.name] = health
                level = _log.error if health.state is State.FAILED else _log.info
                level("connector.state", connector=connector.name, state=health.state.value, why=health.why)
        if all(health.state is not State.CONNECTING for health in self._told.values()):
            self.settled.set()
