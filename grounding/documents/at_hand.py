"""Which documents are being indexed: two runs never have the same one in hand, and keep each other waiting for no
other. Between reading a document and storing it nobody else may: what was read first would be stored last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager


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
        with self.hand() as hand:
            await hand.take(paths)
            yield

    @contextmanager
    def hand(self) -> Iterator[Hand]:
        """A hand for one run, which lets go of everything in the end. What it has when it takes more it has to let go
        of without waiting for that: else two might wait for each other."""
        hand = Hand(self)
        try:
            yield hand
        finally:
            hand.let_go([*hand.paths])

    async def take(self, paths: set[str]) -> None:
        """Have *paths* in hand once nobody else has one of them."""
        while self._wanting_all or not self._paths.isdisjoint(paths):
            await self._freed.wait()
        self._paths |= paths

    def let_go(self, paths: set[str]) -> None:
        """Others may take *paths*."""
        self._paths -= paths
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


class Hand:
    """Of one run."""

    def __init__(self, all_hands: AtHand) -> None:
        self._all = all_hands
        self.paths: set[str] = set()

    async def take(self, paths: Collection[str]) -> None:
        """Have *paths*, of which this has none yet, in hand, too; waits for those that others have."""
        await self._all.take(mine := set(paths))
        self.paths |= mine

    def let_go(self, paths: Collection[str]) -> None:
        """Others may take those of *paths* that are in hand."""
        if mine := self.paths & set(paths):
            self.paths -= mine
            self._all.let_go(mine)
