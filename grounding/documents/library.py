"""The documents of a workspace as files: ``DATA_DIR/workspaces/<workspace>/docs``.

A document's name is its path under ``docs/`` with forward slashes. Names come from strangers: nothing
outside the folder is ever read, written or followed to, whatever they say, and percent signs mean
themselves. Of two files whose paths are the same in Unicode's form C the one in that form is the
document. Files that are no document are left out and named.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import tempfile
import unicodedata
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from connectors.message import AgentRuntimeError, Scope

Why = Literal["binary", "encoding", "size", "link", "unreadable", "name"]

SUFFIXES = (".md", ".txt")
NAME_MAX_BYTES = 240
PATH_MAX_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_SHOWN = re.compile(r"\\u([0-9a-f]{4})")
"""How a control character is written where such a name is told."""


class DocumentRefused(AgentRuntimeError):
    """A document's path or content that cannot be kept; the text says why and what would do."""

    user_text = "This document cannot be stored."

    def __init__(self, message: str, *, why: Literal["path"] | Why) -> None:
        super().__init__(message)
        self.why = why


class DocumentMissing(AgentRuntimeError):
    """There is no such document."""

    user_text = "There is no such document."


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be a document: its path under ``docs/``, size and time of the last change."""

    path: str
    size_bytes: int
    modified_ns: int
    sha256: str = ""
    """Of its text in UTF-8, where that is known without reading it."""
    changed_ns: int = 0
    """`Document.changed_ns`, where that is known without reading it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is no document, and why; size and time of the last change where it is a regular file."""

    path: str
    why: Why
    size_bytes: int = 0
    modified_ns: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A document's text as it lies on disk, without a byte order mark."""

    path: str
    text: str
    size_bytes: int
    modified_ns: int
    changed_ns: int = 0
    """When it came to lie there as it is, also where it was moved or copied with its time; 0 where nobody knows."""


def is_document_path(path: str) -> bool:
    """Whether a file at *path* (relative, forward slashes) belongs to the documents, by its name alone."""
    parts = path.split("/")
    return path.lower().endswith(SUFFIXES) and not any(part.startswith(".") for part in parts)


def _holds_no_documents(folder: str) -> bool:
    """Whether nothing in *folder* is a document, by its path: a version control's may hold a hundred thousand files,
    and no walk climbs down a thousand folders."""
    if len(os.fsencode(folder)) > PATH_MAX_BYTES:
        return True
    return folder.split("/")[-1].startswith(".")


def check_path(path: str) -> str:
    """*path* itself, if a document may have it. Raises `DocumentRefused` (``why`` = ``path``)."""
    rule = "is no document: use .md or .txt, and no name that begins with a dot"
    return checked(path, rule, is_document_path)


def checked(path: str, rule: str, keeps: Callable[[str], bool]) -> str:
    """*path* itself, if a file may have it and it *keeps* a rule beside. Raises `DocumentRefused` (``why`` = ``path``),
    which says the *rule* where that is broken."""
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


def _is_odd(path: str) -> bool:
    """Whether no document's path holds what this one does."""
    return "\\" in path or _CONTROL.search(path) is not None


def _shown(path: str) -> str:
    return _CONTROL.sub(lambda one: f"\\u{ord(one[0]):04x}", path)


def _may_lie(path: str) -> bool:
    """Whether a file's path can be this one at all: no disk is asked for a null character or half of a character."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _by_name(path: str, found: Found | Skipped | None) -> Skipped | None:
    """What lies at *path*, as it is told, which cannot be a document's for its name."""
    return Skipped(path, "name", found.size_bytes, found.modified_ns) if isinstance(found, Found) else None


def _is_twin(root: Path, path: str) -> bool:
    """Whether another file below *root* has the same path, as people read it, in Unicode's form C, and *path* is in
    another form: a Mac's archives have such names."""
    if unicodedata.is_normalized("NFC", path):
        return False
    file, other = root / path, root / unicodedata.normalize("NFC", path)
    try:
        return other.is_file() and not other.samefile(file)  # some disks know them by both
    except OSError:
        return False


def _is_too_long(path: str) -> bool:
    return len(path.encode()) > PATH_MAX_BYTES or any(len(part.encode()) > NAME_MAX_BYTES for part in path.split("/"))


def decode(path: str, raw: bytes, max_bytes: int) -> str:
    """The text of a document's bytes, without a byte order mark. Raises `DocumentRefused`."""
    if len(raw) > max_bytes:
        raise DocumentRefused(f"{path!r} is larger than {max_bytes} bytes", why="size")
    if b"\0" in raw:
        raise DocumentRefused(f"{path!r} is binary", why="binary")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentRefused(f"{path!r} is not UTF-8: {error.reason} at byte {error.start}", why="encoding") from error


class Library:
    """Reads and writes the documents of all workspaces under *data_dir*. Blocking: call it from a thread."""

    def __init__(self, data_dir: Path, *, max_bytes: int) -> None:
        self._workspaces = data_dir / "workspaces"
        self._max_bytes = max_bytes

    def root(self, scope: Scope) -> Path:
        """The folder of the scope's documents; it may not exist yet."""
        return self._workspaces / scope.workspace_id / "docs"

    def workspaces(self) -> list[str]:
        """Ids of the workspaces that have a folder for documents, sorted."""
        if not self._workspaces.is_dir():
            return []
        return sorted(entry.name for entry in self._workspaces.iterdir() if (entry / "docs").is_dir())

    def walk(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        """All files that may be documents, by path, and what is left out by its size or for being a link."""
        found = list(self._walk(scope))
        return (
            sorted((item for item in found if isinstance(item, Found)), key=lambda item: item.path),
            [item for item in found if isinstance(item, Skipped)],
        )

    def has_documents(self, scope: Scope) -> bool:
        """Whether there is any document."""
        return any(isinstance(item, Found) for item in self._walk(scope))

    def _walk(self, scope: Scope) -> Iterator[Found | Skipped]:
        root = self.root(scope)
        if _is_link_below(self._workspaces, root):
            yield Skipped(".", "link")
            return
        for folder, folders, files in os.walk(root, followlinks=False):
            above = Path(folder).relative_to(root).as_posix()
            prefix = "" if above == "." else f"{above}/"
            folders[:] = sorted(name for name in folders if not _holds_no_documents(f"{prefix}{name}"))
            yield from (Skipped(f"{prefix}{name}", "link") for name in folders if os.path.islink(f"{folder}/{name}"))
            for name in sorted(files):
                path = f"{prefix}{name}"
                if is_document_path(path):
                    item = self._look(Path(folder) / name, path)
                    if _is_odd(path) or (isinstance(item, Found) and (_is_too_long(path) or _is_twin(root, path))):
                        item = _by_name(_shown(path), item)
                    if item is not None:
                        yield item

    def looks(self, scope: Scope, path: str) -> Found | Skipped | None:
        """What lies at *path* by its size, kind and time; its text is not read."""
        try:
            found = self._look(self._file(scope, path), path)
            return _by_name(path, found) if _is_twin(self.root(scope), path) else found
        except DocumentRefused as error:
            return Skipped(path, "unreadable") if error.why == "unreadable" else None

    def _look(self, file: Path, path: str) -> Found | Skipped | None:
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
        return Found(path, facts.st_size, facts.st_mtime_ns)

    def is_folder(self, scope: Scope, path: str) -> bool:
        """Whether a folder lies at *path*, which may be named like a document."""
        try:
            file = self._file(scope, path)
            return file.is_dir() and not file.is_symlink()
        except (DocumentRefused, OSError):  # a folder above may be one that nobody may enter
            return False

    def get(self, scope: Scope, path: str) -> Document:
        """The document at *path*. Raises `DocumentMissing`, and `DocumentRefused` for what is no document."""
        file = self._file(scope, path)
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}") from error
        except OSError as error:
            why: Why = "link" if error.errno == errno.ELOOP else "unreadable"  # what O_NOFOLLOW answers for a link
            raise DocumentRefused(f"{path!r} cannot be read: {error.strerror}", why=why) from error
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            os.close(descriptor)
            raise DocumentRefused(f"{path!r} is no regular file", why="link")
        with os.fdopen(descriptor, "rb") as opened:
            raw = opened.read(self._max_bytes + 1)
        return Document(path, decode(path, raw, self._max_bytes), len(raw), facts.st_mtime_ns, facts.st_ctime_ns)

    def look(self, scope: Scope, path: str) -> Document | Skipped | None:
        """What lies at *path*: a document, something that is none, or nothing (also for paths that no document may
        have, but for files that only their names keep from being one). A file that vanishes or changes its kind
        meanwhile is one of the three, and no error."""
        try:
            found = self.get(scope, path)
        except DocumentMissing:
            return None
        except DocumentRefused as error:
            if error.why == "path":
                return self._ill_named(scope, path)
            file = self._look(self.root(scope) / path, path)  # None for folders and the like: they say nothing
            return Skipped(path, error.why, file.size_bytes, file.modified_ns) if file else None
        is_twin = _is_twin(self.root(scope), path)
        return Skipped(path, "name", found.size_bytes, found.modified_ns) if is_twin else found

    def _ill_named(self, scope: Scope, path: str) -> Skipped | None:
        """A file that is no document for its name alone, which *path* is as it is told."""
        for name in dict.fromkeys((path, _SHOWN.sub(lambda code: chr(int(code[1], 16)), path))):
            is_below = is_document_path(name) and not any(part in ("", ".", "..") for part in name.split("/"))
            if is_below and _may_lie(name) and (_is_odd(name) or _is_too_long(name)):
                file = self.root(scope) / name
                with suppress(OSError):  # no disk has a folder of that name, or nobody may enter it
                    found = None if _is_link_below(self._workspaces, file.parent) else self._look(file, path)
                    if item := _by_name(_shown(path), found):
                        return item
        return None

    def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        """Write the document at *path*, whole or not at all. Raises `DocumentRefused`; `OSError` when the disk
        is full."""
        raw = text.encode("utf-8") if isinstance(text, str) else text
        decode(path, raw, self._max_bytes)
        file = self._file(scope, path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise DocumentRefused(f"{path!r}: a part of the path is a document already", why="path") from error
        if file.is_symlink():
            raise DocumentRefused(f"{path!r} is a link", why="link")
        if file.is_dir():
            raise DocumentRefused(f"{path!r} is a folder", why="path")
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".put-")
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(raw)
                opened.flush()
                os.fsync(opened.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, file)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
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
        """Where *path* lies; no folder on the way is a link. Raises `DocumentRefused`."""
        file = self.root(scope) / check_path(path)
        try:
            is_below_link = _is_link_below(self._workspaces, file.parent)
        except OSError as error:
            raise DocumentRefused(f"{path!r} cannot be reached: {error.strerror}", why="unreadable") from error
        if is_below_link:
            raise DocumentRefused(f"{path!r} leads through a link", why="link")
        return file


def _is_link_below(base: Path, folder: Path) -> bool:
    """Whether *folder* or one of its parents below *base* is a link."""
    while folder != base:
        if folder.is_symlink():
            return True
        folder = folder.parent
    return False


# ---- shelf ----
#
# Where the documents of a workspace are kept: the port, and its adapter over files of this machine.


READ_BYTES = 1_000_000
"""Text that is read at once: what a run holds in memory of documents that it has not indexed yet."""
READ_DOCUMENTS = 64

Read = dict[str, Document | Found | Skipped | None]
"""By path what lies there: a document, one that reads as it is known to, something that is no document, or nothing."""


class Shelf(Protocol):
    """The documents of all workspaces. Every method may raise `connectors.message.StoreUnavailable` or `OSError`."""

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        """Everything that may be a document, by path, and what by its size or kind is none."""

    async def folders(self, scope: Scope, paths: Collection[str]) -> set[str]:
        """Those of *paths*, which are named like documents, that are folders."""

    async def size(self, scope: Scope) -> int:
        """How many documents there may be."""

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        """What lies at the first of *paths*: as many of them as fit into about `READ_BYTES`, at least one. *known* are
        SHA-256 of texts that need not be read again."""

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        """The paths of those of *documents*, as they were read, that read otherwise by now."""

    async def get(self, scope: Scope, path: str) -> Document:
        """Raises `grounding.documents.library.DocumentMissing` and `DocumentRefused`."""

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        """Keep *text* at *path*, whole or not at all. Raises `DocumentRefused`."""

    async def delete(self, scope: Scope, path: str) -> None:
        """Raises `DocumentMissing` and `DocumentRefused`."""


class FileShelf:
    """`Shelf` over the files of a `Library`: one process, or one folder that all processes share."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        return await asyncio.to_thread(self._library.walk, scope)

    async def folders(self, scope: Scope, paths: Collection[str]) -> set[str]:
        return await asyncio.to_thread(lambda: {path for path in paths if self._library.is_folder(scope, path)})

    async def size(self, scope: Scope) -> int:
        return len((await self.look_through(scope))[0])

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        """All that fit are read: a file's looks say nothing certain about its text."""
        return await asyncio.to_thread(self._read, scope, paths)

    def _read(self, scope: Scope, paths: Sequence[str]) -> Read:
        found: Read = {}
        size = 0
        for path in paths[:READ_DOCUMENTS]:
            found[path] = item = self._library.look(scope, path)
            size += item.size_bytes if isinstance(item, Document) else 0
            if size >= READ_BYTES:
                break
        return found

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        """None: who reads and stores them keeps others out, and whoever writes has them read again."""
        return set()

    async def get(self, scope: Scope, path: str) -> Document:
        return await asyncio.to_thread(self._library.get, scope, path)

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        return await asyncio.to_thread(self._library.put, scope, path, text)

    async def delete(self, scope: Scope, path: str) -> None:
        await asyncio.to_thread(self._library.delete, scope, path)


def below(path: str, folders: Collection[str]) -> bool:
    """Whether *path* is one of *folders*, which is a set where they may be many, or lies in one of them."""
    end = len(path)
    while end > 0:
        if path[:end] in folders:
            return True
        end = path.rfind("/", 0, end)
    return False


# ---- at hand ----
#
# Which documents are being indexed: two runs never have the same one in hand, and keep each other waiting for no
# other. Between reading a document and storing it nobody else may: what was read first would be stored last.


class AtHand:
    """Of one workspace, in one process."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._has_all = False
        self._wanting_all = 0
        """Who has everything in hand, or waits for it: nobody begins before them, or they would wait for ever."""
        self._freed = asyncio.Event()
        """Set, and replaced, whenever somebody lets go of something."""

    @asynccontextmanager
    async def some(self, paths: Collection[str]) -> AsyncIterator[None]:
        """Have *paths* in hand; waits for those that others have."""
        with self.hand() as hand:
            await hand.take(paths)
            yield

    @contextmanager
    def hand(self) -> Iterator[Hand]:
        """A hand for one run, which lets go of everything in the end. What it has when it takes more it has to let go
        of without waiting for that: else two might wait for each other."""
        hand = Hand(self)
        try:
            yield hand
        finally:
            hand.let_go([*hand.paths])

    async def take(self, paths: set[str]) -> None:
        """Have *paths* in hand once nobody else has one of them."""
        while self._wanting_all or not self._paths.isdisjoint(paths):
            await self._freed.wait()
        self._paths |= paths

    def let_go(self, paths: set[str]) -> None:
        """Others may take *paths*."""
        self._paths -= paths
        self._tell()

    @asynccontextmanager
    async def everything(self) -> AsyncIterator[None]:
        """Have all documents in hand, those that there are not, too."""
        self._wanting_all += 1
        try:
            while self._has_all or self._paths:
                await self._freed.wait()
            self._has_all = True
            try:
                yield
            finally:
                self._has_all = False
        finally:
            self._wanting_all -= 1
            self._tell()

    def _tell(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()


class Hand:
    """Of one run."""

    def __init__(self, all_hands: AtHand) -> None:
        self._all = all_hands
        self.paths: set[str] = set()

    async def take(self, paths: Collection[str]) -> None:
        """Have *paths*, of which this has none yet, in hand, too; waits for those that others have."""
        await self._all.take(mine := set(paths))
        self.paths |= mine

    def let_go(self, paths: Collection[str]) -> None:
        """Others may take those of *paths* that are in hand."""
        if mine := self.paths & set(paths):
            self.paths -= mine
            self._all.let_go(mine)
