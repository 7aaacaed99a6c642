"""Renews the lease of a conversation while a worker is busy there, and hands it back if the worker is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from connectors.message import StoreUnavailable, Superseded
from runtime.coordination import renew_interval
from runtime.turns.batch import Lease
from runtime.turns.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HAND_BACK_SECONDS = 2.0
"""How long handing back may take at most."""
_RELEASE_SECONDS = 0.1
"""How long a worker that releases the lease itself may take to learn that it has."""


@asynccontextmanager
async def hold_lease(mailbox: Mailbox, lease: Lease, lease_seconds: float) -> AsyncIterator[None]:
    """Renew *lease* while inside, and hand it back if the inside is cancelled.

    Raises `connectors.message.Superseded` inside when the lease is lost.
    """
    async with _renew_lease(mailbox, lease, lease_seconds):
        try:
            yield
        except asyncio.CancelledError:
            await asyncio.shield(hand_back_lease(mailbox, lease))
            raise


async def hand_back_lease(mailbox: Mailbox, lease: Lease) -> None:
    """Let another worker go on at once. Raises nothing: if it fails, the lease ends by itself."""
    with suppress(StoreUnavailable, Superseded, TimeoutError):
        async with asyncio.timeout(HAND_BACK_SECONDS):
            await mailbox.release(lease)


@asynccontextmanager
async def _renew_lease(mailbox: Mailbox, lease: Lease, lease_seconds: float) -> AsyncIterator[None]:
    serving = asyncio.current_task()
    assert serving is not None
    lost = False

    async def renew() -> None:
        nonlocal lost
        failed = False
        while True:
            await asyncio.sleep(renew_interval(lease_seconds, failed=failed))
            try:
                failed = False
                if not await mailbox.renew(lease):
                    # If this worker is releasing it just now, nothing is lost, and this task ends.
                    await asyncio.sleep(_RELEASE_SECONDS)
                    lost = True
                    serving.cancel()
                    return
            except StoreUnavailable:
                failed = True  # while it is away, nobody can take the lease either; soon after it is back they can

    # Not in a TaskGroup: that would wrap what the body raises. This block owns the task and ends it.
    task = asyncio.create_task(renew())
    try:
        yield
    except asyncio.CancelledError:
        if lost and serving.uncancel() == 0:
            raise Superseded("the lease was lost") from None
        raise
    finally:
        task.cancel()
        await asyncio.wait({task})
