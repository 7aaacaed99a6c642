"""Durable background work, off the reply's path: kept in Redis until done, once per (kind, scope, turn).

Keys (owner ``jobs``, in the conversation's partition): ``queue`` a list of jobs for each kind, ``known`` one
key per job.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
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
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "jobs"
_VERSION = 1
_KNOWN_SECONDS = 7 * 24 * 3600
_SWEEP_SECONDS = 5.0
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
Lane = tuple[int, str]
"""Partition and kind: what fails in one lane holds up no other."""


class _Later(Exception):
    """A job could not be done now."""


class Jobs:
    """The queue and its runner; *handlers* by kind, of each *concurrency* at a time. One process
    runs it at a time."""

    def __init__(self, redis: Redis, handlers: Mapping[str, Handler], concurrency: int = 2) -> None:
        self._redis = redis
        self._handlers = handlers
        self._enqueue = redis.register_script(_ENQUEUE)
        self._wake = asyncio.Event()
        self._lanes: frozenset[Lane] = frozenset(itertools.product(range(PARTITIONS), handlers))
        self._waiting: set[Lane] = set(self._lanes)
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
        added: Any = await self._enqueue(keys=keys, args=[_KNOWN_SECONDS, *(job.packed() for job in jobs)])
        for index in added:
            self._waiting.add((jobs[index].key.partition, jobs[index].kind))
        if added:
            self._wake.set()
        return len(added)

    async def run(self) -> None:
        """Do what is enqueued until cancelled: in order within a lane, lanes side by side."""
        async with asyncio.TaskGroup() as running:
            busy: set[Lane] = set()
            while True:
                for lane in self._waiting - busy:
                    self._waiting.discard(lane)
                    busy.add(lane)
                    running.create_task(self._drain(lane, busy))
                self._wake.clear()
                await self._wake.wait()

    async def idle(self) -> None:
        """Wait until everything that is enqueued was done or given up; for tests and orderly stops."""
        while self._waiting or await self._anything_queued():  # noqa: ASYNC110 - other processes may do the work
            await asyncio.sleep(0.02)

    async def _anything_queued(self) -> bool:
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in self._lanes:
                pipe.llen(_queue(lane))
            return any(await pipe.execute())

    async def _drain(self, lane: Lane, busy: set[Lane]) -> None:
        queue = _queue(lane)
        try:
            while True:
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
                await self._redis.lpop(queue)
        except (StoreUnavailable, _Later):
            await self._rest(lane)
        except Exception:  # noqa: BLE001 - one lane that cannot be read must not stop the others; it is logged whole
            _log.exception("job.failed", kind=lane[1], why="unreadable")
            await self._rest(lane)
        finally:
            busy.discard(lane)
            self._wake.set()

    async def _rest(self, lane: Lane) -> None:
        await asyncio.sleep(_SWEEP_SECONDS)
        self._waiting.add(lane)

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
        with structlog.contextvars.bound_contextvars(
            workspace_id=job.key.workspace_id, context_id=job.key.context_id, turn_id=job.turn_id
        ):
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
