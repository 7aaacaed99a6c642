"""What the system tells of files that change, and when all of them have to be looked at because it may not have."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from grounding.documents.watch import Changed, watch

RESCAN_SECONDS = 300.0
"""Between looks at all files: the system tells of changes, but not for certain."""
UNWATCHED_SECONDS = 5.0
"""The same where the system tells of none, and after a look that failed."""
MANY_CHANGES = 1000
"""Told at once: then some may have been lost (Linux keeps 16,384 and drops what comes beyond, which nobody is told of),
and all files are looked at once more, `UNWATCHED_SECONDS` later."""
WATCH_AGAIN_SECONDS = (1.0, 30.0)
"""After a watch that ended: one file whose name is no UTF-8 ends it, once, and a limit that is reached does again and
again."""
ANEW_SECONDS = 0.2
"""Before a watch that ended because folders came begins anew: mostly several come at once."""
_log = structlog.get_logger()


class Watching:
    """Of the files under ``DATA_DIR/workspaces``."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._watched = asyncio.Event()
        self._look_at = math.inf
        """When all files are to be looked at, as `time.monotonic` tells it."""
        self._has_gap = False
        """Whether a watch ended a moment ago that is to begin anew."""
        self.why_not = ""
        """Why the system tells of no changes, while it does not: then all files are looked at every few seconds."""

    def begin(self) -> None:
        """Nothing is watched yet, and all files are looked at just now."""
        self._watched.clear()
        self._look_at = time.monotonic() + RESCAN_SECONDS
        self.why_not = ""

    async def begun(self) -> None:
        """Wait until the system tells of changes, or cannot."""
        await self._watched.wait()

    async def changes(self) -> AsyncIterator[Changed]:
        """What changes on the disk, also after the system had no watch to give for a while."""
        wait, longest = WATCH_AGAIN_SECONDS
        while True:
            began = time.monotonic()
            try:
                async for change in watch(self._data_dir, begun=self._is_watched):
                    yield change
                    if change.told >= MANY_CHANGES:
                        self.look_soon()
                self._has_gap = True
                await asyncio.sleep(ANEW_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001 - whatever ends a watch, files go on changing
                self.why_not = f"files cannot be followed: {told(error)}"
                _log.warning("index.failed", why=self.why_not)
            self._watched.set()
            self.look_soon()
            lasted = time.monotonic() - began
            wait = min(wait * 2, longest) if lasted < longest else WATCH_AGAIN_SECONDS[0]
            await asyncio.sleep(wait)

    def _is_watched(self) -> None:
        self._watched.set()
        if self.why_not or self._has_gap:  # of what changed until now nothing was told
            self.why_not, self._has_gap = "", False
            self._look_at = time.monotonic()

    def look_soon(self) -> None:
        """All files are to be looked at, in a few seconds."""
        self._look_at = min(self._look_at, time.monotonic() + UNWATCHED_SECONDS)

    def is_to_look(self) -> bool:
        """Whether all files are to be looked at now: who asks does."""
        now = time.monotonic()
        if self._look_at > now:
            return False
        self._look_at = now + (UNWATCHED_SECONDS if self.why_not else RESCAN_SECONDS)
        return True


def told(error: BaseException) -> str:
    """What is told of *error*: of a group of errors the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
