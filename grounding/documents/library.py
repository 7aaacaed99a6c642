"""Reads and writes a workspace's documents: the files under ``DATA_DIR/workspaces/<workspace>/docs``.

A document's name is its path under ``docs/`` with forward slashes. Names come from strangers: nothing outside the
folder is ever read, written or followed to, and percent signs mean themselves. A file that is no document is skipped
with a reason. Of two files whose paths are the same in Unicode's form C, the one in that form is the document. `Shelf`
is the port for documents that are kept in files or elsewhere; `FileShelf` keeps them in files.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from connectors.message import AgentRuntimeError, Scope, replace_file

SkipReason = Literal["binary", "encoding", "size", "link", "unreadable", "name"]

SUFFIXES = (".md", ".txt")
NAME_MAX_BYTES = 240
PATH_MAX_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_FORMS: tuple[Literal["NFC"], Literal["NFD"]] = ("NFC", "NFD")


class DocumentRefused(AgentRuntimeError):
    """A document's path or content is not allowed; the message says why and what would be."""

    user_text = "This document cannot be stored."

    def __init__(self, message: str, *, why: Literal["path"] | SkipReason) -> None:
        super().__init__(message)
        self.why = why


class DocumentMissing(AgentRuntimeError):
    """There is no such document."""

    user_text = "There is no such document."


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be a document. ``sha256`` is that of its text in UTF-8 if it is known without reading."""

    path: str
    size_bytes: int
    modified_ns: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is no document, and why; size and time of the last change if it is a regular file."""

    path: str
    why: SkipReason
    size_bytes: int = 0
    modified_ns: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A document's text without a byte order mark; size and time are the file's."""

    path: str
    text: str
    size_bytes: int
    modified_ns: int


def is_document_path(path: str) -> bool:
    """Return whether a file at *path* (relative, forward slashes) is a document by its name."""
    parts = path.split("/")
    return path.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in parts)


def below(path: str, folders: Collection[str]) -> bool:
    """Return whether *path* is one of *folders* or lies in one of them."""
    end = len(path)
    while end > 0:
        if path[:end] in folders:
            return True
        end = path.rfind("/", 0, end)
    return False


def check_path(path: str) -> str:
    """Return *path* if a document may have it. Raises `DocumentRefused` with ``why`` = ``path``."""
    rule = "is no document: use .md or .txt, and no name that begins with a dot"
    return check_relative_path(path, rule, is_document_path)


def check_relative_path(path: str, rule: str, keeps: Callable[[str], bool]) -> str:
    """Return *path* if a file may have it and it fulfils *keeps*, which *rule* describes.

    Raises `DocumentRefused` with ``why`` = ``path``.
    """
    parts = path.split("/")
    problem = ""
    if not path or _CONTROL.search(path):
        problem = "is empty or holds control characters"
    elif "\\" in path or path.startswith("/") or re.match(r"[A-Za-z]:", path):
        problem = "must be relative, with forward slashes"
    elif any(part in ("", ".", "..") for part in parts):
        problem = "must not hold empty parts, '.' or '..'"
    elif _is_too_long(path):
        problem = f"is too long ({NAME_MAX_BYTES} bytes a name, {PATH_MAX_BYTES} in all)"
    elif not keeps(path):
        problem = rule
    if problem:
        shown = path if len(path) <= PATH_MAX_BYTES else path[:PATH_MAX_BYTES] + "…"
        raise DocumentRefused(f"the path {shown!r} {problem}", why="path")
    return path


def other_forms(path: str) -> list[str]:
    """Return the paths that look like *path* but are spelled in another form of Unicode (C or D), as a Mac's files."""
    return [other for form in _FORMS if (other := unicodedata.normalize(form, path)) != path]


def refuse_twins(path: str, twins: Iterable[str]) -> None:
    """Raise `DocumentRefused` if there are *twins*: other documents whose paths look like *path*."""
    for twin in twins:
        why = f"the path {path!r} looks like that of another document, {twin!r}: use that one"
        raise DocumentRefused(why, why="path")


def decode(path: str, raw: bytes, max_bytes: int) -> str:
    """Return the text of a document's bytes, without a byte order mark. Raises `DocumentRefused`."""
    if len(raw) > max_bytes:
        raise DocumentRefused(f"{path!r} is larger than {max_bytes} bytes", why="size")
    if b"\0" in raw:
        raise DocumentRefused(f"{path!r} is binary", why="binary")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentRefused(f"{path!r} is not UTF-8: {error.reason} at byte {error.start}", why="encoding") from error


class Library:
    """The documents of all workspaces under *data_dir*. Blocking: call it from a thread."""

    def __init__(self, data_dir: Path, *, max_bytes: int) -> None:
        self._workspaces = data_dir / "workspaces"
        self._max_bytes = max_bytes

    def root(self, scope: Scope) -> Path:
        """Return the folder of the workspace's documents; it may not exist yet."""
        return self._workspaces / scope.workspace_id / "docs"

    def workspaces(self) -> list[str]:
        """Return the ids of the workspaces that have a folder for documents, sorted."""
        if not self._workspaces.is_dir():
            return []
        return sorted(entry.name for entry in self._workspaces.iterdir() if (entry / "docs").is_dir())

    def has_documents(self, scope: Scope) -> bool:
        """Return whether the workspace has any document."""
        return any(isinstance(item, Found) for item in self._walk(scope))

    def walk(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        """Return all files that may be documents, by path, and those skipped for their size, kind or name."""
        items = list(self._walk(scope))
        return (
            sorted((item for item in items if isinstance(item, Found)), key=lambda item: item.path),
            [item for item in items if isinstance(item, Skipped)],
        )

    def _walk(self, scope: Scope) -> Iterator[Found | Skipped]:
        root = self.root(scope)
        if _is_link_below(self._workspaces, root):
            yield Skipped(".", "link")
            return
        for folder, folders, files in os.walk(root, followlinks=False):
            relative = Path(folder).relative_to(root).as_posix()
            prefix = "" if relative == "." else f"{relative}/"
            # Hidden folders (a version control's may hold 100,000 files) and very deep ones hold no documents.
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".") and len(os.fsencode(f"{prefix}{name}")) <= PATH_MAX_BYTES
            )
            yield from (Skipped(f"{prefix}{name}", "link") for name in folders if os.path.islink(f"{folder}/{name}"))
            for name in sorted(files):
                path = f"{prefix}{name}"
                if not is_document_path(path):
                    continue
                item = self._stat(Path(folder) / name, path)
                if isinstance(item, Found) and ("\\" in path or _CONTROL.search(path) or _is_too_long(path)):
                    item = Skipped(_printable(path), "name", item.size_bytes, item.modified_ns)
                if item is not None:
                    yield item

    def stat(self, scope: Scope, path: str) -> Found | Skipped | None:
        """Return size, kind and time of the file at *path* without reading it; None if there is no document."""
        try:
            return self._stat(self._file(scope, path), path)
        except DocumentRefused as error:
            return Skipped(path, "unreadable") if error.why == "unreadable" else None

    def _stat(self, file: Path, path: str) -> Found | Skipped | None:
        try:
            facts = file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return Skipped(path, "unreadable")
        if not stat.S_ISREG(facts.st_mode):
            return Skipped(path, "link") if stat.S_ISLNK(facts.st_mode) else None
        if facts.st_size > self._max_bytes:
            return Skipped(path, "size", facts.st_size, facts.st_mtime_ns)
        if _is_shadowed(file, path):
            return Skipped(path, "name", facts.st_size, facts.st_mtime_ns)
        return Found(path, facts.st_size, facts.st_mtime_ns)

    def get(self, scope: Scope, path: str) -> Document:
        """Return the document at *path*. Raises `DocumentMissing`, and `DocumentRefused` if the file is none."""
        file = self._file(scope, path)
        if _is_shadowed(file, path):
            raise DocumentRefused(f"{path!r} looks like the path of another document, which hides it", why="name")
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}") from error
        except OSError as error:
            why: SkipReason = "link" if error.errno == errno.ELOOP else "unreadable"  # O_NOFOLLOW meets a link
            raise DocumentRefused(f"{path!r} cannot be read: {error.strerror}", why=why) from error
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            os.close(descriptor)
            raise DocumentRefused(f"{path!r} is no regular file", why="link")
        with os.fdopen(descriptor, "rb") as opened:
            raw = opened.read(self._max_bytes + 1)
        return Document(path, decode(path, raw, self._max_bytes), len(raw), facts.st_mtime_ns)

    def read(self, scope: Scope, path: str) -> Document | Skipped | None:
        """Return the document at *path*, the reason why the file is none, or None if there is nothing.

        Raises no error for a file that changes meanwhile, or for a path that no document may have.
        """
        try:
            return self.get(scope, path)
        except DocumentMissing:
            return None
        except DocumentRefused as error:
            if error.why == "path":
                return None
            file = self._stat(self.root(scope) / path, path)  # None for a folder, a pipe and the like
            return Skipped(path, error.why, file.size_bytes, file.modified_ns) if file else None

    def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        """Write the document at *path*, whole or not at all.

        Raises `DocumentRefused`, and `OSError` if the disk is full.
        """
        raw = text.encode("utf-8") if isinstance(text, str) else text
        decode(path, raw, self._max_bytes)
        file = self._file(scope, path)
        refuse_twins(path, _twins(file, path))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DocumentRefused(f"{path!r}: a part of the path is a document already", why="path") from error
        if file.is_symlink():
            raise DocumentRefused(f"{path!r} is a link", why="link")
        if file.is_dir():
            raise DocumentRefused(f"{path!r} is a folder", why="path")
        replace_file(file, raw, mode=0o644)
        facts = file.lstat()
        return Found(path, facts.st_size, facts.st_mtime_ns)

    def delete(self, scope: Scope, path: str) -> None:
        """Remove the document at *path*, and folders that are empty then. Raises `DocumentMissing`."""
        file = self._file(scope, path)
        try:
            file.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}") from error
        root = self.root(scope)
        for folder in file.parents:
            if folder == root:
                break
            try:
                folder.rmdir()
            except OSError:
                break  # It holds other documents.

    def _file(self, scope: Scope, path: str) -> Path:
        """Return the file of a document; no folder on the way is a link. Raises `DocumentRefused`."""
        file = self.root(scope) / check_path(path)
        try:
            is_below_link = _is_link_below(self._workspaces, file.parent)
        except OSError as error:
            raise DocumentRefused(f"{path!r} cannot be reached: {error.strerror}", why="unreadable") from error
        if is_below_link:
            raise DocumentRefused(f"{path!r} leads through a link", why="link")
        return file


def _is_link_below(base: Path, folder: Path) -> bool:
    """Return whether *folder* or one of its parents below *base* is a link."""
    while folder != base:
        if folder.is_symlink():
            return True
        folder = folder.parent
    return False


def _twins(file: Path, path: str) -> list[str]:
    """Return the paths of other files that look like the *path* of *file*.

    Some disks know one file by several spellings of its name: that is no other file.
    """
    root = file.parents[path.count("/")]
    twins = [other for other in other_forms(path) if (root / other).is_file()]
    return [other for other in twins if not (file.exists() and file.samefile(root / other))]


def _is_shadowed(file: Path, path: str) -> bool:
    """Say whether another file has the same path in Unicode's form C: that one is the document."""
    return not unicodedata.is_normalized("NFC", path) and bool(_twins(file, path))


def _is_too_long(path: str) -> bool:
    return len(path.encode()) > PATH_MAX_BYTES or any(len(part.encode()) > NAME_MAX_BYTES for part in path.split("/"))


def _printable(path: str) -> str:
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", path)


READ_BYTES = 250_000
"""Text that is read at once: whoever works on the documents holds it in memory, and others wait for them."""
READ_DOCUMENTS = 64

Read = dict[str, Document | Found | Skipped | None]
"""By path: a document; `Found` if it reads as it is known to; a file that is no document; or None for nothing."""


class Shelf(Protocol):
    """The documents of all workspaces. Every method may raise `connectors.message.StoreUnavailable` or `OSError`."""

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        """Return all that may be documents, by path, and all that is none by its size, kind or name."""

    async def size(self, scope: Scope) -> int:
        """Return how many documents there may be."""

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        """Read the first of *paths*: about `READ_BYTES` of text, and at least one document.

        *known* has the SHA-256 of texts that need not be read again.
        """

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        """Return the paths of those *documents* that changed since they were read."""

    async def get(self, scope: Scope, path: str) -> Document:
        """Return the document at *path*. Raises `DocumentMissing` and `DocumentRefused`."""

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        """Store *text* at *path*, whole or not at all. Raises `DocumentRefused`."""

    async def delete(self, scope: Scope, path: str) -> None:
        """Delete the document at *path*. Raises `DocumentMissing` and `DocumentRefused`."""


class FileShelf:
    """`Shelf` over the files of a `Library`: one process, or one folder that all processes share."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        return await asyncio.to_thread(self._library.walk, scope)

    async def size(self, scope: Scope) -> int:
        return len((await self.look_through(scope))[0])

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        """All files are read: size and time say nothing certain about a text."""
        return await asyncio.to_thread(self._read, scope, paths)

    def _read(self, scope: Scope, paths: Sequence[str]) -> Read:
        found: Read = {}
        size = 0
        for path in paths[:READ_DOCUMENTS]:
            found[path] = item = self._library.read(scope, path)
            size += item.size_bytes if isinstance(item, Document) else 0
            if size >= READ_BYTES:
                break
        return found

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        """Return nothing: one indexer reads and stores under a lock, and a later change is indexed after it."""
        return set()

    async def get(self, scope: Scope, path: str) -> Document:
        return await asyncio.to_thread(self._library.get, scope, path)

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        return await asyncio.to_thread(self._library.put, scope, path, text)

    async def delete(self, scope: Scope, path: str) -> None:
        await asyncio.to_thread(self._library.delete, scope, path)
