"""Keeps connectors running, and reads what people wrote on their platforms while no process listened."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog

from connectors.connector import (
    Accept,
    BackfillsMessages,
    CommandHint,
    ConnectionState,
    Connector,
    ConnectorFailed,
    Health,
    RegistersCommands,
    SendFailed,
)
from connectors.health import Backoff
from connectors.message import Accepted, AgentRuntimeError, ConversationKey, InboundKind, InboundMessage
from runtime.turns import Mailbox

CONCURRENT_FETCHES = 4
BACKFILL_WAIT_SECONDS = 60.0
"""How long a new message waits until the missed ones before it in its place are read."""
LATER_WAIT_SECONDS = 5.0
"""How long messages wait after one waited in vain: some platforms hand over one message after the other, and the next
would be late."""
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 1.0, 60.0
_WATCH_SECONDS = 0.5
_log = structlog.get_logger()
T = TypeVar("T")


class Supervisor:
    """Runs connectors side by side, starts a broken one again and logs each change of health.

    With a *mailbox*, platforms that keep messages (`BackfillsMessages`) are asked for the missed ones once they are
    connected. Platforms that show commands to people get *commands*.
    """

    def __init__(
        self,
        connectors: Iterable[Connector],
        mailbox: Mailbox | None = None,
        commands: Sequence[CommandHint] = (),
        *,
        restart_seconds: tuple[float, float] = (_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS),
        watch_seconds: float = _WATCH_SECONDS,
    ) -> None:
        self._connectors = tuple(connectors)
        self._mailbox = mailbox
        self._commands = tuple(commands)
        self._restart_seconds = restart_seconds
        self._watch_seconds = watch_seconds
        self._failed: dict[str, str] = {}
        self._logged: dict[str, Health] = {}
        self.settled = asyncio.Event()
        """Set once the first connecting of each connector has succeeded or failed."""

    def health(self, connector: Connector) -> Health:
        """Return the connector's own health, or that its task broke."""
        why = self._failed.get(connector.name)
        return Health(ConnectionState.FAILED, why) if why is not None else connector.health

    def all_health(self) -> dict[str, Health]:
        """Return the health of each connector by name."""
        return {connector.name: self.health(connector) for connector in self._connectors}

    async def run(self, accept: Accept) -> None:
        """Run all connectors until cancelled."""
        async with asyncio.TaskGroup() as group:
            for connector in self._connectors:
                accept_live = accept
                if self._mailbox is not None:
                    order = BackfillOrder(accept)
                    work = backfill(connector, self._mailbox, accept, order)
                    group.create_task(work, name=f"missed {connector.name}")
                    accept_live = order.accept
                group.create_task(self._keep_running(connector, accept_live), name=f"connector {connector.name}")
                if self._commands:
                    group.create_task(self._register_commands(connector), name=f"commands {connector.name}")
            while True:
                self._log_health()
                await asyncio.sleep(self._watch_seconds)

    async def _keep_running(self, connector: Connector, accept: Accept) -> None:
        backoff = Backoff(*self._restart_seconds)
        while True:
            try:
                await connector.run(accept)
            except ConnectorFailed as error:
                self._failed[connector.name] = str(error)
                self._log_health()
                return
            except Exception as error:  # noqa: BLE001 - logged whole; a broken connector is started again
                self._failed[connector.name] = f"broke: {type(error).__name__}: {error}"
                self._log_health()
                _log.exception("connector.broke", connector=connector.name)
            else:
                return  # it has nothing more to receive: a console whose person left
            await asyncio.sleep(backoff.next_seconds())
            self._failed.pop(connector.name, None)

    async def _register_commands(self, connector: Connector) -> None:
        if not isinstance(connector, RegistersCommands):
            return
        backoff = Backoff(*self._restart_seconds)
        while True:
            if connector.health.state is ConnectionState.CONNECTED:
                try:
                    await connector.register_commands(self._commands)
                except SendFailed as error:
                    _log.warning("connector.commands_refused", connector=connector.name, why=str(error))
                    if not error.retryable:
                        return  # people can still write them out
                    await asyncio.sleep(backoff.next_seconds(error.retry_after_seconds))
                else:
                    return
            await asyncio.sleep(self._watch_seconds)

    def _log_health(self) -> None:
        for name, health in self.all_health().items():
            if self._logged.get(name) != health:
                self._logged[name] = health
                level = _log.error if health.state is ConnectionState.FAILED else _log.info
                level("connector.state", connector=name, state=health.state.value, why=health.why)
        if all(health.state is not ConnectionState.CONNECTING for health in self._logged.values()):
            self.settled.set()


async def backfill(connector: Connector, mailbox: Mailbox, accept: Accept, order: BackfillOrder) -> None:
    """Once *connector* is connected, accept what came after the newest stored message of each conversation.

    Does nothing for platforms without `BackfillsMessages`. *accept* drops what was stored or refused before. New
    messages
    meanwhile go through *order*.
    """
    if not isinstance(connector, BackfillsMessages):
        order.expect(())
        return
    newest = await _retry(lambda: mailbox.last_seen(connector.name))
    order.expect(newest)
    while connector.health.state is not ConnectionState.CONNECTED:  # noqa: ASYNC110 - a connector has no event to wait for
        await asyncio.sleep(_WATCH_SECONDS)
    async with asyncio.TaskGroup() as group:
        for key, message_id in newest.items():
            group.create_task(_backfill_conversation(connector, key, message_id, accept, order))


async def _backfill_conversation(
    connector: BackfillsMessages, key: ConversationKey, message_id: str, accept: Accept, order: BackfillOrder
) -> None:
    async def fetch() -> int:
        stored = 0
        async with order.slot(key):  # released before a retry waits, so that one place holds up no other
            async for message in connector.missed(key, message_id):
                accepted = await accept(message)
                stored += accepted.outcome != "duplicate"
        return stored

    try:
        stored = await _retry(fetch)
        if stored:
            _log.info("message.missed", context_id=key.context_id, workspace_id=key.workspace_id, heard=stored)
    except AgentRuntimeError as error:
        _log.warning("message.ignored", why="missed", context_id=key.context_id, detail=str(error))
    except Exception:  # noqa: BLE001 - logged whole; the other conversations are still read
        _log.exception("message.ignored", why="missed", context_id=key.context_id)
    finally:
        order.finish(key)


async def _retry(call: Callable[[], Awaitable[T]]) -> T:
    """Return what *call* returns, called again after each retryable error. Raises any other `AgentRuntimeError`."""
    backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
    while True:
        try:
            return await call()
        except AgentRuntimeError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(backoff.next_seconds())


class BackfillOrder:
    """Keeps the messages of one connector in order during its backfill.

    A new message waits until the missed ones of its place are read, and that place is then read next. If the new one
    were stored first, the order would be wrong, and nobody would know any more from where on messages are missing.
    """

    def __init__(
        self,
        accept: Accept,
        wait_seconds: float = BACKFILL_WAIT_SECONDS,
        later_wait_seconds: float = LATER_WAIT_SECONDS,
    ) -> None:
        self._accept = accept
        self._wait_seconds = wait_seconds
        self._later_wait_seconds = later_wait_seconds
        self._begun = asyncio.Event()
        self._unread: dict[str, tuple[set[ConversationKey], asyncio.Event]] = {}
        """By place: the conversations still to be read, and the event that they are."""
        self._urgent: set[str] = set()
        """Places in which a new message waits."""
        self._free_slots = CONCURRENT_FETCHES
        self._queue: OrderedDict[ConversationKey, asyncio.Event] = OrderedDict()

    async def accept(self, message: InboundMessage) -> Accepted:
        """Accept a new message, once the missed ones of its place are read or it has waited long enough."""
        place = message.external_id
        if message.kind is InboundKind.MESSAGE and (place in self._unread or not self._begun.is_set()):
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._begun.wait()
                    if place in self._unread:
                        await self._wait_for(place)
            except TimeoutError:
                if (waited_for := self._unread.pop(place, None)) is not None:
                    _log.warning("message.overtakes", connector=message.connector, external_id=place)
                    waited_for[1].set()
                self._wait_seconds = min(self._wait_seconds, self._later_wait_seconds)
        return await self._accept(message)

    def expect(self, keys: Iterable[ConversationKey]) -> None:
        """Begin: the missed messages of *keys* are still to be read."""
        for key in keys:
            self._unread.setdefault(key.external_id, (set(), asyncio.Event()))[0].add(key)
        self._begun.set()

    def finish(self, key: ConversationKey) -> None:
        """Let the new messages of *key* pass: its missed ones are read, or cannot be."""
        keys, event = self._unread.get(key.external_id, (set(), None))
        keys.discard(key)
        if event is not None and not keys:
            del self._unread[key.external_id]
            event.set()

    @asynccontextmanager
    async def slot(self, key: ConversationKey) -> AsyncIterator[None]:
        """Hold one of `CONCURRENT_FETCHES` slots; those in whose place a new message waits get one first."""
        if self._free_slots:
            self._free_slots -= 1
        else:
            await self._wait_for_slot(key)
        try:
            yield
        finally:
            self._release_slot()

    async def _wait_for(self, place: str) -> None:
        keys, event = self._unread[place]
        self._urgent.add(place)
        for key in keys & self._queue.keys():
            self._queue.move_to_end(key, last=False)
        try:
            await event.wait()
        finally:
            self._urgent.discard(place)

    async def _wait_for_slot(self, key: ConversationKey) -> None:
        granted = self._queue[key] = asyncio.Event()
        if key.external_id in self._urgent:
            self._queue.move_to_end(key, last=False)
        try:
            await granted.wait()
        except asyncio.CancelledError:
            if self._queue.pop(key, None) is None:
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        if self._queue:
            self._queue.popitem(last=False)[1].set()
        else:
            self._free_slots += 1
