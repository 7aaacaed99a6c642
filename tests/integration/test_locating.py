"""Files of messages are found by the process that runs their connector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from connectors.connector import AttachmentUnavailable, Location
from connectors.message import Attachment
from runtime.attachments import Locator
from runtime.coordination import Hub

FILE = Attachment("document", "a.pdf", "application/pdf", 12, "file-1")
THERE = Location("https://files.example/a.pdf", ("files.example",), {"Authorization": "Bearer x"})


class Shelf:
    """A connector that knows one file."""

    async def locate(self, attachment: Attachment) -> Location:
        if attachment != FILE:
            raise AttachmentUnavailable("it is gone")
        return THERE


@asynccontextmanager
async def process(redis: Redis, connectors: dict[str, Any], *, shared: bool = True) -> AsyncIterator[Locator]:
    hub = Hub(redis, shared=shared)
    locator = Locator(cast("Any", connectors), hub)
    running = [asyncio.create_task(hub.run()), asyncio.create_task(locator.run())]
    await asyncio.sleep(0.1)  # until it listens
    try:
        yield locator
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def test_a_worker_is_told_by_the_gateway_that_runs_the_connector(redis: Redis) -> None:
    """With what is needed to fetch it; a refusal comes in its own words."""
    async with process(redis, {"shelf": Shelf()}), process(redis, {}) as worker, asyncio.timeout(5):
        assert await worker.locate("shelf", FILE) == THERE
        with pytest.raises(AttachmentUnavailable, match="it is gone"):
            await worker.locate("shelf", Attachment("document", "b.pdf"))


async def test_where_nobody_runs_the_connector_the_caller_waits_as_long_as_it_likes(redis: Redis) -> None:
    """Who asks bounds it; nothing is left behind."""
    async with process(redis, {}) as worker:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await worker.locate("shelf", FILE)


async def test_a_connector_whose_files_cannot_be_had_says_so(redis: Redis) -> None:
    async with process(redis, {"deaf": object()}, shared=False) as gateway:
        with pytest.raises(AttachmentUnavailable, match="cannot be fetched"):
            await gateway.locate("deaf", FILE)
