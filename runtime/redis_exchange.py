"""One round trip on a connection to Redis: what is asked goes out at once, and answers are read as they come.

A stream wakes a task for each piece that comes, and that task its callers. Here who asked is told in the pass of the
event loop in which the last answer came: for that time an `Exchange` takes the place of the stream's protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis
from redis import exceptions as errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA

Told = Callable[["Exchange", "list[Any] | Exception"], None]
"""Is given the answers in their order, an error reply where its answer would stand; or why there are none."""
GONE = "the connection is gone"


class Exchange(asyncio.Protocol):
    """Writes *packed* to *transport*, reads *count* answers with *parser* and tells them: once, and not before it is
    made. Each answer has *seconds* (None: any time) from the one before it, the first from now on.

    Where it tells an error, the connection is of no use any more: what was asked may still be answered there.
    """

    def __init__(
        self, transport: asyncio.Transport, parser: Any, packed: bytes, count: int, seconds: float | None, told: Told
    ) -> None:
        self.pushed: list[Any] = []
        """What the server said unasked."""
        self._transport = transport
        self._parser = parser
        self._left = count
        self._answers: list[Any] = []
        self._seconds = seconds
        self._told: Told | None = told
        self._loop = asyncio.get_running_loop()
        self._answered_at = self._loop.time()
        self._limit = None if seconds is None else self._loop.call_at(self._answered_at + seconds, self._look)
        self._stream: Any = transport.get_protocol()
        transport.set_protocol(self)
        transport.write(packed)

    def abandon(self) -> None:
        """Tell nobody, and read no more: the connection is of no use any more."""
        self._leave()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
            self._read()
        except Exception as error:  # noqa: BLE001 - no Redis protocol, or a server that sends one away: it is told
            self._end(error)

    def _read(self) -> None:
        left, answers, next_answer = self._left, self._answers, self._parser.gets
        while left:
            answer = next_answer()
            if answer is NOT_ENOUGH_DATA:
                break
            if isinstance(answer, hiredis.PushNotification):
                self.pushed.append(answer)
                continue
            first = answer[0] if isinstance(answer, list) and answer else answer
            if isinstance(first, errors.ConnectionError):
                raise first
            answers.append(answer)
            left -= 1
        if not left:
            self._end(answers)
        elif left < self._left:
            self._left, self._answered_at = left, self._loop.time()

    def eof_received(self) -> bool | None:
        kept: bool | None = self._stream.eof_received()
        self._end(errors.ConnectionError(GONE))
        return kept

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.connection_lost(exc)
        self._end(errors.ConnectionError(str(exc) if exc else GONE))

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    def _look(self) -> None:
        assert self._seconds is not None
        due = self._answered_at + self._seconds
        if due > self._loop.time():
            self._limit = self._loop.call_at(due, self._look)
        else:
            self._end(errors.TimeoutError("no answer in time"))

    def _end(self, result: list[Any] | Exception) -> None:
        told = self._leave()
        if told is not None:
            told(self, result)

    def _leave(self) -> Told | None:
        """Give the transport back to its stream; who is to be told, if nobody was."""
        told, self._told = self._told, None
        if told is not None:
            if self._limit is not None:
                self._limit.cancel()
            self._transport.set_protocol(self._stream)
        return told
