"""The requests that wait for an answer, and how an answer finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.message import ConversationKey, OutboundMessage

Question = tuple[str, str, str]
"""Workspace, external id, message id."""


def question(key: ConversationKey, message_id: str) -> Question:
    return (key.workspace_id, key.external_id, message_id)


class Closed(Exception):
    """The process stops, and the answer will not come to this request."""


class Waiter:
    """One request's view of its answer: what was streamed so far, and the end.

    Deltas that nobody has taken yet run together, so that a slow reader costs no more than the reply.
    """

    def __init__(self, *, reads_deltas: bool = False) -> None:
        self.reads_deltas = reads_deltas
        self._delta = ""
        self._answer: OutboundMessage | None = None
        self._closed = False
        self._changed = asyncio.Event()

    def add(self, delta: str) -> None:
        if not self.reads_deltas:
            return
        self._delta += delta
        self._changed.set()

    def finish(self, answer: OutboundMessage) -> None:
        self._answer = answer
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def next(self) -> str | OutboundMessage:
        """The text that came since the last call, or the answer once all text was taken.

        Raises `Closed`.
        """
        while True:
            if self._delta:
                delta, self._delta = self._delta, ""
                return delta
            if self._answer is not None:
                return self._answer
            if self._closed:
                raise Closed
            self._changed.clear()
            await self._changed.wait()

    async def answer(self) -> OutboundMessage:
        """The answer. Raises `Closed`."""
        while True:
            news = await self.next()
            if isinstance(news, OutboundMessage):
                return news


class Waiting:
    """All waiters, by the question that they asked; a repeated question has several."""

    def __init__(self) -> None:
        self._waiters: dict[Question, set[Waiter]] = {}
        self._closed = False

    @contextmanager
    def wait(self, asked: Question, *, reads_deltas: bool = False) -> Iterator[Waiter]:
        """A waiter that is known while inside. Enter before the question is handed on: answers are quick."""
        waiter = Waiter(reads_deltas=reads_deltas)
        if self._closed:
            waiter.close()
        self._waiters.setdefault(asked, set()).add(waiter)
        try:
            yield waiter
        finally:
            same = self._waiters[asked]
            same.discard(waiter)
            if not same:
                del self._waiters[asked]

    def of(self, key: ConversationKey, message_ids: tuple[str, ...]) -> list[Waiter]:
        """Everybody who waits for the answer to one of these messages."""
        return [waiter for message_id in message_ids for waiter in self._waiters.get(question(key, message_id), ())]

    def close(self) -> None:
        """Let all go, and whoever comes after."""
        self._closed = True
        for same in self._waiters.values():
            for waiter in same:
                waiter.close()

    def __len__(self) -> int:
        return sum(len(same) for same in self._waiters.values())
