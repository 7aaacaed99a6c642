"""Keeps background work in Redis until it is done: once for each kind, conversation and turn.

A lane is a partition and a kind. Jobs of a lane run in order, lanes side by side; a job that fails in a way that may
pass holds up only its lane. One process runs the jobs at a time.

Keys (owner ``jobs``, in the conversation's partition): ``queue``, a list of jobs for each kind; ``known``, one key for
each job that was enqueued in the last days.
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
from runtime.observability import event_context
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


_OWNER = "jobs"
_VERSION = 1
_KNOWN_SECONDS = 7 * 24 * 3600
_SWEEP_SECONDS = 5.0
COLLECT_SECONDS = 0.25
"""How long jobs that can be done together wait for more: the jobs of a burst of turns are one piece of work then, and
do not slow the next turns down."""
_PAGE = 32
"""Jobs that are read from one lane at a time."""
_TOGETHER = 64
"""Jobs that are done together at most."""
LAST_SECONDS = 1.0
"""How long an orderly stop waits for jobs."""
MAX_ATTEMPTS = 3
"""Attempts in a row; then the lane rests for a while."""
GIVE_UP_SECONDS = 3600.0
"""How long one job may hold up its lane. After that the job is to blame, not an outage, and is dropped."""

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
    """One piece of work: its kind, for which conversation, after which turn."""

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
"""Does many jobs of one kind as one piece of work, and returns those that must be done one by one. If it raises, all
are done one by one, so a job must be repeatable."""
Lane = tuple[int, str]
"""Partition and kind."""


class _Later(Exception):
    """A job could not be done now, and may succeed later."""


class Jobs:
    """The queue and its runner; *handlers* by kind, each run *concurrency* times at once.

    Kinds that have a handler in *together* wait a moment for more jobs. *alone*: no other process enqueues jobs, so
    there is no sweep. *sweep_seconds* is how often one looks, and how long a lane rests after a failure. The other
    numbers are explained at their defaults.
    """

    def __init__(
        self,
        redis: Redis,
        handlers: Mapping[str, Handler],
        concurrency: int = 2,
        *,
        together: Mapping[str, Together] | None = None,
        alone: bool = True,
        sweep_seconds: float | None = None,
        collect_seconds: float = COLLECT_SECONDS,
        give_up_seconds: float = GIVE_UP_SECONDS,
        attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._sweep_seconds = _SWEEP_SECONDS if sweep_seconds is None else sweep_seconds
        self._collect_seconds = collect_seconds
        self._give_up_seconds = give_up_seconds
        self._attempts = attempts
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
        """Enqueue *jobs*, all of one conversation, in one step; return how many were not enqueued before."""
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
        except (StoreUnavailable, asyncio.CancelledError):  # they may be stored all the same
            self._look_at((job.key.partition, job.kind) for job in jobs)
            raise
        self._look_at((jobs[index].key.partition, jobs[index].kind) for index in added)
        return len(added)

    def _look_at(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self._waiting.add(lane)
            if wake := self._wake.get(lane[1]):  # None: only another process has a handler
                wake.set()

    async def run(self) -> None:
        """Run enqueued jobs until cancelled."""
        # The process that ran the jobs before, this one included, may have left some in any lane.
        self._busy, self._resting = set(), set()
        self._look_at(self._lanes)
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as running:
                for kind in self._handlers:
                    running.create_task(self._serve(kind, running))
                while not self._alone:
                    await asyncio.sleep(self._sweep_seconds)
                    self._look_at(self._lanes - self._resting)
        finally:
            self._is_running = False

    async def finish(self) -> None:
        """Wait until the jobs in hand are done, for an orderly stop: `LAST_SECONDS` at most.

        Lanes that rest after a failure are not waited for; what is left waits in the store.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while self._is_running and (self._waiting | self._busy) - self._resting:
                    self._hurry.set()
                    await asyncio.sleep(0.02)

    async def _serve(self, kind: str, running: asyncio.TaskGroup) -> None:
        while True:
            await self._wake[kind].wait()
            if kind in self._together:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._collect_seconds):
                        await self._hurry.wait()
            self._wake[kind].clear()
            await self._run_waiting(kind, running)

    async def _run_waiting(self, kind: str, running: asyncio.TaskGroup) -> None:
        """Run the jobs that wait in the lanes of *kind*: together if possible, the rest of each lane one by one."""
        lanes = sorted(lane for lane in self._waiting - self._busy if lane[1] == kind)
        self._waiting.difference_update(lanes)
        self._busy.update(lanes)
        queued: dict[Lane, list[str]] = {}
        try:
            queued = await self._read(lanes)
            alone = await self._do_together(kind, queued)
        except StoreUnavailable:
            running.create_task(self._rest(lanes))
            return
        except Exception:  # noqa: BLE001 - the broken job shows, and is logged, when they run one by one
            alone = dict.fromkeys(queued or lanes, _PAGE)
        self._busy.difference_update(set(lanes) - set(alone))
        for lane, count in sorted(alone.items()):
            # Jobs that come meanwhile may be done together again.
            running.create_task(self._drain(lane, count if kind in self._together else None))
        self._look_at(lane for lane, packed in queued.items() if len(packed) == _PAGE)

    async def _read(self, lanes: Sequence[Lane]) -> dict[Lane, list[str]]:
        """Return the first jobs of each of *lanes* that has any."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.lrange(_queue(lane), 0, _PAGE - 1)
            found: Any = await pipe.execute() if lanes else []
        return {lane: packed for lane, packed in zip(lanes, found, strict=True) if packed}

    async def _do_together(self, kind: str, queued: Mapping[Lane, Sequence[str]]) -> dict[Lane, int]:
        """Do what can be done together of *queued*; return the number of jobs that are left, by lane."""
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
        """Run the jobs of *lane* one by one: all, or the first *most*."""
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
        """Leave *lanes* alone for a while."""
        self._resting.update(lanes)
        await asyncio.sleep(self._sweep_seconds)
        self._resting.difference_update(lanes)
        self._busy.difference_update(lanes)
        self._look_at(lanes)

    def _is_hopeless(self, lane: Lane, packed: str) -> bool:
        """Return whether the first job of *lane* has failed for too long."""
        failing, since = self._failing_since.get(lane, ("", 0.0))
        now = asyncio.get_running_loop().time()
        if failing != packed:
            self._failing_since[lane] = packed, now
            return False
        return now - since > self._give_up_seconds

    async def _do(self, job: Job) -> None:
        """Run *job*. Raises `_Later` if it may succeed later; any other failure is logged and final."""
        with event_context(workspace_id=job.key.workspace_id, context_id=job.key.context_id, turn_id=job.turn_id):
            for attempt in range(1, self._attempts + 1):
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
