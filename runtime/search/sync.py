"""Keeps the index and the directives in step with the files of this machine, and with what other processes left.

One of several processes does this (`runtime.coordination.leadership`). What fails is tried again until it succeeds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
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
    Backlog,
    Changed,
    DiskCopy,
    SharedShelf,
    changed_documents,
    in_pieces,
    is_document_path,
    watch,
)
from promptpolicy.file_sync import FileSyncPublisher
from runtime.search.collections import log_index_error
from runtime.search.staleness import Timing
from runtime.workspaces import Workspaces

RESCAN_SECONDS = 300.0
"""Between looks at all files: the system reports changes, but not reliably."""
MANY_CHANGES = 1000
"""After so many changes at once some may be lost (Linux drops what exceeds 16,384): all files are looked at again."""
RESTART_SECONDS = 0.2
"""Before a watch starts again because of new folders: mostly several come at once."""
SWEEP_WORKSPACES = 100
"""Workspaces that are looked at together; with more, looks are further apart."""
_MOST_PATHS = 5000
_log = structlog.get_logger()


class Watcher:
    """Reports changed files under ``DATA_DIR/workspaces``, and when all files have to be looked at."""

    def __init__(self, data_dir: Path, timing: Timing) -> None:
        self._data_dir = data_dir
        self._timing = timing
        self._watched = asyncio.Event()
        self._rescan_at = math.inf
        """When all files are to be looked at, by `time.monotonic`."""
        self._has_gap = False
        """Whether changes may have been missed since the last watch ended."""
        self.why_not = ""
        """Why the system reports no changes; all files are looked at every few seconds while it does not."""

    def begin(self) -> None:
        """Forget an earlier watch; the caller looks at all files now."""
        self._watched.clear()
        self._rescan_at = time.monotonic() + RESCAN_SECONDS
        self.why_not = ""

    async def begun(self) -> None:
        """Wait until the system reports changes, or refuses to."""
        await self._watched.wait()

    async def changes(self) -> AsyncIterator[Changed]:
        """Yield what changes on the disk; a watch that ends is started again."""
        shortest, longest = self._timing.watch_retry
        wait = shortest
        while True:
            started = time.monotonic()
            try:
                async for change in watch(self._data_dir, begun=self._set_watched):
                    yield change
                    if change.total >= MANY_CHANGES:
                        self.rescan_soon()
                self._has_gap = True
                await asyncio.sleep(RESTART_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001 - whatever ends a watch, files go on changing
                self.why_not = f"files cannot be followed: {_text_of(error)}"
                _log.warning("index.failed", why=self.why_not)
            self._watched.set()
            self.rescan_soon()
            lasted = time.monotonic() - started
            wait = min(wait * 2, longest) if lasted < longest else shortest
            await asyncio.sleep(wait)

    def _set_watched(self) -> None:
        self._watched.set()
        if self.why_not or self._has_gap:
            self.why_not, self._has_gap = "", False
            self._rescan_at = time.monotonic()

    def rescan_soon(self) -> None:
        """Have all files looked at in a few seconds."""
        self._rescan_at = min(self._rescan_at, time.monotonic() + self._timing.unwatched)

    def is_rescan_due(self) -> bool:
        """Return whether all files are to be looked at; True only once for each time that they are."""
        now = time.monotonic()
        if self._rescan_at > now:
            return False
        self._rescan_at = now + (self._timing.unwatched if self.why_not else RESCAN_SECONDS)
        return True


def _text_of(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


Work = Callable[[str, set[str] | None], Awaitable[None]]
"""Indexes changes of a workspace: at these paths, or everywhere if None. Never raises."""

BATCH_PATHS = 64
"""Paths that are worked on together."""
PARALLEL_WORKSPACES = 8
"""Workspaces whose edits, and workspaces whose imports, are worked on at once."""


@dataclass(slots=True)
class _Lane:
    paths: dict[str, None] = field(default_factory=dict)
    """Paths that wait, the newest last."""
    everything: bool = False
    is_running: bool = False

    def take(self) -> set[str] | None:
        """Remove and return what is worked on next."""
        if self.everything:
            self.everything = False
            self.paths.clear()
            return None
        some = set(islice(self.paths, BATCH_PATHS))
        for path in some:
            del self.paths[path]
        return some


class ChangeQueue:
    """Hands changes to *work*, in tasks of *group*: each workspace's edits, and beside them its imports and folders.

    So a long import delays neither other workspaces nor a file that is saved by itself.
    """

    def __init__(self, work: Work, group: asyncio.TaskGroup) -> None:
        self._work = work
        self._group = group
        self._edits: defaultdict[str, _Lane] = defaultdict(_Lane)
        self._imports: defaultdict[str, _Lane] = defaultdict(_Lane)
        self._limits = asyncio.Semaphore(PARALLEL_WORKSPACES), asyncio.Semaphore(PARALLEL_WORKSPACES)

    def add(self, workspace_id: str, paths: Collection[str] | None, *, is_import: bool = False) -> None:
        """Have *paths* (documents or folders) worked on, or everything if None."""
        edits, imports = self._edits[workspace_id], self._imports[workspace_id]
        imports.everything |= paths is None
        for path in sorted(paths or ()):
            if not is_document_path(path) or (is_import and path not in edits.paths):
                imports.paths[path] = None
            else:
                imports.paths.pop(path, None)
                edits.paths[path] = None
        for lanes, limit in zip((self._edits, self._imports), self._limits, strict=True):
            lane = lanes[workspace_id]
            if (lane.paths or lane.everything) and not lane.is_running:
                lane.is_running = True
                self._group.create_task(self._run(workspace_id, lanes, limit))

    async def _run(self, workspace_id: str, lanes: dict[str, _Lane], limit: asyncio.Semaphore) -> None:
        lane = lanes[workspace_id]
        try:
            while lane.paths or lane.everything:
                async with limit:
                    if lane.paths or lane.everything:  # an import may have become an edit meanwhile
                        await self._work(workspace_id, lane.take())
        finally:
            lane.is_running = False
            lanes.pop(workspace_id, None)


class FillsIndex(Protocol):
    """Fills the index; see `runtime.search.knowledge.Knowledge`."""

    async def index(self, scope: Scope, paths: Collection[str] | None) -> Any:
        """Index what changed at *paths*, or everywhere."""

    async def unindexed(self, scope: Scope) -> set[str]:
        """Return the documents that are not in the index as they are stored."""


class FileFollower:
    """Follows the files of all workspaces. *copy* and *shelf* are given if documents are shared by several machines."""

    def __init__(
        self,
        settings: Settings,
        index: FillsIndex,
        workspaces: Workspaces,
        publisher: FileSyncPublisher,
        backlog: Backlog,
        *,
        shelf: SharedShelf | None = None,
        copy: DiskCopy | None = None,
        timing: Timing,
    ) -> None:
        self._data_dir = settings.data_dir
        self._index = index
        self._workspaces = workspaces
        self._publisher = publisher
        self._backlog = backlog
        self._shelf = shelf
        self._copy = copy
        self._timing = timing
        self.watcher = Watcher(settings.data_dir, timing)
        self._behind: set[str] | None = set()
        """Workspaces that were not looked through since the start; None if they are not known yet."""
        self._caught_up = asyncio.Event()
        """Set, and replaced, whenever one of them was looked through."""
        self._failed: dict[str, tuple[float, float]] = {}
        """Workspaces where something failed: when it is tried again, and how long was waited for that."""
        self._known: set[str] = set()
        """The workspaces that existed at the last look."""
        self._revisions: dict[str, int] = {}
        self.is_running = False
        """Whether this process follows the files, and has looked at all of them."""

    def will_run(self) -> None:
        """Count all workspaces as behind until `run` has looked at them."""
        self._behind = None

    def is_behind(self, scope: Scope) -> bool:
        """Return whether the workspace's documents were not looked at since the start."""
        return self._behind is None or scope.workspace_id in self._behind

    def is_failing(self, scope: Scope) -> bool:
        """Return whether something could not be indexed and is to be tried again."""
        return scope.workspace_id in self._failed

    async def until_looked_at(self, scope: Scope) -> None:
        """Wait until the workspace is no longer behind."""
        while self.is_behind(scope):
            await self._caught_up.wait()

    async def run(self) -> None:
        """Follow the files until cancelled."""
        self._revisions.clear()  # another process may have followed since
        self.watcher.begin()
        try:
            async with asyncio.TaskGroup() as group:
                queue = ChangeQueue(self._sync, group)
                group.create_task(self._follow_workspaces(queue))
                group.create_task(self._follow_global_directives())
                await self.watcher.begun()  # else a file that is saved between the look and the watch is missed
                await self._catch_up()
                self.is_running = True
                await self._sweep(queue)
        finally:
            self.is_running = False

    async def _catch_up(self) -> None:
        """Index what changed while no process looked; wait for Redis as long as it is away."""
        wait, longest = self._timing.retry
        while True:
            try:
                await self._publisher.import_all()
                self._known = {workspace.id for workspace in await self._workspaces.all()}
                break
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                log_index_error(error)
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)
        self._behind = set(self._known)
        try:
            for workspace_id in await self._shortest_first(self._known):
                await self._sync(workspace_id, None)
                self._set_looked_at(workspace_id)
        finally:
            self._set_looked_at(*self._known)

    def _set_looked_at(self, *workspace_ids: str) -> None:
        self._behind = (self._behind or set()).difference(workspace_ids)
        self._caught_up.set()
        self._caught_up = asyncio.Event()

    async def _shortest_first(self, workspaces: Collection[str]) -> list[str]:
        """Sort *workspaces* by what waits in them, so that a single change does not wait for another one's import."""
        waiting: dict[str, int] = {}
        for workspace_id in workspaces:
            try:
                waiting[workspace_id] = len(await self._unindexed(Scope(workspace_id)))
            except Exception as error:  # noqa: BLE001 - to index it comes next, and is tried again
                log_index_error(error, workspace_id=workspace_id)
        return sorted(workspaces, key=lambda workspace_id: waiting.get(workspace_id, 0))

    async def _unindexed(self, scope: Scope) -> set[str]:
        """Bring files and shared documents in step; return the documents that are not in the index."""
        if self._copy is not None:
            await self._copy.bring_in_step(scope)
        return await self._index.unindexed(scope)

    async def _follow_workspaces(self, queue: ChangeQueue) -> None:
        async for change in self.watcher.changes():
            documents = changed_documents(change)
            if documents is None or documents:
                await self._note(change.workspace_id, documents or ())
                queue.add(change.workspace_id, documents, is_import=change.is_import)
            if any(path == "context" or path.startswith("context/") for path in change.paths):
                await self._import_directives(change.workspace_id)

    async def _note(self, workspace_id: str, paths: Collection[str]) -> None:
        """Put *paths* into the backlog; of shared documents, whoever stores one does."""
        if paths and self._copy is None:
            with suppress(StoreUnavailable):  # to index them meets the same, and is tried again
                if await self._workspaces.exists(workspace_id):
                    await self._backlog.add(Scope(workspace_id), paths, time.time())

    async def _follow_global_directives(self) -> None:
        folder = self._data_dir / "global"
        while True:
            try:
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
                async for _ in awatch(folder, debounce=300, ignore_permission_denied=True):
                    await self._import_directives()
            except Exception as error:  # noqa: BLE001 - whatever ends a watch, files go on changing
                _log.warning("index.failed", why=f"global directives cannot be followed: {_text_of(error)}")
            await asyncio.sleep(self._timing.retry[1])
            await self._import_directives()

    async def _import_directives(self, workspace_id: str = "") -> None:
        """Import the directives of a workspace, if it exists; without one, all directives."""
        try:
            if not workspace_id:
                await self._publisher.import_all()
            elif await self._workspaces.exists(workspace_id):
                await self._publisher.import_workspace(Scope(workspace_id))
        except Exception as error:  # noqa: BLE001 - see `log_index_error`
            log_index_error(error, **({"workspace_id": workspace_id} if workspace_id else {}))

    async def _sync(self, workspace_id: str, paths: set[str] | None) -> None:
        """Bring the index in step with the documents at *paths*, or with all. `_sweep` tries again what fails."""
        scope, failure = Scope(workspace_id), self._failed.get(workspace_id)
        try:
            if not await self._workspaces.exists(workspace_id):
                self._failed.pop(workspace_id, None)
                await self._backlog.forget(scope)  # it may have been filled while the workspace was deleted
                return
            if self._copy is not None:
                changed = await self._copy.bring_in_step(scope, paths)
                if paths is not None:  # what another process stored and indexed needs nothing more
                    paths = changed | (await self._backlog.since(scope, sorted(paths))).keys()
            if paths is None or paths:
                await self._index.index(scope, paths)
        except Exception as error:  # noqa: BLE001 - see `log_index_error`
            self._retry_later(workspace_id)
            log_index_error(error, workspace_id=workspace_id)
        else:
            if paths is None and self._failed.get(workspace_id) is failure:  # else something failed meanwhile
                self._failed.pop(workspace_id, None)

    def _retry_later(self, workspace_id: str) -> None:
        shortest, longest = self._timing.retry
        retry_at, wait = self._failed.get(workspace_id, (0.0, shortest / 2))
        if retry_at <= time.monotonic() or retry_at == math.inf:  # else it is part of the same failure
            wait = min(wait * 2, longest)
            self._failed[workspace_id] = time.monotonic() + wait, wait

    async def _sweep(self, queue: ChangeQueue) -> None:
        """Look for new workspaces, for what failed, for what other processes did, and now and then at all files."""
        while True:
            await asyncio.sleep(self._timing.sweep * max(1.0, len(self._known) / SWEEP_WORKSPACES))
            try:
                known = {workspace.id for workspace in await self._workspaces.all()}
                for workspace_id in known - self._known:  # its files may have been there before
                    await self._import_directives(workspace_id)
                    await self._rescan([workspace_id], queue)
                self._known = known
                for workspace_id, (retry_at, wait) in list(self._failed.items()):
                    if retry_at <= time.monotonic():
                        self._failed[workspace_id] = math.inf, wait
                        queue.add(workspace_id, None)
                if self._shelf is not None:
                    await self._sync_shared(self._shelf, queue)
                if self.watcher.is_rescan_due():
                    await self._rescan(known, queue)
            except Exception as error:  # noqa: BLE001 - see `log_index_error`
                self.watcher.rescan_soon()
                log_index_error(error)

    async def _sync_shared(self, shelf: SharedShelf, queue: ChangeQueue) -> None:
        """Write what other processes stored to the files, and index what they did not get to."""
        scopes = [Scope(workspace_id) for workspace_id in sorted(self._known)]
        for start in range(0, len(scopes), SWEEP_WORKSPACES):
            some = scopes[start : start + SWEEP_WORKSPACES]
            revisions, waiting = await asyncio.gather(shelf.revisions(some), self._backlog.waiting(some))
            for scope, revision, waits in zip(some, revisions, waiting, strict=True):
                seen = self._revisions.get(scope.workspace_id)
                if seen != revision and self._copy is not None:
                    if not await self._workspaces.exists(scope.workspace_id):  # deleted meanwhile
                        continue
                    changed = None if seen is None or revision < seen else await shelf.changes(scope, seen, revision)
                    await self._copy.bring_in_step(scope, changed)
                    self._revisions[scope.workspace_id] = revision
                is_abandoned = waits.documents and waits.since < time.time() - self._timing.abandoned
                if is_abandoned and scope.workspace_id not in self._failed:
                    queue.add(scope.workspace_id, await self._backlog.paths(scope, _MOST_PATHS), is_import=True)

    async def _rescan(self, workspaces: Collection[str], queue: ChangeQueue) -> None:
        """Have the documents that are not in the index worked on like changes that are reported."""
        for workspace_id in workspaces:
            paths = await self._unindexed(Scope(workspace_id))
            for piece in await asyncio.to_thread(in_pieces, workspace_id, paths):
                await self._note(workspace_id, piece.paths)
                queue.add(workspace_id, piece.paths, is_import=piece.is_import)
                await asyncio.sleep(0)
