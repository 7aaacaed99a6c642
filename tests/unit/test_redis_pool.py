"""The pool of connections hands out what is at hand without redis-py's locks, and reads redis-py's own state for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
from redis.asyncio.connection import BlockingConnectionPool, ConnectionPool

from runtime.redis_connections import Pool, TcpConnection


class Silent(TcpConnection):
    """Connected without a server."""

    @property
    def is_connected(self) -> bool:
        return True

    async def connect(self) -> None: ...

    async def can_read(self, timeout: float = 0) -> bool:
        return False


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_available_connections", list),
        ("_in_use_connections", set),
        ("_condition", asyncio.Condition),
        ("_in_maintenance", bool),
        ("_condition._waiters", object),
    ],
)
async def test_redis_py_still_keeps_what_the_pool_reads(name: str, kind: type) -> None:
    """Where this fails, a new redis-py (or asyncio) has moved it: `Pool` has to follow, or to go without its shortcut
    by inheriting `get_connection` and `release` as they are."""
    found: Any = BlockingConnectionPool()
    for part in name.split("."):
        assert hasattr(found, part), f"redis-py {redis.__version__} has no {name} in its pool any more"
        found = getattr(found, part)
    assert isinstance(found, kind), f"redis-py {redis.__version__} keeps {name} as {type(found)}"
    assert callable(ConnectionPool.get_available_connection)
    assert callable(ConnectionPool.ensure_connection)


@pytest.mark.parametrize(
    "name", ["_parser", "_reader", "_writer", "_close", "socket_timeout", "next_health_check", "health_check_interval"]
)
async def test_redis_py_still_keeps_what_an_exchange_reads(name: str) -> None:
    """Where this fails, `runtime.redis_connections._Bounded.exchange` has to follow."""
    assert hasattr(TcpConnection(), name), f"redis-py {redis.__version__} has no {name} in its connections any more"


async def test_who_waits_for_a_connection_is_told_when_one_is_given_back() -> None:
    pool = Pool(connection_class=Silent, max_connections=1, timeout=3600)
    taken = await pool.get_connection()
    waiting = asyncio.create_task(pool.get_connection())
    while not pool._condition._waiters:  # asyncio tells it nowhere else
        await asyncio.sleep(0)
    await pool.release(taken)
    assert await waiting is taken


async def test_a_connection_is_never_with_two_at_a_time() -> None:
    pool = Pool(connection_class=Silent, max_connections=3, timeout=5)
    held: set[Any] = set()

    async def use(passes: int) -> None:
        for number in range(20):
            connection = await pool.get_connection()
            assert connection not in held
            held.add(connection)
            for _ in range((number * passes) % 3):
                await asyncio.sleep(0)
            held.discard(connection)
            await pool.release(connection)

    await asyncio.gather(*(use(passes) for passes in range(8)))
    assert held == set()
