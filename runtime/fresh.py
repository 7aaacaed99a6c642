"""What was stored in the index a moment ago, for whoever goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from connectors.message import Scope
from grounding.documents.index import Kind

MOST = 1000
"""Sources that are remembered one by one; of more the oldest are found with everything else."""


class Fresh:
    """Sources, the newest last."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, Kind, str], None] = {}
        self._news = asyncio.Event()

    def note(self, scope: Scope, kind: Kind = Kind.DOCUMENT, sources: Collection[str] = ()) -> None:
        """*sources* of the scope's workspace were stored; none stands for some that nobody named."""
        for source in sources:
            name = (scope.workspace_id, kind, source)
            self._sources.pop(name, None)
            self._sources[name] = None
        while len(self._sources) > MOST:
            del self._sources[next(iter(self._sources))]
        self._news.set()

    def newest(self) -> tuple[Scope, Kind, str] | None:
        """The source that was stored last; it stays so until `done`."""
        if not self._sources:
            return None
        workspace_id, kind, source = next(reversed(self._sources))
        return Scope(workspace_id), kind, source

    def done(self, scope: Scope, kind: Kind, source: str) -> None:
        """Forget *source*."""
        self._sources.pop((scope.workspace_id, kind, source), None)

    async def wait(self, seconds: float | None) -> None:
        """Return once something was stored since the last `wait`, or after *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
        finally:
            self._news.clear()
