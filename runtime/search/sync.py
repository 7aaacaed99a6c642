"""Keeps the index and the directives in step with the files of this machine, and with what other processes left.

One of several processes does this (`runtime.coordination.leadership`). What cannot be done now is tried again until
it can.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import structlog
from watchfiles import awatch

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable
from grounding.documents import (
    FEW,
    Backlog,
    Changed,
    DiskCopy,
    SharedShelf,
    changed_documents,
    in_pieces,
    is_document_path,
    watch,
)
from grounding.retrieval import IndexUnavailable
from promptpolicy.file_sync import FileSyncPublisher
from runtime.search.collections import tell_index_failed
from runtime.workspaces import Workspaces

# ---- watching ----
#
# What the system tells of files that change, and when all of them have to be looked at because it may not have.


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


# ---- changes ----
#
# What changed on the disk, worked off for several workspaces at once, and in each what changed alone before what
# changed with many others: a long import keeps nothing else waiting, of other workspaces or of its own.


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


# ---- following ----


SWEEP_SECONDS = 1.0
"""Between looks at what other processes changed, and at what could not be done before."""
ABANDONED_SECONDS = 5.0
"""How long what waits in the backlog is left to the process that put it there."""
LOOKED_AT = 100
"""Of so many workspaces each look asks what others changed, and besides of those where something did lately: where
nothing goes on, a thousand cost no more than a hundred."""
LIVELY_SECONDS = 60.0
"""How long a workspace in which something changed is asked about each time."""
_RETRY_SECONDS = (1.0, 30.0)
_MOST_AT_ONCE = 5000


class InStep(Protocol):
    """What the index does to be in step; see `runtime.search.knowledge.Knowledge`."""

    async def index(self, scope: Scope, paths: Collection[str] | None) -> Any:
        """Index what changed of *paths*, or of all."""

    async def keep_answering(self, scope: Scope) -> bool:
        """Bring what answers until the index is filled in step; False where there is nothing else than the index."""

    async def unindexed(self, scope: Scope) -> set[str]:
        """What by its looks is not in the index as it is kept."""

    async def indexed(self, scope: Scope, paths: Collection[str]) -> set[str]:
        """Those of *paths* of which the index has some text."""


@dataclass(slots=True)
class _Undone:
    """What could not be done in a workspace: these paths, or None for everything; when to try again, and then."""

    paths: set[str] | None
    at: float
    wait: float
    is_tried: bool = False
    """Whether that is going on just now."""


class Following:
    """Of all workspaces. *copy* and *shelf* are given where documents are kept for several machines."""

    def __init__(
        self,
        settings: Settings,
        index: InStep,
        workspaces: Workspaces,
        publisher: FileSyncPublisher,
        backlog: Backlog,
        *,
        shelf: SharedShelf | None = None,
        copy: DiskCopy | None = None,
    ) -> None:
        self._data_dir = settings.data_dir
        self._index = index
        self._workspaces = workspaces
        self._publisher = publisher
        self._backlog = backlog
        self._shelf = shelf
        self._copy = copy
        self._behind: set[str] | None = set()
        """Workspaces that were not looked through since the start; None while nobody knows which."""
        self.watching = Watching(settings.data_dir)
        self._caught_up = asyncio.Event()
        """Set, and replaced, whenever one of them was."""
        self._undone: dict[str, _Undone] = {}
        self._revisions: dict[str, int] = {}
        self._unasked: list[Scope] = []
        """Workspaces whose turn it is to be asked what others changed, the next ones first."""
        self._lively: dict[str, float] = {}
        """Those where something changed lately, and until when they are that."""
        self._put: dict[str, set[str]] = {}
        """Documents that this process took from files to where they are shared, and that are still to be indexed."""
        self._unborn: set[str] = set()
        """Folders with files, of workspaces that there were not when the files changed."""
        self.is_running = False
        """Whether this process looks at the files, and has looked at all of them."""

    def will_run(self) -> None:
        """Say that `run` is about to begin: until it has looked, nobody knows which documents are behind."""
        self._behind = None

    def is_behind(self, scope: Scope) -> bool:
        """Whether nobody has looked yet, since the start, what became of the workspace's documents meanwhile."""
        return self._behind is None or scope.workspace_id in self._behind

    def is_failing(self, scope: Scope) -> bool:
        """Whether something that changed could not be indexed, and is to be tried again."""
        return scope.workspace_id in self._undone

    async def until_ahead(self, scope: Scope) -> None:
        """Wait until the workspace `is_behind` no more."""
        while self.is_behind(scope):
            await self._caught_up.wait()

    async def run(self) -> None:
        """Follow, until cancelled."""
        self._revisions.clear()  # others may have followed since
        self.watching.begin()
        try:
            async with asyncio.TaskGroup() as group:
                changes = Changes(self._keep_in_step, group)
                group.create_task(self._follow_workspaces(changes))
                group.create_task(self._follow_global_directives())
                await self.watching.begun()  # else what is saved between that look and the first change told is missed
                await self._until_store_is_there(self._catch_up)
                self.is_running = True
                group.create_task(self._sweep(changes, group))
        finally:
            self.is_running = False

    async def _until_store_is_there(self, work: Callable[[], Awaitable[None]]) -> None:
        wait, longest = _RETRY_SECONDS
        while True:
            try:
                return await work()
            except StoreUnavailable as error:
                _log.warning("store.degraded", store="redis", why=str(error))
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                tell_index_failed(error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _catch_up(self) -> None:
        """What changed on the disk while nobody looked. Raises `StoreUnavailable`."""
        try:
            await self._publisher.import_all()
            workspaces = [workspace.id for workspace in await self._workspaces.all()]
            self._unborn = await asyncio.to_thread(_folders, self._data_dir / "workspaces") - set(workspaces)
            self._behind = set(workspaces)
            for workspace_id in workspaces:  # all of them before an index is filled anew, which takes longer
                if await self._keep_answering(workspace_id):
                    self._behind.discard(workspace_id)
                    self._tell_waiting()
            for workspace_id in await self._least_first(workspaces):
                await self._keep_in_step(workspace_id, None)
                self._behind.discard(workspace_id)
                self._tell_waiting()
        finally:
            self._behind = set()
            self._tell_waiting()

    async def _least_first(self, workspaces: Sequence[str]) -> list[str]:
        """*workspaces*, those first in which less waits: a single change does not wait for another one's import."""
        waiting: dict[str, int] = {}
        for workspace_id in workspaces:
            try:
                waiting[workspace_id] = len(await self._unindexed(Scope(workspace_id)))
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`; to index it comes next, and tries again
                tell_index_failed(error, workspace_id=workspace_id)
        return sorted(workspaces, key=lambda one: waiting.get(one, 0))

    async def _unindexed(self, scope: Scope) -> set[str]:
        """Bring files and documents in step, where they are two; what is not in the index by its looks then."""
        if self._copy is not None:
            self._put.setdefault(scope.workspace_id, set()).update(await self._copy.bring_in_step(scope))
        return await self._index.unindexed(scope)

    async def _keep_answering(self, workspace_id: str) -> bool:
        try:
            return await self._index.keep_answering(Scope(workspace_id))
        except Exception as error:  # noqa: BLE001 - see `tell_index_failed`; what is to be indexed comes next, and tries again
            tell_index_failed(error, workspace_id=workspace_id)
            return False

    def _tell_waiting(self) -> None:
        self._caught_up.set()
        self._caught_up = asyncio.Event()

    async def _follow_workspaces(self, changes: Changes) -> None:
        async for change in self.watching.changes():
            documents = changed_documents(change)
            if documents is None or documents:
                await self._note(change.workspace_id, documents or ())
                edits = await self._edits(change.workspace_id, documents or ()) if change.is_import else set()
                long = {path.removeprefix("docs/") for path in change.long}
                if edits and documents:
                    changes.add(change.workspace_id, edits, long=long)
                    documents -= edits
                changes.add(change.workspace_id, documents, is_import=change.is_import, long=long)
            if any(path == "context" or path.startswith("context/") for path in change.paths):
                await self._import_directives(change.workspace_id)

    async def _edits(self, workspace_id: str, paths: Collection[str]) -> set[str]:
        """Those of *paths*, which changed with many others, that were there before, where they are few. An editor that
        writes another file and gives it the name of the former makes a file that looks as new as the others."""
        with suppress(StoreUnavailable, IndexUnavailable):  # what works them off meets the same, and tries again
            known = await self._index.indexed(Scope(workspace_id), paths)
            return known if len(known) <= FEW else set()
        return set()

    async def _note(self, workspace_id: str, paths: Collection[str]) -> None:
        """Write down that *paths* wait from now on; where documents are shared, whoever puts them there does."""
        if not paths or self._copy is not None:
            return
        with suppress(StoreUnavailable):  # what works them off meets the same, and tries again
            if await self._workspaces.exists(workspace_id):
                await self._backlog.add(Scope(workspace_id), paths, time.time())

    async def _follow_global_directives(self) -> None:
        folder = self._data_dir / "global"
        while True:
            try:
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
                async for _ in awatch(folder, debounce=300, ignore_permission_denied=True):
                    await self._import_all()
            except Exception as error:  # noqa: BLE001 - as of the files of workspaces
                _log.warning("index.failed", why=f"global directives cannot be followed: {told(error)}")
            await asyncio.sleep(_RETRY_SECONDS[1])
            await self._import_all()

    async def _import_all(self) -> None:
        try:
            await self._publisher.import_all()
        except StoreUnavailable as error:
            _log.warning("store.degraded", store="redis", why=str(error))
        except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
            tell_index_failed(error)

    async def _import_directives(self, workspace_id: str) -> None:
        try:
            if await self._workspaces.exists(workspace_id):
                await self._publisher.import_workspace(Scope(workspace_id))
            else:
                self._unborn.add(workspace_id)
        except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
            tell_index_failed(error, workspace_id=workspace_id)

    async def _keep_in_step(self, workspace_id: str, paths: set[str] | None, *, others: bool = False) -> None:
        """Bring the index in step with the documents at *paths*, all if None; with *others* also where the change was
        another process's. What cannot be done is tried again by `_sweep`."""
        try:
            if not await self._workspaces.exists(workspace_id):
                self._undone.pop(workspace_id, None)
                self._unborn.add(workspace_id)
                await self._backlog.forget(Scope(workspace_id))  # noted while the workspace was deleted
                return
            self._unborn.discard(workspace_id)
            scope = Scope(workspace_id)
            await self._bring_in_step(scope, paths, others=others)
        except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
            self._try_again(workspace_id, paths)
            tell_index_failed(error, workspace_id=workspace_id)
        else:
            if paths is None:
                self._undone.pop(workspace_id, None)

    async def _bring_in_step(self, scope: Scope, paths: set[str] | None, *, others: bool) -> None:
        if self._copy is not None:
            changed = await self._copy.bring_in_step(scope, paths)
            put = self._put.pop(scope.workspace_id, set())
            if paths is not None:
                if left := put - paths:
                    self._put[scope.workspace_id] = left
                paths = changed | (paths if others else paths & put)
        if paths is None or paths:
            await self._index.index(scope, paths)

    def _try_again(self, workspace_id: str, paths: set[str] | None) -> None:
        before, now = self._undone.get(workspace_id), time.monotonic()
        wait = before.wait if before else _RETRY_SECONDS[0]
        if before is not None and before.at <= now:  # else it is of the same failure
            wait = min(wait * 2, _RETRY_SECONDS[1])
        if before is not None and paths is not None:
            paths = None if before.paths is None else paths | before.paths
        self._undone[workspace_id] = _Undone(paths, now + wait, wait)

    async def _sweep(self, changes: Changes, group: asyncio.TaskGroup) -> None:
        """What could not be done before, what other processes changed or left undone, and now and then everything."""
        room = asyncio.Semaphore(RUNS)
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for workspace_id, undone in self._undone.items():
                if undone.at <= time.monotonic() and not undone.is_tried:
                    undone.is_tried = True
                    group.create_task(self._retry(workspace_id, undone, room))
            try:
                await self._look_at_newborn(changes)
                if self._shelf is not None:
                    await self._see_to_others(self._shelf)
                if self.watching.is_to_look():
                    await self._rescan(changes)
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                tell_index_failed(error)

    async def _retry(self, workspace_id: str, undone: _Undone, room: asyncio.Semaphore) -> None:
        async with room:
            await self._keep_in_step(workspace_id, undone.paths, others=True)
        if self._undone.get(workspace_id) is undone:  # nothing failed
            del self._undone[workspace_id]

    async def _look_at_newborn(self, changes: Changes) -> None:
        """Take in the files of folders whose workspaces were made after them."""
        if not self._unborn:
            return
        looked_at, self._unborn = self._unborn, set()
        self._unborn |= await asyncio.to_thread(_there, self._data_dir / "workspaces", looked_at)
        if not self._unborn:  # each was a workspace's that was deleted: its folder would be told of, if it came again
            return
        known = {workspace.id for workspace in await self._workspaces.all()}
        for workspace_id in self._unborn & known:
            self._unborn.discard(workspace_id)
            await self._import_directives(workspace_id)
            try:
                await self._look_anew(Scope(workspace_id), changes)
            except Exception as error:  # noqa: BLE001 - see `tell_index_failed`
                self._unborn.add(workspace_id)
                tell_index_failed(error, workspace_id=workspace_id)

    async def _see_to_others(self, shelf: SharedShelf) -> None:
        """Write what other processes put to the files, and index what they did not get to."""
        scopes, now = await self._asked_now(), time.monotonic()
        revisions, waiting = await asyncio.gather(shelf.revisions(scopes), self._backlog.waiting(scopes))
        for scope, revision, waits in zip(scopes, revisions, waiting, strict=True):
            seen = self._revisions.get(scope.workspace_id)
            if waits.documents or seen not in (None, revision):
                self._lively[scope.workspace_id] = now + LIVELY_SECONDS
            if seen != revision and self._copy is not None:
                if not await self._workspaces.exists(scope.workspace_id):  # deleted since they were listed
                    continue
                changed = None if seen is None or revision < seen else await shelf.changes(scope, seen, revision)
                await self._copy.bring_in_step(scope, changed)
                self._revisions[scope.workspace_id] = revision
            abandoned = waits.documents and waits.since < time.time() - ABANDONED_SECONDS
            if abandoned and scope.workspace_id not in self._undone:
                paths = set(await self._backlog.paths(scope, _MOST_AT_ONCE))
                await self._keep_in_step(scope.workspace_id, paths, others=True)

    async def _asked_now(self) -> list[Scope]:
        """The workspaces that are asked what others changed: those whose turn it is, and lively ones."""
        if not self._unasked:
            self._unasked = [Scope(workspace.id) for workspace in await self._workspaces.all()]
        some, self._unasked = self._unasked[:LOOKED_AT], self._unasked[LOOKED_AT:]
        now = time.monotonic()
        self._lively = {name: until for name, until in self._lively.items() if until > now}
        return [*some, *map(Scope, self._lively.keys() - {one.workspace_id for one in some})]

    async def _rescan(self, changes: Changes) -> None:
        try:
            for workspace in await self._workspaces.all():
                await self._look_anew(Scope(workspace.id), changes)
        except BaseException:
            self.watching.look_soon()
            raise

    async def _look_anew(self, scope: Scope, changes: Changes) -> None:
        """Have what is not in the index by its looks worked off like what is told: in turns with other workspaces."""
        paths = await self._unindexed(scope)
        for piece in await asyncio.to_thread(in_pieces, scope.workspace_id, paths):
            await self._note(scope.workspace_id, piece.paths)
            changes.add(scope.workspace_id, set(piece.paths), is_import=piece.is_import)
            await asyncio.sleep(0)


def _there(parent: Path, names: Iterable[str]) -> set[str]:
    """Those of *names* that are folders in *parent*. Raises nothing."""
    return {name for name in names if os.path.isdir(parent / name)}


def _folders(parent: Path) -> set[str]:
    """The names of the folders in *parent*, which may not exist."""
    return {entry.name for entry in parent.iterdir() if entry.is_dir()} if parent.is_dir() else set()
