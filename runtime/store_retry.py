"""Repeats a write until the store has taken it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from connectors.message import StoreUnavailable

RETRY_SECONDS = (0.1, 2.0)
"""The first and the longest pause between two attempts."""
T = TypeVar("T")
_log = structlog.get_logger()


async def retry_until_stored(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat *step* while the store is away. For results that were paid for: without the write they are paid for again.

    *step* must be harmless if it is repeated after only its answer was lost. Raises what *step* raises but for
    `connectors.message.StoreUnavailable`.
    """
    wait, longest = RETRY_SECONDS
    while True:
        try:
            return await step()
        except StoreUnavailable as error:
            _log.warning("store.degraded", store="redis", why=str(error))
        await asyncio.sleep(wait)
        wait = min(wait * 2, longest)
