"""Sends what is asked in one pass of the event loop together: many questions, one round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Ask = Callable[[list[Any]], Awaitable[list[Any]]]
Told = Callable[["list[Any] | Exception"], None]
Begin = Callable[[list[Any], Told], bool]
PASSES = 2
"""What a task asks that was only just begun, or one that it begins, comes along."""


class Batching:
    """Gathers calls. *ask* gets those of one pass, and gives an answer (or an exception) for each, in their order.

    Every batch is on its own: none waits for an earlier one, as long as fewer than *most* are on their way; what is
    asked beyond that gathers until one is back, and goes together. Who stops waiting for an answer takes nothing from
    the others of the batch.

    *begin* does what *ask* does without a task, where it can; where not, it says False. Later, and not before it
    returns, it gives the answers, or why there are none, to its second argument: once. It must not raise.
    """

    def __init__(self, ask: Ask, most: int, begin: Begin | None = None) -> None:
        self._ask = ask
        self._most = most
        self._begins = begin
        self._held_back = False
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, question: Any) -> Any:
        """The answer to *question*. Raises what *ask* gave or raised."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((question, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._look, loop, PASSES)
        return await answer

    def hasten(self) -> None:
        """Have what was asked until now go out at once: whoever asked it knows that nobody comes along who matters."""
        if self._waiting:
            self._begin()

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Have *work* done that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look(self, loop: asyncio.AbstractEventLoop, passes: int) -> None:
        """Begin, unless somebody else may come along in the next *passes*: not where nobody is left who could run. What
        is ready to run only asyncio's own loops tell, in a field that is theirs: others look all the passes."""
        if passes and getattr(loop, "_ready", True):
            loop.call_soon(self._look, loop, passes - 1)
        else:
            self._begin()

    def _begin(self) -> None:
        if self._under_way >= self._most:
            self._held_back = True
            return
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        if not waiting:
            return
        self._under_way += 1
        if self._begins is not None:

            def told(answers: list[Any] | Exception) -> None:
                _tell(waiting, answers)
                self._end()

            if self._begins([question for question, _ in waiting], told):
                return
        # Nobody's own task: it answers several callers, of whom any may be cancelled.
        self.aside(self._answer(waiting))

    def _end(self) -> None:
        self._under_way -= 1
        if self._held_back:
            self._held_back = False
            self._begin()

    async def _answer(self, waiting: _Waiting) -> None:
        try:
            _tell(waiting, await self._ask([question for question, _ in waiting]))
        except asyncio.CancelledError:
            for _, answer in waiting:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised by each of the callers
            _tell(waiting, error)
        finally:
            self._end()


_Waiting = list[tuple[Any, "asyncio.Future[Any]"]]


def _tell(waiting: _Waiting, answers: list[Any] | Exception) -> None:
    if isinstance(answers, Exception):
        answers = [_again(answers) for _ in waiting]
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
