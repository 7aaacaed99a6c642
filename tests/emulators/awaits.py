"""Counts where a coroutine waits, and lets something happen while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

_Result = TypeVar("_Result")
At = Callable[[int], Coroutine[Any, Any, None] | None]
_counting: ContextVar[Callable[[], Coroutine[Any, Any, None] | None] | None] = ContextVar("counting", default=None)


async def at_each_wait(doing: Coroutine[Any, Any, _Result], at: At) -> _Result:
    """What *doing* gives, with *at* called with the number of each wait (from 1) as it begins: its own, and those of
    the tasks that it starts.

    What *at* returns, if anything, is awaited in between: so long the one that waited stands still.
    """
    number = 0

    def counted() -> Coroutine[Any, Any, None] | None:
        nonlocal number
        number += 1
        return at(number)

    _counting.set(counted)
    asyncio.get_running_loop().set_task_factory(_start)
    return await _Waits(doing, counted)


def _start(loop: asyncio.AbstractEventLoop, doing: Any, **options: Any) -> asyncio.Task[Any]:
    context = options.get("context")
    counted = _counting.get() if context is None else context.get(_counting)
    if counted is None:
        return asyncio.Task(doing, loop=loop, **options)
    task = asyncio.Task(_carried(doing, counted), loop=loop, **options)
    task.add_done_callback(lambda _: doing.close())  # where it was cancelled before its first step
    return task


async def _carried(doing: Any, counted: Callable[[], Coroutine[Any, Any, None] | None]) -> Any:
    return await _Waits(doing, counted)


class _Waits(Awaitable[_Result]):
    def __init__(
        self, doing: Coroutine[Any, Any, _Result], counted: Callable[[], Coroutine[Any, Any, None] | None]
    ) -> None:
        self._doing = doing
        self._counted = counted

    def __await__(self) -> Generator[Any, Any, _Result]:
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = self._doing.send(None) if thrown is None else self._doing.throw(thrown)
            except StopIteration as ended:
                result: _Result = ended.value
                return result
            thrown = None
            meanwhile = self._counted()
            try:
                yield waits_for
                if meanwhile is not None:
                    yield from meanwhile.__await__()
            except BaseException as error:  # noqa: BLE001 - all of them are for the one who waits
                thrown = error
