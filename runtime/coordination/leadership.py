"""What only one of several processes may do: it holds a lock in Redis for as long as it lives.

Key (owner ``leader``): ``ar:leader:{leader}:process``, the name of the process, for `LEASE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from connectors.message import StoreUnavailable, redis_key

if TYPE_CHECKING:
    from redis.asyncio import Redis


LEASE_SECONDS = 15.0
KEY = redis_key("leader", "{leader}", "process")
"""Whoever it names, if anybody, does the duties."""
_RENEW = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RESIGN = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_log = structlog.get_logger()


class Leadership:
    """Runs *duties* while this process, called *name*, is the one to do them."""

    def __init__(self, redis: Redis, name: str, duties: Callable[[], Awaitable[None]]) -> None:
        self._redis = redis
        self._name = name
        self._duties = duties
        self._renew = redis.register_script(_RENEW)
        self._resign = redis.register_script(_RESIGN)

    async def run(self) -> None:
        """Do the duties whenever nobody else does, until cancelled."""
        duties: asyncio.Task[None] | None = None
        held_until = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                asked = loop.time()
                with suppress(StoreUnavailable):
                    if await self._renew(keys=[KEY], args=[self._name, round(LEASE_SECONDS * 1000)]):
                        held_until = asked + LEASE_SECONDS
                    else:
                        held_until = 0.0
                if loop.time() < held_until and duties is None:
                    _log.info("leader.began")
                    duties = asyncio.create_task(_as_coroutine(self._duties), name="duties")
                elif loop.time() >= held_until and duties is not None:
                    _log.warning("leader.ended")
                    await _end(duties)
                    duties = None
                if duties is not None and duties.done():
                    await duties  # what it raised is its owner's to know
                    duties = None
                await asyncio.sleep(LEASE_SECONDS / 5)
        finally:
            if duties is not None:
                await _end(duties)
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._resign(keys=[KEY], args=[self._name])


async def _as_coroutine(duties: Callable[[], Awaitable[None]]) -> None:
    await duties()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
