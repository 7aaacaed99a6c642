"""What was stored in the index a moment ago, for whoever goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from connectors.message import Scope
from grounding.documents.index import Kind

MOST = 1000
"""Sources that are remembered one by one; of more the oldest are not the first that are seen to."""


class Fresh:
    """Sources, the newest last."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, Kind, str], int] = {}
        self._noted = 0
        self._workspaces: dict[str, int] = {}
        """Those of which something was stored."""
        self._news = asyncio.Event()

    def note(self, scope: Scope, kind: Kind = Kind.DOCUMENT, sources: Collection[str] = ()) -> None:
        """*sources* of the scope's workspace were stored; none stands for some that nobody named."""
        self._noted += 1
        for source in sources:
            name = (scope.workspace_id, kind, source)
            self._sources.pop(name, None)
            self._sources[name] = self._noted
        self._workspaces[scope.workspace_id] = self._noted
        while len(self._sources) > MOST:
            del self._sources[next(iter(self._sources))]
        self._news.set()

    def newest(self) -> tuple[Scope, Kind, str, int] | None:
        """The source that was stored last, and a number for `done`; it stays so until then."""
        if not self._sources:
            return None
        workspace_id, kind, source = name = next(reversed(self._sources))
        return Scope(workspace_id), kind, source, self._sources[name]

    def done(self, scope: Scope, kind: Kind, source: str, number: int) -> None:
        """Forget *source*, if it was not stored again since `newest` gave that *number*."""
        name = (scope.workspace_id, kind, source)
        if self._sources.get(name) == number:
            del self._sources[name]

    def workspaces(self) -> dict[str, int]:
        """The workspaces in which something was stored, each with a number for `looked_at`."""
        return dict(self._workspaces)

    def looked_at(self, numbers: Mapping[str, int]) -> None:
        """Forget those workspaces in which nothing was stored since `workspaces` gave their *numbers*."""
        for workspace_id, number in numbers.items():
            if self._workspaces.get(workspace_id) == number:
                del self._workspaces[workspace_id]

    async def wait(self, seconds: float | None) -> None:
        """Return once something was stored since the last `wait`, or after *seconds*."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
        finally:
            self._news.clear()
