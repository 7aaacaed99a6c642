"""Fixtures that tests of all rooms share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from tests.emulators import valkey


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[Path]:
    """The unix socket of one real server for the whole run."""
    with valkey.running() as path:
        yield path


@pytest_asyncio.fixture
async def redis(redis_socket: Path) -> AsyncIterator[Redis]:
    """A clean client, answers decoded to str; everything stored is gone before the next test."""
    client = Redis(unix_socket_path=str(redis_socket), decode_responses=True)
    await client.flushall()
    await client.script_flush()
    try:
        yield client
    finally:
        await client.aclose()
