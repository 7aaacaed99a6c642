"""Keeps the files of one machine and the shared documents the same: files are how people write, Redis is what runs.

What both were when they last were the same is written down beside the files (`grounding.documents.disk_base`): it
belongs to this disk, and goes with it. So a disk that is lost, or new, deletes nothing, and one that was away for a
while does not bring back what was deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from connectors.message import Scope
from grounding.documents.disk_base import Base, DiskBase, Same
from grounding.documents.library import (
    Document,
    DocumentMissing,
    DocumentRefused,
    Found,
    Library,
    Skipped,
    is_document_path,
)
from grounding.documents.merging import Step, step
from grounding.documents.shared_shelf import SharedShelf, sha256_of
from grounding.documents.shelf import READ_BYTES, below

log = structlog.get_logger()

AT_ONCE = 16
"""Files that are read together, fewer where they are large; their documents are put together, too."""
ATTEMPTS = 3
"""How often a document that somebody else changes at the same moment is looked at again."""


_Here = tuple[Same, Document | None] | Skipped | None
"""A file, and its text where that had to be read."""


class DiskCopy:
    """The documents under one DATA_DIR. One process does this for a disk at a time, or several the same."""

    def __init__(self, library: Library, shelf: SharedShelf) -> None:
        self._library = library
        self._shelf = shelf
        self._base = DiskBase()
        self._locks: dict[str, asyncio.Lock] = {}
        self._named: dict[str, dict[str, Skipped]] = {}

    def skipped(self, scope: Scope) -> list[Skipped]:
        """Files that are no documents, by path, as far as this process has looked."""
        named = self._named.get(scope.workspace_id, {})
        return [named[path] for path in sorted(named)]

    def _name(self, scope: Scope, skipped: Collection[Skipped], looked_at: Collection[str]) -> None:
        named = self._named.setdefault(scope.workspace_id, {})
        for item in skipped:
            if named.get(item.path) != item:
                log.warning("index.skipped", workspace_id=scope.workspace_id, path=item.path, why=item.why)
        for path in looked_at:
            named.pop(path, None)
        named |= {item.path: item for item in skipped}

    async def bring_in_step(self, scope: Scope, paths: Collection[str] | None = None) -> set[str]:
        """Make files and documents (of *paths*, files or folders, where given) the same; which documents changed by
        that. Raises `StoreUnavailable`, and `OSError` where the files cannot be read.

        A file that cannot be written is named in an event, and tried again the next time. So is one that is no
        document, once for each time it changes.
        """
        async with self._locks.setdefault(scope.workspace_id, asyncio.Lock()):
            wanted: list[str] = []
            folder = self._library.root(scope).parent
            base = await asyncio.to_thread(self._base.load, folder)
            before: dict[str, Same | None] = {}
            changed: set[str] = set()
            skipped: dict[str, Skipped] = {}
            try:
                wanted, shared = await self._wanted(scope, paths, base)
                before = {path: base.get(path) for path in wanted}
                done = 0
                while done < len(wanted):
                    here = await asyncio.to_thread(self._look_at, scope, wanted[done : done + AT_ONCE], before)
                    if paths is not None:
                        here = {path: looks if path in paths else _came_now(looks) for path, looks in here.items()}
                    async with asyncio.TaskGroup() as group:
                        for path, looks in here.items():
                            group.create_task(self._one(scope, path, base, looks, shared.get(path), skipped, changed))
                    done += len(here)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            finally:
                moved = [path for path, same in before.items() if base.get(path) != same]
                await asyncio.to_thread(self._base.save, folder, base, moved)
            self._name(scope, skipped.values(), wanted)
            return changed

    async def _wanted(
        self, scope: Scope, paths: Collection[str] | None, base: Base
    ) -> tuple[list[str], dict[str, Found]]:
        """The paths to look at, and the shared documents among them."""
        if paths is not None and all(is_document_path(path) for path in paths):
            wanted = sorted(set(paths))
            some = await self._shelf.catalogue(scope, wanted)
            if not await asyncio.to_thread(self._are_folders, scope, wanted, base):
                return wanted, some
        shared = await self._shelf.catalogue(scope)
        here, unfit = await asyncio.to_thread(self._library.walk, scope)
        known = {item.path for item in here} | {item.path for item in unfit} | base.keys() | shared.keys()
        folders = None if paths is None else frozenset(paths)
        return sorted(known if folders is None else {path for path in known if below(path, folders)}), shared

    def _are_folders(self, scope: Scope, paths: Sequence[str], base: Base) -> bool:
        """Whether one of *paths*, which are named like documents, is a folder or was one. Blocking."""
        gone = {path for path in paths if self._library.looks(scope, path) is None}
        if any(self._library.is_folder(scope, path) for path in gone):
            return True
        unknown = gone - base.keys()
        return bool(unknown) and any(below(path, unknown) for path in base)

    async def _one(
        self,
        scope: Scope,
        path: str,
        base: Base,
        here: _Here,
        shared: Found | None,
        skipped: dict[str, Skipped],
        changed: set[str],
    ) -> None:
        """Make one file and its document the same; *changed* has it if the document changed."""
        for attempt in range(ATTEMPTS):
            if attempt:
                here = await asyncio.to_thread(self._look, scope, path, base.get(path))
                shared = (await self._shelf.catalogue(scope, [path])).get(path)
            if isinstance(here, Skipped):
                skipped[path] = here
            done = await self._make_same(scope, path, base, here, shared)
            if done:
                changed.add(path)
            if done is not None:
                return
        # Whoever goes on changing it tells of it.

    def _look_at(self, scope: Scope, paths: Sequence[str], known: dict[str, Same | None]) -> dict[str, _Here]:
        """`_look` at the first of *paths*, as many as fit into about `READ_BYTES`."""
        here: dict[str, _Here] = {}
        size = 0
        for path in paths:
            here[path] = found = self._look(scope, path, known[path])
            size += found[1].size_bytes if isinstance(found, tuple) and found[1] else 0
            if size >= READ_BYTES:
                break
        return here

    def _look(self, scope: Scope, path: str, known: Same | None) -> _Here:
        if known is not None:
            looks = self._library.looks(scope, path)
            if isinstance(looks, Found) and (looks.size_bytes, looks.modified_ns) == (
                known.size_bytes,
                known.modified_ns,
            ):
                return known, None
        found = self._library.look(scope, path)
        if isinstance(found, Document):
            return Same(sha256_of(found.text), found.size_bytes, found.modified_ns), found
        return found

    async def _make_same(
        self,
        scope: Scope,
        path: str,
        base: Base,
        here: _Here,
        shared: Found | None,
    ) -> bool | None:
        """Whether the shared document changed; None where one of both changed in between."""
        if isinstance(here, Skipped) and here.why == "unreadable":
            return False  # nobody knows what lies there: to have deleted it is another thing
        last = base[path].sha256 if path in base else None
        file = here[0] if isinstance(here, tuple) else None
        there = shared.sha256 if shared else None
        newer = bool(file and shared and file.modified_ns >= shared.modified_ns)
        what = step(last, file.sha256 if file else None, there, here_is_newer=newer)
        if isinstance(here, Skipped) and what is Step.WRITE:
            return False  # what lies there is no document, but somebody's file all the same
        match what:
            case Step.PUT if isinstance(here, tuple):
                return await self._put(scope, path, base, here, there or "")
            case Step.REMOVE:
                gone = await self._shelf.delete_if(scope, path, there or "")
                if gone:
                    base.pop(path, None)
                return gone or None
            case Step.WRITE | Step.DELETE:
                return await self._to_disk(scope, path, base, file, write=what is Step.WRITE)
        if file is not None:
            base[path] = file
        else:
            base.pop(path, None)
        return False

    async def _put(
        self, scope: Scope, path: str, base: Base, here: tuple[Same, Document | None], there: str
    ) -> bool | None:
        file, document = here
        assert document is not None, "a file that is as it was is not put"
        times = document.modified_ns, document.changed_ns
        if not await self._shelf.put_if(scope, path, document.text, there, *times):
            return None
        base[path] = file
        return True

    async def _to_disk(self, scope: Scope, path: str, base: Base, file: Same | None, *, write: bool) -> bool | None:
        """Write the shared document to the file, or delete the file, if it still is *file*."""
        try:
            text = (await self._shelf.get(scope, path)).text if write else None
            written = await asyncio.to_thread(self._change_file, scope, path, text, file)
        except DocumentMissing:
            return None
        except (DocumentRefused, OSError) as error:
            log.warning("documents.copy_failed", workspace_id=scope.workspace_id, path=path, why=str(error))
            return False
        if written is False:
            return None
        if isinstance(written, Found) and text is not None:
            base[path] = Same(sha256_of(text), written.size_bytes, written.modified_ns)
        else:
            base.pop(path, None)
        return False

    def _change_file(self, scope: Scope, path: str, text: str | None, file: Same | None) -> Found | bool:
        """False where the file is not *file* any more."""
        now = self._library.looks(scope, path)
        looks = (now.size_bytes, now.modified_ns) if isinstance(now, Found) else None
        if looks != ((file.size_bytes, file.modified_ns) if file else None):
            return False
        if text is not None:
            return self._library.put(scope, path, text)
        self._library.delete(scope, path)
        return True


def _came_now(looks: _Here) -> _Here:
    """What was not told of itself: it came with its folder, and may have been written long before."""
    if isinstance(looks, tuple) and looks[1] is not None:
        return looks[0], replace(looks[1], changed_ns=time.time_ns())
    return looks
