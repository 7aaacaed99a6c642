"""Work that is made in one place and worked off in another, both at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def made_ahead(made: AsyncGenerator[T, None], work_off: Callable[[T], Awaitable[None]]) -> None:
    """Have what is *made* worked off, one after the other, each while the next one is made: never more than that.

    Raises what either raises: what was made before *made* failed is worked off first; where *work_off* fails, what is
    being made is given up.
    """

    async def following() -> tuple[list[T], Exception | None]:
        try:
            return [await anext(made)], None
        except StopAsyncIteration:
            return [], None
        except Exception as error:  # noqa: BLE001 - it is raised below, in its turn
            return [], error

    async with aclosing(made):
        some, failed = await following()
        while some:
            try:
                async with asyncio.TaskGroup() as group:
                    making = group.create_task(following())
                    await work_off(some[0])
            except ExceptionGroup as several:
                raise several.exceptions[0] from several.exceptions[0].__cause__
            some, failed = making.result()
        if failed is not None:
            raise failed
