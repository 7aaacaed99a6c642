"""However much is asked of Redis at once, connections are left for what cannot share one."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from runtime.redis_client import MAX_BATCHES


async def test_commands_alone_never_take_all_connections_while_the_server_is_slow(redis: Redis) -> None:
    pool = redis.connection_pool

    async def ask(number: int) -> Any:
        return await redis.set(f"k{number}", number)

    await redis.client_pause(500)
    asked: list[asyncio.Task[Any]] = []
    for number in range(300):
        asked.append(asyncio.create_task(ask(number)))
        for _ in range(5):  # each in a pass of its own
            await asyncio.sleep(0)
    taken: Any = len(pool._in_use_connections)  # redis-py tells it nowhere else
    async with redis.pipeline() as pipe:
        pipe.get("k0")
        assert await pipe.execute() == ["0"]

    assert all(await asyncio.gather(*asked))
    assert taken == MAX_BATCHES
