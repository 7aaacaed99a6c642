"""How a worker keeps its hold of a conversation while it is busy there, and hands it back where it is cut short."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from connectors.message import StoreUnavailable, Superseded
from runtime.turns.batch import Lease
from runtime.turns.mailbox import Mailbox
from runtime.work_streams import renews_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HAND_BACK_SECONDS = 2.0
"""How long handing back may take at most."""
_LETTING_GO_SECONDS = 0.1
"""How much later than that a hold is over its holder may learn that it was itself who let it go."""


@asynccontextmanager
async def hold_lease(mailbox: Mailbox, lease: Lease, lease_seconds: float) -> AsyncIterator[None]:
    """Keep *lease* while inside, and hand it back where the inside is cancelled.

    Who loses it is stopped: raises `connectors.message.Superseded`.
    """
    async with _renewing(mailbox, lease, lease_seconds):
        try:
            yield
        except asyncio.CancelledError:
            await asyncio.shield(hand_back_lease(mailbox, lease))
            raise


async def hand_back_lease(mailbox: Mailbox, lease: Lease) -> None:
    """Let another worker go on at once. Raises nothing: where it fails, the lease ends by itself."""
    with suppress(StoreUnavailable, Superseded, TimeoutError):
        async with asyncio.timeout(HAND_BACK_SECONDS):
            await mailbox.release(lease)


@asynccontextmanager
async def _renewing(mailbox: Mailbox, lease: Lease, lease_seconds: float) -> AsyncIterator[None]:
    serving = asyncio.current_task()
    assert serving is not None
    lost = False

    async def renew() -> None:
        nonlocal lost
        while True:
            failed = False
            try:
                if not await mailbox.renew(lease):
                    # Who is just letting go of it has lost nothing, and ends this; else no write is taken anyhow.
                    await asyncio.sleep(_LETTING_GO_SECONDS)
                    lost = True
                    serving.cancel()
                    return
            except StoreUnavailable:
                failed = True  # while it is away, nobody can take the lease either; soon after it is back they can
            await asyncio.sleep(renews_after(lease_seconds, failed=failed))

    # Not in a TaskGroup: that would wrap what the body raises. This block owns the task and ends it. Most turns are
    # over before it is needed.
    renewing: list[asyncio.Task[None]] = []
    timer = asyncio.get_running_loop().call_later(
        renews_after(lease_seconds), lambda: renewing.append(asyncio.create_task(renew()))
    )
    try:
        yield
    except asyncio.CancelledError:
        if lost and serving.uncancel() == 0:
            raise Superseded("the lease was lost") from None
        raise
    finally:
        timer.cancel()
        for task in renewing:
            task.cancel()
            await asyncio.wait({task})
