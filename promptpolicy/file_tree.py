"""The directives' files under DATA_DIR. All methods block: call them in a thread.

The folders are ``global/`` (all workspaces), ``workspaces/<w>/context/`` (a workspace), and inside that
``contexts/<encoded context id>/`` (a context). Each can contain ``SYSTEM_PROMPT.md``, ``SOUL.md``, ``CUES.toml``,
``FRAMES.toml`` and ``skills/<name>.md``. Links are never followed.

The folder of a home also contains ``.directives.json``, the record: the digest and version of each file when it was
last synchronised. It tells a person's edit from an outdated copy. It is on disk and not in Redis because it describes
this disk.

Next to a file that was not published is ``<file>.refused.txt``, a note for people. A text that was replaced without
being published is kept in ``<file>.rejected``.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connectors.message import AgentRuntimeError, InvalidWorkspaceId, Scope, encode_id, replace_file
from promptpolicy.policy import (
    DIRECTIVE_MAX_BYTES,
    EVERYWHERE,
    InvalidDirective,
    Kind,
    Place,
    Slot,
    canonical,
    check_context_id,
    decode_id,
)

FORMAT = 1
RECORD = ".directives.json"
NOTE = ".refused.txt"
KEPT = ".rejected"
_FILES = {"SYSTEM_PROMPT.md": Kind.SYSTEM, "SOUL.md": Kind.SOUL, "CUES.toml": Kind.CUES, "FRAMES.toml": Kind.FRAMES}


class UnreadableRecord(AgentRuntimeError):
    """``.directives.json`` is damaged or from a newer release. The text says what to do."""


class _Unusable(Exception):
    """A file or folder that cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A slot's file: its path under DATA_DIR, the digest of its bytes, its normalised text, and its last change.

    If it cannot be a directive, ``text`` is None and ``problem`` says why.
    """

    slot: Slot
    path: str
    sha256: str
    text: str | None
    problem: str = ""
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file or folder that was not published: its path under DATA_DIR, and why. ``advice`` says what to do; if it is
    empty, the usual advice holds."""

    place: Place
    path: str
    why: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class SyncedCopy:
    """The state of a slot's file when it was last synchronised: the digest of its bytes and the slot's version."""

    sha256: str
    version: int


@dataclass(frozen=True, slots=True)
class Walk:
    """All files under a home, and its record by `Slot.encoded`."""

    files: dict[Slot, SlotFile]
    refusals: list[Refusal]
    record: dict[str, SyncedCopy]


class DirectiveTree:
    """The folders of directives under *data_dir*. Methods raise OSError if the disk fails."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir

    def homes(self) -> list[Place]:
        """Return `EVERYWHERE` and each workspace with a ``context`` folder, sorted by id."""
        homes = [EVERYWHERE]
        for folder in self._entries(self._root / "workspaces"):
            if (folder / "context").is_dir():
                try:
                    homes.append(Place(Scope(folder.name)))
                except InvalidWorkspaceId:
                    continue  # not a workspace
        return homes

    def walk(self, home: Place, known: Iterable[Slot]) -> Walk:
        """Read all files of *home* and, for a workspace, of its contexts. Raises `UnreadableRecord`.

        Also reads the file of each of the *known* slots directly. So a file in a folder that cannot be entered counts
        as unreadable, not as deleted.
        """
        walk = Walk({}, [], self.read_record(home))
        self._walk_place(home, walk)
        if home.scope is not None:
            self._walk_contexts(home, home.scope.workspace_id, walk)
        self._read_slots([slot for slot in known if slot not in walk.files], walk)
        return walk

    def find(self, slot: Slot) -> SlotFile | None:
        """Read the file of *slot*, or return None if there is none."""
        path = self._path(slot)
        relative = self._relative(path)
        try:
            self._check_folders(path.parent)
            raw, changed_at = _read(path, DIRECTIVE_MAX_BYTES)
        except FileNotFoundError:
            return None
        except _Unusable as error:
            return SlotFile(slot, relative, "", None, str(error))
        sha256 = hashlib.sha256(raw).hexdigest()
        try:
            return SlotFile(slot, relative, sha256, canonical(raw.decode("utf-8")), changed_at=changed_at)
        except UnicodeDecodeError:
            return SlotFile(slot, relative, sha256, None, "the file is not UTF-8 text")
        except InvalidDirective as error:
            return SlotFile(slot, relative, sha256, None, str(error))

    def write(self, slot: Slot, text: str | None, last: SyncedCopy | None) -> str:
        """Write *text* to the slot's file atomically, or delete the file if *text* is None. Returns the bytes' digest.

        A file that differs from the copy *last* is somebody's work, so it is kept as ``….rejected``.
        Raises OSError, also if a link is in the path.
        """
        path = self._path(slot)
        raw = b"" if text is None else f"{text}\n".encode()
        sha256 = hashlib.sha256(raw).hexdigest()
        try:
            self._check_folders(path.parent)
        except _Unusable as error:
            raise OSError(errno.ELOOP, str(error), str(path)) from error
        existing = self.find(slot)
        if existing is not None and existing.sha256 not in {sha256, *([last.sha256] if last else [])}:
            path.replace(_find_free_path(path.with_name(path.name + KEPT)))
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, raw, mode=0o644)
        return sha256

    def read_record(self, home: Place) -> dict[str, SyncedCopy]:
        """Read the record of *home*, by `Slot.encoded`. Raises `UnreadableRecord`."""
        path = self._folder(home) / RECORD
        try:
            self._check_folders(path)
            fields: dict[str, Any] = json.loads(_read(path, None)[0])
            if fields["v"] > FORMAT:
                raise UnreadableRecord(f"{path} has format {fields['v']}, and this release reads up to {FORMAT}")
            return {name: SyncedCopy(copy["sha256"], copy["version"]) for name, copy in fields["copies"].items()}
        except FileNotFoundError:
            return {}
        except _Unusable as error:
            raise UnreadableRecord(str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableRecord(f"{path} is damaged: delete it, and the files count as new ({error})") from error

    def write_record(self, home: Place, record: dict[str, SyncedCopy]) -> None:
        """Write the record of *home*."""
        copies = {name: {"sha256": copy.sha256, "version": copy.version} for name, copy in record.items()}
        folder = self._folder(home)
        folder.mkdir(parents=True, exist_ok=True)
        packed = json.dumps({"v": FORMAT, "copies": copies}, indent=1, sort_keys=True)
        replace_file(folder / RECORD, packed.encode(), mode=0o644)

    def notes(self, home: Place) -> list[Refusal]:
        """Read the notes of *home*, sorted by path. People may have edited them, so any content is accepted."""
        found: list[Refusal] = []
        for note in self._note_paths(home):
            fields = dict(line.partition(": ")[::2] for line in note.read_text("utf-8", "replace").splitlines())
            path, advice = self._relative(note).removesuffix(NOTE), fields.get("What to do", "").removesuffix(".")
            found.append(Refusal(home, path, fields.get("Why", ""), advice))
        return found

    def write_note(self, refusal: Refusal) -> None:
        """Write a note next to the refused file."""
        advice, file = refusal.advice, self._root / refusal.path
        backups = sorted(backup.name for backup in file.parent.glob(f"{glob.escape(file.name)}{KEPT}*"))
        if advice and backups:
            advice = f"{advice}; then delete {', '.join(backups)}, where the file's text is kept"
        elif backups:
            advice = (
                f"its text is kept in {backups[-1]}; put what you want of it into {file.name}, save that, and delete "
                f"{', '.join(backups)}"
            )
        advice = advice or "correct or remove it; when it is read again, this note goes away"
        text = f"The text of {file.name} was not published.\n\nWhy: {refusal.why}\nWhat to do: {advice}.\n"
        note = file.with_name(file.name + NOTE)
        try:
            self._check_folders(note.parent)
            if _read(note, None)[0] == text.encode():
                return
        except FileNotFoundError:
            pass
        except _Unusable as error:
            raise OSError(errno.ELOOP, str(error), str(note)) from error
        replace_file(note, text.encode(), mode=0o644)

    def drop_notes(self, home: Place, refused: Collection[str]) -> None:
        """Delete the notes of *home*, except those of *refused* paths and of files with a ``….rejected`` copy."""
        for note in self._note_paths(home):
            file = note.with_name(note.name.removesuffix(NOTE))
            if self._relative(file) not in refused and not any(file.parent.glob(f"{glob.escape(file.name)}{KEPT}*")):
                note.unlink(missing_ok=True)

    def _note_paths(self, home: Place) -> list[Path]:
        folder = self._folder(home)
        folder_note = folder.with_name(folder.name + NOTE)
        try:
            self._check_folders(folder)
        except _Unusable:
            return [folder_note] if folder_note.is_file() else []
        return [*([folder_note] if folder_note.is_file() else []), *sorted(folder.rglob(f"*{NOTE}"))]

    def relative_folder(self, place: Place) -> str:
        """Return the folder of *place*, relative to DATA_DIR."""
        return self._relative(self._folder(place))

    def relative_path(self, slot: Slot) -> str:
        """Return the path of the file of *slot*, relative to DATA_DIR."""
        return self._relative(self._path(slot))

    def _walk_contexts(self, home: Place, workspace_id: str, walk: Walk) -> None:
        contexts = self._folder(home) / "contexts"
        if not self._may_enter(contexts, home, walk):
            return
        for folder in self._entries(contexts):
            if folder.name.endswith(NOTE):
                continue
            try:
                place = Place(Scope(workspace_id, check_context_id(decode_id(folder.name))))
            except InvalidDirective as error:
                walk.refusals.append(Refusal(home, self._relative(folder), str(error)))
                continue
            self._walk_place(place, walk)

    def _walk_place(self, place: Place, walk: Walk) -> None:
        folder = self._folder(place)
        if not self._may_enter(folder, place, walk):
            return
        slots = [Slot(place, kind) for kind in _FILES.values()]
        for path in self._entries(folder):
            if path.suffix in (".md", ".toml") and path.name not in (*_FILES, "README.md"):
                names = ", ".join(_FILES)
                why = f"no directive has this name; there are {names}, and skills/<name>.md"
                walk.refusals.append(Refusal(place, self._relative(path), why))
        skills = folder / "skills"
        if self._may_enter(skills, place, walk):
            for path in self._entries(skills):
                if path.suffix != ".md":
                    continue
                try:
                    slots.append(Slot(place, Kind.SKILL, path.stem))
                except InvalidDirective as error:
                    walk.refusals.append(Refusal(place, self._relative(path), str(error)))
        self._read_slots(slots, walk)

    def _read_slots(self, slots: Iterable[Slot], walk: Walk) -> None:
        for slot in slots:
            found = self.find(slot)
            if found is not None:
                walk.files[slot] = found

    def _may_enter(self, folder: Path, place: Place, walk: Walk) -> bool:
        try:
            self._check_folders(folder)
        except _Unusable as error:
            walk.refusals.append(Refusal(place, self._relative(folder), str(error)))
            return False
        return folder.is_dir()

    def _check_folders(self, folder: Path) -> None:
        """Raise `_Unusable` if *folder* or a folder above it, up to DATA_DIR, is a link or unreadable."""
        for part in (folder, *folder.parents):
            if part == self._root:
                return
            try:
                is_link = part.is_symlink()
            except OSError as error:
                raise _Unusable(f"{self._relative(part)} cannot be read: {os.strerror(error.errno or 0)}") from error
            if is_link:
                raise _Unusable(f"{self._relative(part)} is a link, and links are not followed")

    def _entries(self, folder: Path) -> list[Path]:
        """Return the entries of *folder*, sorted by name, without hidden files such as those of editors."""
        if not folder.is_dir():
            return []
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))

    def _folder(self, place: Place) -> Path:
        if place.scope is None:
            return self._root / "global"
        home = self._root / "workspaces" / place.scope.workspace_id / "context"
        return home if place.scope.context_id is None else home / "contexts" / encode_id(place.scope.context_id)

    def _path(self, slot: Slot) -> Path:
        folder = self._folder(slot.place)
        if slot.kind is Kind.SKILL:
            return folder / "skills" / f"{slot.name}.md"
        return folder / next(name for name, kind in _FILES.items() if kind is slot.kind)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix().encode("utf-8", "replace").decode()


def _read(path: Path, limit: int | None) -> tuple[bytes, datetime]:
    """Return the bytes of a regular file and the time of its last change.

    Raises FileNotFoundError, and `_Unusable` for anything but a regular file of at most *limit* bytes.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _Unusable("the file is a link, and links are not followed") from error
        raise _Unusable(f"the file cannot be read: {os.strerror(error.errno or 0)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _Unusable("it is no plain file")
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read() if limit is None else file.read(limit + 1)
    except OSError as error:
        raise _Unusable(f"the file cannot be read: {os.strerror(error.errno or 0)}") from error
    finally:
        os.close(descriptor)
    if limit is not None and len(raw) > limit:
        raise _Unusable(f"the file has more than {limit} bytes")
    return raw, datetime.fromtimestamp(status.st_mtime, UTC)


def _find_free_path(path: Path) -> Path:
    """Return *path*, with a number appended if that file already exists."""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
