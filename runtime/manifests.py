"""What went into each turn, kept so that it can be explained, and its prompt rebuilt byte for byte.

Keys (owner ``manifests``, under the workspace's tag): ``turn`` one string per turn, ``outcome`` another with what
came of it, ``records`` a third with what it made of records, ``index`` a sorted set of turn ids, ``material`` by its
SHA-256 the material that turns were given whole, once for all of them. Kept are the newest `KEPT_TURNS` of a workspace,
for `KEPT_SECONDS`, and material as long as the last turn that was given it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

from connectors.message import AgentRuntimeError, Scope, redis_key
from grounding.blocks import Prompt
from grounding.run_context import CodexFile, RunContext
from grounding.sessions.prefix import UNKNOWN, Prefix
from runtime.stored import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

V = TypeVar("V")
_OWNER = "manifests"
_VERSION = 1
KEPT_TURNS = 10_000
_PAGE = 500
_CUT_TOGETHER = 50
_READ_TOGETHER = 8
"""Contexts take a moment each: others have their turn in between."""
_PARTS = ("turn", "outcome", "records")
_OF_RECORDS = ("records", "censors")
"""What of a context names records."""
_ID = re.compile(r'"id":"([^"]+)"')
"""In what `pack` made; quotation marks of texts are escaped there."""
KEPT_SECONDS = 30 * 24 * 3600

_BASE64 = "64:"
"""Stands before what is compressed and then in base 64; without it, as it was once, it is in base 85, which has no
colon and is slow to write in Python."""

# Turn ids sort by time, so that equal scores list them in order.
_KEEP = """
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[3])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, ARGV[4])
if KEYS[3] then return redis.call('EXPIRE', KEYS[3], ARGV[2]) end
return 1
"""
_REMEMBERED = 16
"""Material whose digest, or whose text, is not worked out again for every turn that was given it."""
_Files = tuple[CodexFile, ...]
_FILES = TypeAdapter(_Files)


class UnknownTurn(AgentRuntimeError):
    """There is no manifest of that turn in that workspace (any more)."""

    user_text = "I do not know that turn any more."


@dataclass(frozen=True, slots=True)
class Manifest:
    """A turn's record. ``prompt_sha256`` is the digest of the messages as they were sent; ``blocks``
    what `grounding.blocks.Block` knows of each, without its text; ``outcome`` what came of the turn; ``prefix`` what of
    the prompt stood in the conversation's one before."""

    turn_id: str
    at: str
    context: RunContext
    prompt_sha256: str
    prefix_digest: str
    tokens_total: int
    blocks: tuple[dict[str, Any], ...]
    outcome: dict[str, Any]
    prefix: Prefix = UNKNOWN
    cut: int = 0
    """How many of the records that it was shown were forgotten since, and taken out of ``context``."""


@dataclass(frozen=True, slots=True)
class RecordsOfTurn:
    """Ids of the records that a turn's reply used, and of the censors that acted in it."""

    used: tuple[str, ...] = ()
    acted: tuple[str, ...] = ()


def block_rows(prompt: Prompt) -> list[dict[str, Any]]:
    """The blocks of *prompt* as the HTTP interface shows them."""
    return [
        {
            "name": block.name,
            "tokens": block.tokens,
            "budget": block.budget,
            "used": block.used,
            "sha256": block.sha256,
            "why": block.why,
        }
        for block in prompt.blocks
    ]


def prefix_row(prefix: Prefix) -> dict[str, Any]:
    """*prefix* as the HTTP interface shows it."""
    return {"broken_by": prefix.broken_by, "tokens_kept": prefix.tokens_kept}


class Manifests:
    """The manifests of all workspaces. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._keep = redis.register_script(_KEEP)
        self._read: dict[str, _Files] = {}
        self._kept: dict[str, None] = {}

    async def keep(
        self,
        context: RunContext,
        prompt: Prompt,
        at: str,
        outcome: dict[str, Any] | None = None,
        *,
        prefix: Prefix = UNKNOWN,
    ) -> None:
        """Store what went into a turn; the oldest beyond the limit are dropped. `finish` says what came of it."""
        scope = Scope(context.workspace_id)
        files = context.codex.files if context.codex is not None else ()
        material = _digest(files) if files else ""
        if material and material not in self._kept:
            await self._keep_material(scope, material, files)
        packed = pack(
            _VERSION,
            at=at,
            context=context.model_dump(mode="json", exclude={"codex": {"files"}} if material else None),
            material=material,
            prompt_sha256=prompt.sha256,
            prefix_digest=prompt.prefix_digest,
            prefix=prefix_row(prefix),
            tokens_total=prompt.tokens_total,
            blocks=block_rows(prompt),
            outcome=outcome or {},
        )
        keys = [self._key(scope, "turn", context.turn_id), self._key(scope, "index")]
        done = await self._keep(
            keys=[*keys, *([self._key(scope, "material", material)] if material else [])],
            args=[_compressed(packed), KEPT_SECONDS, context.turn_id, -KEPT_TURNS - 1],
        )
        if material and not done:  # the store was emptied, or another workspace was given the same
            await self._keep_material(scope, material, files)

    async def keep_anew(self, context: RunContext, prompt: Prompt, at: str, *, prefix: Prefix) -> None:
        """`keep` for a turn that was kept before: where it was forgotten meanwhile it stays so, and records that were
        cut out of it do not come back."""
        scope = Scope(context.workspace_id)
        stored: Any = await self._redis.get(self._key(scope, "turn", context.turn_id))
        if stored is None:
            return
        shown = _record_ids(context.model_dump(include=set(_OF_RECORDS)))
        before = unpack(_decompressed(stored), _VERSION, "a turn's manifest")["context"]
        await self.keep(context, prompt, at, prefix=prefix)
        await self._cut(scope, [context.turn_id], shown - _record_ids(before))

    async def _keep_material(self, scope: Scope, digest: str, files: _Files) -> None:
        """Before the first turn that needs it."""
        packed = await asyncio.to_thread(lambda: _compressed(_FILES.dump_json(files).decode()))
        await self._redis.set(self._key(scope, "material", digest), packed, ex=KEPT_SECONDS)
        _newest(self._kept, digest, None)

    async def finish(self, scope: Scope, turn_id: str, outcome: dict[str, Any]) -> None:
        """Store what came of a turn."""
        key = self._key(scope, "outcome", turn_id)
        await self._redis.set(key, pack(_VERSION, outcome=outcome), ex=KEPT_SECONDS)

    async def note_records(self, scope: Scope, turn_id: str, records: RecordsOfTurn) -> None:
        """Store what a turn made of records."""
        packed = pack(_VERSION, used=list(records.used), acted=list(records.acted))
        await self._redis.set(self._key(scope, "records", turn_id), packed, ex=KEPT_SECONDS)

    async def records_of(self, scope: Scope, turn_id: str) -> RecordsOfTurn:
        """What a turn made of records; nothing where it is not known (any more)."""
        stored: Any = await self._redis.get(self._key(scope, "records", turn_id))
        if stored is None:
            return RecordsOfTurn()
        fields = unpack(stored, _VERSION, "a turn's records")
        return RecordsOfTurn(tuple(fields["used"]), tuple(fields["acted"]))

    async def get(self, scope: Scope, turn_id: str) -> Manifest:
        """The manifest of a turn. Raises `UnknownTurn` and `runtime.stored.NewerFormat`."""
        return await self._get(scope, turn_id, with_material=True)

    async def _get(self, scope: Scope, turn_id: str, *, with_material: bool) -> Manifest:
        found: Any = await self._redis.mget(self._key(scope, "turn", turn_id), self._key(scope, "outcome", turn_id))
        stored, ended = found
        if stored is None:
            raise UnknownTurn(f"no turn {turn_id!r} is known in workspace {scope.workspace_id!r}")
        fields = unpack(_decompressed(stored), _VERSION, "a turn's manifest")
        context = await self._whole(scope, turn_id, fields) if with_material else _context(fields)
        return Manifest(
            turn_id=turn_id,
            at=fields["at"],
            context=context,
            prompt_sha256=fields["prompt_sha256"],
            prefix_digest=fields["prefix_digest"],
            prefix=Prefix(**fields.get("prefix", {})),
            tokens_total=fields["tokens_total"],
            blocks=tuple(fields["blocks"]),
            outcome=unpack(ended, _VERSION, "a turn's outcome")["outcome"] if ended else fields["outcome"],
            cut=fields.get("cut", 0),
        )

    async def _whole(self, scope: Scope, turn_id: str, fields: dict[str, Any]) -> RunContext:
        """The context with its material. Raises `UnknownTurn` where that is not kept any more."""
        context = _context(fields)
        if context.codex is None or not (digest := fields.get("material")):
            return context
        codex = context.codex.model_copy(update={"files": await self._material(scope, turn_id, digest)})
        return context.model_copy(update={"codex": codex})

    async def _material(self, scope: Scope, turn_id: str, digest: str) -> _Files:
        if digest in self._read:
            return self._read[digest]
        stored: Any = await self._redis.get(self._key(scope, "material", digest))
        if stored is None:
            raise UnknownTurn(f"the material that turn {turn_id!r} was given is not kept any more")
        files: _Files = await asyncio.to_thread(lambda: _FILES.validate_json(_decompressed(stored)))
        _newest(self._read, digest, files)
        return files

    async def contexts(self, scope: Scope, turn_ids: Sequence[str]) -> dict[str, RunContext]:
        """What went into those of *turn_ids* that are known. Raises `runtime.stored.NewerFormat`."""
        contexts: dict[str, RunContext] = {}
        for start in range(0, len(turn_ids), _READ_TOGETHER):
            page = turn_ids[start : start + _READ_TOGETHER]
            found: Any = await self._redis.mget([self._key(scope, "turn", turn_id) for turn_id in page])
            for turn_id, stored in zip(page, found, strict=True):
                if stored is not None:
                    fields = unpack(_decompressed(stored), _VERSION, "a turn's manifest")
                    with suppress(UnknownTurn):
                        contexts[turn_id] = await self._whole(scope, turn_id, fields)
        return contexts

    async def newest(self, scope: Scope, limit: int, before: str = "") -> list[Manifest]:
        """At most *limit* manifests, the newest first, of turns before *before* where that is given; without the
        material that they were given."""
        end = f"({before}" if before else "+"
        ids: Any = await self._redis.zrange(
            self._key(scope, "index"),
            end,
            "-",
            desc=True,
            bylex=True,
            offset=0,
            num=limit,
        )
        found = []
        for turn_id in ids:
            try:
                found.append(await self._get(scope, turn_id, with_material=False))
            except UnknownTurn:  # outlived its time; the index is trimmed by count
                continue
        return found

    async def forget(self, scope: Scope, turn_ids: Sequence[str]) -> None:
        """Drop the manifests of *turn_ids*, with all that was said in them; they cannot be explained any more."""
        for start in range(0, len(turn_ids), _PAGE):
            page = turn_ids[start : start + _PAGE]
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(*(self._key(scope, part, turn_id) for turn_id in page for part in _PARTS))
                pipe.zrem(self._key(scope, "index"), *page)
                await pipe.execute()

    async def cut_records(self, scope: Scope, ids: Collection[str]) -> None:
        """Take the records *ids* out of all manifests of the workspace: what they say is to be kept nowhere."""
        turn_ids: Any = await self._redis.zrange(self._key(scope, "index"), 0, -1) if ids else []
        await self._cut(scope, turn_ids, frozenset(ids))

    async def _cut(self, scope: Scope, turn_ids: Sequence[str], gone: frozenset[str]) -> None:
        for start in range(0, len(turn_ids), _CUT_TOGETHER):
            keys = [self._key(scope, "turn", turn_id) for turn_id in turn_ids[start : start + _CUT_TOGETHER]]
            found: Any = await self._redis.mget(keys)
            shorter = await asyncio.to_thread(_each_without, found, gone)
            async with self._redis.pipeline(transaction=False) as pipe:
                for key, packed in zip(keys, shorter, strict=True):
                    if packed is not None:
                        pipe.set(key, packed, xx=True, keepttl=True)
                await pipe.execute()

    @staticmethod
    def _key(scope: Scope, *parts: str) -> str:
        return redis_key(_OWNER, scope.tag, *parts)


@lru_cache(_REMEMBERED)
def _digest(files: _Files) -> str:
    """Of material: the same objects come with every turn as long as nothing changes: they are compared, not read."""
    return hashlib.sha256(_FILES.dump_json(files)).hexdigest()


def _newest(known: dict[str, V], name: str, value: V) -> None:
    known[name] = value
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]


def _context(fields: dict[str, Any]) -> RunContext:
    """Lists stand for tuples, as they do in JSON only; for the rest it is as strict."""
    return RunContext.model_validate_json(json.dumps(fields["context"]))


def _record_ids(context: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(one["id"] for name in _OF_RECORDS for one in context.get(name) or ())


def _each_without(stored: Sequence[str | None], gone: frozenset[str]) -> list[str | None]:
    return [_without(one, gone) for one in stored]


def _without(stored: str | None, gone: frozenset[str]) -> str | None:
    """A manifest as it is stored without the records *gone*; None where it has none of them. Of many records each is
    not looked for by itself: of 2,000 that took 30 ms for every manifest."""
    text = _decompressed(stored) if stored else ""
    if gone.isdisjoint(_ID.findall(text)):
        return None
    fields = unpack(text, _VERSION, "a turn's manifest")
    context, cut = fields["context"], int(fields.pop("cut", 0))
    for name in _OF_RECORDS:
        left = [one for one in context.get(name) or () if one["id"] not in gone]
        cut += len(context.get(name) or ()) - len(left)
        context[name] = left
    return _compressed(pack(_VERSION, **fields, cut=cut))


def _compressed(text: str) -> str:
    return _BASE64 + base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def _decompressed(stored: str) -> str:
    former = not stored.startswith(_BASE64)
    packed = base64.b85decode(stored) if former else base64.b64decode(stored.removeprefix(_BASE64))
    return zlib.decompress(packed).decode()
