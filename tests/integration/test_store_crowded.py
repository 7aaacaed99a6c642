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


async def test_what_is_asked_takes_no_task_of_its_own_where_a_connection_is_at_hand(redis: Redis) -> None:
    await redis.set("k", "v")
    before = asyncio.all_tasks()

    async def ask() -> Any:
        return await redis.get("k")

    asking = asyncio.create_task(ask())
    begun: set[Any] = set()
    while not asking.done():
        begun |= asyncio.all_tasks() - before
        await asyncio.sleep(0)

    assert begun == {asking}
    assert await asking == "v"


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(redis: Redis) -> None:
    await redis.set("k", "v")
    await redis.client_kill_filter(_type="normal", skipme=False)
    while redis.connection_pool._available_connections[-1].is_at_hand():  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    assert await redis.get("k") == "v"
