"""What only this process changes, kept in memory beside the store: nobody asks Redis for it twice.

That holds where Redis is embedded. Where others use it, too, every question goes to the store.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")
MOST = 10_000
"""Answers that are kept."""
UNSURE_SECONDS = 60.0
"""So long after a change of which nobody knows whether it happened the store is asked: it may still happen."""


class InMemory(Generic[T]):
    """Answers of one owner of keys. *alone* says that no other process changes what they say."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._known: dict[Hashable, T] = {}
        self._changing = 0
        self._changes = 0
        self._unsure_until = 0.0

    async def get(self, name: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """What is known under *name*; the first time, and after each change, what *read* gives."""
        if name in self._known:
            return self._known[name]
        changes = self._changes
        found = await read()
        if self._alone and changes == self._changes and not self._changing and time.monotonic() >= self._unsure_until:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[name] = found
        return found

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Inside anything may be changed: nothing is known until it is over."""
        self._changing += 1
        self._known.clear()
        try:
            yield
        except BaseException:
            self._unsure_until = time.monotonic() + UNSURE_SECONDS
            raise
        finally:
            self._changing -= 1
            self._changes += 1
