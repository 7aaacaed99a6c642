"""What changed on the disk, worked off for several workspaces at once, and in each what changed alone before what
changed with many others: a long import keeps nothing else waiting, of other workspaces or of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice

from grounding.documents.library import is_document_path

Work = Callable[[str, set[str] | None], Awaitable[None]]
"""Works off what changed in a workspace: these paths, or all where None. Never raises."""

NEWEST = 16
"""Documents of the others that are handed out at once, the newest first; an edit waits for so many at most."""
OLDEST = 64
"""The same, the oldest first: so that none waits for ever, and a model that is far away is asked for many at once."""
RUNS_OF_EACH = 2
"""Over single documents of one workspace at once, one of each kind. What folders hold is looked up by a run beside."""
LONG_RUN = RUNS_OF_EACH
"""The number of the run beside those, over documents that take long, one at a time: others do not wait for them."""
RUNS = 8
"""Of all workspaces at once, so that the threads which cut texts are left to turns, too."""
LONG_RUNS = 2
"""Beside those, over documents that take long."""
LOOKS = 4
"""Of those runs that look folders through, which take long."""


@dataclass(slots=True)
class _Workspace:
    edits: dict[str, None] = field(default_factory=dict)
    """Documents that wait and are of no import, the newest last: they go before others, each in its turn."""
    imports: dict[str, None] = field(default_factory=dict)
    """The same, of those that are."""
    long: dict[str, bool] = field(default_factory=dict)
    """Those that wait and take long, the newest last, and whether each is of an import."""
    folders: set[str] | None = field(default_factory=set)
    """Those that wait; None where everything does."""
    runs: set[int] = field(default_factory=set)
    is_looking: bool = False

    @property
    def documents(self) -> int:
        """How many wait, but for those that take long."""
        return len(self.edits) + len(self.imports)

    @property
    def is_idle(self) -> bool:
        return not (self.documents or self.long or self.runs or self.is_looking or self.folders is None or self.folders)

    def add(self, documents: Iterable[str], long: Collection[str], *, is_import: bool) -> None:
        """Those changed, and of them *long* take long."""
        for path in sorted(documents):
            known = self.long.pop(path, None)
            if path in long:
                self.long[path] = is_import and path not in self.edits and known is not False
                self.edits.pop(path, None)
                self.imports.pop(path, None)
            elif not is_import or known is False:
                self.imports.pop(path, None)
                self.edits.setdefault(path)
            elif path not in self.edits:
                self.imports.pop(path, None)
                self.imports[path] = None

    def take(self, *, oldest: bool) -> set[str]:
        """What is worked off next, which waits no more: edits, and beside them the *oldest* of an import."""
        lane = self.edits
        if self.imports and (oldest or not lane):
            lane = self.imports
        if lane is self.edits:
            some = set(islice(lane, NEWEST))
        else:
            some = set(islice(lane, OLDEST) if oldest else islice(reversed(lane), NEWEST))
        for path in some:
            del lane[path]
        return some

    def take_long(self) -> set[str]:
        """The edit among those that take long which was made last, else the oldest of an import; it waits no more."""
        path = next((path for path in reversed(self.long) if not self.long[path]), next(iter(self.long)))
        del self.long[path]
        return {path}


class Changes:
    """Hands changes to *work*, in tasks of *group*."""

    def __init__(self, work: Work, group: asyncio.TaskGroup) -> None:
        self._work = work
        self._group = group
        self._room = asyncio.Semaphore(RUNS)
        self._room_for_long = asyncio.Semaphore(LONG_RUNS)
        self._room_to_look = asyncio.Semaphore(LOOKS)
        self._workspaces: defaultdict[str, _Workspace] = defaultdict(_Workspace)

    def add(
        self,
        workspace_id: str,
        paths: set[str] | None,
        *,
        is_import: bool = False,
        long: Collection[str] = (),
    ) -> None:
        """Have *paths* of a workspace, documents or folders, all where None, worked off; those of an import after
        others, and those that are *long* beside them. Waits for nothing, so that *paths* should not be very many."""
        one = self._workspaces[workspace_id]
        documents = {path for path in paths or () if is_document_path(path)}
        one.add(documents, long, is_import=is_import)
        if paths is None or one.folders is None:
            one.folders = None
        else:
            one.folders |= paths - documents
        free = sorted(set(range(RUNS_OF_EACH)) - one.runs)
        for number in free if one.documents > NEWEST else free[: one.documents][:1]:
            one.runs.add(number)
            self._group.create_task(self._work_off(workspace_id, one, number))
        if one.long and LONG_RUN not in one.runs:
            one.runs.add(LONG_RUN)
            self._group.create_task(self._work_off_long(workspace_id, one))
        if (one.folders is None or one.folders) and not one.is_looking:
            one.is_looking = True
            self._group.create_task(self._look_through(workspace_id, one))

    async def _work_off(self, workspace_id: str, one: _Workspace, number: int) -> None:
        try:
            while one.documents:
                async with self._room:
                    if some := one.take(oldest=number > 0):  # the other run may have taken the last meanwhile
                        await self._work(workspace_id, some)
        finally:
            one.runs.discard(number)
            self._forget(workspace_id, one)

    async def _work_off_long(self, workspace_id: str, one: _Workspace) -> None:
        try:
            while one.long:
                async with self._room_for_long:
                    if one.long:  # what is told meanwhile may be long no more
                        await self._work(workspace_id, one.take_long())
        finally:
            one.runs.discard(LONG_RUN)
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
