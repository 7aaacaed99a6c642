"""However much is asked of Redis at once, all of it is answered; and a call can be cancelled at any moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import StoreUnavailable
from runtime.stores import MAX_CONNECTIONS, connect


async def test_commands_and_pipelines_wait_for_connections_while_the_server_is_slow(redis: Redis) -> None:
    async def pipelined(number: int) -> list[Any]:
        async with redis.pipeline() as pipe:
            pipe.set(f"p{number}", number)
            pipe.get(f"p{number}")
            return await pipe.execute()

    await redis.client_pause(500)
    set_, done = await asyncio.gather(
        asyncio.gather(*(redis.set(f"k{number}", number) for number in range(300))),
        asyncio.gather(*(pipelined(number) for number in range(300))),
    )

    assert all(set_)
    assert done == [[True, str(number)] for number in range(300)]


async def test_a_call_that_gets_no_answer_in_time_is_an_outage_and_its_connection_is_made_anew(
    redis: Redis, redis_socket: Path
) -> None:
    hasty = connect(f"unix://{redis_socket}", 1.0)
    await hasty.set("k", "v")
    await redis.client_pause(2600)
    calls = [hasty.get("k") for _ in range(MAX_CONNECTIONS + 6)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    with pytest.raises(StoreUnavailable, match="timeout"):
        async with hasty.pipeline() as pipe:
            pipe.get("k")
            await pipe.execute()
    await redis.set("k", "w")  # waits until the pause is over

    assert {type(one) for one in found} == {StoreUnavailable}
    assert await asyncio.gather(*(hasty.get("k") for _ in range(MAX_CONNECTIONS + 6))) == ["w"] * (MAX_CONNECTIONS + 6)
    await hasty.aclose()


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(redis: Redis, redis_socket: Path) -> None:
    other = connect(f"unix://{redis_socket}", 5.0)
    await other.set("k", "v")
    await redis.client_kill_filter(_type="normal")
    await asyncio.sleep(0.05)

    assert await other.get("k") == "v"
    await other.aclose()


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
