"""What changed on the disk, worked off for several workspaces at once: a long import in one keeps no other waiting."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Work = Callable[[str, set[str] | None, float], Awaitable[None]]
"""Works off what changed in a workspace: these paths, or all where None, at that time. Never raises."""

RUNS_OF_EACH = 2
"""Of one workspace at once: a short one beside a long one. What comes beyond waits, and becomes one."""
RUNS = 8
"""Of all workspaces at once, so that the threads which cut texts are left to turns, too."""


@dataclass(slots=True)
class _Workspace:
    runs: int = 0
    waits: bool = False
    paths: set[str] | None = field(default_factory=set)
    at: float = 0.0


class Changes:
    """Hands changes to *work*, in tasks of *group*."""

    def __init__(self, work: Work, group: asyncio.TaskGroup) -> None:
        self._work = work
        self._group = group
        self._room = asyncio.Semaphore(RUNS)
        self._workspaces: defaultdict[str, _Workspace] = defaultdict(_Workspace)

    def add(self, workspace_id: str, paths: set[str] | None, at: float) -> None:
        """Have *paths* of a workspace, all where None, worked off. Waits for nothing."""
        one = self._workspaces[workspace_id]
        if not one.waits:
            one.paths, one.at, one.waits = paths, at, True
        else:
            one.paths = None if paths is None or one.paths is None else one.paths | paths
        if one.runs < RUNS_OF_EACH:
            one.runs += 1
            self._group.create_task(self._work_off(workspace_id, one))

    async def _work_off(self, workspace_id: str, one: _Workspace) -> None:
        try:
            while one.waits:
                async with self._room:
                    if one.waits:  # the other run may have taken it up meanwhile
                        one.waits = False
                        await self._work(workspace_id, one.paths, one.at)
        finally:
            one.runs -= 1
            if not one.runs and not one.waits:
                self._workspaces.pop(workspace_id, None)
