"""Delivers what waits in the outbox at the addresses of this process, in order within each conversation.

The hub says at which address something new waits; a sweep finds what the hub did not tell, and what other processes
that stopped have left. Replies of one conversation go one after another, conversations side by side.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from config.settings import Settings
from connectors.connector import Connector, SendFailed
from connectors.message import ConversationKey, StoreUnavailable, Superseded
from runtime.coordination import Hub, News, StreamEntry, reclaim_interval, renew_interval
from runtime.delivery.outbox import REPLY, OlderReplyWaits, Outbox, address_of, stream_of, streams_of
from runtime.delivery.preview import Previews
from runtime.delivery.sender import Delivery, NoConnector
from runtime.observability import event_context
from runtime.stores import NewerFormat, retry_until_stored

_QUIET_SWEEP_SECONDS = 30.0
"""How often the only process on a store looks for what the hub did not tell."""
_READ_AT_ONCE = 64
_RECLAIMED_AT_ONCE = 4096
_log = structlog.get_logger()


class Deliverer:
    """Reads *outbox* for the *connectors* of this process. *alone*: no other process uses the store.

    *sweep_seconds* is how often it looks for what the hub did not tell. *turn_seconds* is how often a reply checks
    whether another process has delivered the older one of its conversation.
    """

    def __init__(
        self,
        settings: Settings,
        outbox: Outbox,
        connectors: Mapping[str, Connector],
        delivery: Delivery,
        shows: Previews,
        hub: Hub,
        *,
        alone: bool = False,
        sweep_seconds: float = 2.0,
        turn_seconds: float = 0.1,
    ) -> None:
        self._grace_seconds = settings.shutdown_grace_seconds
        self._lease_seconds = float(settings.turn_lease_seconds)
        self._sweep_seconds = sweep_seconds
        self._turn_seconds = turn_seconds
        self._delivery = delivery
        self._shows = shows
        self._alone = alone
        self._outbox = outbox
        self._streams = outbox.streams
        self._addresses = frozenset(address_of(connector, hub.name) for connector in connectors.values())
        self._own = streams_of(sorted(address for address in self._addresses if "@" in address))
        """Streams for people who are connected to this process; only this process reads them."""
        self._shared = streams_of(sorted(address for address in self._addresses if "@" not in address))
        """Streams that processes share by consumer groups."""
        self._unread: set[str] = set()
        """Streams in which something new may wait."""
        self._wake = asyncio.Event()
        self._store_failed = asyncio.Event()
        """Set when the store may have given entries to this process without its knowing."""
        self._known: dict[tuple[str, str], StreamEntry] = {}
        """Entries in hand, by stream and id."""
        self._lines: dict[ConversationKey, list[StreamEntry]] = {}
        """Entries that wait, by conversation."""
        self._own_lock = asyncio.Lock()
        """Keeps an entry that is being taken away from being read as new."""
        self._tasks: set[asyncio.Task[None]] = set()
        hub.hear(REPLY, self._hear)

    def _hear(self, news: News) -> None:
        if news["address"] in self._addresses:
            self._unread.add(stream_of(news["partition"], news["address"]))
            self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled; deliveries in hand then get the grace period to end."""
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._sweep()), group.create_task(self._renew())]
            try:
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    await self._read_unread()
            finally:
                for task in helpers:
                    task.cancel()
                await asyncio.shield(self._finish())

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._read_unread()
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
        except TimeoutError:
            unfinished = set(self._tasks)
            for task in unfinished:
                task.cancel()
            if unfinished:
                _log.warning("delivery.unfinished", conversations=len(unfinished))
                await asyncio.wait(unfinished, timeout=1.0)

    async def _read_unread(self) -> None:
        while self._unread:
            streams, self._unread = self._unread, set()
            try:
                async with self._own_lock:
                    self._line_up(await self._streams.all([stream for stream in streams if "@" in stream]))
                entries = await self._streams.read_new(
                    [stream for stream in streams if "@" not in stream], _READ_AT_ONCE
                )
            except StoreUnavailable as error:
                _log_degraded(error)
                self._store_failed.set()
                return  # the sweep reads all streams
            self._line_up(entries)
            counts = Counter(entry.stream for entry in entries)
            self._unread |= {stream for stream, count in counts.items() if count >= _READ_AT_ONCE}

    async def _sweep(self) -> None:
        silent_seconds = 0.0 if self._alone else self._lease_seconds
        is_prepared = False
        while True:
            has_failed = self._store_failed.is_set()
            self._store_failed.clear()
            try:
                if not is_prepared:
                    await self._streams.prepare(self._shared)
                if has_failed:
                    self._line_up(await self._streams.read_own(self._shared))
                self._line_up(
                    await self._streams.reclaim(
                        self._shared, silent_seconds, _RECLAIMED_AT_ONCE, spares=not self._alone
                    )
                )
                is_prepared, silent_seconds = True, self._lease_seconds
                self._unread |= {*self._shared, *self._own}
                self._wake.set()
            except StoreUnavailable as error:
                is_prepared = False
                self._store_failed.set()
                _log_degraded(error)
            await asyncio.sleep(min(self._sweep_seconds, reclaim_interval(self._lease_seconds)))
            if self._alone:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_SWEEP_SECONDS):
                        await self._store_failed.wait()

    async def _renew(self) -> None:
        has_failed = False
        while True:
            await asyncio.sleep(renew_interval(self._lease_seconds, failed=has_failed))
            try:
                await self._streams.renew([entry for entry in list(self._known.values()) if not _is_own(entry)])
                has_failed = False
            except StoreUnavailable as error:
                has_failed = True
                _log_degraded(error)

    def _line_up(self, entries: Sequence[StreamEntry]) -> None:
        for entry in entries:
            if (entry.stream, entry.id) in self._known:
                continue
            self._known[entry.stream, entry.id] = entry
            key = ConversationKey.decode(entry.fields["key"])
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = []
                # Not in the task group, which would cancel them at once; `_finish` gives them time.
                task = asyncio.create_task(self._deliver_line(key, line), name=f"replies to {key.context_id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            line.append(entry)

    async def _deliver_line(self, key: ConversationKey, line: list[StreamEntry]) -> None:
        try:
            with event_context(workspace_id=key.workspace_id, context_id=key.context_id, connector=key.connector):
                while line:
                    entry = min(line, key=lambda waiting: waiting.rank)  # one reclaimed from another process is older
                    try:
                        with event_context(turn_id=entry.fields["turn"]):
                            await self._deliver(key, entry)
                        line.remove(entry)
                    except OlderReplyWaits:
                        await asyncio.sleep(self._turn_seconds)
        except Exception:  # noqa: BLE001 - one conversation must not stop the others; it is logged whole
            _log.exception("delivery.failed", replies=len(line))
        finally:
            del self._lines[key]
            for entry in line:  # nobody renews them any more: after the lease some process reads them again
                self._known.pop((entry.stream, entry.id), None)

    async def _deliver(self, key: ConversationKey, entry: StreamEntry) -> None:
        """Deliver one reply, and wait for a store that is away.

        Raises `OlderReplyWaits`, and `runtime.stores.NewerFormat` if only a newer process can deliver it.
        """

        async def finish_preview_and_send() -> None:
            await self._shows.finish(entry.fields["turn"])
            await self._send(key, entry)

        async def remove_own() -> None:
            async with self._own_lock:
                await self._streams.remove(entry)
                del self._known[entry.stream, entry.id]

        await retry_until_stored(finish_preview_and_send)
        if _is_own(entry):
            await retry_until_stored(remove_own)
        else:
            del self._known[entry.stream, entry.id]

    async def _send(self, key: ConversationKey, entry: StreamEntry) -> None:
        """Send one reply, unless another process delivers it now; give up one that the platform will never take."""
        turn_id = entry.fields["turn"]
        try:
            try:
                await self._delivery.deliver(key, turn_id, None if _is_own(entry) else entry)
            except (StoreUnavailable, Superseded, OlderReplyWaits):
                raise
            except Exception as error:  # a broken adapter would break again for ever
                if not _is_own(entry):
                    if isinstance(error, NewerFormat):
                        raise
                    await self._outbox.done(key, turn_id, entry)
                if isinstance(error, SendFailed | NoConnector):
                    _log.error("turn.failed", why="undeliverable", detail=str(error))
                else:
                    _log.exception("turn.failed", why="undeliverable")
        except Superseded:
            _log.warning("delivery.superseded")


def _is_own(entry: StreamEntry) -> bool:
    return "@" in entry.stream


def _log_degraded(error: StoreUnavailable) -> None:
    _log.warning("store.degraded", store="redis", why=str(error))
