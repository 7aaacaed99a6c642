"""The codex material in Redis, shared by all processes, and its copy in the passage index.

Keys (owner ``codex``, in the workspace's tag). An owner is ``*`` for the workspace, else a context's id:

- ``held``: a hash of owners to totals, and of ``mode <window> <owner>`` to ``search`` if the material was last searched
  for a model with that window
- ``entries:<owner>``: a hash of paths to `grounding.codex.codex.CodexEntry`
- ``text:<owner>:<path>``: a text
- ``indexed:<collection>:<owner>``: a hash of paths to the SHA-256 that a collection of the index holds
- ``synced:<collection>``: a hash of owners to the revision that the collection holds completely

For all workspaces: ``waiting``, a set of workspaces whose material changed since it was indexed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from connectors.message import Scope, encode_id, redis_key
from connectors.redis_calls import RedisCall, ask
from grounding.codex.codex import (
    HERE,
    MAX_FILES,
    VERSION,
    CodexEntry,
    CodexFull,
    Mode,
    Size,
    Totals,
    check_path,
    owner_of,
    prompt_path,
)
from grounding.documents import DocumentMissing, decode, other_forms, passage_of_chunk, refuse_twins, sha256_of
from grounding.retrieval import (
    CHUNKER_VERSION,
    Chunk,
    CountTokens,
    Embedder,
    IndexEntry,
    Kind,
    PassageIndex,
    Source,
    chunk_document,
    collection_name,
    encode_chunk,
)

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
class MaterialTotals:
    """The totals of a workspace and of one context. ``before`` is how such a model last got the material."""

    every: Totals
    own: Totals
    before: Mode | None = None

    @property
    def files(self) -> int:
        return self.every.files + self.own.files


class CodexStore:
    """The material of all workspaces.

    Every method raises `connectors.message.StoreUnavailable`; methods that read raise `CodexTooNew`.
    """

    def __init__(self, redis: Redis, *, max_bytes: int, file_max_bytes: int) -> None:
        """*max_bytes* limits the material of a workspace or a context, *file_max_bytes* one file."""
        self._redis = redis
        self._max_bytes = max_bytes
        self._file_max_bytes = file_max_bytes
        self._change = redis.register_script(_CHANGE)

    async def held(self, scope: Scope, window: int = 0) -> MaterialTotals:
        """Return the totals for the scope, and how a model with *window* tokens last got the material. One command."""
        return await ask(self._redis, self.held_call(scope, window))

    def held_call(self, scope: Scope, window: int = 0) -> RedisCall[MaterialTotals]:
        """Return the call of `held`."""

        def totals(found: Sequence[str | None]) -> MaterialTotals:
            every, own, mode = found
            before: Mode | None = cast("Mode", mode) if mode in ("whole", "search") else None
            return MaterialTotals(Totals.from_json(every), Totals.from_json(own if scope.context_id else None), before)

        fields = ("*", owner_of(scope), _mode_field(scope, window))
        return RedisCall.of("HMGET", _key(scope, "held"), *fields, parse=totals)

    async def all_totals(self, scope: Scope) -> dict[Scope, Totals]:
        """Return the totals of all owners in the workspace."""
        found: Any = await self._redis.hgetall(_key(scope, "held"))
        return {
            Scope(scope.workspace_id, None if owner == "*" else str(owner)): Totals.from_json(text)
            for owner, text in found.items()
            if not owner.startswith(_MODE)
        }

    async def entries(self, scope: Scope) -> dict[str, CodexEntry]:
        """Return the scope's own files by path, sorted."""
        found: Any = await self._redis.hgetall(_key(scope, "entries", encode_id(owner_of(scope))))
        return {str(path): CodexEntry.from_json(found[path]) for path in sorted(found)}

    async def texts(self, scope: Scope, paths: Sequence[str]) -> dict[str, str]:
        """Return the texts of those of *paths* that the scope itself has."""
        found: dict[str, str] = {}
        for start in range(0, len(paths), _PAGE):
            page = paths[start : start + _PAGE]
            texts: Any = await self._redis.mget([_text_key(scope, path) for path in page])
            found |= {path: str(text) for path, text in zip(page, texts, strict=True) if text is not None}
        return found

    async def get(self, scope: Scope, path: str) -> str:
        """Return the text of one file. Raises `DocumentMissing` and `DocumentRefused`."""
        text: Any = await self._redis.get(_text_key(scope, check_path(path)))
        if text is None:
            raise DocumentMissing(f"the codex of {_name(scope)} has no file {path!r}")
        return str(text)

    def readable(self, path: str, raw: bytes) -> str:
        """Decode a file's bytes. Raises `DocumentRefused` if they are binary, not UTF-8, or too many."""
        return decode(check_path(path), raw, self._file_max_bytes)

    async def put(self, scope: Scope, path: str, text: str, size: Size) -> CodexEntry:
        """Store *text*, as `readable` returned it, at *path* of the scope's own material. *size* is that of its
        rendering.

        Raises `DocumentRefused` if the path is not allowed, and `CodexFull`.
        """
        entry = CodexEntry(
            sha256_of(text),
            len(text.encode()),
            size,
            datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        if twins := other_forms(check_path(path)):
            entries: Any = await self._redis.hmget(_key(scope, "entries", encode_id(owner_of(scope))), twins)
            refuse_twins(path, [twin for twin, entry in zip(twins, entries, strict=True) if entry is not None])
        done = await self._changed(scope, path, entry.to_json(), text)
        if done == "files":
            raise CodexFull(f"the codex of {_name(scope)} has {MAX_FILES} files already, which is the most")
        if done == "bytes":
            raise CodexFull(
                f"with {path!r} the codex of {_name(scope)} would have more than {self._max_bytes} bytes "
                "(AGENT_RUNTIME_CODEX_MAX_BYTES)"
            )
        return entry

    async def delete(self, scope: Scope, path: str) -> None:
        """Delete one file. Raises `DocumentMissing` and `DocumentRefused`."""
        if await self._changed(scope, check_path(path)) == "missing":
            raise DocumentMissing(f"the codex of {_name(scope)} has no file {path!r}")

    async def _changed(self, scope: Scope, path: str, *put: str) -> str:
        owner = owner_of(scope)
        # Marked before the change: an extra mark does no harm, but without a mark the change would not be indexed.
        await self._redis.sadd(_WAITING, scope.workspace_id)
        done = await self._change(
            keys=[_key(scope, "held"), _key(scope, "entries", encode_id(owner)), _text_key(scope, path)],
            args=[owner, path, uuid.uuid4().hex, self._max_bytes, MAX_FILES, VERSION, *put],
        )
        if done == "version":
            stored: Any = await self._redis.hget(_key(scope, "held"), owner)
            Totals.from_json(stored)  # raises `CodexTooNew`
        return str(done)

    async def keep_mode(self, scope: Scope, window: int, mode: Mode) -> None:
        """Store how a model with that *window* got the scope's material.

        Only ``search`` is written, so that not every conversation leaves an entry.
        """
        if mode == "whole":
            await self._redis.hdel(_key(scope, "held"), _mode_field(scope, window))
        else:
            await self._redis.hset(_key(scope, "held"), _mode_field(scope, window), mode)

    async def waiting(self) -> list[str]:
        """Return the workspaces whose material changed since they were taken from this list."""
        return sorted(str(one) for one in await self._redis.smembers(_WAITING))

    async def unmark_changed(self, workspace_id: str) -> None:
        """Take a workspace from `waiting`, before its material is read, so that later changes add it again."""
        await self._redis.srem(_WAITING, workspace_id)

    async def mark_changed(self, workspace_id: str) -> None:
        """Put a workspace back into `waiting`, because its material could not be indexed."""
        await self._redis.sadd(_WAITING, workspace_id)

    async def indexed(self, scope: Scope, collection: str) -> dict[str, str]:
        """Return the SHA-256 by path of the scope's own material in a collection of the index."""
        found: Any = await self._redis.hgetall(_key(scope, "indexed", collection, encode_id(owner_of(scope))))
        return {str(path): str(sha256) for path, sha256 in found.items()}

    async def unchanged(self, scope: Scope, collection: str, paths: Sequence[str]) -> set[str]:
        """Return those of *paths* that the scope itself has with the text that the collection holds."""
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

    async def note_indexed(self, scope: Scope, collection: str, new: Mapping[str, str], gone: Sequence[str]) -> None:
        """Store that a collection now holds *new* and no longer holds *gone*."""
        key = _key(scope, "indexed", collection, encode_id(owner_of(scope)))
        async with self._redis.pipeline(transaction=True) as pipe:
            if new:
                pipe.hset(key, mapping=dict(new.items()))
            if gone:
                pipe.hdel(key, *gone)
            await pipe.execute()

    async def synced(self, scope: Scope, collection: str) -> dict[str, str]:
        """Return the revision that a collection holds completely, by owner."""
        found: Any = await self._redis.hgetall(_key(scope, "synced", collection))
        return {str(owner): str(revision) for owner, revision in found.items()}

    async def note_synced(self, scope: Scope, collection: str, revision: str) -> None:
        """Store that a collection holds all of *revision*; an empty revision means that there is no material."""
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


# The material in the passage index, apart from the documents
#
# Progress is stored after each write to the index, so that the next run continues an interrupted one and nothing
# unchanged is embedded twice.

_BATCH = 8
"""Files that are read, cut, embedded and stored together."""
_BEGUN = "begun"
"""Stored instead of a revision while an owner's material is being indexed: the index may hold only a part of it."""
_MARKDOWN = (".md", ".markdown", ".mdx", ".rst")


class CodexIndex:
    """One collection of the index. Raises `IndexUnavailable`, `EmbedderUnavailable` and `StoreUnavailable`."""

    def __init__(self, store: CodexStore, index: PassageIndex, embedder: Embedder, count: CountTokens) -> None:
        self._store = store
        self._index = index
        self._embedder = embedder
        self._count = count
        self._collection = f"{collection_name(embedder.name, embedder.dimensions)}-{CHUNKER_VERSION}"

    async def sync(self, scope: Scope) -> int:
        """Index all changed material of the scope's workspace and return the number of changed files."""
        totals = await self._store.all_totals(scope)
        synced = await self._store.synced(scope, self._collection)
        gone = [Scope(scope.workspace_id, None if owner == "*" else owner) for owner in synced]
        changed = 0
        for owner in sorted({*totals, *gone}, key=owner_of):
            revision = totals[owner].revision if owner in totals else ""
            # Checked first, because the stored progress is wrong if the index was lost.
            is_lost = await self._is_lost(owner)
            if synced.get(owner_of(owner)) == revision and not is_lost:
                continue
            # Without this mark an interruption would leave deleted files in the index.
            await self._store.note_synced(owner, self._collection, _BEGUN)
            changed += await self._sync_owner(owner)
            await self._store.note_synced(owner, self._collection, revision)
        return changed

    async def rebuild(self, scope: Scope) -> int:
        """Cut and embed all material of the scope's workspace anew; return the number of files. It stays searchable
        meanwhile."""
        for owner in await self._store.all_totals(scope):
            # The paths are kept, so that files removed meanwhile are still deleted.
            noted = await self._store.indexed(owner, self._collection)
            await self._store.note_indexed(owner, self._collection, dict.fromkeys(noted, ""), ())
            await self._store.note_synced(owner, self._collection, _BEGUN)
        return await self.sync(scope)

    async def is_behind(self, scope: Scope, revisions: Mapping[Scope, str]) -> bool:
        """Say whether the index differs from *revisions*, the present revision of each owner."""
        synced = await self._store.synced(scope, self._collection)
        return any(synced.get(owner_of(owner), "") != revision for owner, revision in revisions.items())

    async def unchanged(self, scope: Scope, sources: Collection[str]) -> set[str]:
        """Return those of *sources*, found by a search in *scope*, that still exist with the indexed text."""
        every = Scope(scope.workspace_id)
        owners = {every: [one for one in sources if not one.startswith(HERE)]}
        if scope.context_id:
            own = [one.removeprefix(HERE) for one in sources if one.startswith(HERE)]
            owners[Scope(scope.workspace_id, scope.context_id)] = own
        return {
            prompt_path(owner, path)
            for owner, paths in owners.items()
            for path in await self._store.unchanged(owner, self._collection, paths)
        }

    async def _is_lost(self, owner: Scope) -> bool:
        """Say whether the index lost everything that the progress says it has (another server, a deleted folder)."""
        if await self._index.count(owner, Kind.CODEX, exact=False):
            return False
        noted = await self._store.indexed(owner, self._collection)
        await self._store.note_indexed(owner, self._collection, {}, list(noted))
        return bool(noted)

    async def _sync_owner(self, owner: Scope) -> int:
        entries = await self._store.entries(owner)
        noted = await self._store.indexed(owner, self._collection)
        gone = sorted(noted.keys() - entries.keys())
        if gone:
            await self._index.replace([_source(owner, path, ()) for path in gone])
            await self._store.note_indexed(owner, self._collection, {}, gone)
        new = [path for path, entry in entries.items() if noted.get(path) != entry.sha256]
        for start in range(0, len(new), _BATCH):
            texts = await self._store.texts(owner, new[start : start + _BATCH])
            await self._put(owner, texts)
        return len(gone) + len(new)

    async def _put(self, owner: Scope, texts: Mapping[str, str]) -> None:
        """Store the passages of *texts*. A file that changes meanwhile gets another digest and is indexed again."""
        chunks = await asyncio.to_thread(
            lambda: {path: cut(prompt_path(owner, path), text, self._count) for path, text in texts.items()}
        )
        every = [chunk.indexed_text for some in chunks.values() for chunk in some]
        vectors = iter(await self._embedder.embed_documents(every) if every else [])

        def entry(path: str, chunk: Chunk) -> IndexEntry:
            passage = passage_of_chunk(chunk, Kind.CODEX, prompt_path(owner, path))
            return IndexEntry(passage, next(vectors), encode_chunk(chunk.indexed_text))

        def sources() -> list[Source]:
            return [_source(owner, path, [entry(path, one) for one in some]) for path, some in chunks.items()]

        await self._index.replace(await asyncio.to_thread(sources))
        digests = {path: sha256_of(text) for path, text in texts.items()}
        await self._store.note_indexed(owner, self._collection, digests, ())


def cut(path: str, text: str, count: CountTokens) -> list[Chunk]:
    """Return the chunks of a file, cut at headings if it is Markdown, else at paragraphs."""
    is_markdown = path.lower().endswith(_MARKDOWN)
    return chunk_document(path if is_markdown else f"{path}.txt", text, count)


def _source(owner: Scope, path: str, entries: Sequence[IndexEntry]) -> Source:
    return Source(owner, Kind.CODEX, prompt_path(owner, path), entries)
