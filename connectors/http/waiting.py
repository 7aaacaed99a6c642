"""HTTP requests that wait for an answer, and their lookup when the answer arrives."""

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
    """The process stops, so this request will get no answer."""


class Waiter:
    """A request that waits for an answer: it receives the streamed deltas and then the answer.

    Unread deltas are concatenated, so a slow reader needs no more memory than the reply.
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
        """Wait for and return the new text since the last call, or the answer after all text was returned.

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
        """Wait for and return the answer. Raises `Closed`."""
        while True:
            update = await self.next()
            if isinstance(update, OutboundMessage):
                return update


class Waiting:
    """All waiters, by their question. A question that was sent several times has several waiters."""

    def __init__(self) -> None:
        self._waiters: dict[Question, set[Waiter]] = {}
        self._closed = False

    @contextmanager
    def wait(self, asked: Question, *, reads_deltas: bool = False) -> Iterator[Waiter]:
        """Register a waiter inside the context. Enter it before submitting the question, to not miss the answer."""
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
        """Return all waiters for the answer to any of these messages."""
        return [waiter for message_id in message_ids for waiter in self._waiters.get(question(key, message_id), ())]

    def close(self) -> None:
        """Close all waiters, and every waiter registered later."""
        self._closed = True
        for same in self._waiters.values():
            for waiter in same:
                waiter.close()

    def __len__(self) -> int:
        return sum(len(same) for same in self._waiters.values())
