"""Sends what is asked in one pass of the event loop together: many questions, one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

Ask = Callable[[list[Any]], Awaitable[list[Any]]]


class Batching:
    """Gathers calls. *ask* gets those of one pass, and gives an answer (or an exception) for each, in their order.

    Every batch is on its own: none waits for an earlier one, as long as fewer than *most* are on their way; what is
    asked beyond that gathers until one is back, and goes together. Who stops waiting for an answer takes nothing from
    the others of the batch.
    """

    def __init__(self, ask: Ask, most: int) -> None:
        self._ask = ask
        self._most = most
        self._held_back = False
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def call(self, question: Any) -> Any:
        """The answer to *question*. Raises what *ask* gave or raised."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((question, answer))
        if len(self._waiting) == 1:
            # Two passes more: what a task asks that was only just begun, or one that it begins, comes along.
            loop.call_soon(loop.call_soon, loop.call_soon, self._begin)
        return await answer

    def _begin(self) -> None:
        if len(self._asking) >= self._most:
            self._held_back = True
            return
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        if not waiting:
            return
        # Nobody's own task: it answers several callers, of whom any may be cancelled.
        asking = asyncio.create_task(self._answer(waiting))
        self._asking.add(asking)
        asking.add_done_callback(self._end)

    def _end(self, asking: asyncio.Task[None]) -> None:
        self._asking.discard(asking)
        if self._held_back:
            self._held_back = False
            self._begin()

    async def _answer(self, waiting: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        try:
            answers = await self._ask([question for question, _ in waiting])
        except asyncio.CancelledError:
            for _, answer in waiting:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised by each of the callers
            answers = [_again(error) for _ in waiting]
        for (_, answer), found in zip(waiting, answers, strict=True):
            if answer.done():  # cancelled in the meantime
                continue
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)


def _again(error: Exception) -> Exception:
    """The same error for another caller: an exception that is raised twice gathers both their tracebacks."""
    try:
        same = type(error)(*error.args)
    except Exception:  # noqa: BLE001 - it is made in a way of its own; nobody may wait for ever because of that
        return error
    same.__cause__ = error.__cause__
    return same
