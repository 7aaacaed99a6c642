"""Keeps connectors running, and reads what people wrote on their platforms while no process listened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

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
from connectors.message import (
    Accepted,
    AgentRuntimeError,
    ConversationKey,
    InboundKind,
    InboundMessage,
    StoreUnavailable,
)
from runtime.turns import Mailbox

CONCURRENT_FETCHES = 4
KNOWN_PLACES = 10_000
BACKFILL_WAIT_SECONDS = 15.0
"""How long after the beginning of a session new messages wait for the missed ones before them."""
_RETRY_SECONDS = (1.0, 60.0)
"""First and longest pause before something is tried again."""
_WATCH_SECONDS = 0.5
_RECEIVING = (ConnectionState.CONNECTED, ConnectionState.DEGRADED)
_log = structlog.get_logger()


class Supervisor:
    """Runs connectors side by side, starts a broken one again and logs each change of health.

    With a *mailbox*, platforms that keep messages are asked for the missed ones (`Backfill`). Platforms that show
    commands to people get *commands*.
    """

    def __init__(
        self,
        connectors: Iterable[Connector],
        mailbox: Mailbox | None = None,
        commands: Sequence[CommandHint] = (),
        *,
        restart_seconds: tuple[float, float] = _RETRY_SECONDS,
        watch_seconds: float = _WATCH_SECONDS,
    ) -> None:
        self._connectors = tuple(connectors)
        self._mailbox = mailbox
        self._commands = tuple(commands)
        self._restart_seconds = restart_seconds
        self._watch_seconds = watch_seconds
        self._failed: dict[str, str] = {}
        self._backfills: dict[str, Backfill] = {}
        self._logged: dict[str, Health] = {}
        self.settled = asyncio.Event()
        """Set once the first connecting of each connector has succeeded or failed."""

    def health(self, connector: Connector) -> Health:
        """Return the connector's own health, or that its task broke, or that missed messages cannot be read."""
        why = self._failed.get(connector.name)
        if why is not None:
            return Health(ConnectionState.FAILED, why)
        health, backfill = connector.health, self._backfills.get(connector.name)
        if health.state is ConnectionState.CONNECTED and backfill is not None and backfill.trouble:
            return Health(ConnectionState.DEGRADED, backfill.trouble)
        return health

    def all_health(self) -> dict[str, Health]:
        """Return the health of each connector by name."""
        return {connector.name: self.health(connector) for connector in self._connectors}

    async def run(self, accept: Accept) -> None:
        """Run all connectors until cancelled."""
        async with asyncio.TaskGroup() as group:
            for connector in self._connectors:
                accept_live = accept
                if self._mailbox is not None:
                    backfill = Backfill(connector, self._mailbox.last_seen, accept)
                    self._backfills[connector.name] = backfill
                    group.create_task(backfill.run(), name=f"missed {connector.name}")
                    accept_live = backfill.accept
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


class Backfill:
    """Reads the messages that were written on the platform of *connector* while no session was open.

    Does nothing for a platform without `BackfillsMessages`. *last_stored* returns the newest stored message of each
    conversation of a connector. In each place from which a message is stored or was received, the messages after the
    newest one are read at the beginning of each session; *accept* drops those that it stored before. A place that such
    a reading comes upon (a thread that a missed message began) is read as well.

    A new message waits until that is done in its place, and lets its place be read first. If it were stored before the
    missed ones, the order would be wrong. It waits until *wait_seconds* after the session began at most; then it goes
    first, and the missed ones follow.
    """

    def __init__(
        self,
        connector: Connector,
        last_stored: Callable[[str], Awaitable[Mapping[ConversationKey, str]]],
        accept: Accept,
        *,
        wait_seconds: float = BACKFILL_WAIT_SECONDS,
        retry_seconds: tuple[float, float] = _RETRY_SECONDS,
        watch_seconds: float = _WATCH_SECONDS,
    ) -> None:
        self._connector = connector
        self._platform = connector if isinstance(connector, BackfillsMessages) else None
        self._last_stored = last_stored
        self._accept = accept
        self._wait_seconds = wait_seconds
        self._retry_seconds = retry_seconds
        self._watch_seconds = watch_seconds
        self._session = 0
        """The session whose missed messages are being read, or were."""
        self._has_begun = asyncio.Event()
        """Set once `_unread` holds for the present session."""
        self._is_awaited = asyncio.Event()
        self._deadline = 0.0
        self._newest: dict[str, str] = {}
        """By place: the id of the message after which messages may be missing."""
        self._unread: dict[str, asyncio.Lock] = {}
        """The places that are still to be read. Who reads one holds its lock."""
        self._failing: dict[str, str] = {}
        """By place: why it could not be read so far."""
        self._slots = asyncio.Semaphore(CONCURRENT_FETCHES)

    @property
    def trouble(self) -> str:
        """Why missed messages cannot be read yet; empty if nothing is wrong."""
        why = next(iter(self._failing.values()), "")
        return f"what was missed cannot be read yet in {len(self._failing)} places: {why}" if why else ""

    async def accept(self, message: InboundMessage) -> Accepted:
        """Accept a new message, after the missed ones of its place."""
        if self._platform is None or message.kind is not InboundKind.MESSAGE:
            return await self._accept(message)
        place = message.external_id
        if self._platform.sessions != self._session:
            self._has_begun.clear()
            self._is_awaited.set()
        is_late = asyncio.get_running_loop().time() >= self._deadline
        if not self._has_begun.is_set() or (place in self._unread and not is_late):
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await self._has_begun.wait()
                async with asyncio.timeout_at(self._deadline):
                    await self._read_with_retries(place, nullcontext())
            except TimeoutError:
                _log.warning("message.overtakes", connector=message.connector, external_id=place)
        accepted = await self._accept(message)
        if self._has_begun.is_set() and place not in self._unread:
            self._note_newest(place, message.message_id)
        return accepted

    async def run(self) -> None:
        """Read after the beginning of each session, until cancelled."""
        if self._platform is None:
            return
        for key, message_id in (await self._ask_store()).items():
            # A place that was routed to another workspace: of two ids of a platform the longer or greater is newer.
            known = self._newest.get(key.external_id, "")
            self._newest[key.external_id] = max(known, message_id, key=lambda text: (len(text), text))
        while True:
            await self._wait_for_session(self._platform)
            readers: dict[str, asyncio.Task[None]] = {}
            async with asyncio.TaskGroup() as group:
                while self._platform.sessions == self._session:
                    for place in [place for place in self._unread if place not in readers]:
                        readers[place] = group.create_task(self._read_with_retries(place, self._slots))
                    await self._wait_a_moment()
                for reader in readers.values():
                    reader.cancel()

    async def _ask_store(self) -> Mapping[ConversationKey, str]:
        backoff = Backoff(*self._retry_seconds)
        while True:
            try:
                return await self._last_stored(self._connector.name)
            except StoreUnavailable:
                await asyncio.sleep(backoff.next_seconds())

    async def _wait_for_session(self, platform: BackfillsMessages) -> None:
        """Wait until there is a new session, and note which places are to be read in it."""
        while platform.sessions == self._session or self._connector.health.state not in _RECEIVING:
            await self._wait_a_moment()
        self._session = platform.sessions
        self._unread = {place: asyncio.Lock() for place in self._newest}
        self._failing.clear()
        self._deadline = asyncio.get_running_loop().time() + self._wait_seconds
        self._has_begun.set()

    async def _wait_a_moment(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._watch_seconds):
                await self._is_awaited.wait()
        self._is_awaited.clear()

    async def _read_with_retries(self, place: str, slot: AbstractAsyncContextManager[None]) -> None:
        """Read the missed messages of *place*, again after each error that may pass; each time within a *slot*.

        A session that begins meanwhile has a lock of its own for the place: then it is read again.
        """
        backoff = Backoff(*self._retry_seconds)
        while (lock := self._unread.get(place)) is not None:
            try:
                async with slot, lock:
                    if self._unread.get(place) is lock:
                        await self._read(place)
                    if self._unread.get(place) is lock:
                        del self._unread[place]
                        self._failing.pop(place, None)
            except AgentRuntimeError as error:
                if self._unread.get(place) is lock:
                    self._failing[place] = str(error)
                    await asyncio.sleep(backoff.next_seconds(getattr(error, "retry_after_seconds", None)))

    async def _read(self, place: str) -> None:
        """Have the missed messages of *place* accepted. Raises an `AgentRuntimeError` that may pass."""
        assert self._platform is not None
        stored = 0
        try:
            async for message in self._platform.missed(place, self._newest[place]):
                accepted = await self._accept(message)
                if message.external_id == place:
                    self._note_newest(place, message.message_id)
                elif message.external_id not in self._newest:
                    self._note_newest(message.external_id, message.message_id)
                    self._unread.setdefault(message.external_id, asyncio.Lock())
                stored += accepted.outcome != "duplicate"
        except AgentRuntimeError as error:
            if error.retryable:
                raise
            _log.warning("message.ignored", why="missed", external_id=place, detail=str(error))
        except Exception:  # noqa: BLE001 - logged whole; the other places are still read
            _log.exception("message.ignored", why="missed", external_id=place)
        if stored:
            _log.info("message.missed", connector=self._connector.name, external_id=place, heard=stored)

    def _note_newest(self, place: str, message_id: str) -> None:
        """Note that nothing is missing in *place* up to *message_id*. Keeps the `KNOWN_PLACES` that spoke last."""
        self._newest.pop(place, None)
        self._newest[place] = message_id
        if len(self._newest) > KNOWN_PLACES:
            del self._newest[next(iter(self._newest))]
