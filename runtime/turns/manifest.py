"""Stores the input of each turn, so that people can explain the turn and rebuild its prompt byte for byte.

Keys (owner ``manifests``, under the workspace's tag):

- ``turn``: one string per turn, its manifest; ``outcome``: another with its outcome; ``records``: a third with the
  records that it used.
- ``index``: a sorted set of turn ids.
- ``material``: by its SHA-256, codex material that prompts have whole; once for all turns.
- ``showing``: for each record, the turns whose manifests have it; ``standing``: the censors that any manifest has.
- ``gone``: the records that were cut out of manifests lately.

The newest `KEPT_TURNS` turns of a workspace are kept, for `KEPT_SECONDS`. Material is kept as long as the last turn
that has it.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import json
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from connectors.message import AgentRuntimeError, Scope, redis_key
from connectors.redis_calls import RedisCall
from grounding.prompt import UNKNOWN, Prefix
from grounding.prompt_input import CodexFile, Prompt, RunContext
from runtime.stores import pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis


VERSION = 1
GONE_SECONDS = 3600.0
"""How long a cut record is remembered: longer than any turn takes from reading records to storing its manifest."""
OF_RECORDS = ("records", "censors")
"""The fields of a context that have records. Censors are in every prompt, so for them no list of turns is kept."""

_BASE64 = "64:"
"""The prefix of compressed text, which is in base 64."""

# Keys: the turn, the turns of the workspace, the cut records, the censors of all manifests, the turn's material if
# ARGV[5] is 1, and the turns of each of its records (ARGV[6] names them). Turn ids sort by time, so that equal scores
# list them in order. Returns the records that were cut meanwhile (then it stores nothing), the turns that are no longer
# among the newest, and whether the material exists.
KEEP = """
local shown, censors, gone = cjson.decode(ARGV[6]), cjson.decode(ARGV[7]), {}
if redis.call('EXISTS', KEYS[3]) == 1 then
  for _, ids in ipairs({shown, censors}) do
    for _, id in ipairs(ids) do
      if redis.call('ZSCORE', KEYS[3], id) then gone[#gone + 1] = id end
    end
  end
  if #gone > 0 then return {gone, {}, 0} end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[3])
local dropped = redis.call('ZRANGE', KEYS[2], 0, ARGV[4])
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, ARGV[4])
local oldest, first = redis.call('ZRANGE', KEYS[2], 0, 0)[1], 4 + tonumber(ARGV[5])
for at = 1, #shown do
  redis.call('ZADD', KEYS[first + at], 0, ARGV[3])
  redis.call('ZREMRANGEBYLEX', KEYS[first + at], '-', '(' .. oldest)
  redis.call('EXPIRE', KEYS[first + at], ARGV[2])
end
if #censors > 0 then
  redis.call('SADD', KEYS[4], unpack(censors))
  redis.call('EXPIRE', KEYS[4], ARGV[2])
end
return {{}, dropped, ARGV[5] == '1' and redis.call('EXPIRE', KEYS[5], ARGV[2]) or 1}
"""
# Replaces a manifest by a shorter one; 0 if it changed since it was read.
REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
"""
# Stores a turn's outcome, unless a later attempt (ARGV[2] counts them) has stored one.
FINISH = """
local stored = redis.call('GET', KEYS[1])
if stored and (cjson.decode(stored).attempt or 0) > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
return 1
"""


def without_records(context: RunContext, gone: Collection[str]) -> tuple[RunContext, int]:
    """Return *context* without the records *gone*, and how many those were."""
    records = tuple(record for record in context.records if record.id not in gone)
    censors = tuple(censor for censor in context.censors if censor.id not in gone)
    cut = len(context.records) + len(context.censors) - len(records) - len(censors)
    return context.model_copy(update={"records": records, "censors": censors}), cut


def cut_manifests(stored: Sequence[str | None], gone: frozenset[str]) -> list[str | None]:
    """Return stored manifests without the records *gone*; None for those that have none of them."""
    return [_without(text, gone) for text in stored]


def _without(stored: str | None, gone: frozenset[str]) -> str | None:
    if not stored:
        return None
    fields = unpack(decompressed(stored), VERSION, "a turn's manifest")
    context, before, cut = fields["context"], int(fields.pop("cut", 0)), 0
    for name in OF_RECORDS:
        records = context.get(name) or ()
        context[name] = [record for record in records if record["id"] not in gone]
        cut += len(records) - len(context[name])
    return compressed(pack(VERSION, **fields, cut=before + cut)) if cut else None


def compressed(text: str) -> str:
    return _BASE64 + base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def decompressed(stored: str) -> str:
    return zlib.decompress(base64.b64decode(stored.removeprefix(_BASE64))).decode()


_OWNER = "manifests"
KEPT_TURNS = 10_000
_PAGE = 500
_CUT_PAGE = 50
_READ_PAGE = 8
_PARTS = ("turn", "outcome", "records")
_OF_ALL = ("index", "gone", "standing")
KEPT_SECONDS = 30 * 24 * 3600

_CACHED = 16
"""The number of materials whose digests, and whose texts, are cached."""
_Files = tuple[CodexFile, ...]
_FILES = TypeAdapter(_Files)


class UnknownTurn(AgentRuntimeError):
    """The workspace has no manifest of that turn, or no longer has it."""

    user_text = "I do not know this turn. The turn id is wrong, or the turn is too old."


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a turn.

    ``prompt_sha256`` is the digest of the messages as they were sent. ``blocks`` has the fields of each
    `grounding.prompt_input.blocks.Block` but its text. ``prefix`` is the part of the prompt that the conversation's
    last prompt had, too.
    """

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
    """How many records were forgotten since, and taken out of ``context``."""


@dataclass(frozen=True, slots=True)
class RecordsOfTurn:
    """Ids of the records that a turn's reply used, and of the censors that acted in it."""

    used: tuple[str, ...] = ()
    acted: tuple[str, ...] = ()


def block_rows(prompt: Prompt) -> list[dict[str, Any]]:
    """Return the blocks of *prompt* as the HTTP interface shows them."""
    return [
        {
            "name": block.name,
            "tokens": block.tokens,
            "budget": block.budget,
            "used": bool(block.text),
            "sha256": block.sha256,
            "why": block.why,
        }
        for block in prompt.blocks
    ]


def prefix_row(prefix: Prefix) -> dict[str, Any]:
    """Return *prefix* as the HTTP interface shows it."""
    return {"broken_by": prefix.broken_by, "tokens_kept": prefix.tokens_kept}


class Manifests:
    """The manifests of all workspaces, of the newest *kept_turns* of each. Raises
    `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, kept_turns: int = KEPT_TURNS) -> None:
        self._redis = redis
        self._kept_turns = kept_turns
        self._keep = redis.register_script(KEEP)
        self._replace = redis.register_script(REPLACE)
        self._material_cache: dict[str, _Files] = {}

    async def keep(self, context: RunContext, prompt: Prompt, at: str, *, prefix: Prefix = UNKNOWN) -> None:
        """Store the input of a turn, and drop the oldest turns beyond the limit. `finish_call` stores its outcome."""
        scope = Scope(context.workspace_id)
        files = context.codex.files if context.codex is not None else ()
        material = _digest(files) if files else ""
        shown, cut = context, 0
        while True:
            packed = pack(
                VERSION,
                at=at,
                material=material,
                prompt_sha256=prompt.sha256,
                prefix_digest=prompt.prefix_digest,
                prefix=prefix_row(prefix),
                tokens_total=prompt.tokens_total,
                blocks=block_rows(prompt),
                **({"cut": cut} if cut else {}),
            )
            packed = f'{packed[:-1]},"context":{_dumped(shown, without_files=bool(material))}}}'
            gone, dropped, has_material = await self._store_manifest(scope, shown, packed, material)
            if not gone:
                break
            shown, more = without_records(shown, gone)
            cut += more
        if dropped:  # they are in no index any more, so that no later cut would find them
            await self.forget(scope, sorted(dropped))
        if material and not has_material:
            compact = await asyncio.to_thread(lambda: compressed(_FILES.dump_json(files).decode()))
            await self._redis.set(self._key(scope, "material", material), compact, ex=KEPT_SECONDS)

    async def _store_manifest(
        self, scope: Scope, context: RunContext, packed: str, material: str
    ) -> tuple[set[str], set[str], bool]:
        """Store *packed* unless records of *context* were cut meanwhile. Return those records, the turns that are too
        old now, and whether *material* exists."""
        records = sorted({record.id for record in context.records})
        censors = sorted({censor.id for censor in context.censors})
        keys = [self._key(scope, "turn", context.turn_id), *(self._key(scope, name) for name in _OF_ALL)]
        keys += [self._key(scope, "material", material)] if material else []
        keys += [self._key(scope, "showing", record_id) for record_id in records]
        args: list[str | int] = [compressed(packed), KEPT_SECONDS, context.turn_id, -self._kept_turns - 1]
        args += [int(bool(material)), json.dumps(records), json.dumps(censors)]
        answer: Any = await self._keep(keys=keys, args=args)
        gone, dropped = ({name.decode() if isinstance(name, bytes) else name for name in names} for names in answer[:2])
        return gone, dropped - {context.turn_id}, bool(answer[2])

    async def keep_again(self, context: RunContext, prompt: Prompt, at: str, *, prefix: Prefix) -> None:
        """Store the input of a turn again. If the turn was forgotten meanwhile, store nothing; records that were cut
        out of it do not come back."""
        if await self._redis.exists(self._key(Scope(context.workspace_id), "turn", context.turn_id)):
            await self.keep(context, prompt, at, prefix=prefix)

    def finish_call(self, scope: Scope, turn_id: str, outcome: dict[str, Any], attempt: int) -> RedisCall[None]:
        """Return the Redis call that stores the outcome of a turn, unless a later *attempt* has stored one: the worker
        may have lost the conversation to another one. (It cannot look at the lease, which may be on another server.)"""
        packed = pack(VERSION, outcome=outcome, attempt=attempt)
        keys, args = [self._key(scope, "outcome", turn_id)], [packed, attempt, KEPT_SECONDS]
        return RedisCall.script(FINISH, keys, args, lambda _: None)

    async def note_records(self, scope: Scope, turn_id: str, records: RecordsOfTurn) -> None:
        """Store which records a turn used."""
        packed = pack(VERSION, used=list(records.used), acted=list(records.acted))
        await self._redis.set(self._key(scope, "records", turn_id), packed, ex=KEPT_SECONDS)

    async def records_of(self, scope: Scope, turn_id: str) -> RecordsOfTurn:
        """Return the records that a turn used; none if that is not known, or no longer known."""
        stored: Any = await self._redis.get(self._key(scope, "records", turn_id))
        if stored is None:
            return RecordsOfTurn()
        fields = unpack(stored, VERSION, "a turn's records")
        return RecordsOfTurn(tuple(fields["used"]), tuple(fields["acted"]))

    async def get(self, scope: Scope, turn_id: str) -> Manifest:
        """Return the manifest of a turn. Raises `UnknownTurn` and `runtime.stores.NewerFormat`."""
        return await self._get(scope, turn_id, with_material=True)

    async def _get(self, scope: Scope, turn_id: str, *, with_material: bool) -> Manifest:
        found: Any = await self._redis.mget(self._key(scope, "turn", turn_id), self._key(scope, "outcome", turn_id))
        stored, outcome = found
        if stored is None:
            raise UnknownTurn(f"no turn {turn_id!r} is known in workspace {scope.workspace_id!r}")
        fields = unpack(decompressed(stored), VERSION, "a turn's manifest")
        context = await self._with_material(scope, turn_id, fields) if with_material else _context(fields)
        return Manifest(
            turn_id=turn_id,
            at=fields["at"],
            context=context,
            prompt_sha256=fields["prompt_sha256"],
            prefix_digest=fields["prefix_digest"],
            prefix=Prefix(**fields.get("prefix", {})),
            tokens_total=fields["tokens_total"],
            blocks=tuple(fields["blocks"]),
            outcome=unpack(outcome, VERSION, "a turn's outcome")["outcome"] if outcome else {},
            cut=fields.get("cut", 0),
        )

    async def _with_material(self, scope: Scope, turn_id: str, fields: dict[str, Any]) -> RunContext:
        """Return the context with its material. Raises `UnknownTurn` if that is no longer stored."""
        context = _context(fields)
        if context.codex is None or not (digest := fields.get("material")):
            return context
        codex = context.codex.model_copy(update={"files": await self._material(scope, turn_id, digest)})
        return context.model_copy(update={"codex": codex})

    async def _material(self, scope: Scope, turn_id: str, digest: str) -> _Files:
        if digest in self._material_cache:
            return self._material_cache[digest]
        stored: Any = await self._redis.get(self._key(scope, "material", digest))
        if stored is None:
            raise UnknownTurn(f"the material that turn {turn_id!r} was given is not kept any more")
        files: _Files = await asyncio.to_thread(lambda: _FILES.validate_json(decompressed(stored)))
        self._material_cache[digest] = files
        if len(self._material_cache) > _CACHED:
            del self._material_cache[next(iter(self._material_cache))]
        return files

    async def contexts(self, scope: Scope, turn_ids: Sequence[str]) -> dict[str, RunContext]:
        """Return the contexts of those *turn_ids* that are known. Other tasks may run between two of them, because each
        takes a moment to unpack. Raises `runtime.stores.NewerFormat`."""
        contexts: dict[str, RunContext] = {}
        for start in range(0, len(turn_ids), _READ_PAGE):
            page = turn_ids[start : start + _READ_PAGE]
            found: Any = await self._redis.mget([self._key(scope, "turn", turn_id) for turn_id in page])
            for turn_id, stored in zip(page, found, strict=True):
                if stored is not None:
                    await asyncio.sleep(0)
                    fields = unpack(decompressed(stored), VERSION, "a turn's manifest")
                    with suppress(UnknownTurn):
                        contexts[turn_id] = await self._with_material(scope, turn_id, fields)
        return contexts

    async def newest(self, scope: Scope, limit: int, before: str = "") -> list[Manifest]:
        """Return at most *limit* manifests without their material, the newest first; if *before* is a turn id, those
        of earlier turns."""
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
        manifests = []
        for turn_id in ids:
            with suppress(UnknownTurn):  # it expired; the index is trimmed by count only
                manifests.append(await self._get(scope, turn_id, with_material=False))
        return manifests

    async def forget(self, scope: Scope, turn_ids: Sequence[str]) -> None:
        """Delete the manifests of *turn_ids* with their texts. These turns cannot be explained any more."""
        for start in range(0, len(turn_ids), _PAGE):
            page = turn_ids[start : start + _PAGE]
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.delete(*(self._key(scope, part, turn_id) for turn_id in page for part in _PARTS))
                pipe.zrem(self._key(scope, "index"), *page)
                await pipe.execute()

    async def cut_records(self, scope: Scope, ids: Collection[str]) -> None:
        """Take the records *ids* out of all manifests of the workspace, and keep them out of manifests that are stored
        from now on by turns that read the records before: their texts must remain nowhere."""
        gone = frozenset(ids)
        if not gone:
            return
        at, key = time.time(), self._key(scope, "gone")
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.zadd(key, dict.fromkeys(gone, at))
            pipe.zremrangebyscore(key, "-inf", at - GONE_SECONDS)
            pipe.expire(key, int(GONE_SECONDS))
            await pipe.execute()
        await self._cut(scope, await self._showing(scope, sorted(gone)), gone)

    async def _showing(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """Return the turns whose manifests may have one of the records *ids*: all turns if one is a censor."""
        found: set[str] = set()
        for start in range(0, len(ids), _PAGE):
            async with self._redis.pipeline(transaction=False) as pipe:
                for record_id in ids[start : start + _PAGE]:
                    pipe.sismember(self._key(scope, "standing"), record_id)
                    pipe.zrange(self._key(scope, "showing", record_id), 0, -1)
                answers = await pipe.execute()
            if any(answers[::2]):
                everything: Any = await self._redis.zrange(self._key(scope, "index"), 0, -1)
                return list(everything)
            found.update(*answers[1::2])
        return sorted(found)

    async def _cut(self, scope: Scope, turn_ids: Sequence[str], gone: frozenset[str]) -> None:
        for start in range(0, len(turn_ids), _CUT_PAGE):
            keys = [self._key(scope, "turn", turn_id) for turn_id in turn_ids[start : start + _CUT_PAGE]]
            while keys:
                keys = await self._cut_page(keys, gone)

    async def _cut_page(self, keys: Sequence[str], gone: frozenset[str]) -> list[str]:
        """Cut the manifests at *keys*. Return the keys that changed meanwhile and must be read again."""
        found: Any = await self._redis.mget(keys)
        shorter = await asyncio.to_thread(cut_manifests, found, gone)
        changes = [(key, old, new) for key, old, new in zip(keys, found, shorter, strict=True) if new is not None]
        done = await asyncio.gather(*(self._replace(keys=[key], args=[old, new]) for key, old, new in changes))
        return [key for (key, _, _), is_done in zip(changes, done, strict=True) if not is_done]

    @staticmethod
    def _key(scope: Scope, *parts: str) -> str:
        return redis_key(_OWNER, scope.tag, *parts)


@lru_cache(_CACHED)
def _digest(files: _Files) -> str:
    """Return the SHA-256 of material. Every turn has the same objects as long as nothing changes, so the cache finds
    them by identity."""
    return hashlib.sha256(_FILES.dump_json(files)).hexdigest()


def _dumped(context: RunContext, *, without_files: bool) -> str:
    """Return *context* as JSON in the form of `pack`, in a quarter of its time."""
    exclude: Any = {"codex": {"files"}} if without_files else None
    try:
        return context.model_dump_json(exclude=exclude)
    except PydanticSerializationError:  # half a surrogate pair is no UTF-8
        return json.dumps(context.model_dump(mode="json", exclude=exclude), separators=(",", ":"))


def _context(fields: dict[str, Any]) -> RunContext:
    # By way of JSON: only there the strict model takes lists for tuples.
    return RunContext.model_validate_json(json.dumps(fields["context"]))


# How people read a manifest: what its strategy and reason mean, and how two turns differ. Pure.

STRATEGIES = {
    "none": "no retrieval",
    "tail": "this conversation's earlier turns",
    "qmd": "the workspace's documents",
}
REASONS = {
    "empty": "the message has no text",
    "small_talk": "a greeting, thanks or the like: nothing needs to be looked up",
    "chat_memory_cue": "the message refers to what was said before",
    "leans_on_conversation": "only what was said before tells what the message is about",
    "workspace_retrieval_cue": "the message asks for the workspace's documents",
    "implicit_workspace_question": "a question that the workspace's documents may answer",
    "workspace_match": "the workspace's documents have passages that are relevant to the message",
    "workspace_vocabulary": "the message uses words of the workspace's documents",  # only earlier releases
    "no_retrieval_cue": "nothing in the message asks for documents or earlier turns",
    "skip_grounding": "grounding was switched off for this message",
}
"""The meanings of the reasons."""

TurnRow = Mapping[str, Any]
"""A turn as ``GET …/turns/{id}?prompt=true`` returns it."""

SAME, CHANGED, ADDED, REMOVED = "same", "changed", "added", "removed"


def compare_manifests(a: TurnRow, b: TurnRow) -> dict[str, Any]:
    """Return how turn *b* differs from turn *a*.

    ``{"a", "b", "identical", "changed": {FIELD: [in a, in b]}, "blocks": [{"name", "change", "tokens": [in a, in b],
    "sha256": [in a, in b]}], "degraded": [of a, of b], "diff"}``. ``identical`` is about the bytes of the prompts;
    ``diff`` is the unified difference of their messages.
    """
    facts_a, facts_b = _facts(a), _facts(b)
    return {
        "a": a["turn_id"],
        "b": b["turn_id"],
        "identical": a["prompt_sha256"] == b["prompt_sha256"],
        "changed": {name: [facts_a[name], facts_b[name]] for name in facts_a if facts_a[name] != facts_b[name]},
        "blocks": _blocks(a["blocks"], b["blocks"]),
        "degraded": [a["degraded"], b["degraded"]],
        "diff": _diff(a, b),
    }


def _facts(turn: TurnRow) -> dict[str, Any]:
    context: Mapping[str, Any] = turn.get("context") or {}
    outcome: Mapping[str, Any] = turn.get("outcome") or {}
    return {
        "strategy": turn["strategy"],
        "reason": turn["reason"],
        "frame": (context.get("frame") or {}).get("name", ""),
        "layout": context.get("layout", ""),
        "context_id": turn["context_id"],
        "directives": context.get("identity_versions", []),
        "model": turn["model"],
        "tokens_total": turn["tokens_total"],
        "sources": [f"{one['source']} › {one['heading']}" for one in turn.get("sources") or ()],
        "usage": outcome.get("usage") or {},
    }


def _blocks(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    before, after = ({one["name"]: one for one in blocks if one["used"]} for blocks in (a, b))
    names = [*before, *(name for name in after if name not in before)]
    return [
        {
            "name": name,
            "change": _change(before.get(name), after.get(name)),
            "tokens": [side.get(name, {}).get("tokens", 0) for side in (before, after)],
            "sha256": [side.get(name, {}).get("sha256", "") for side in (before, after)],
        }
        for name in names
    ]


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if before is None:
        return ADDED
    if after is None:
        return REMOVED
    return SAME if before["sha256"] == after["sha256"] else CHANGED


def _diff(a: TurnRow, b: TurnRow) -> str:
    parts: list[str] = []
    for before, after in zip(a["messages"], b["messages"], strict=False):
        role = before["role"]
        parts += difflib.unified_diff(
            str(before["content"]).splitlines(),
            str(after["content"]).splitlines(),
            f"{role} {a['turn_id']}",
            f"{role} {b['turn_id']}",
            lineterm="",
        )
    return "\n".join(parts)
