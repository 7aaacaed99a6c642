"""The embedded search index in a child process of its own, kept running beside this one.

The engine holds the interpreter's lock in every call, opens for seconds, and ends its process where the disk is full:
none of that is to hold up, or end, the bot (docs/decisions/0031).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import structlog

from config.settings import Settings
from connectors.connector import Health, State
from grounding.documents.index import IndexUnavailable
from runtime.embedded.child import ChildFailed, SupervisedChild, beside
from runtime.embedded.index_lane import UNASKED, IndexLane
from runtime.embedded.index_program import READY_SECONDS, IndexProgram
from runtime.embedded.standing_still import LOOK_SECONDS, Looks

BACK_SECONDS = 10.0
"""How long a question waits for a child that ended to be there again."""
BEAT_SECONDS = 5.0
"""Between the questions whether it still answers."""
LOG_BEATS = 60
"""The log's size is looked at with every so many of them."""
LATE_SECONDS = 1.0
"""The child keeps the time limits. One that does not answer at all is given so much longer."""
ENDED = "the process of the search index ended while it was asked"
_log = structlog.get_logger()


def has_embedded(settings: Settings) -> bool:
    """Whether the index is an embedded one, and its engine installed. Looks at the disk."""
    return settings.qdrant_url is None and importlib.util.find_spec("qdrant_edge") is not None


class _Gone(Exception):
    """The child ended before it answered."""


class IndexProcess:
    """The child, and what it is asked. Made by `index_process`."""

    def __init__(self, data_dir: Path) -> None:
        self._program = IndexProgram(data_dir / "qdrant.log", self._told, self._lost)
        self._child = SupervisedChild(self._program)
        self._numbers = itertools.count(UNASKED + 1)
        self._keys = itertools.count(1)
        self._made: dict[int, tuple[Any, ...]] = {}
        self._known: set[int] = set()
        """Which of them the child that runs was told of."""
        self._waiting: dict[int, asyncio.Future[list[Any]]] = {}

    @property
    def health(self) -> Health:
        """How the child is."""
        return self._child.health

    @property
    def pid(self) -> int | None:
        """Of the child; None while there is none."""
        return self._child.pid

    def make(self, folder: Path, model: str, dimensions: int, fusion: dict[str, Any], **how: Any) -> int:
        """The key of a new index, which is made in each child that is asked about it. May be called in any thread."""
        key = next(self._keys)
        self._made[key] = ("make", key, str(folder), model, dimensions, fusion, how)
        return key

    def has(self, key: int) -> bool:
        """Whether the child that runs was asked about that index."""
        return key in self._known and self._program.ready_lane is not None

    def forget(self, key: int) -> None:
        """That index was closed: no further child is told of it."""
        self._made.pop(key, None)

    async def ask(
        self,
        what: tuple[Any, ...],
        rows: Iterable[Any] | None = None,
        *,
        seconds: float,
        repeats: bool,
        meanwhile: Callable[[Callable[[Any], None]], Any] | None = None,
    ) -> list[Any]:
        """What the child answers to *what*, with *rows* of it in several parts. Where it ends before, and *repeats*,
        the next one is asked. *meanwhile*, a coroutine function, is awaited when the question is sent, and given
        what sends the answer's missing piece. Raises `IndexUnavailable` and `ValueError`."""
        try:
            async with asyncio.timeout(seconds + LATE_SECONDS):
                while True:
                    lane = await self._lane()
                    try:
                        return await self._answer(lane, what, rows, meanwhile)
                    except _Gone:
                        if not repeats:
                            raise IndexUnavailable(f"{ENDED}{self._why()}") from None
                        repeats = False
        except TimeoutError as error:
            raise IndexUnavailable(f"the search index took longer than {seconds} s") from error

    def begin(self, what: tuple[Any, ...], then: Callable[[list[Any] | None], None]) -> None:
        """Ask what nobody waits for: *then* is given the answer, None where there is none. Nothing is begun while there
        is no child."""
        lane = self._program.ready_lane
        if lane is None:
            then(None)
            return

        def answered(answer: asyncio.Future[list[Any]]) -> None:
            self._waiting.pop(number, None)
            then(None if answer.cancelled() or answer.exception() else answer.result())

        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(answered)
        self._tell_of(what[1], lane)
        lane.send(number, what)

    def _tell_of(self, key: int, lane: IndexLane) -> None:
        if key not in self._made:
            raise IndexUnavailable("the search index is closed")
        if key not in self._known:
            self._known.add(key)
            lane.send(UNASKED, self._made[key])

    async def _answer(
        self, lane: IndexLane, what: tuple[Any, ...], rows: Iterable[Any] | None, meanwhile: Any
    ) -> list[Any]:
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._tell_of(what[1], lane)
            if rows is None:
                lane.send(number, what)
            else:
                await lane.send_all(number, what, rows)
            if meanwhile is not None:
                await meanwhile(lambda piece: lane.send(UNASKED, ("deep", number, piece)))
            found: list[Any] = await answer
            return found
        finally:
            self._waiting.pop(number, None)
            if not answer.done() or answer.cancelled():
                if what[0] not in ("close", "drop"):  # begun, they are done
                    lane.send(UNASKED, ("cancel", number))
            else:
                answer.exception()  # where somebody else's is raised nobody looks

    async def _lane(self) -> IndexLane:
        if (lane := self._program.ready_lane) is not None:
            return lane
        limit = READY_SECONDS if self._child.health.state is State.CONNECTING else BACK_SECONDS
        try:
            async with asyncio.timeout(limit):
                return await self._program.until_lane()
        except TimeoutError:
            raise IndexUnavailable(f"the process of the search index is not there{self._why()}") from None

    def _why(self) -> str:
        return f": {self.health.why}" if self.health.state is State.DEGRADED and self.health.why else ""

    def _told(self, number: int, parts: list[Any]) -> None:
        if number == UNASKED:
            what, *about = parts[0]
            if what == "log":
                method, event = about
                getattr(_log, method)(event.pop("event"), **event)
            else:
                self._known.clear()
                self._program.is_ready()
            return
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        last = parts[-1]
        if isinstance(last, tuple):
            kind, text, retryable = last
            refused = ValueError(text) if kind == ValueError.__name__ else IndexUnavailable(text, retryable=retryable)
            answer.set_exception(refused)
        else:
            answer.set_result([row for part in parts for row in part] if len(parts) > 1 else last)

    def _lost(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(_Gone())

    async def _run(self) -> None:
        with contextlib.suppress(ChildFailed):  # it is in `health`, and it is tried again
            await self._child.start()
        async with beside(self._watch_over(), "search-index-beats"):
            await self._child.watch()

    async def _watch_over(self) -> None:
        """Have a child that stands still replaced."""
        for beat in itertools.count(1):
            await asyncio.sleep(BEAT_SECONDS)
            if (pid := self.pid) is not None and (lane := self._program.ready_lane) is not None:
                await self._beat(lane, Looks(pid))
            if beat % LOG_BEATS == 0:
                with contextlib.suppress(OSError):  # no room for another one
                    await asyncio.to_thread(self._program.turn_over_log)

    async def _beat(self, lane: IndexLane, looks: Looks) -> None:
        """Have the child answer when all is done that its engines were given before; wait until it has, or is gone, or
        given up."""
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            lane.send(number, ("beat", UNASKED))
            while not (await asyncio.wait((answer,), timeout=LOOK_SECONDS))[0]:
                if why := await asyncio.to_thread(looks.again):
                    self._child.give_up(why)
                    return
            answer.exception()  # that of a child that is gone, too, is an answer
        finally:
            self._waiting.pop(number, None)

    async def _stop(self) -> None:
        await self._child.stop()
        self._program.hang_up()


@contextlib.asynccontextmanager
async def index_process(data_dir: Path) -> AsyncIterator[IndexProcess]:
    """A child that starts at once, in the background, and ends with the block."""
    process = IndexProcess(data_dir)
    try:
        async with beside(process._run(), "search-index"):
            yield process
    finally:
        await asyncio.shield(process._stop())


@contextlib.asynccontextmanager
async def begun(settings: Settings) -> AsyncIterator[IndexProcess | None]:
    """The child of a process that imports most of itself in the block: it was started, or could not be, when the block
    begins, and gets ready beside that. None where the index is no embedded one."""
    if not await asyncio.to_thread(has_embedded, settings):
        yield None
        return
    async with index_process(settings.data_dir) as process:
        await process._program.begun.wait()
        yield process
