"""Keeps the index and the directives in step with the files of this machine, and with what other processes left.

One of several processes does this (`runtime.leadership`). What cannot be done now is tried again until it can.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from watchfiles import awatch

from config.settings import Settings
from connectors.message import Scope, StoreUnavailable
from grounding.documents.backlog import Backlog
from grounding.documents.disk_copy import DiskCopy
from grounding.documents.index import IndexUnavailable
from grounding.documents.shared_shelf import SharedShelf
from grounding.documents.watch import FEW, changed_documents, in_pieces
from promptpolicy.files import FilingPublisher
from runtime.changes import RUNS, Changes
from runtime.unforeseen import tell_index_failed
from runtime.watching import Watching, told
from runtime.workspaces import Workspaces

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
_log = structlog.get_logger()


class InStep(Protocol):
    """What the index does to be in step; see `runtime.knowledge.Knowledge`."""

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
        publisher: FilingPublisher,
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
