"""Delivers what waits in the outbox at the addresses of this process, in order for each conversation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from config.settings import Settings
from connectors.connector import Connector, SendFailed
from connectors.message import ConversationKey, StoreUnavailable, Superseded
from runtime.delivery import Delivery, NoConnector
from runtime.hub import Hub, News
from runtime.outbox import REPLY, addresses_of, streams_of
from runtime.part_states import stream_of
from runtime.shows import Shows
from runtime.work_streams import Given, WorkStreams

if TYPE_CHECKING:
    from redis.asyncio import Redis

SWEEP_SECONDS = 2.0
_EACH = 64
_RETRY_SECONDS = (0.5, 5.0)
_TURN_SECONDS = 0.1
"""How often it is looked whether what another process delivers before, in the same conversation, is through."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A reply that waits: its turn, and its entry in the stream."""

    turn_id: str
    given: Given
    shared: bool


class Deliverer:
    """Reads the outbox for the *connectors* of this process. *alone* says that no other process uses the store."""

    def __init__(
        self,
        settings: Settings,
        redis: Redis,
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
        self._streams = WorkStreams(redis)
        addresses = addresses_of(connectors, hub.name)
        self._addresses = frozenset(addresses)
        self._shared = streams_of([address for address in addresses if "@" not in address])
        self._own = streams_of([address for address in addresses if "@" in address])
        self._rung: set[str] = set()
        self._bell = asyncio.Event()
        self._lines: dict[ConversationKey, deque[_Waiting]] = {}
        self._known: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        hub.hear(REPLY, self._hear)

    def _hear(self, news: News) -> None:
        if news["address"] in self._addresses:
            self._rung.add(stream_of(news["partition"], news["address"]))
            self._bell.set()

    async def run(self) -> None:
        """Deliver until cancelled; what is in hand then is given the grace period to end."""
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._sweep()), group.create_task(self._renew())]
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
        except TimeoutError:
            unfinished = set(self._tasks)
            for task in unfinished:
                task.cancel()
            _log.warning("delivery.unfinished", conversations=len(unfinished))
            await asyncio.wait(unfinished, timeout=1.0)

    async def _read_rung(self) -> None:
        while self._rung:
            streams, self._rung = self._rung, set()
            own = [stream for stream in streams if "@" in stream]
            try:
                given = await self._streams.offered([stream for stream in streams if "@" not in stream], _EACH)
                mine = await self._streams.all(own) if own else []
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
                return  # the sweep asks for all of them
            self._rung |= {one.stream for one in given}  # there may be more
            self._line_up(given, shared=True)
            self._line_up(mine, shared=False)

    def _line_up(self, given: list[Given], *, shared: bool) -> None:
        for one in given:
            if (one.stream, one.id) in self._known:
                continue
            self._known.add((one.stream, one.id))
            key = ConversationKey.decode(one.fields["key"])
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = deque()
                # Not in the group: the end of `run` gives them time, where a group would cancel them.
                task = asyncio.create_task(self._deliver_line(key, line), name=f"replies to {key.context_id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            line.append(_Waiting(one.fields["turn"], one, shared))

    async def _sweep(self) -> None:
        silent_seconds = 0.0 if self._alone else self._lease_seconds
        prepared = False
        while True:
            try:
                if not prepared:
                    await self._streams.prepare(self._shared)
                self._line_up(await self._streams.abandoned(self._shared, silent_seconds), shared=True)
                prepared, silent_seconds = True, self._lease_seconds
                self._rung |= {*self._shared, *self._own}
                self._bell.set()
            except StoreUnavailable as error:
                prepared = False
                _log.warning("store.degraded", store="redis", why=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            held = [waiting.given for line in self._lines.values() for waiting in line if waiting.shared]
            try:
                await self._streams.renew(held)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))

    async def _deliver_line(self, key: ConversationKey, line: deque[_Waiting]) -> None:
        with structlog.contextvars.bound_contextvars(
            workspace_id=key.workspace_id, context_id=key.context_id, connector=key.connector
        ):
            while line:
                waiting = min(line, key=lambda one: one.given.rank)  # what was taken over from the dead is older
                if await self._is_next(key, waiting):
                    with structlog.contextvars.bound_contextvars(turn_id=waiting.turn_id):
                        await self._deliver(key, waiting)
                else:
                    await asyncio.sleep(_TURN_SECONDS)
                    continue
                line.remove(waiting)
                self._known.discard((waiting.given.stream, waiting.given.id))
        del self._lines[key]

    async def _is_next(self, key: ConversationKey, waiting: _Waiting) -> bool:
        """Whether no process, living or dead, still has an older reply of the conversation."""
        if self._alone or not waiting.shared:
            return True
        try:
            older = await self._streams.before(waiting.given)
        except StoreUnavailable:
            return False
        return all(one.fields["key"] != key.encoded for one in older)

    async def _deliver(self, key: ConversationKey, waiting: _Waiting) -> None:
        """Deliver one reply. A store that is away is waited for."""
        wait, longest = _RETRY_SECONDS
        while True:
            try:
                await self._shows.finish(waiting.turn_id)
                if await self._try(key, waiting.turn_id):
                    await self._streams.done(waiting.given)
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            else:
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _try(self, key: ConversationKey, turn_id: str) -> bool:
        """Whether nobody has to do more. A reply that the platform refuses for good, or chokes on, is given up, aloud;
        one that another process delivers now is that one's to end."""
        try:
            await self._delivery.deliver(key, turn_id)
        except Superseded:
            _log.warning("delivery.superseded")
            return False
        except (SendFailed, NoConnector) as error:
            _log.error("turn.failed", why="undeliverable", detail=str(error))
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - a broken adapter; to deliver again would break again, for ever
            _log.exception("turn.failed", why="undeliverable")
        return True
