"""The directives' files under DATA_DIR. Blocking: call it in a thread.

``global/`` for everywhere, ``workspaces/<w>/context/`` for a workspace, and under that
``contexts/<encoded context id>/`` for a context; in each of them ``SYSTEM_PROMPT.md``, ``SOUL.md``,
``CUES.toml``, ``FRAMES.toml`` and ``skills/<name>.md``. Beside a home's files lies ``.directives.json``: which bytes
of which version were last seen in each file, so that a person's edit can be told from a copy that is merely behind. It
lies there and not in Redis because it describes this disk. Links are never followed.

Beside a file whose text was not published lies ``<file>.refused.txt``, a note for people; a text that made way for
another is kept in ``<file>.rejected``.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from connectors.message import AgentRuntimeError, InvalidWorkspaceId, Scope, encode_id
from promptpolicy.slot import (
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
    """``.directives.json`` is of a newer release or damaged; the text says what to do."""


class _Refused(Exception):
    """A file or folder that is left alone; the text says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """A slot's file: its path under DATA_DIR, the digest of its bytes, its text as it would be kept, and when it was
    changed last.

    Where it cannot be a directive ``text`` is None and ``problem`` says why.
    """

    slot: Slot
    path: str
    sha256: str
    text: str | None
    problem: str = ""
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file or folder that fills no slot, and why. ``advice`` is what to do, where that is not the usual."""

    place: Place
    path: str
    why: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What people are told of a file whose text was not published: its path under DATA_DIR, why, and what to do."""

    path: str
    why: str
    advice: str


@dataclass(frozen=True, slots=True)
class Copied:
    """What a slot's file was when last in step: the digest of its bytes, and the slot's version."""

    sha256: str
    version: int


@dataclass(frozen=True, slots=True)
class Walk:
    """Everything under a home, and its record by `Slot.encoded`."""

    files: dict[Slot, Found]
    refusals: list[Refusal]
    record: dict[str, Copied]


class DirectiveTree:
    """The folders under *data_dir*. Methods raise OSError where the disk fails."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir

    def homes(self) -> list[Place]:
        """Everywhere, and each workspace with a ``context`` folder, by id."""
        homes = [EVERYWHERE]
        for folder in self._entries(self._root / "workspaces"):
            if (folder / "context").is_dir():
                try:
                    homes.append(Place(Scope(folder.name)))
                except InvalidWorkspaceId:
                    continue  # whatever keeps a folder there, it is no workspace
        return homes

    def walk(self, home: Place, known: Iterable[Slot]) -> Walk:
        """All files of *home* and, for a workspace, of its contexts. Raises `UnreadableRecord`.

        Each of the *known* slots is looked at by itself too: where its folder may not be entered its
        file is unreadable, and not gone.
        """
        walk = Walk({}, [], self.read_record(home))
        self._walk_place(home, walk)
        if home.scope is not None:
            self._walk_contexts(home, home.scope.workspace_id, walk)
        self._look_at([slot for slot in known if slot not in walk.files], walk)
        return walk

    def find(self, slot: Slot) -> Found | None:
        """The file of *slot*; None where there is none."""
        path = self._path(slot)
        relative = self._relative(path)
        try:
            self._check_folders(path.parent)
            raw, changed_at = _read_dated(path)
        except FileNotFoundError:
            return None
        except _Refused as error:
            return Found(slot, relative, "", None, str(error))
        sha256 = hashlib.sha256(raw).hexdigest()
        try:
            return Found(slot, relative, sha256, canonical(raw.decode("utf-8")), changed_at=changed_at)
        except UnicodeDecodeError:
            return Found(slot, relative, sha256, None, "the file is not UTF-8 text")
        except InvalidDirective as error:
            return Found(slot, relative, sha256, None, str(error))

    def write(self, slot: Slot, text: str | None, last: Copied | None) -> str:
        """Put *text* (None: no file) in place of what is there, atomically; return the bytes' digest.

        What is there and not the copy *last* is kept beside it as ``….rejected``: it is somebody's work.
        Raises OSError, also where a link stands in the way.
        """
        path = self._path(slot)
        raw = b"" if text is None else f"{text}\n".encode()
        sha256 = hashlib.sha256(raw).hexdigest()
        try:
            self._check_folders(path.parent)
        except _Refused as error:
            raise OSError(errno.ELOOP, str(error), str(path)) from error
        there = self.find(slot)
        if there is not None and there.sha256 not in {sha256, *([last.sha256] if last else [])}:
            path.replace(_unused(path.with_name(path.name + KEPT)))
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, raw)
        return sha256

    def read_record(self, home: Place) -> dict[str, Copied]:
        """What was last in step under *home*, by `Slot.encoded`. Raises `UnreadableRecord`."""
        path = self._folder(home) / RECORD
        try:
            self._check_folders(path)
            fields: dict[str, Any] = json.loads(_read(path, limit=None))
            if fields["v"] > FORMAT:
                raise UnreadableRecord(f"{path} has format {fields['v']}, and this release reads up to {FORMAT}")
            return {name: Copied(one["sha256"], one["version"]) for name, one in fields["copies"].items()}
        except FileNotFoundError:
            return {}
        except _Refused as error:
            raise UnreadableRecord(str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableRecord(f"{path} is damaged: delete it, and the files count as new ({error})") from error

    def write_record(self, home: Place, record: dict[str, Copied]) -> None:
        """Keep *record* for `read_record`."""
        copies = {name: {"sha256": one.sha256, "version": one.version} for name, one in record.items()}
        folder = self._folder(home)
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / RECORD, json.dumps({"v": FORMAT, "copies": copies}, indent=1, sort_keys=True).encode())

    def notes(self, home: Place) -> list[Note]:
        """The notes of *home*, by path."""
        return [_read_note(self._relative(path), path) for path in self._note_paths(home)]

    def write_note(self, path: str, why: str, advice: str = "") -> None:
        """Say beside the file at *path* (under DATA_DIR) *why* its text was not published, and what to do: *advice*, or
        else what is usual."""
        file = self._root / path
        kept = sorted(one.name for one in file.parent.glob(f"{glob.escape(file.name)}{KEPT}*"))
        if advice and kept:
            advice = f"{advice}; then delete {', '.join(kept)}, where the file's text is kept"
        elif kept:
            advice = (
                f"its text is kept in {kept[-1]}; put what you want of it into {file.name}, save that, and delete "
                f"{', '.join(kept)}"
            )
        advice = advice or "correct or remove it; when it is read again, this note goes away"
        text = f"The text of {file.name} was not published.\n\nWhy: {why}\nWhat to do: {advice}.\n"
        note = file.with_name(file.name + NOTE)
        try:
            self._check_folders(note.parent)
            if _read(note, limit=None) == text.encode():
                return
        except FileNotFoundError:
            pass
        except _Refused as error:
            raise OSError(errno.ELOOP, str(error), str(note)) from error
        _replace(note, text.encode())

    def drop_notes(self, home: Place, refused: Collection[str]) -> None:
        """Take the notes of *home* away, but those of *refused* paths and those beside a text that is kept."""
        for note in self._note_paths(home):
            file = note.with_name(note.name.removesuffix(NOTE))
            if self._relative(file) not in refused and not any(file.parent.glob(f"{glob.escape(file.name)}{KEPT}*")):
                note.unlink(missing_ok=True)

    def _note_paths(self, home: Place) -> list[Path]:
        folder = self._folder(home)
        beside = folder.with_name(folder.name + NOTE)
        try:
            self._check_folders(folder)
        except _Refused:
            return [beside] if beside.is_file() else []
        return [*([beside] if beside.is_file() else []), *sorted(folder.rglob(f"*{NOTE}"))]

    def relative_folder(self, place: Place) -> str:
        """The folder of *place*, under DATA_DIR."""
        return self._relative(self._folder(place))

    def relative_path(self, slot: Slot) -> str:
        """The file of *slot*, under DATA_DIR."""
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
                known = ", ".join(_FILES)
                why = f"no directive has this name; there are {known}, and skills/<name>.md"
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
        self._look_at(slots, walk)

    def _look_at(self, slots: Iterable[Slot], walk: Walk) -> None:
        for slot in slots:
            found = self.find(slot)
            if found is not None:
                walk.files[slot] = found

    def _may_enter(self, folder: Path, place: Place, walk: Walk) -> bool:
        try:
            self._check_folders(folder)
        except _Refused as error:
            walk.refusals.append(Refusal(place, self._relative(folder), str(error)))
            return False
        return folder.is_dir()

    def _check_folders(self, folder: Path) -> None:
        """Raise `_Refused` if *folder* or one above it, up to DATA_DIR, is a link or unreadable."""
        for part in (folder, *folder.parents):
            if part == self._root:
                return
            try:
                linked = part.is_symlink()
            except OSError as error:
                raise _Refused(f"{self._relative(part)} cannot be read: {os.strerror(error.errno or 0)}") from error
            if linked:
                raise _Refused(f"{self._relative(part)} is a link, and links are not followed")

    def _entries(self, folder: Path) -> list[Path]:
        """What lies in *folder*, by name, without hidden files (such as editors keep)."""
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


def _read(path: Path, limit: int | None = DIRECTIVE_MAX_BYTES) -> bytes:
    """The bytes of a plain file. Raises `_Refused` for anything else and FileNotFoundError."""
    return _read_dated(path, limit)[0]


def _read_dated(path: Path, limit: int | None = DIRECTIVE_MAX_BYTES) -> tuple[bytes, datetime]:
    """As `_read`, and when the file was changed last."""
    try:
        # Without O_NONBLOCK the opening of a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _Refused("the file is a link, and links are not followed") from error
        raise _Refused(f"the file cannot be read: {os.strerror(error.errno or 0)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _Refused("it is no plain file")
        with open(descriptor, "rb", closefd=False) as file:
            raw = file.read() if limit is None else file.read(limit + 1)
    except OSError as error:
        raise _Refused(f"the file cannot be read: {os.strerror(error.errno or 0)}") from error
    finally:
        os.close(descriptor)
    if limit is not None and len(raw) > limit:
        raise _Refused(f"the file has more than {limit} bytes")
    return raw, datetime.fromtimestamp(status.st_mtime, UTC)


def _unused(path: Path) -> Path:
    """*path*, with a number behind it if there is such a file already."""
    number, unused = 1, path
    while os.path.lexists(unused):
        number += 1
        unused = path.with_name(f"{path.name}.{number}")
    return unused


def _read_note(path: str, note: Path) -> Note:
    """*note*, which lies at *path* under DATA_DIR. Whatever a person made of it, it is one."""
    found = dict(line.partition(": ")[::2] for line in note.read_text("utf-8", "replace").splitlines())
    return Note(path.removesuffix(NOTE), found.get("Why", ""), found.get("What to do", "").removesuffix("."))


def _replace(path: Path, raw: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(descriptor)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
