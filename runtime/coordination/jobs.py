"""Durable background work, off the reply's path: kept in Redis until done, once per (kind, scope, turn).

Keys (owner ``jobs``, in the conversation's partition): ``queue`` a list of jobs for each kind, ``known`` one
key per job.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import (
    PARTITIONS,
    AgentRuntimeError,
    ConversationKey,
    StoreUnavailable,
    partition_tag,
    redis_key,
)
from runtime.observability import about
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


_OWNER = "jobs"
_VERSION = 1
_KNOWN_SECONDS = 7 * 24 * 3600
_SWEEP_SECONDS = 5.0
SETTLE_SECONDS = 0.25
"""How long work that can be done together waits for more of it, and again as often as more has come: what a burst of
turns leaves is one piece of work, and not in the way of the next of them."""
MOST_SETTLE_SECONDS = 2.0
"""So long it waits at most: then what came until now is done, though the burst goes on."""
_PAGE = 32
_TOGETHER = 64
"""Jobs that are read from one lane, and that are done together, at most."""
LAST_SECONDS = 1.0
MAX_ATTEMPTS = 3
"""In a row; what may succeed later is then left for a while, and what stands behind it too."""
GIVE_UP_SECONDS = 3600.0
"""How long one job may hold up those behind it: then it is the job, and no outage."""

_ENQUEUE = """
local added = {}
for at = 2, #ARGV do
  local known, queue = KEYS[2 * at - 3], KEYS[2 * at - 2]
  if redis.call('SET', known, '1', 'NX', 'EX', ARGV[1]) then
    redis.call('RPUSH', queue, ARGV[at])
    added[#added + 1] = at - 2
  end
end
return added
"""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work: what, for which conversation, after which turn."""

    kind: str
    key: ConversationKey
    turn_id: str

    def packed(self) -> str:
        return pack(_VERSION, kind=self.kind, key=self.key.encoded, turn=self.turn_id)

    @classmethod
    def unpacked(cls, text: str) -> Job:
        fields = unpack(text, _VERSION, "a job")
        return cls(fields["kind"], ConversationKey.decode(fields["key"]), fields["turn"])


Handler = Callable[[Job], Awaitable[None]]
Together = Callable[[Sequence[Job]], Awaitable[Sequence[Job]]]
"""Does what it can of many jobs of one kind as one piece of work, and gives those that are still to be done one by one.
Where it raises, all are: so it must be possible to do a job again."""
Lane = tuple[int, str]
"""Partition and kind: what fails in one lane holds up no other."""


class _Later(Exception):
    """A job could not be done now."""


class Jobs:
    """The queue and its runner; *handlers* by kind, of each *concurrency* at a time. One process
    runs it at a time.

    Kinds that have a handler in *together* wait a moment for more of their kind. *alone* says that no other process
    enqueues anything; else it is looked for every few seconds.
    """

    def __init__(
        self,
        redis: Redis,
        handlers: Mapping[str, Handler],
        concurrency: int = 2,
        *,
        together: Mapping[str, Together] | None = None,
        alone: bool = True,
    ) -> None:
        self._redis = redis
        self._handlers = handlers
        self._together = dict(together or {})
        self._alone = alone
        self._enqueue = redis.register_script(_ENQUEUE)
        self._wake = {kind: asyncio.Event() for kind in handlers}
        self._hurry = asyncio.Event()
        self._lanes: frozenset[Lane] = frozenset(itertools.product(range(PARTITIONS), handlers))
        self._waiting: set[Lane] = set(self._lanes)
        self._busy: set[Lane] = set()
        self._resting: set[Lane] = set()
        self._is_running = False
        self._failing_since: dict[Lane, tuple[str, float]] = {}
        self._slots = {kind: asyncio.Semaphore(concurrency) for kind in handlers}

    async def enqueue(self, *jobs: Job) -> int:
        """Keep *jobs*, all of one conversation, until they are done; how many were not enqueued before. One step."""
        keys = [
            key
            for job in jobs
            for key in (
                redis_key(_OWNER, job.key.tag, "known", job.kind, job.key.encoded, job.turn_id),
                redis_key(_OWNER, job.key.tag, "queue", job.kind),
            )
        ]
        try:
            added: Any = await self._enqueue(keys=keys, args=[_KNOWN_SECONDS, *(job.packed() for job in jobs)])
        except (StoreUnavailable, asyncio.CancelledError):  # they may be kept all the same
            self._look_at((job.key.partition, job.kind) for job in jobs)
            raise
        self._look_at((jobs[index].key.partition, jobs[index].kind) for index in added)
        return len(added)

    def _look_at(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self._waiting.add(lane)
            if wake := self._wake.get(lane[1]):  # another process may do what this one knows no handler for
                wake.set()

    async def run(self) -> None:
        """Do what is enqueued until cancelled: in order within a lane, lanes side by side."""
        # Whoever had the duty before, this process too, may have left anything.
        self._busy, self._resting = set(), set()
        self._look_at(self._lanes)
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as running:
                for kind in self._handlers:
                    running.create_task(self._serve(kind, running))
                while not self._alone:
                    await asyncio.sleep(_SWEEP_SECONDS)
                    self._look_at(self._lanes - self._resting)
        finally:
            self._is_running = False

    async def idle(self) -> None:
        """Wait until everything that is enqueued was done or given up; for tests."""
        while self._waiting or await self._anything_queued():
            self._hurry.set()
            await asyncio.sleep(0.02)
        self._hurry.clear()

    async def finish(self) -> None:
        """Wait until what this process was to do now is done; for orderly stops. It waits for nothing that failed, for
        nothing that others do, and for `LAST_SECONDS` at most: the rest waits in the store."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while self._is_running and (self._waiting | self._busy) - self._resting:
                    self._hurry.set()
                    await asyncio.sleep(0.02)

    async def _anything_queued(self) -> bool:
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in self._lanes:
                pipe.llen(_queue(lane))
            return any(await pipe.execute())

    async def _serve(self, kind: str, running: asyncio.TaskGroup) -> None:
        settled = True  # what is found at the start has waited long enough
        while True:
            await self._wake[kind].wait()
            if kind in self._together and not settled:
                await self._settle(self._wake[kind])
            self._wake[kind].clear()
            settled = await self._take(kind, running)

    async def _settle(self, more: asyncio.Event) -> None:
        """Wait until no *more* has come for `SETTLE_SECONDS`, `MOST_SETTLE_SECONDS` are over, or somebody hurries."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + MOST_SETTLE_SECONDS
        while more.is_set() and loop.time() < latest:
            more.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._hurry.wait()
                    return

    async def _take(self, kind: str, running: asyncio.TaskGroup) -> bool:
        """Do what waits in the lanes of *kind*: together as far as that goes, the rest of each lane by itself. Whether
        there was more than one look shows."""
        lanes = sorted(lane for lane in self._waiting - self._busy if lane[1] == kind)
        self._waiting.difference_update(lanes)
        self._busy.update(lanes)
        queued: dict[Lane, list[str]] = {}
        try:
            queued = await self._read(lanes)
            alone = await self._do_together(kind, queued)
        except StoreUnavailable:
            running.create_task(self._rest(lanes))
            return False
        except Exception:  # noqa: BLE001 - which of the jobs it was shows when they are done one by one, and is said then
            alone = dict.fromkeys(queued or lanes, _PAGE)
        self._busy.difference_update(set(lanes) - set(alone))
        for lane, count in sorted(alone.items()):
            # What comes meanwhile may be done together again, where there is a way to.
            running.create_task(self._drain(lane, count if kind in self._together else None))
        full = [lane for lane, packed in queued.items() if len(packed) == _PAGE]
        self._look_at(full)
        return bool(full)

    async def _read(self, lanes: Sequence[Lane]) -> dict[Lane, list[str]]:
        """The first jobs of each of *lanes* that has any."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.lrange(_queue(lane), 0, _PAGE - 1)
            found: Any = await pipe.execute() if lanes else []
        return {lane: packed for lane, packed in zip(lanes, found, strict=True) if packed}

    async def _do_together(self, kind: str, queued: Mapping[Lane, Sequence[str]]) -> dict[Lane, int]:
        """Do what can be done together of *queued*; the lanes that hold what cannot, and how many jobs of it."""
        together = self._together.get(kind)
        if together is None:
            return {lane: len(packed) for lane, packed in queued.items()}
        alone = {lane: len(queued[lane]) for lane in queued if lane in self._failing_since}
        taken = [
            (lane, packed, Job.unpacked(packed)) for lane in queued if lane not in alone for packed in queued[lane]
        ]
        for start in range(0, len(taken), _TOGETHER):
            some = taken[start : start + _TOGETHER]
            left = set(await together([job for _, _, job in some]))
            async with self._redis.pipeline(transaction=False) as pipe:
                for lane, packed, job in some:
                    if job in left:
                        alone[lane] = alone.get(lane, 0) + 1
                    else:
                        pipe.lrem(_queue(lane), 1, packed)
                await pipe.execute()
        return alone

    async def _drain(self, lane: Lane, most: int | None) -> None:
        """Do what is queued in *lane*, one by one: all of it, or the first *most*."""
        queue = _queue(lane)
        try:
            for _ in itertools.count() if most is None else range(most):
                first: Any = await self._redis.lindex(queue, 0)
                if first is None:
                    return
                try:
                    async with self._slots[lane[1]]:
                        await self._do(Job.unpacked(first))
                except _Later:
                    if not self._is_hopeless(lane, first):
                        raise
                self._failing_since.pop(lane, None)
                await self._redis.lrem(queue, 1, first)
        except (StoreUnavailable, _Later):
            await self._rest([lane])
        except Exception:  # noqa: BLE001 - one lane that cannot be read must not stop the others; it is logged whole
            _log.exception("job.failed", kind=lane[1], why="unreadable")
            await self._rest([lane])
        finally:
            self._busy.discard(lane)
            self._wake[lane[1]].set()

    async def _rest(self, lanes: Sequence[Lane]) -> None:
        """Leave *lanes* alone for a while, and look at them again then."""
        self._resting.update(lanes)
        await asyncio.sleep(_SWEEP_SECONDS)
        self._resting.difference_update(lanes)
        self._busy.difference_update(lanes)
        self._look_at(lanes)

    def _is_hopeless(self, lane: Lane, packed: str) -> bool:
        """Whether the first job of *lane* has failed for longer than an outage may last."""
        failing, since = self._failing_since.get(lane, ("", 0.0))
        now = asyncio.get_running_loop().time()
        if failing != packed:
            self._failing_since[lane] = packed, now
            return False
        return now - since > GIVE_UP_SECONDS

    async def _do(self, job: Job) -> None:
        """Run *job*. Raises `_Later` where it may succeed later; any other failure is said aloud and final."""
        with about(workspace_id=job.key.workspace_id, context_id=job.key.context_id, turn_id=job.turn_id):
            for attempt in range(1, MAX_ATTEMPTS + 1):
                try:
                    await self._handlers[job.kind](job)
                except StoreUnavailable:
                    raise
                except AgentRuntimeError as error:
                    _log.warning("job.failed", kind=job.kind, attempt=attempt, why=str(error))
                    if not error.retryable:
                        return
                except Exception:  # noqa: BLE001 - one broken job must not stop the others; it is logged whole
                    _log.exception("job.failed", kind=job.kind, attempt=attempt)
                    return
                else:
                    return
                await asyncio.sleep(0.2 * 2**attempt)
        raise _Later


def _queue(lane: Lane) -> str:
    partition, kind = lane
    return redis_key(_OWNER, partition_tag(partition), "queue", kind)
