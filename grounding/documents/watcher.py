"""Follows the files under ``DATA_DIR/workspaces`` and groups what changes by workspace."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from watchfiles import Change, awatch

from connectors.message import AgentRuntimeError, check_workspace_id
from grounding.documents.library import is_document_path

_FOLDERS = ("context", "docs")
"""What changed if a workspace's own folder was made or removed."""
FEW = 16
"""More documents that change at once, in one top folder, are an import."""
PIECE = 250
"""Paths in one `Changed`: working on each takes the event loop microseconds."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Files of one workspace that changed, relative to the workspace's folder (``docs/a.md``)."""

    workspace_id: str
    paths: frozenset[str]
    is_import: bool = False
    """Whether they are part of an import: a file that was saved by itself should not wait for them."""
    total: int = 0
    """How many files of all workspaces changed at once, these among them."""


async def watch(
    data_dir: Path,
    *,
    stop: asyncio.Event | None = None,
    debounce_seconds: float = 0.1,
    begun: Callable[[], None] = lambda: None,
) -> AsyncIterator[Changed]:
    """Yield what changes under ``DATA_DIR/workspaces``, imports last; changes within *debounce_seconds* together.

    Call *begun* once changes are noticed: look at all files then to find earlier ones. A folder that was moved or
    removed is named by its own path. The iterator ends when *stop* is set, and when it has to be started again because
    new folders have to be watched. Raises `FileNotFoundError` if the folder itself is removed.
    """
    folder = data_dir / "workspaces"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    base = await asyncio.to_thread(folder.resolve)
    milliseconds = round(debounce_seconds * 1000)
    each = await asyncio.to_thread(_each_folder, base) if await asyncio.to_thread(_has_links, base) else None
    calling_begun = asyncio.get_running_loop().call_soon(begun)  # `awatch` opens the watch before its first wait
    all_changes = awatch(
        *(each or [str(base)]),
        watch_filter=None,  # the default one leaves out files that may be documents
        stop_event=stop,
        debounce=milliseconds,
        step=50,
        recursive=each is None,
        ignore_permission_denied=True,
    )
    try:
        async with aclosing(all_changes):
            async for changes in all_changes:
                _check_exists(base, changes)
                for change in await asyncio.to_thread(_select, base, changes):
                    yield change
                    await asyncio.sleep(0)  # gives other tasks their turn
                if await asyncio.to_thread(_needs_restart, changes, each is not None):
                    return
    except FileNotFoundError:  # one of the folders that are watched by themselves may be gone
        if each is None or not await asyncio.to_thread(base.is_dir):
            raise
    finally:
        calling_begun.cancel()


def _check_exists(base: Path, changes: Collection[tuple[Change, str]]) -> None:
    if (Change.deleted, str(base)) in changes:
        raise FileNotFoundError(f"{base} was removed")


def _has_links(folder: Path | str) -> bool:
    """Return whether there is a link to a folder somewhere below. Blocking.

    A recursive watch goes through such links, wherever they lead, and reports the target by another path.
    """
    return any(os.path.islink(f"{parent}{os.sep}{name}") for parent, names, _ in os.walk(folder) for name in names)


def _each_folder(base: Path) -> list[str]:
    """Return *base* and each folder below, except links and hidden ones. Blocking."""
    found = []
    for parent, names, _ in os.walk(base):
        names[:] = [name for name in names if not name.startswith(".")]
        found.append(parent)
    return found


def _needs_restart(changes: Collection[tuple[Change, str]], is_each: bool) -> bool:
    """Return whether new folders have to be watched by themselves: they hold links, or *is_each*. Blocking."""
    for folder in sorted(path for kind, path in changes if kind is Change.added):
        if os.path.isdir(folder) and not os.path.islink(folder) and (is_each or _has_links(folder)):
            return True
    return False


def _select(base: Path, changes: Collection[tuple[Change, str]]) -> list[Changed]:
    """Return the changes of documents, directives and folders in pieces, imports last. Blocking."""

    def matters(workspace_id: str, path: str) -> bool:
        if path.partition("/")[0] not in _FOLDERS:
            return False
        if not path.startswith("docs/") or is_document_path(path.removeprefix("docs/")):
            return True
        return not (base / workspace_id / path).is_file()

    pieces: list[Changed] = []
    for change in group_changes(base, changes):
        paths = [path for path in change.paths if matters(change.workspace_id, path)]
        pieces += in_pieces(change.workspace_id, paths, len(changes))
    return sorted(pieces, key=lambda piece: piece.is_import)


def in_pieces(workspace_id: str, paths: Iterable[str], total: int = 0) -> list[Changed]:
    """Divide *paths* that changed at once into pieces, imports last. Pure."""
    ordered = sorted(paths)
    sizes = Counter(map(_top_folder, ordered))
    single = [path for path in ordered if sizes[_top_folder(path)] <= FEW]
    imported = sorted(set(ordered).difference(single))
    return [
        Changed(workspace_id, frozenset(lane[start : start + PIECE]), is_import, total)
        for is_import, lane in ((False, single), (True, imported))
        for start in range(0, len(lane), PIECE)
    ]


def _top_folder(path: str) -> str:
    """Return the top folder below ``docs``; empty for a file that lies in none."""
    top, _, name = path.removeprefix("docs/").partition("/")
    return top if name else ""


def group_changes(base: Path, changes: Iterable[tuple[Change, str]]) -> list[Changed]:
    """Group raw changes below *base* by workspace; leave out what belongs to none.

    If a workspace's own folder was made or removed, everything that it holds changed.
    """
    grouped: dict[str, set[str]] = {}
    start = f"{base}{os.sep}"
    for kind, name in changes:
        if not name.startswith(start):
            continue
        workspace_id, _, path = name[len(start) :].replace(os.sep, "/").partition("/")
        if workspace_id not in grouped:
            try:
                check_workspace_id(workspace_id)
            except (ValueError, AgentRuntimeError):
                continue
        if path:
            grouped.setdefault(workspace_id, set()).add(path)
        elif kind is not Change.modified:  # files in a new folder are not reported before it is watched
            grouped.setdefault(workspace_id, set()).update(_FOLDERS)
    return [Changed(workspace_id, frozenset(paths)) for workspace_id, paths in sorted(grouped.items())]


def changed_documents(change: Changed) -> set[str] | None:
    """Return the documents in *change*, and folders that may hold some; None if all documents must be looked at."""
    if "docs" in change.paths:
        return None
    paths = (path.removeprefix("docs/") for path in change.paths if path.startswith("docs/"))
    return {path for path in paths if not any(part.startswith(".") for part in path.split("/"))}
