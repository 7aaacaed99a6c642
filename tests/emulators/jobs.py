"""Waits for background jobs."""

from __future__ import annotations

import asyncio

from runtime.coordination import Jobs
from runtime.coordination.jobs import _queue


async def until_idle(jobs: Jobs) -> None:
    """Wait until all enqueued jobs are done or dropped."""
    while jobs._waiting or await _anything_queued(jobs):
        jobs._hurry.set()
        await asyncio.sleep(0.02)
    jobs._hurry.clear()


async def _anything_queued(jobs: Jobs) -> bool:
    async with jobs._redis.pipeline(transaction=False) as pipe:
        for lane in jobs._lanes:
            pipe.llen(_queue(lane))
        return any(await pipe.execute())
