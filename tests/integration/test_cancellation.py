"""A loop around Redis can be stopped at any moment."""

import asyncio

from redis.asyncio import Redis


async def test_no_cancellation_is_lost_in_a_write(redis: Redis) -> None:
    async def write() -> None:
        while True:
            await redis.set("a", "b")

    for attempt in range(400):
        writing = asyncio.create_task(write())
        await asyncio.sleep(0.0003 * (attempt % 7))
        writing.cancel()

        done, _ = await asyncio.wait([writing], timeout=5)

        assert done
