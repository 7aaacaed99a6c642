"""What a worker has in hand of each connector, and where more of it waits than a worker may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

MAX_HELD = 128
"""Conversations of one connector that a worker holds at a time, twice those that it answers at a time: the others wait
for whichever worker has room."""


class InHand:
    """Tasks by connector. *on_room* is called when there is room for many conversations of one of which more waits."""

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        self._held: dict[str, set[asyncio.Task[None]]] = {}
        self._more: dict[str, dict[int, None]] = {}
        """By connector: partitions in which more of it waits; those that were looked at longest ago are first."""

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        return {task for held in self._held.values() for task in held}

    def room(self, connector: str) -> int:
        """How many more conversations of *connector* may be held."""
        return max(0, MAX_HELD - len(self._held.get(connector, ())))

    def hold(self, connector: str, task: asyncio.Task[None]) -> None:
        """Have *task* in hand until it ends."""
        self._held.setdefault(connector, set()).add(task)

        def let_go(ended: asyncio.Task[None]) -> None:
            held = self._held[connector]
            held.discard(ended)
            if not held:
                del self._held[connector]
            if self._is_roomy(connector):
                self._on_room()

        task.add_done_callback(let_go)

    def more(self, connector: str, partitions: Iterable[int]) -> None:
        """Say that more of *connector* may wait in *partitions*."""
        found = dict.fromkeys(partitions)
        if found:
            self._more.setdefault(connector, {}).update(found)

    def roomy(self) -> str | None:
        """A connector for many of whose conversations there is room, and of which more may wait."""
        return next((connector for connector in self._more if self._is_roomy(connector)), None)

    def look(self, connector: str) -> list[int]:
        """The partitions in which to look for more of *connector*: as many as there is room for conversations."""
        more = list(self._more.pop(connector, ()))
        room = self.room(connector)
        self.more(connector, more[room:])
        return more[:room]

    def _is_roomy(self, connector: str) -> bool:
        return connector in self._more and self.room(connector) >= MAX_HELD // 4
