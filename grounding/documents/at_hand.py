"""Which documents are being indexed: two runs never have the same one in hand, and keep each other waiting for no
other. Between reading a document and storing it nobody else may: what was read first would be stored last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager


class AtHand:
    """Of one workspace, in one process."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._has_all = False
        self._wanting_all = 0
        """Who has everything in hand, or waits for it: nobody begins before them, or they would wait for ever."""
        self._freed = asyncio.Event()
        """Set, and replaced, whenever somebody lets go of something."""

    @asynccontextmanager
    async def some(self, paths: Collection[str]) -> AsyncIterator[None]:
        """Have *paths* in hand; waits for those that others have."""
        mine = set(paths)
        while self._wanting_all or not self._paths.isdisjoint(mine):
            await self._freed.wait()
        self._paths |= mine
        try:
            yield
        finally:
            self._paths -= mine
            self._tell()

    @asynccontextmanager
    async def everything(self) -> AsyncIterator[None]:
        """Have all documents in hand, those that there are not, too."""
        self._wanting_all += 1
        try:
            while self._has_all or self._paths:
                await self._freed.wait()
            self._has_all = True
            try:
                yield
            finally:
                self._has_all = False
        finally:
            self._wanting_all -= 1
            self._tell()

    def _tell(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()
