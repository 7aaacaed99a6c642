"""Passages judged by their words: on the event loop where their words were looked at before, else on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from grounding.documents.index import Hit

T = TypeVar("T")

FEW_PASSAGES = 2
JUDGED_REMEMBERED = 512
"""Fewer than the texts that `grounding.documents.sparse` remembers the terms of."""


class Judging:
    """Remembers which passages were judged. The words of more than *few* others take milliseconds: off the loop."""

    def __init__(self, few: int = FEW_PASSAGES) -> None:
        self._few = few
        self._known: set[str] = set()

    async def of(self, hits: Sequence[Hit], judge: Callable[[], T]) -> T:
        """What *judge* says, which looks at the words of *hits*."""
        new = {hit.passage.id for hit in hits} - self._known
        if len(self._known) + len(new) > JUDGED_REMEMBERED:
            self._known.clear()
        self._known |= new
        return judge() if len(new) <= self._few else await asyncio.to_thread(judge)
