"""A time limit for each of many short waits, by one timer for all of them.

`asyncio.timeout` sets a timer for every wait and takes it away again, which costs more than most of what a turn asks.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class Deadlines:
    """Time limits of *seconds* each, for what tasks of one event loop wait for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waits: dict[Wait, None] = {}
        """In the order in which they began; in it they end, too."""
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> Wait:
        """What a block of a task has to end within, from its beginning: else it is cancelled and raises
        `TimeoutError`, as with `asyncio.timeout`."""
        return Wait(self)

    def begun(self, wait: Wait, loop: asyncio.AbstractEventLoop) -> None:
        """*wait* begins now."""
        wait.ends = loop.time() + self._seconds
        self._waits[wait] = None
        if self._timer is None:
            self._timer = loop.call_at(wait.ends, self._look, loop)

    def ended(self, wait: Wait) -> None:
        """*wait* has ended."""
        del self._waits[wait]
        if not self._waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Break off what is over, and look again when the next one is."""
        self._timer, now = None, loop.time()
        for wait in self._waits:
            if wait.ends > now:
                self._timer = loop.call_at(wait.ends, self._look, loop)
                return
            wait.break_off()


class Wait:
    """One block of a task, and its time limit; made by `Deadlines.wait`."""

    __slots__ = ("_cancelling", "_deadlines", "_is_over", "_task", "ends")

    def __init__(self, deadlines: Deadlines) -> None:
        self.ends = 0.0
        self._deadlines = deadlines
        self._is_over = False
        self._task: asyncio.Task[Any]
        self._cancelling = 0

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can wait")
        self._task, self._cancelling = task, task.cancelling()
        self._deadlines.begun(self, task.get_loop())

    def break_off(self) -> None:
        """Its time is over."""
        if not self._is_over:
            self._is_over = True
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._deadlines.ended(self)
        # Who is to end for another reason, too, is not told that it was for this one.
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
