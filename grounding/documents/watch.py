"""Follows the files under ``DATA_DIR/workspaces``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from watchfiles import Change, awatch

from connectors.message import AgentRuntimeError, check_workspace_id
from grounding.documents.library import is_document_path

_FOLDERS = ("context", "docs")
"""What changed where a workspace's own folder came or went."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Files of one workspace that changed, relative to the workspace's folder (``docs/a.md``)."""

    workspace_id: str
    paths: frozenset[str]


async def watch(
    data_dir: Path,
    *,
    stop: asyncio.Event | None = None,
    debounce_seconds: float = 0.3,
    begun: Callable[[], None] = lambda: None,
) -> AsyncIterator[Changed]:
    """What changes under ``DATA_DIR/workspaces``, in batches per workspace; ends when *stop* is set.

    What changed before *begun* is called is not told: a full sync that begins then finds that.

    A folder that was moved or removed is named by its own path: its files are no longer there to be named.
    """
    folder = data_dir / "workspaces"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    base = await asyncio.to_thread(folder.resolve)
    milliseconds = round(debounce_seconds * 1000)
    # `awatch` follows the files before it waits for the first time.
    telling = asyncio.get_running_loop().call_soon(begun)
    # Without a filter: its own leaves out what may be documents, and takes milliseconds of the loop for a thousand.
    all_changes = awatch(
        base, watch_filter=None, stop_event=stop, debounce=milliseconds, step=50, ignore_permission_denied=True
    )
    try:
        async for changes in all_changes:
            if (Change.deleted, str(base)) in changes:  # nothing that is made there anew would be told
                raise FileNotFoundError(f"{base} was removed")
            for change in await asyncio.to_thread(_looked_at, base, changes):
                yield change
    finally:
        telling.cancel()


def _looked_at(base: Path, changes: Iterable[tuple[Change, str]]) -> list[Changed]:
    """`group_changes` without files that are no documents, such as pictures: a path that may be a folder's is looked
    through. Blocking."""

    def matters(change: Changed, path: str) -> bool:
        if not path.startswith("docs/") or is_document_path(path.removeprefix("docs/")):
            return True
        return not (base / change.workspace_id / path).is_file()

    return [
        Changed(one.workspace_id, frozenset(path for path in one.paths if matters(one, path)))
        for one in group_changes(base, changes)
    ]


def group_changes(base: Path, changes: Iterable[tuple[Change, str]]) -> list[Changed]:
    """Raw changes below *base* by workspace, sorted; what belongs to no workspace is left out. Where its own folder
    came or went, all that it holds did."""
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
        elif kind is not Change.modified:  # of files that are in a new folder before it is followed nothing is told
            grouped.setdefault(workspace_id, set()).update(_FOLDERS)
    return [Changed(workspace_id, frozenset(paths)) for workspace_id, paths in sorted(grouped.items())]


def changed_documents(change: Changed) -> set[str] | None:
    """Documents, and folders that may hold some, in *change*; ``None`` where all documents must be looked at."""
    if "docs" in change.paths:
        return None
    below = (path.removeprefix("docs/") for path in change.paths if path.startswith("docs/"))
    return {path for path in below if not any(part.startswith(".") for part in path.split("/"))}
