"""Lets one process at a time store documents of a workspace, so that the index ends as the last of them read it.

Key (owner ``documents``, in the workspace's tag): ``storing``, the token of who holds it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from connectors.message import Scope, StoreUnavailable, redis_key
from grounding.documents.backlog import OWNER

if TYPE_CHECKING:
    from redis.asyncio import Redis

HOLD_SECONDS = 30.0
"""The longest that anybody holds it. Storing one group of chunks takes far less."""
LEASE_SECONDS = 10.0
"""How long a holder that was killed is waited for: whoever lives renews it in time."""
_ASK_SECONDS = (0.01, 0.2)
_RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class StoringLease:
    """Of each workspace one."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._renew = redis.register_script(_RENEW)
        self._release = redis.register_script(_RELEASE)

    @asynccontextmanager
    async def __call__(self, scope: Scope) -> AsyncIterator[None]:
        """Hold it as long as the block lasts, at most `HOLD_SECONDS`. Raises `StoreUnavailable`."""
        key, token = redis_key(OWNER, scope.tag, "storing"), uuid.uuid4().hex
        wait, longest = _ASK_SECONDS
        while not await self._redis.set(key, token, nx=True, px=round(LEASE_SECONDS * 1000)):
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)
        renewing = asyncio.create_task(self._kept(key, token), name="storing")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            with suppress(StoreUnavailable):  # it runs out by itself
                await self._release(keys=[key], args=[token])

    async def _kept(self, key: str, token: str) -> None:
        """Renew it until cancelled, at most for `HOLD_SECONDS` in all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_SECONDS - LEASE_SECONDS):
                while True:
                    await asyncio.sleep(LEASE_SECONDS / 3)
                    with suppress(StoreUnavailable):
                        if not await self._renew(keys=[key], args=[token, round(LEASE_SECONDS * 1000)]):
                            return
