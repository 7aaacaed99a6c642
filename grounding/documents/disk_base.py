"""What the files of a workspace and its shared documents were when they last were the same, written down beside them.

``.documents.json`` has all of it; what changed since is added to ``.documents.changes``, a line for each, and goes into
the former once those are many: a change costs what it is, and not what all documents are. Where one of both is damaged,
nothing was the same: then nothing is deleted, and what was deleted on this disk meanwhile comes back.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger()

BASE_NAME = ".documents.json"
CHANGES_NAME = ".documents.changes"
VERSION = 1
MOST_CHANGES = 1000
"""Lines that are added at least before all is written anew; more where there are more documents."""
_REMEMBERED = 16
_Stamp = tuple[int, tuple[int, int, int] | None, tuple[int, int, int] | None]


@dataclass(frozen=True, slots=True)
class Same:
    """A file and its document when they last were the same; size and time are the file's."""

    sha256: str
    size_bytes: int
    modified_ns: int


Base = dict[str, Same]


@dataclass(slots=True)
class _Known:
    """What both files hold, how they looked then, and how many lines the second has: None where none may be added."""

    base: Base
    stamp: _Stamp
    lines: int | None


class DiskBase:
    """Of the workspaces of one disk, by their folders. Blocking; one call for a folder at a time.

    What is written down is remembered for `_REMEMBERED` of them, as long as nobody else writes the files.
    """

    def __init__(self) -> None:
        self._known: dict[Path, _Known] = {}

    def load(self, folder: Path) -> Base:
        """What is written down, by path. A copy. Raises `OSError`."""
        known = self._known.pop(folder, None)
        if known is None or known.stamp != _stamp(folder):
            _mark(folder)
            known = _read(folder)
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[folder] = known
        return dict(known.base)

    def save(self, folder: Path, base: Base, changed: Collection[str]) -> None:
        """Write *base* down, which differs in *changed* from what was loaded. Raises `OSError`.

        Nothing where the files or their folder are others by now: of its documents nobody has deleted any here.
        """
        if not changed:
            return
        known, now = self._known.pop(folder, None), _stamp(folder)
        if known is None or known.stamp[1:] != now[1:] or known.stamp[0] not in (0, now[0]):
            return
        lines = None if known.lines is None else known.lines + len(changed)
        try:
            if lines is None or lines > max(MOST_CHANGES, len(base)):
                lines = 0
                _write(folder, base)
            else:
                _append(folder, base, changed)
        except FileNotFoundError:
            return
        self._known[folder] = _Known(dict(base), _stamp(folder), lines)


def _mark(folder: Path) -> None:
    """Have one of the files in *folder*, if that is there: it goes with it, while another folder may get its inode."""
    if not (folder / BASE_NAME).exists():
        with suppress(OSError):  # no such folder, or one that nobody may write to
            os.close(os.open(folder / CHANGES_NAME, os.O_WRONLY | os.O_CREAT, 0o600))


def _read(folder: Path) -> _Known:
    stamp = _stamp(folder)
    try:
        base: Base = {}
        if stamp[1] is not None:
            stored = json.loads((folder / BASE_NAME).read_text(encoding="utf-8"))
            if stored["v"] != VERSION:
                return _Known({}, stamp, None)
            base = {path: Same(*same) for path, same in stored["documents"].items()}
        if stamp[2] is None:
            return _Known(base, stamp, 0)
        *lines, rest = (folder / CHANGES_NAME).read_text(encoding="utf-8").split("\n")
        for line in lines:
            version, path, *same = json.loads(line)
            if version != VERSION:
                return _Known({}, stamp, None)
            if same:
                base[path] = Same(*same)
            else:
                base.pop(path, None)
        return _Known(base, stamp, None if rest else len(lines))  # the rest is of a line that was not finished
    except FileNotFoundError:
        return _Known({}, stamp, None)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("documents.copy_failed", workspace_id=folder.name, path=BASE_NAME, why=repr(error))
        return _Known({}, stamp, None)


def _write(folder: Path, base: Base) -> None:
    documents = {path: [same.sha256, same.size_bytes, same.modified_ns] for path, same in sorted(base.items())}
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".documents-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            json.dump({"v": VERSION, "documents": documents}, opened)
        os.replace(temporary, folder / BASE_NAME)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    (folder / CHANGES_NAME).unlink(missing_ok=True)  # read once more after a crash, it changes nothing


def _append(folder: Path, base: Base, changed: Collection[str]) -> None:
    lines = [
        json.dumps([VERSION, path, *((same.sha256, same.size_bytes, same.modified_ns) if same else ())])
        for path, same in ((path, base.get(path)) for path in sorted(changed))
    ]
    descriptor = os.open(folder / CHANGES_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write("".join(f"{line}\n" for line in lines))


def _stamp(folder: Path) -> _Stamp:
    """By which folder and files are known again: 0 for a folder that is not there, and may be made with its files. A
    folder alone is not: one that takes its place may get its inode."""
    looks = _look(folder)
    return looks[0] if looks else 0, _look(folder / BASE_NAME), _look(folder / CHANGES_NAME)


def _look(file: Path) -> tuple[int, int, int] | None:
    try:
        facts = file.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
