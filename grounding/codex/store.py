"""The material itself, in Redis: the same from every process.

Keys (owner ``codex``, in the workspace's tag): ``held`` a hash of owner (``*`` for the workspace, else a context's id)
to how much it has, and of ``mode <window> <owner>`` to ``search`` where it was searched last for a model of that
window; ``entries:<owner>`` a hash of path to `grounding.codex.material.CodexEntry`; ``text:<owner>:<path>`` a text; for
each collection of the index ``indexed:<collection>:<owner>`` a hash of path to the SHA-256 that was indexed, and
``synced:<collection>`` one of owner to the revision that it has in full. One set for all, ``waiting``: workspaces whose
material changed since it was indexed.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connectors.message import Scope, encode_id, redis_key
from grounding.codex.choosing import Mode
from grounding.codex.material import (
    MAX_FILES,
    VERSION,
    CodexEntry,
    CodexFull,
    Held,
    Size,
    check_path,
    owner_of,
    sha256_of,
)
from grounding.documents.library import DocumentMissing, decode

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "codex"
_WAITING = redis_key(_OWNER, "{codex}", "waiting")
_PAGE = 64

# KEYS: held, entries, text. ARGV: owner, path, revision, most bytes, most files, version, and for a file that is put
# its entry and its text. A change and the sums over all files are one step.
_CHANGE = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local held = stored and cjson.decode(stored) or {files = 0, bytes = 0, tokens = 0, weight = 0, characters = 0}
if stored and held.v ~= tonumber(ARGV[6]) then return 'version' end
local was = redis.call('HGET', KEYS[2], ARGV[2])
local old = was and cjson.decode(was) or {bytes = 0, tokens = 0, weight = 0, characters = 0}
local new = ARGV[7] and cjson.decode(ARGV[7]) or {bytes = 0, tokens = 0, weight = 0, characters = 0}
if not ARGV[7] and not was then return 'missing' end
if ARGV[7] and was and old.sha256 == new.sha256 then return 'same' end
held.files = held.files + (ARGV[7] and 1 or 0) - (was and 1 or 0)
for _, sum in ipairs({'bytes', 'tokens', 'weight', 'characters'}) do held[sum] = held[sum] + new[sum] - old[sum] end
if ARGV[7] and held.files > tonumber(ARGV[5]) then return 'files' end
if ARGV[7] and new.bytes > old.bytes and held.bytes > tonumber(ARGV[4]) then return 'bytes' end
held.v, held.revision = tonumber(ARGV[6]), ARGV[3]
if ARGV[7] then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[7])
  redis.call('SET', KEYS[3], ARGV[8])
else
  redis.call('HDEL', KEYS[2], ARGV[2])
  redis.call('DEL', KEYS[3])
end
if held.files > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(held))
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return 'done'
"""

_MODE = "mode "


@dataclass(frozen=True, slots=True)
class Holding:
    """How much material a workspace has, and one context besides; ``before`` is how it was given last to such a
    model."""

    every: Held
    own: Held
    before: Mode | None = None

    @property
    def files(self) -> int:
        return self.every.files + self.own.files


class CodexStore:
    """Raises `connectors.message.StoreUnavailable` throughout, and `CodexTooNew` where it reads."""

    def __init__(self, redis: Redis, *, max_bytes: int, file_max_bytes: int) -> None:
        """*max_bytes* bounds what a workspace or a context may have, *file_max_bytes* one file."""
        self._redis = redis
        self._max_bytes = max_bytes
        self._file_max_bytes = file_max_bytes
        self._change = redis.register_script(_CHANGE)

    async def held(self, scope: Scope, window: int = 0) -> Holding:
        """What the scope's workspace and context have, and how that was given last to a model of *window* tokens. One
        command."""
        owners = ["*", owner_of(scope), _mode_field(scope, window)]
        found: Any = await self._redis.hmget(_key(scope, "held"), owners)
        every, own, mode = found
        before: Mode | None = mode if mode in ("whole", "search") else None
        return Holding(Held.from_json(every), Held.from_json(own if scope.context_id else None), before)

    async def all_held(self, scope: Scope) -> dict[Scope, Held]:
        """Everything in the workspace that has material of its own."""
        found: Any = await self._redis.hgetall(_key(scope, "held"))
        return {
            Scope(scope.workspace_id, None if owner == "*" else str(owner)): Held.from_json(text)
            for owner, text in found.items()
            if not owner.startswith(_MODE)
        }

    async def entries(self, scope: Scope) -> dict[str, CodexEntry]:
        """The scope's own files by path, sorted."""
        found: Any = await self._redis.hgetall(_key(scope, "entries", encode_id(owner_of(scope))))
        return {str(path): CodexEntry.from_json(found[path]) for path in sorted(found)}

    async def texts(self, scope: Scope, paths: Sequence[str]) -> dict[str, str]:
        """The texts of those of *paths* that the scope itself has."""
        found: dict[str, str] = {}
        for start in range(0, len(paths), _PAGE):
            page = paths[start : start + _PAGE]
            texts: Any = await self._redis.mget([_text_key(scope, path) for path in page])
            found |= {path: str(text) for path, text in zip(page, texts, strict=True) if text is not None}
        return found

    async def get(self, scope: Scope, path: str) -> str:
        """Raises `DocumentMissing` and `DocumentRefused`."""
        text: Any = await self._redis.get(_text_key(scope, check_path(path)))
        if text is None:
            raise DocumentMissing(f"the codex of {_name(scope)} has no file {path!r}")
        return str(text)

    def readable(self, path: str, raw: bytes) -> str:
        """The text of a file's bytes. Raises `DocumentRefused`: binary, not UTF-8, or too large."""
        return decode(check_path(path), raw, self._file_max_bytes)

    async def put(self, scope: Scope, path: str, text: str, size: Size) -> CodexEntry:
        """Keep *text*, as `readable` gave it, at *path* of the scope's own material. *size* is that of its rendering.

        Raises `DocumentRefused` for a path that is none, and `CodexFull`.
        """
        entry = CodexEntry(
            sha256_of(text),
            len(text.encode()),
            size,
            datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        done = await self._changed(scope, check_path(path), entry.to_json(), text)
        if done == "files":
            raise CodexFull(f"the codex of {_name(scope)} has {MAX_FILES} files already, which is the most")
        if done == "bytes":
            raise CodexFull(
                f"with {path!r} the codex of {_name(scope)} would have more than {self._max_bytes} bytes "
                "(AGENT_RUNTIME_CODEX_MAX_BYTES)"
            )
        return entry

    async def delete(self, scope: Scope, path: str) -> None:
        """Raises `DocumentMissing` and `DocumentRefused`."""
        if await self._changed(scope, check_path(path)) == "missing":
            raise DocumentMissing(f"the codex of {_name(scope)} has no file {path!r}")

    async def _changed(self, scope: Scope, path: str, *put: str) -> str:
        owner = owner_of(scope)
        # Before the change: told twice does no harm, and never told it would not be indexed.
        await self._redis.sadd(_WAITING, scope.workspace_id)
        done = await self._change(
            keys=[_key(scope, "held"), _key(scope, "entries", encode_id(owner)), _text_key(scope, path)],
            args=[owner, path, uuid.uuid4().hex, self._max_bytes, MAX_FILES, VERSION, *put],
        )
        if done == "version":
            stored: Any = await self._redis.hget(_key(scope, "held"), owner)
            Held.from_json(stored)  # says so
        return str(done)

    async def keep_mode(self, scope: Scope, window: int, mode: Mode) -> None:
        """Remember for every process how the scope's material was given to a model of that *window*: whole is what is
        not written down, so that not each conversation leaves something."""
        if mode == "whole":
            await self._redis.hdel(_key(scope, "held"), _mode_field(scope, window))
        else:
            await self._redis.hset(_key(scope, "held"), _mode_field(scope, window), mode)

    async def waiting(self) -> list[str]:
        """Workspaces whose material changed since they were taken from here."""
        return sorted(str(one) for one in await self._redis.smembers(_WAITING))

    async def wait_no_more(self, workspace_id: str) -> None:
        """Take a workspace from `waiting`: before it is looked at, so that what changes meanwhile is seen again."""
        await self._redis.srem(_WAITING, workspace_id)

    async def wait_again(self, workspace_id: str) -> None:
        """The inverse: it could not be looked at."""
        await self._redis.sadd(_WAITING, workspace_id)

    async def indexed(self, scope: Scope, collection: str) -> dict[str, str]:
        """What of the scope's own material a collection of the index has: SHA-256 by path."""
        found: Any = await self._redis.hgetall(_key(scope, "indexed", collection, encode_id(owner_of(scope))))
        return {str(path): str(sha256) for path, sha256 in found.items()}

    async def unchanged(self, scope: Scope, collection: str, paths: Sequence[str]) -> set[str]:
        """Those of *paths* that the scope itself has, and as the collection has them."""
        if not paths:
            return set()
        owner = encode_id(owner_of(scope))
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(_key(scope, "entries", owner), list(paths))
            pipe.hmget(_key(scope, "indexed", collection, owner), list(paths))
            entries, indexed = await pipe.execute()
        return {
            path
            for path, entry, sha256 in zip(paths, entries, indexed, strict=True)
            if entry is not None and CodexEntry.from_json(entry).sha256 == sha256
        }

    async def has_indexed(self, scope: Scope, collection: str, new: Mapping[str, str], gone: Sequence[str]) -> None:
        """A collection has *new* now, and *gone* no more."""
        key = _key(scope, "indexed", collection, encode_id(owner_of(scope)))
        async with self._redis.pipeline(transaction=True) as pipe:
            if new:
                pipe.hset(key, mapping=dict(new.items()))
            if gone:
                pipe.hdel(key, *gone)
            await pipe.execute()

    async def synced(self, scope: Scope, collection: str) -> dict[str, str]:
        """The revision that a collection has in full, by owner."""
        found: Any = await self._redis.hgetall(_key(scope, "synced", collection))
        return {str(owner): str(revision) for owner, revision in found.items()}

    async def has_synced(self, scope: Scope, collection: str, revision: str) -> None:
        """A collection has all of *revision*; with none, that there is nothing is what it has."""
        key = _key(scope, "synced", collection)
        if revision:
            await self._redis.hset(key, owner_of(scope), revision)
        else:
            await self._redis.hdel(key, owner_of(scope))


def _name(scope: Scope) -> str:
    return f"context {scope.context_id}" if scope.context_id else f"workspace {scope.workspace_id}"


def _mode_field(scope: Scope, window: int) -> str:
    return f"{_MODE}{window} {owner_of(scope)}"


def _key(scope: Scope, *parts: str) -> str:
    return redis_key(_OWNER, scope.tag, *parts)


def _text_key(scope: Scope, path: str) -> str:
    return _key(scope, "text", encode_id(owner_of(scope)), encode_id(path))
