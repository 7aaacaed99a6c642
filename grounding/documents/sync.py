"""Keeps documents in Redis for processes that share no disk (`SharedShelf`), and files in step with them (`DiskCopy`).

Keys (owner ``documents``, in the workspace's tag): ``text:<path>``, a text; ``catalogue``, a hash of path to its
SHA-256, size and time; ``revision``, the number of changes so far; ``changes``, the paths by the revision of their last
change, deleted ones too. A change and its place in the backlog of the index are one atomic step.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import AgentRuntimeError, Scope, encode_id, redis_key
from grounding.documents.indexer import sha256_of
from grounding.documents.ledger import OWNER, backlog_key
from grounding.documents.library import (
    READ_BYTES,
    READ_DOCUMENTS,
    Document,
    DocumentMissing,
    DocumentRefused,
    Found,
    Library,
    Read,
    Skipped,
    below,
    check_path,
    decode,
    is_document_path,
    other_forms,
    refuse_twins,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

VERSION = 1
REMEMBERED_CHANGES = 20_000
FEW = 250
"""Entries that are parsed on the event loop; more of them in a thread."""
ANYTHING = "*"
"""For `SharedShelf.put_if` and `delete_if`: whatever is stored there."""
log = structlog.get_logger()

# KEYS: catalogue, text, revision, changes, backlog. ARGV: path, expected SHA-256, time, version, remembered changes,
# and for a document that is put its entry and its text.
_CHANGE = """
local current = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[2] ~= '*' then
  local sha256 = current and cjson.decode(current)['sha256'] or ''
  if sha256 ~= ARGV[2] then return 0 end
end
if ARGV[6] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[6])
  redis.call('SET', KEYS[2], ARGV[7])
else
  if not current then return 0 end
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[2])
end
local revision = redis.call('INCR', KEYS[3])
redis.call('ZADD', KEYS[4], revision, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[5])
redis.call('ZADD', KEYS[5], ARGV[3], ARGV[1])
return revision
"""


class CatalogueTooNew(AgentRuntimeError):
    """The documents were stored by a newer version."""


class SharedShelf:
    """`grounding.documents.library.Shelf` in Redis. Every method may raise `connectors.message.StoreUnavailable`."""

    def __init__(self, redis: Redis, *, max_bytes: int, now: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._max_bytes = max_bytes
        self._now = now
        self._change = redis.register_script(_CHANGE)

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        found = await self.catalogue(scope)
        return [found[path] for path in sorted(found)], []

    async def size(self, scope: Scope) -> int:
        return int(await self._redis.hlen(_key(scope, "catalogue")))

    async def catalogue(self, scope: Scope, paths: Sequence[str] | None = None) -> dict[str, Found]:
        """Return all documents, or those of *paths* that exist. Raises `CatalogueTooNew`."""
        name = _key(scope, "catalogue")
        if paths is None:
            return await asyncio.to_thread(_parse_entries, await self._redis.hgetall(name))
        entries: Any = await self._redis.hmget(name, list(paths)) if paths else []
        found = dict(zip(paths, entries, strict=True))
        return _parse_entries(found) if len(found) <= FEW else await asyncio.to_thread(_parse_entries, found)

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        some = list(paths[:READ_DOCUMENTS])
        catalogue = await self.catalogue(scope, some)
        sizes = accumulate(entry.size_bytes if (entry := catalogue.get(path)) else 0 for path in some)
        fitting = sum(1 for _ in takewhile(lambda size: size < READ_BYTES, sizes))
        some = some[: max(1, fitting)]
        read: Read = {path: catalogue.get(path) for path in some}
        unknown = [path for path in some if (entry := catalogue.get(path)) and entry.sha256 != known.get(path)]
        if not unknown:
            return read
        async with self._redis.pipeline(transaction=True) as pipe:  # each text belongs to its entry
            pipe.hmget(_key(scope, "catalogue"), unknown)
            for path in unknown:
                pipe.get(_text_key(scope, path))
            entries, *texts = await pipe.execute()
        for path, entry, text in zip(unknown, entries, texts, strict=True):
            read[path] = _document(_parse_entry(path, entry), text) if entry and text is not None else None
        return read

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        catalogue = await self.catalogue(scope, [document.path for document in documents])
        return {
            document.path
            for document in documents
            if (entry := catalogue.get(document.path)) is None
            or (entry.size_bytes, entry.modified_ns) != (document.size_bytes, document.modified_ns)
        }

    async def get(self, scope: Scope, path: str) -> Document:
        found = (await self.read(scope, [check_path(path)], {}))[path]
        if not isinstance(found, Document):
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}")
        return found

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        parents = list(accumulate(check_path(path).split("/")[:-1], lambda parent, part: f"{parent}/{part}"))
        if await self.catalogue(scope, parents):
            raise DocumentRefused(f"{path!r}: a part of the path is a document already", why="path")
        refuse_twins(path, await self.catalogue(scope, other_forms(path)))
        found = await self.put_if(scope, path, text, ANYTHING)
        assert found is not None
        return found

    async def put_if(
        self, scope: Scope, path: str, text: str | bytes, expected: str, modified_ns: int | None = None
    ) -> Found | None:
        """Store the document if the current one has the SHA-256 *expected*, empty for none; else return None.

        *modified_ns* is when its text changed; now if not given.
        """
        raw = text.encode("utf-8") if isinstance(text, str) else text
        decoded = decode(path, raw, self._max_bytes)
        found = Found(path, len(raw), modified_ns or time.time_ns(), sha256_of(decoded))
        entry = {"v": VERSION, "sha256": found.sha256, "bytes": found.size_bytes, "modified_ns": found.modified_ns}
        return found if await self._change_if(scope, path, expected, json.dumps(entry), decoded) else None

    async def delete(self, scope: Scope, path: str) -> None:
        if not await self.delete_if(scope, check_path(path), ANYTHING):
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}")

    async def delete_if(self, scope: Scope, path: str, expected: str) -> bool:
        """Delete the document if the current one has the SHA-256 *expected*; return whether it was deleted."""
        return await self._change_if(scope, path, expected)

    async def _change_if(self, scope: Scope, path: str, expected: str, *put: str) -> bool:
        keys = [
            _key(scope, "catalogue"),
            _text_key(scope, path),
            _key(scope, "revision"),
            _key(scope, "changes"),
            backlog_key(scope),
        ]
        args: list[str | int] = [path, expected, repr(self._now()), VERSION, REMEMBERED_CHANGES, *put]
        return bool(await self._change(keys=keys, args=args))

    async def revisions(self, scopes: Sequence[Scope]) -> list[int]:
        """Return the number of changes so far in each of *scopes*, in one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.get(_key(scope, "revision"))
            found: Any = await pipe.execute() if scopes else []
        return [int(number or 0) for number in found]

    async def changes(self, scope: Scope, after: int, until: int) -> set[str] | None:
        """Return the paths that changed after a revision, up to the newest known one; None if they are forgotten."""
        if until - after >= REMEMBERED_CHANGES:
            return None
        found: Any = await self._redis.zrangebyscore(_key(scope, "changes"), f"({after}", "+inf")
        return {str(path) for path in found}


def _parse_entries(entries: Mapping[Any, Any]) -> dict[str, Found]:
    return {str(path): _parse_entry(str(path), entry) for path, entry in entries.items() if entry}


def _parse_entry(path: str, entry: Any) -> Found:
    stored = json.loads(entry)
    if stored.get("v") != VERSION:
        raise CatalogueTooNew(
            f"the documents in Redis have format {stored.get('v')!r}, this version reads {VERSION}: upgrade it"
        )
    return Found(path, stored["bytes"], stored["modified_ns"], stored["sha256"])


def _document(found: Found, text: str) -> Document:
    return Document(found.path, text, found.size_bytes, found.modified_ns)


def _key(scope: Scope, name: str) -> str:
    return redis_key(OWNER, scope.tag, name)


def _text_key(scope: Scope, path: str) -> str:
    return redis_key(OWNER, scope.tag, "text", encode_id(path))


STATE_NAME = ".documents.sqlite"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS version (path TEXT PRIMARY KEY, sha256 TEXT, size_bytes INTEGER, modified_ns INTEGER)"
)


@dataclass(frozen=True, slots=True)
class Version:
    """A file that is the same as its shared document: the hash of the text, and size and time of the file."""

    sha256: str
    size_bytes: int
    modified_ns: int


class DiskState:
    """What the files of a workspace were when they last were the same as the shared documents: a database beside them.

    It belongs to the disk and goes with it: a disk that is new, or was lost, deletes no documents, and one that was
    away does not bring back what was deleted meanwhile. Without a readable database nothing is deleted. Blocking; one
    pass over a workspace uses one instance. A pass that is cancelled closes it while a thread may still read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # closing a connection in use would end the process
        self._connection = self._open()

    def _open(self) -> sqlite3.Connection | None:
        if not self._folder.is_dir():
            return None
        file = self._folder / STATE_NAME
        for _ in range(2):
            connection = None
            try:
                connection = sqlite3.connect(file, check_same_thread=False)
                connection.execute(_CREATE)
            except sqlite3.DatabaseError as error:
                self._log(error)
                if connection is not None:
                    connection.close()
                if isinstance(error, sqlite3.OperationalError):  # locked, or the folder is not writable
                    return None
                file.unlink(missing_ok=True)  # it is damaged
            else:
                return connection
        return None

    def read(self, paths: Sequence[str] | None = None) -> dict[str, Version]:
        """Return the versions of *paths*, or of all files."""
        query, rows = "SELECT path, sha256, size_bytes, modified_ns FROM version", list[Any]()
        with self._lock:
            if self._connection is None:
                return {}
            if paths is None:
                rows += self._connection.execute(query)
            for path in paths or ():
                rows += self._connection.execute(f"{query} WHERE path = ?", (path,))
        return {path: Version(*version) for path, *version in rows}

    def save(self, changed: Mapping[str, Version | None]) -> None:
        """Store new versions; None deletes one. Stores nothing if the folder was deleted or replaced since."""
        rows = [
            (path, version.sha256, version.size_bytes, version.modified_ns)
            for path, version in changed.items()
            if version is not None
        ]
        with self._lock:
            connection = self._connection = self._connection or self._open()
            if connection is None or not changed:
                return
            try:
                with connection:
                    connection.executemany("DELETE FROM version WHERE path = ?", [(path,) for path in changed])
                    connection.executemany("INSERT INTO version VALUES (?, ?, ?, ?)", rows)
            except sqlite3.Error as error:  # "readonly database" if the file was moved or deleted
                self._log(error)

    def _log(self, error: Exception) -> None:
        log.warning("documents.copy_failed", workspace_id=self._folder.name, path=STATE_NAME, why=str(error))

    def close(self) -> None:
        """Close the database. What is read after that is nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class Action(Enum):
    """What makes a file and its shared document the same."""

    NOTHING = auto()
    PUT = auto()
    """Store the file's text as the shared document."""
    REMOVE = auto()
    """Delete the shared document."""
    WRITE = auto()
    """Write the shared document to the file."""
    DELETE = auto()
    """Delete the file."""


def merge(base: str | None, file: str | None, shared: str | None, *, file_is_newer: bool) -> Action:
    """Choose the action by a three-way merge of whole documents; all three are SHA-256, None for no document.

    *base* is what both were when they last were the same. A change wins over no change and over a deletion; of two
    changes the later one wins.
    """
    if file == shared:
        return Action.NOTHING
    if file == base:
        return Action.DELETE if shared is None else Action.WRITE
    if shared == base:
        return Action.REMOVE if file is None else Action.PUT
    if file is None:
        return Action.WRITE
    return Action.PUT if shared is None or file_is_newer else Action.WRITE


BATCH_FILES = 16
"""Files that are read together, fewer if they are large."""
ATTEMPTS = 3
"""How often a document that somebody else changes at the same moment is looked at again."""


_File = tuple[Version, Document | None] | Skipped | None
"""A file, and its text if that had to be read."""


class DiskCopy:
    """Keeps the files under one DATA_DIR and the shared documents the same. One process at a time does it for a disk.

    Files are what people edit; Redis is what runs.
    """

    def __init__(self, library: Library, shelf: SharedShelf) -> None:
        self._library = library
        self._shelf = shelf
        self._locks: dict[str, asyncio.Lock] = {}
        self._skipped: dict[str, dict[str, Skipped]] = {}

    def skipped(self, scope: Scope) -> list[Skipped]:
        """Return the files that are no documents, by path, as far as this process has looked."""
        skipped = self._skipped.get(scope.workspace_id, {})
        return [skipped[path] for path in sorted(skipped)]

    def _report_skipped(self, scope: Scope, skipped: Mapping[str, Skipped], seen: Collection[str]) -> None:
        reported = self._skipped.setdefault(scope.workspace_id, {})
        for item in skipped.values():
            if reported.get(item.path) != item:
                log.warning("index.skipped", workspace_id=scope.workspace_id, path=item.path, why=item.why)
        for path in seen:
            reported.pop(path, None)
        reported |= skipped

    async def bring_in_step(self, scope: Scope, paths: Collection[str] | None = None) -> set[str]:
        """Make files and documents the same, at *paths* (files or folders) or everywhere; return the changed documents.

        A file that cannot be written is logged and tried again the next time. Raises `StoreUnavailable`, and `OSError`
        if files cannot be read.
        """
        async with self._locks.setdefault(scope.workspace_id, asyncio.Lock()):
            state = await asyncio.to_thread(DiskState, self._library.root(scope).parent)
            run = _Pass(scope)
            wanted: list[str] = []
            before: dict[str, Version] = {}
            try:
                wanted = await self._list(run, paths, state)
                before = dict(run.base)
                done = 0
                while done < len(wanted):
                    files = await asyncio.to_thread(self._read_some, run, wanted[done : done + BATCH_FILES])
                    async with asyncio.TaskGroup() as group:
                        for path, file in files.items():
                            group.create_task(self._sync_one(run, path, file))
                    done += len(files)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            finally:
                changed = {path: run.base.get(path) for path in wanted if run.base.get(path) != before.get(path)}
                await asyncio.to_thread(state.save, changed)
                await asyncio.to_thread(state.close)
            self._report_skipped(scope, run.skipped, wanted)
            return run.changed

    async def _list(self, run: _Pass, paths: Collection[str] | None, state: DiskState) -> list[str]:
        """Return the paths to look at, and read what is known of them into *run*."""
        scope = run.scope
        if paths is not None and all(is_document_path(path) for path in paths):
            wanted = sorted(set(paths))
            run.shared = await self._shelf.catalogue(scope, wanted)
            run.base = await asyncio.to_thread(state.read, wanted)
            return wanted
        run.shared = await self._shelf.catalogue(scope)
        run.base = await asyncio.to_thread(state.read)
        found, unfit = await asyncio.to_thread(self._library.walk, scope)
        run.skipped = {item.path: item for item in unfit if item.why == "name"}  # reading them tells nothing
        known = {item.path for item in found} | {item.path for item in unfit} | run.base.keys() | run.shared.keys()
        told = None if paths is None else frozenset(paths)
        return sorted(path for path in known if told is None or below(path, told))

    def _read_some(self, run: _Pass, paths: Sequence[str]) -> dict[str, _File]:
        """Read the first of *paths*, as many as fit into about `READ_BYTES`. Blocking."""
        files: dict[str, _File] = {}
        size = 0
        for path in paths:
            files[path] = file = self._read(run, path)
            size += file[1].size_bytes if isinstance(file, tuple) and file[1] else 0
            if size >= READ_BYTES:
                break
        return files

    def _read(self, run: _Pass, path: str) -> _File:
        base = run.base.get(path)
        if base is not None:
            facts = self._library.stat(run.scope, path)
            if isinstance(facts, Found) and (facts.size_bytes, facts.modified_ns) == (
                base.size_bytes,
                base.modified_ns,
            ):
                return base, None
        found = self._library.read(run.scope, path)
        if isinstance(found, Document):
            return Version(sha256_of(found.text), found.size_bytes, found.modified_ns), found
        return found

    async def _sync_one(self, run: _Pass, path: str, file: _File) -> None:
        """Make one file and its document the same."""
        for attempt in range(ATTEMPTS):
            if attempt:
                file = await asyncio.to_thread(self._read, run, path)
                run.shared.pop(path, None)
                run.shared |= await self._shelf.catalogue(run.scope, [path])
            if isinstance(file, Skipped):
                run.skipped[path] = file
            changed = await self._make_same(run, path, file)
            if changed:
                run.changed.add(path)
            if changed is not None:
                return
        # Whoever keeps changing it brings it in step.

    async def _make_same(self, run: _Pass, path: str, file: _File) -> bool | None:
        """Return whether the shared document changed; None if the file or the document changed meanwhile."""
        if isinstance(file, Skipped) and file.why == "unreadable":
            return False  # its content is unknown, which does not mean that it was deleted
        shared, base = run.shared.get(path), run.base.get(path)
        version, document = file if isinstance(file, tuple) else (None, None)
        expected = shared.sha256 if shared else ""
        newer = bool(version and shared and version.modified_ns >= shared.modified_ns)
        action = merge(
            base.sha256 if base else None,
            version.sha256 if version else None,
            shared.sha256 if shared else None,
            file_is_newer=newer,
        )
        match action:
            case Action.PUT:
                assert document is not None, "the text of a file that did not change is not put"
                if not await self._shelf.put_if(run.scope, path, document.text, expected, document.modified_ns):
                    return None
            case Action.REMOVE:
                if not await self._shelf.delete_if(run.scope, path, expected):
                    return None
            case Action.WRITE if isinstance(file, Skipped):
                return False  # the file is no document, but somebody's all the same
            case Action.WRITE | Action.DELETE:
                return await self._change_file(run, path, version, write=action is Action.WRITE)
        run.set_base(path, version)
        return action in (Action.PUT, Action.REMOVE)

    async def _change_file(self, run: _Pass, path: str, version: Version | None, *, write: bool) -> bool | None:
        """Write the shared document to the file, or delete the file, if it still is *version*."""
        try:
            text = (await self._shelf.get(run.scope, path)).text if write else None
            written = await asyncio.to_thread(self._write_file, run.scope, path, text, version)
        except DocumentMissing:
            return None
        except (DocumentRefused, OSError) as error:
            log.warning("documents.copy_failed", workspace_id=run.scope.workspace_id, path=path, why=str(error))
            return False
        if written is False:
            return None
        if text is not None and isinstance(written, Found):
            run.set_base(path, Version(sha256_of(text), written.size_bytes, written.modified_ns))
        else:
            run.set_base(path, None)
        return False

    def _write_file(self, scope: Scope, path: str, text: str | None, version: Version | None) -> Found | bool:
        """Return False if the file is not *version* any more. Blocking."""
        facts = self._library.stat(scope, path)
        current = (facts.size_bytes, facts.modified_ns) if isinstance(facts, Found) else None
        if current != ((version.size_bytes, version.modified_ns) if version else None):
            return False
        if text is not None:
            return self._library.put(scope, path, text)
        self._library.delete(scope, path)
        return True


class _Pass:
    """One pass over a workspace: what was the same before, what is shared, and what came of it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.base: dict[str, Version] = {}
        self.shared: dict[str, Found] = {}
        self.skipped: dict[str, Skipped] = {}
        self.changed: set[str] = set()

    def set_base(self, path: str, version: Version | None) -> None:
        """Record what both are now."""
        if version is None:
            self.base.pop(path, None)
        else:
            self.base[path] = version
