"""Follows the files under ``DATA_DIR/workspaces``."""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

from watchfiles import Change, awatch

from connectors.message import AgentRuntimeError, check_workspace_id
from grounding.documents.library import is_document_path

_FOLDERS = ("context", "docs")
"""What changed where a workspace's own folder came or went."""
FEW = 16
"""Documents that changed at once, all of them or those of one top folder, which no import is; and so many that were
there before and were written anew among the files of one."""
LONG_BYTES = 250_000
"""A document of more takes seconds to be cut and embedded, where another takes milliseconds."""
PIECE = 250
"""Paths that are told at once: what is done with each takes the event loop microseconds, and it has to come round."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Files of one workspace that changed, relative to the workspace's folder (``docs/a.md``)."""

    workspace_id: str
    paths: frozenset[str]
    is_import: bool = False
    """Whether they changed with so many others that whoever saved one by itself should not wait for them."""
    told: int = 0
    """How many files of all workspaces changed at once, these among them."""
    long: frozenset[str] = frozenset()
    """Those of the paths at which more than `LONG_BYTES` lie."""


async def watch(
    data_dir: Path,
    *,
    stop: asyncio.Event | None = None,
    debounce_seconds: float = 0.1,
    begun: Callable[[], None] = lambda: None,
) -> AsyncIterator[Changed]:
    """What changes under ``DATA_DIR/workspaces``, at most `PIECE` paths of a workspace at once, those of imports last;
    ends when *stop* is set, and when it has to begin anew because of folders that came. What changes within
    *debounce_seconds* of a first change is told together.

    What changed before *begun* is called is not told: a full sync that begins then finds that.

    A folder that was moved or removed is named by its own path: its files are no longer there to be named.
    """
    folder = data_dir / "workspaces"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    base = await asyncio.to_thread(folder.resolve)
    milliseconds = round(debounce_seconds * 1000)
    each = await asyncio.to_thread(_each_folder, base) if await asyncio.to_thread(_holds_links, base) else None
    # `awatch` follows the files before it waits for the first time.
    telling = asyncio.get_running_loop().call_soon(begun)
    # Without a filter: its own leaves out what may be documents, and takes milliseconds of the loop for a thousand.
    all_changes = awatch(
        *(each or [str(base)]),
        watch_filter=None,
        stop_event=stop,
        debounce=milliseconds,
        step=50,
        recursive=each is None,
        ignore_permission_denied=True,
    )
    try:
        async with aclosing(all_changes):
            async for changes in all_changes:
                _check_there(base, changes)
                for change in await asyncio.to_thread(_looked_at, base, changes):
                    yield change
                    await asyncio.sleep(0)  # else all of them might be taken in one turn of the loop
                if await asyncio.to_thread(_begins_anew, changes, each is not None):
                    return
    except FileNotFoundError:  # of each folder one may have gone meanwhile
        if each is None or not await asyncio.to_thread(base.is_dir):
            raise
    finally:
        telling.cancel()


def _holds_links(folder: Path | str) -> bool:
    """Whether there is a link to a folder somewhere below. Where all below a folder is watched, `watchfiles` goes
    through such links, wherever they lead and while nothing else of Python runs; and the folder they lead to is told
    of by another path, and no more once the link is gone. Blocking."""
    return any(os.path.islink(f"{above}{os.sep}{name}") for above, names, _ in os.walk(folder) for name in names)


def _each_folder(base: Path) -> list[str]:
    """*base* and each folder below that is no link, without hidden ones. Blocking."""
    found = []
    for above, names, _ in os.walk(base):
        names[:] = [name for name in names if not name.startswith(".")]
        found.append(above)
    return found


def _check_there(base: Path, changes: Collection[tuple[Change, str]]) -> None:
    """Raises `FileNotFoundError` where *base* was removed: nothing that is made there anew would be told."""
    if (Change.deleted, str(base)) in changes:
        raise FileNotFoundError(f"{base} was removed")


def _begins_anew(changes: Collection[tuple[Change, str]], is_each: bool) -> bool:
    """Whether folders came that are to be watched by themselves, because they hold links or as *is_each*. Blocking."""
    for folder in sorted(path for kind, path in changes if kind is Change.added):
        if os.path.isdir(folder) and not os.path.islink(folder) and (is_each or _holds_links(folder)):
            return True
    return False


def _looked_at(base: Path, changes: Collection[tuple[Change, str]]) -> list[Changed]:
    """`group_changes` in pieces, without what is neither below ``context`` nor a document, such as logs and pictures: a
    path that may be a folder's is looked through. Blocking."""

    def matters(change: Changed, path: str) -> bool:
        if path.partition("/")[0] not in _FOLDERS:
            return False
        if not path.startswith("docs/") or is_document_path(path.removeprefix("docs/")):
            return True
        return not (base / change.workspace_id / path).is_file()

    rewritten = {path for kind, path in changes if kind is Change.modified}
    rewritten -= {path for kind, path in changes if kind is not Change.modified}
    pieces: list[Changed] = []
    for one in group_changes(base, changes):
        folder = f"{base}{os.sep}{one.workspace_id}{os.sep}"
        paths = [path for path in one.paths if matters(one, path)]
        pieces += in_pieces(
            one.workspace_id, paths, {path for path in paths if folder + path in rewritten}, len(changes)
        )
    told = [replace(one, long=_long(base / one.workspace_id, one.paths)) for one in pieces]
    return sorted(told, key=lambda piece: piece.is_import)


def _long(folder: Path, paths: Collection[str]) -> frozenset[str]:
    """Those of *paths* below *folder* at which a long document lies. Blocking."""
    return frozenset(path for path in paths if is_document_path(path.removeprefix("docs/")) and _is_long(folder / path))


def _is_long(file: Path) -> bool:
    try:
        facts = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_size > LONG_BYTES


def in_pieces(workspace_id: str, paths: Iterable[str], rewritten: Collection[str] = (), told: int = 0) -> list[Changed]:
    """*paths* of a workspace that changed at once, those that no import is first. *rewritten* are those of them that
    were there before. Pure."""
    ordered = sorted(paths)
    beside = Counter(map(_top_folder, ordered))
    if len(rewritten) > FEW:  # such as what a version control brings
        rewritten = ()
    lanes: tuple[list[str], list[str]] = [], []
    for path in ordered:
        alone = len(ordered) <= FEW or beside[_top_folder(path)] <= FEW
        lanes[not (alone or path in rewritten)].append(path)
    return [
        Changed(workspace_id, frozenset(lane[start : start + PIECE]), is_import, told)
        for is_import, lane in zip((False, True), lanes, strict=True)
        for start in range(0, len(lane), PIECE)
    ]


def _top_folder(path: str) -> str:
    """Where an import lies, mostly; nothing for what lies in no folder, and for what is no file below ``docs``."""
    above, _, name = path.removeprefix("docs/").partition("/")
    return above if name else ""


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
