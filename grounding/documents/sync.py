"""Documents kept in Redis, for processes that share it and no disk: the same from every one of them.

Keys (owner ``documents``, in the workspace's tag): ``text:<path>`` a text; ``catalogue`` a hash of path to its
SHA-256, size and time; ``revision`` how many changes there were; ``changes`` the paths by the revision of their last
change, deleted ones too. A change and its place in the backlog of the index are one atomic step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from connectors.message import AgentRuntimeError, Scope, encode_id, redis_key
from grounding.documents.ledger import OWNER
from grounding.documents.ledger import key as backlog_key
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
)

if TYPE_CHECKING:
    from redis.asyncio import Redis


VERSION = 1
REMEMBERED_CHANGES = 20_000
FEW = 250
"""Entries that are read on the event loop: thousands take it too long."""
ANYTHING = "*"
"""For `SharedShelf.put_if` and `delete_if`: whatever is there."""

# KEYS: catalogue, text, revision, changes, backlog. ARGV: path, what has to be there, at, version, remembered, and for
# a document that is put its entry and its text.
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
    """The documents were put by a newer version."""


class SharedShelf:
    """`grounding.documents.library.Shelf` in Redis. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, *, max_bytes: int, now: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._max_bytes = max_bytes
        self._now = now
        self._change = redis.register_script(_CHANGE)

    async def look_through(self, scope: Scope) -> tuple[list[Found], list[Skipped]]:
        found = await self.catalogue(scope)
        return [found[path] for path in sorted(found)], []

    async def folders(self, scope: Scope, paths: Collection[str]) -> set[str]:
        """None: documents are known by their paths, and whoever puts those of a folder names each of them."""
        return set()

    async def size(self, scope: Scope) -> int:
        return int(await self._redis.hlen(_key(scope, "catalogue")))

    async def catalogue(self, scope: Scope, paths: Sequence[str] | None = None) -> dict[str, Found]:
        """All documents, or those of *paths* that there are. Raises `CatalogueTooNew`."""
        name = _key(scope, "catalogue")
        if paths is None:
            return await asyncio.to_thread(_all_found, await self._redis.hgetall(name))
        entries: Any = await self._redis.hmget(name, list(paths)) if paths else []
        found = dict(zip(paths, entries, strict=True))
        return _all_found(found) if len(found) <= FEW else await asyncio.to_thread(_all_found, found)

    async def read(self, scope: Scope, paths: Sequence[str], known: Mapping[str, str]) -> Read:
        some = list(paths[:READ_DOCUMENTS])
        catalogue = await self.catalogue(scope, some)
        sizes = accumulate(one.size_bytes if (one := catalogue.get(path)) else 0 for path in some)
        fitting = sum(1 for _ in takewhile(lambda size: size < READ_BYTES, sizes))
        some = some[: max(1, fitting)]
        read: Read = {path: catalogue.get(path) for path in some}
        unknown = [path for path in some if (one := catalogue.get(path)) and one.sha256 != known.get(path)]
        if not unknown:
            return read
        async with self._redis.pipeline(transaction=True) as pipe:  # so that no text meets another one's entry
            pipe.hmget(_key(scope, "catalogue"), unknown)
            for path in unknown:
                pipe.get(_text_key(scope, path))
            entries, *texts = await pipe.execute()
        for path, entry, text in zip(unknown, entries, texts, strict=True):
            read[path] = _document(_found(path, entry), text) if entry and text is not None else None
        return read

    async def changed(self, scope: Scope, documents: Sequence[Document]) -> set[str]:
        now = await self.catalogue(scope, [one.path for one in documents])
        return {
            one.path
            for one in documents
            if (found := now.get(one.path)) is None
            or (found.size_bytes, found.modified_ns) != (one.size_bytes, one.modified_ns)
        }

    async def get(self, scope: Scope, path: str) -> Document:
        found = (await self.read(scope, [check_path(path)], {}))[path]
        if not isinstance(found, Document):
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}")
        return found

    async def put(self, scope: Scope, path: str, text: str | bytes) -> Found:
        parents = list(accumulate(check_path(path).split("/")[:-1], lambda above, part: f"{above}/{part}"))
        if await self.catalogue(scope, parents):
            raise DocumentRefused(f"{path!r}: a part of the path is a document already", why="path")
        found = await self.put_if(scope, path, text, ANYTHING)
        assert found is not None
        return found

    async def put_if(
        self,
        scope: Scope,
        path: str,
        text: str | bytes,
        there: str,
        modified_ns: int | None = None,
        changed_ns: int = 0,
    ) -> Found | None:
        """`put`, where the document that is there has the SHA-256 *there*, empty for none; else None. *modified_ns* is
        when its text changed, now if not given, and *changed_ns* when it came to lie there, if that is known."""
        raw = text.encode("utf-8") if isinstance(text, str) else text
        decoded = decode(path, raw, self._max_bytes)
        at = time.time_ns() if modified_ns is None else modified_ns
        found = Found(path, len(raw), at, sha256_of(decoded), changed_ns)
        stored = {"v": VERSION, "sha256": found.sha256, "bytes": found.size_bytes, "modified_ns": at}
        entry = json.dumps(stored | ({"changed_ns": changed_ns} if changed_ns else {}))
        return found if await self._changes(scope, path, there, entry, decoded) else None

    async def delete(self, scope: Scope, path: str) -> None:
        if not await self.delete_if(scope, check_path(path), ANYTHING):
            raise DocumentMissing(f"there is no document {path!r} in workspace {scope.workspace_id}")

    async def delete_if(self, scope: Scope, path: str, there: str) -> bool:
        """`delete`, where the document that is there has the SHA-256 *there*."""
        return await self._changes(scope, path, there)

    async def _changes(self, scope: Scope, path: str, there: str, *put: str) -> bool:
        keys = [
            _key(scope, "catalogue"),
            _text_key(scope, path),
            _key(scope, "revision"),
            _key(scope, "changes"),
            backlog_key(scope),
        ]
        args: list[str | int] = [path, there, repr(self._now()), VERSION, REMEMBERED_CHANGES, *put]
        return bool(await self._change(keys=keys, args=args))

    async def revisions(self, scopes: Sequence[Scope]) -> list[int]:
        """How many changes each of *scopes* has seen; one round trip."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.get(_key(scope, "revision"))
            found: Any = await pipe.execute() if scopes else []
        return [int(one or 0) for one in found]

    async def changes(self, scope: Scope, after: int, until: int) -> set[str] | None:
        """What changed after a revision; None where nobody remembers. *until* is the newest that is known of."""
        if until - after >= REMEMBERED_CHANGES:
            return None
        found: Any = await self._redis.zrangebyscore(_key(scope, "changes"), f"({after}", "+inf")
        return {str(path) for path in found}


def sha256_of(text: str) -> str:
    """Of *text* in UTF-8, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _all_found(entries: Mapping[Any, Any]) -> dict[str, Found]:
    return {str(path): _found(str(path), entry) for path, entry in entries.items() if entry}


def _found(path: str, entry: Any) -> Found:
    stored = json.loads(entry)
    if stored.get("v") != VERSION:
        raise CatalogueTooNew(
            f"the documents in Redis have format {stored.get('v')!r}, this version reads {VERSION}: upgrade it"
        )
    return Found(path, stored["bytes"], stored["modified_ns"], stored["sha256"], stored.get("changed_ns", 0))


def _document(found: Found, text: str) -> Document:
    return Document(found.path, text, found.size_bytes, found.modified_ns, found.changed_ns)


def _key(scope: Scope, name: str) -> str:
    return redis_key(OWNER, scope.tag, name)


def _text_key(scope: Scope, path: str) -> str:
    return redis_key(OWNER, scope.tag, "text", encode_id(path))


# ---- disk base ----
#
# What the files of a workspace and its shared documents were when they last were the same, written down beside them.
#
# ``.documents.json`` has all of it; what changed since is added to ``.documents.changes``, a line for each, and goes
# into
# the former once those are many: a change costs what it is, and not what all documents are. Where one of both is
# damaged,
# nothing was the same: then nothing is deleted, and what was deleted on this disk meanwhile comes back.


log = structlog.get_logger()

BASE_NAME = ".documents.json"
CHANGES_NAME = ".documents.changes"
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


# ---- merging ----
#
# What is to be done where a file and the shared document of the same path differ. Pure.
#
# A three-way merge, as of version control, but of whole documents: the base is what both were when they last were the
# same. A change wins over no change and over a deletion; of two changes the later one wins.


class Step(Enum):
    """What makes both the same."""

    NOTHING = auto()
    PUT = auto()
    """Keep the file's text as the shared document."""
    REMOVE = auto()
    """Delete the shared document."""
    WRITE = auto()
    """Write the shared document to the file."""
    DELETE = auto()
    """Delete the file."""


def step(base: str | None, here: str | None, shared: str | None, *, here_is_newer: bool) -> Step:
    """*base*, *here* (the file) and *shared* are SHA-256, None where there is no document."""
    if here == shared:
        return Step.NOTHING
    if here == base:
        return Step.DELETE if shared is None else Step.WRITE
    if shared == base:
        return Step.REMOVE if here is None else Step.PUT
    if here is None:
        return Step.WRITE
    return Step.PUT if shared is None or here_is_newer else Step.WRITE


# ---- disk copy ----
#
# Keeps the files of one machine and the shared documents the same: files are how people write, Redis is what runs.
#
# What both were when they last were the same is written down beside the files (`grounding.documents.sync`): it
# belongs to this disk, and goes with it. So a disk that is lost, or new, deletes nothing, and one that was away for a
# while does not bring back what was deleted meanwhile.


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
