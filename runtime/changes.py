"""What changed on the disk, worked off for several workspaces at once, and in each the newest first: a long import
keeps nothing else waiting, of other workspaces or of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice

from grounding.documents.library import is_document_path

Work = Callable[[str, set[str] | None], Awaitable[None]]
"""Works off what changed in a workspace: these paths, or all where None. Never raises."""

NEWEST = 16
"""Documents that are handed out at once, the newest first: what is saved meanwhile waits for them alone."""
OLDEST = 64
"""The same, the oldest first: so that none waits for ever, and a model that is far away is asked for many at once."""
RUNS_OF_EACH = 2
"""Over single documents of one workspace at once, one of each kind. What folders hold is looked up by a run beside."""
RUNS = 8
"""Of all workspaces at once, so that the threads which cut texts are left to turns, too."""
LOOKS = 4
"""Of those runs that look folders through, which take long."""


@dataclass(slots=True)
class _Workspace:
    documents: dict[str, None] = field(default_factory=dict)
    """Those that wait, the newest last."""
    folders: set[str] | None = field(default_factory=set)
    """Those that wait; None where everything does."""
    runs: set[int] = field(default_factory=set)
    is_looking: bool = False

    @property
    def is_idle(self) -> bool:
        return not (self.documents or self.runs or self.is_looking or self.folders is None or self.folders)


class Changes:
    """Hands changes to *work*, in tasks of *group*."""

    def __init__(self, work: Work, group: asyncio.TaskGroup) -> None:
        self._work = work
        self._group = group
        self._room = asyncio.Semaphore(RUNS)
        self._room_to_look = asyncio.Semaphore(LOOKS)
        self._workspaces: defaultdict[str, _Workspace] = defaultdict(_Workspace)

    def add(self, workspace_id: str, paths: set[str] | None) -> None:
        """Have *paths* of a workspace, documents or folders, all where None, worked off. Waits for nothing."""
        one = self._workspaces[workspace_id]
        documents = sorted(path for path in paths or () if is_document_path(path))
        for path in documents:
            one.documents.pop(path, None)
            one.documents[path] = None
        if paths is None or one.folders is None:
            one.folders = None
        else:
            one.folders |= paths - one.documents.keys()
        free = sorted(set(range(RUNS_OF_EACH)) - one.runs)
        for number in free if len(one.documents) > NEWEST else free[: len(one.documents)][:1]:
            one.runs.add(number)
            self._group.create_task(self._work_off(workspace_id, one, number))
        if (one.folders is None or one.folders) and not one.is_looking:
            one.is_looking = True
            self._group.create_task(self._look_through(workspace_id, one))

    async def _work_off(self, workspace_id: str, one: _Workspace, number: int) -> None:
        try:
            while one.documents:
                async with self._room:
                    newest, oldest = islice(reversed(one.documents), NEWEST), islice(one.documents, OLDEST)
                    some = set(oldest if number else newest)
                    for path in some:
                        del one.documents[path]
                    if some:  # the other run may have taken the last of them meanwhile
                        await self._work(workspace_id, some)
        finally:
            one.runs.discard(number)
            self._forget(workspace_id, one)

    async def _look_through(self, workspace_id: str, one: _Workspace) -> None:
        try:
            while one.folders is None or one.folders:
                async with self._room_to_look:
                    folders, one.folders = one.folders, set()
                    await self._work(workspace_id, folders)
        finally:
            one.is_looking = False
            self._forget(workspace_id, one)

    def _forget(self, workspace_id: str, one: _Workspace) -> None:
        if one.is_idle:
            self._workspaces.pop(workspace_id, None)
