"""Delivers what waits in the outbox at the addresses of this process, in order for each conversation."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from config.settings import Settings
from connectors.connector import Connector, SendFailed
from connectors.message import ConversationKey, OutboundMessage, StoreUnavailable, Superseded
from runtime.coordination import Given, Hub, News, asks_after, renews_after
from runtime.delivery.outbox import REPLY, NotNext, Outbox, address_in, addresses_of, stream_of, streams_of
from runtime.delivery.preview import Shows
from runtime.delivery.sender import Delivery, NoConnector
from runtime.observability import about

SWEEP_SECONDS = 2.0
_QUIET_SWEEP_SECONDS = 30.0
"""Where nobody else uses the store, nothing waits of which this process would not know, unless the store was away."""
_EACH = 64
_MOST = 4096
"""Replies that are in hand at a time for one address: in an outage of a platform the others wait in the store."""
_RETRY_SECONDS = (0.5, 5.0)
_TURN_SECONDS = 0.1
"""How often it is looked whether what another process delivers before, in the same conversation, is through."""
_TIDY_SECONDS = 1.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, order=True)
class _Waiting:
    """A reply that waits: its turn, its entry in the stream, and the reply itself where it is known."""

    rank: tuple[int, int]
    given: Given = field(compare=False)
    known: OutboundMessage | None = field(compare=False)

    @property
    def turn_id(self) -> str:
        return self.given.fields["turn"]

    @property
    def is_own(self) -> bool:
        """Whether it is for people who are connected to this process."""
        return "@" in self.given.stream


class Deliverer:
    """Reads the *outbox* for the *connectors* of this process. *alone* says that no other process uses the store."""

    def __init__(
        self,
        settings: Settings,
        outbox: Outbox,
        connectors: Mapping[str, Connector],
        delivery: Delivery,
        shows: Shows,
        hub: Hub,
        *,
        alone: bool = False,
    ) -> None:
        self._grace_seconds = settings.shutdown_grace_seconds
        self._lease_seconds = float(settings.turn_lease_seconds)
        self._delivery = delivery
        self._shows = shows
        self._alone = alone
        self._outbox = outbox
        self._streams = outbox.streams
        self._addresses = frozenset(addresses_of(connectors, hub.name))
        self._shared = streams_of(sorted(address for address in self._addresses if "@" not in address))
        self._own = streams_of(sorted(address for address in self._addresses if "@" in address))
        self._rung: set[str] = set()
        self._unsure: set[str] = set()
        """Streams of which something may have been given to this process that does not know of it."""
        self._bell = asyncio.Event()
        self._troubled = asyncio.Event()
        self._lines: dict[ConversationKey, list[_Waiting]] = {}
        self._known: dict[tuple[str, str], _Waiting] = {}
        self._in_hand: Counter[str] = Counter()
        """By address."""
        self._over: defaultdict[str, list[str]] = defaultdict(list)
        """By stream of this process's own: entries that were delivered and are to be taken away."""
        self._reading_own = asyncio.Lock()
        """So that none of them is taken for new while it is taken away."""
        self._tasks: set[asyncio.Task[None]] = set()
        hub.hear(REPLY, self._hear)

    def _hear(self, news: News) -> None:
        if news["address"] in self._addresses:
            self._ring(stream_of(news["partition"], news["address"]))

    def _ring(self, stream: str) -> None:
        self._rung.add(stream)
        self._bell.set()

    def delivers_at(self, address: str) -> bool:
        return address in self._addresses

    def room(self, address: str) -> int:
        return max(0, min(_EACH, _MOST - self._in_hand[address]))

    def take(self, given: Sequence[Given], known: OutboundMessage | None = None) -> None:
        for one in given:
            self._line_up(one, known if known is not None and one.fields["turn"] == known.turn_id else None)

    def look(self, partition: int, address: str) -> None:
        stream = stream_of(partition, address)
        if "@" not in address:
            self._unsure.add(stream)
        self._ring(stream)

    def missed(self) -> None:
        self._troubled.set()

    async def run(self) -> None:
        """Deliver until cancelled; what is in hand then is given the grace period to end."""
        with self._outbox.delivered_here(self):
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(one) for one in (self._sweep(), self._renew(), self._tidy())]
                try:
                    while True:
                        await self._bell.wait()
                        self._bell.clear()
                        await self._read_rung()
                finally:
                    for task in helpers:
                        task.cancel()
                    await asyncio.shield(self._finish())

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._read_rung()
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
                await self._take_away()
        except TimeoutError:
            unfinished = set(self._tasks)
            for task in unfinished:
                task.cancel()
            if unfinished:
                _log.warning("delivery.unfinished", conversations=len(unfinished))
                await asyncio.wait(unfinished, timeout=1.0)

    async def _read_rung(self) -> None:
        while self._rung:
            streams, self._rung = self._rung, set()
            try:
                await self._read_own([stream for stream in streams if "@" in stream])
                await self._read_shared([stream for stream in streams if "@" not in stream])
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
                self._troubled.set()
                return  # the sweep asks for all of them

    async def _read_shared(self, streams: list[str]) -> None:
        unsure = [stream for stream in streams if stream in self._unsure]
        if unsure:
            self._unsure.difference_update(unsure)
            self.take(await self._streams.mine(unsure))
        with_room = [stream for stream in streams if self.room(address_in(stream)) == _EACH]
        if not with_room:
            return  # what is over makes room, and rings
        given = await self._streams.offered(with_room, _EACH)
        for stream, found in Counter(one.stream for one in given).items():
            if found >= _EACH:  # as many as it may: there may be more
                self._rung.add(stream)
        self.take(given)

    async def _read_own(self, streams: list[str]) -> None:
        async with self._reading_own:
            for one, known in await self._outbox.arrived(streams):
                self._line_up(one, known)

    def _line_up(self, one: Given, known: OutboundMessage | None) -> None:
        if (one.stream, one.id) in self._known or one.id in self._over.get(one.stream, ()):
            return
        waiting = self._known[one.stream, one.id] = _Waiting(one.rank, one, known)
        self._in_hand[address_in(one.stream)] += 1
        key = ConversationKey.decode(one.fields["key"])
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = []
            # Not in the group: the end of `run` gives them time, where a group would cancel them.
            task = asyncio.create_task(self._deliver_line(key, line), name=f"replies to {key.context_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        heapq.heappush(line, waiting)  # what was taken over from the dead is older

    def _let_go(self, waiting: _Waiting) -> None:
        stream, address = waiting.given.stream, address_in(waiting.given.stream)
        del self._known[stream, waiting.given.id]
        self._in_hand[address] -= 1
        if self._in_hand[address] == _MOST - _EACH:  # there was no room: what waits can come now
            self._rung |= {one for one in self._shared if address_in(one) == address}
            self._bell.set()

    async def _sweep(self) -> None:
        silent_seconds = 0.0 if self._alone else self._lease_seconds
        prepared = False
        while True:
            missed = self._troubled.is_set()
            self._troubled.clear()
            try:
                if not prepared:
                    await self._streams.prepare(self._shared)
                if missed:
                    self.take(await self._streams.mine(self._shared))
                spares = not self._alone
                self.take(await self._streams.abandoned(self._shared, silent_seconds, _MOST, spares=spares))
                prepared, silent_seconds = True, self._lease_seconds
                self._rung |= {*self._shared, *self._own}
                self._bell.set()
            except StoreUnavailable as error:
                prepared = False
                self._troubled.set()
                _log.warning("store.degraded", store="redis", why=str(error))
            await asyncio.sleep(min(SWEEP_SECONDS, asks_after(self._lease_seconds)))
            if self._alone:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_SWEEP_SECONDS):
                        await self._troubled.wait()

    async def _renew(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(renews_after(self._lease_seconds, failed=failed))
            try:
                await self._streams.renew([one.given for one in list(self._known.values()) if not one.is_own])
                failed = False
            except StoreUnavailable as error:
                failed = True
                _log.warning("store.degraded", store="redis", why=str(error))

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            await self._take_away()

    async def _take_away(self) -> None:
        """Take what was handed over out of this process's own streams; nobody waits for that."""
        async with self._reading_own:
            over = {stream: tuple(ids) for stream, ids in self._over.items()}
            if not over:
                return
            try:
                await self._streams.dropped(over)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
                return
            for stream, ids in over.items():
                self._over[stream] = self._over[stream][len(ids) :]
                if not self._over[stream]:
                    del self._over[stream]

    async def _deliver_line(self, key: ConversationKey, line: list[_Waiting]) -> None:
        try:
            with about(workspace_id=key.workspace_id, context_id=key.context_id, connector=key.connector):
                while line:
                    waiting = heapq.heappop(line)
                    try:
                        with about(turn_id=waiting.turn_id):
                            await self._deliver(key, waiting)
                    except NotNext:
                        # Without the reply to look again uses nothing up of what the platform allows.
                        heapq.heappush(line, replace(waiting, known=None))
                        await asyncio.sleep(_TURN_SECONDS)
                    else:
                        self._let_go(waiting)
        finally:
            del self._lines[key]

    async def _deliver(self, key: ConversationKey, waiting: _Waiting) -> None:
        """Deliver one reply. A store that is away is waited for. Raises `NotNext`."""
        wait, longest = _RETRY_SECONDS
        while True:
            try:
                await self._shows.finish(waiting.turn_id)
                await self._try(key, waiting)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            else:
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _try(self, key: ConversationKey, waiting: _Waiting) -> None:
        """Deliver one reply, as far as that is this process's to do. A reply that the platform refuses for good, or
        chokes on, is given up, aloud; one that another process delivers now is that one's to end."""
        given = waiting.given
        try:
            try:
                await self._delivery.deliver(key, waiting.turn_id, None if waiting.is_own else given, waiting.known)
            except (SendFailed, NoConnector) as error:
                await self._give_up(key, waiting)
                _log.error("turn.failed", why="undeliverable", detail=str(error))
            except (StoreUnavailable, Superseded, NotNext):
                raise
            except Exception:  # noqa: BLE001 - a broken adapter; to deliver again would break again, for ever
                await self._give_up(key, waiting)
                _log.exception("turn.failed", why="undeliverable")
        except Superseded:
            _log.warning("delivery.superseded")
        if waiting.is_own:
            self._over[given.stream].append(given.id)

    async def _give_up(self, key: ConversationKey, waiting: _Waiting) -> None:
        if not waiting.is_own:
            await self._delivery.give_up(key, waiting.turn_id, waiting.given)
