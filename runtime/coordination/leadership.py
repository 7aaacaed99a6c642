"""Runs duties that only one of several processes may do, in the process that holds a lock in Redis.

Key (owner ``leader``): ``ar:leader:{leader}:process``, the name of the leading process, for `LEASE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import StoreUnavailable, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis


LEASE_SECONDS = 15.0
LEADER_KEY = redis_key("leader", "{leader}", "process")
"""Holds the name of the process that does the duties, if there is one."""
_RENEW = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RESIGN = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_log = structlog.get_logger()


class Leadership:
    """Runs *duties* while this process, called *name*, leads: it holds the lock for *lease_seconds* and renews it."""

    def __init__(
        self,
        redis: Redis,
        name: str,
        duties: Callable[[], Coroutine[Any, Any, None]],
        *,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._name = name
        self._lease_seconds = lease_seconds
        self._duties = duties
        self._renew = redis.register_script(_RENEW)
        self._resign = redis.register_script(_RESIGN)

    async def run(self) -> None:
        """Do the duties whenever no other process does, until cancelled. Raises what they raise."""
        duties: asyncio.Task[None] | None = None
        leads_until = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                now = loop.time()
                with suppress(StoreUnavailable):
                    if await self._renew(keys=[LEADER_KEY], args=[self._name, round(self._lease_seconds * 1000)]):
                        leads_until = now + self._lease_seconds
                    else:
                        leads_until = 0.0
                if loop.time() < leads_until and duties is None:
                    _log.info("leader.began")
                    duties = asyncio.create_task(self._duties(), name="duties")
                elif loop.time() >= leads_until and duties is not None:
                    _log.warning("leader.ended")
                    await _end(duties)
                    duties = None
                if duties is not None and duties.done():
                    await duties  # raises what they raised
                    duties = None
                await asyncio.sleep(self._lease_seconds / 5)
        finally:
            if duties is not None:
                await _end(duties)
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._resign(keys=[LEADER_KEY], args=[self._name])


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
