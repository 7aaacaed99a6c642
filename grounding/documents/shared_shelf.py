"""Documents kept in Redis, for processes that share it and no disk: the same from every one of them.

Keys (owner ``documents``, in the workspace's tag): ``text:<path>`` a text; ``catalogue`` a hash of path to its
SHA-256, size and time; ``revision`` how many changes there were; ``changes`` the paths by the revision of their last
change, deleted ones too. A change and its place in the backlog of the index are one atomic step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

from connectors.message import AgentRuntimeError, Scope, encode_id, redis_key
from grounding.documents.backlog import OWNER
from grounding.documents.backlog import key as backlog_key
from grounding.documents.library import Document, DocumentMissing, DocumentRefused, Found, Skipped, check_path, decode
from grounding.documents.shelf import READ_BYTES, READ_DOCUMENTS, Read

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
    """`grounding.documents.shelf.Shelf` in Redis. Raises `connectors.message.StoreUnavailable` throughout."""

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
