"""Directives in Redis: the current versions and the complete history.

Keys (owner ``directives``; one hash tag for global directives, one for each workspace with its contexts):

- ``…:current:<place>`` hash, slot field → ``<version> <sha256> <entry>``; the digest of a cleared slot is ``-``
- ``…:log:<place>/<field>`` list of entries; version N is the N-th. Entries are never removed
- ``…:slots`` set of every ``<place>/<field>`` that ever had a version
- ``…:stamp`` a value that each change replaces; readers compare it with their cached one
- ``…:workspaces`` (global tag) set of workspaces that ever had a directive

An entry is a version as JSON: ``{"v": 1, "text", "author", "at", "origin", "sha256", "bytes", "restores"}``. If the
version cleared the slot, ``text`` is null and ``sha256`` is ``-``.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from connectors.message import AgentRuntimeError, Scope, StoreUnavailable, redis_key
from connectors.redis_calls import RedisCall, ask
from promptpolicy.policy import EVERYWHERE, Directive, Place, Slot, digest, place_in, places_of, slot_in

if TYPE_CHECKING:
    from redis.asyncio import Redis


FORMAT = 1
CLEARED = "-"
Origin = Literal["file", "command", "api"]


class NoSuchVersion(AgentRuntimeError):
    """A slot has no version with this number."""

    user_text = "There is no such version."


class UnknownFormat(AgentRuntimeError):
    """A newer release wrote the stored value."""

    user_text = "A newer version of me has stored my instructions. Please tell an administrator."


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a slot. ``text`` is None if it cleared the slot.

    ``version`` counts from 1. ``bytes`` is the size of the text in UTF-8. ``restores`` is the version that a rollback
    restored.
    """

    slot: Slot
    version: int
    text: str | None
    author: str
    at: datetime
    origin: str
    sha256: str
    bytes: int
    restores: int | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """The next version of a slot before it is published. If ``text`` is None, it clears the slot."""

    text: str | None
    author: str
    origin: Origin
    restores: int | None = None

    @property
    def sha256(self) -> str:
        return CLEARED if self.text is None else digest(self.text)


def pack(draft: Draft, at: datetime) -> str:
    """Encode *draft*, published *at*, as an entry."""
    fields = {
        "v": FORMAT,
        "text": draft.text,
        "author": draft.author,
        "at": at.isoformat(),
        "origin": draft.origin,
        "sha256": draft.sha256,
        "bytes": len((draft.text or "").encode()),
        "restores": draft.restores,
    }
    return json.dumps(fields, ensure_ascii=False, sort_keys=True)


def read(slot: Slot, number: int, entry: str) -> Version:
    """Decode the entry of version *number* of *slot*. Raises `UnknownFormat`."""
    fields = json.loads(entry)
    if fields["v"] > FORMAT:
        raise UnknownFormat(
            f"version {number} of {slot.label} has format {fields['v']}, and this release reads up to {FORMAT}: "
            "start the newer release again"
        )
    at = datetime.fromisoformat(fields["at"])
    parts = (fields["text"], fields["author"], at, fields["origin"], fields["sha256"], fields["bytes"])
    return Version(slot, number, *parts, restores=fields["restores"])


def unpack(slot: Slot, packed: str) -> Version:
    """Decode the newest version of *slot* from its value in ``…:current``. Raises `UnknownFormat`."""
    number, _, entry = packed.split(" ", 2)
    return read(slot, int(number), entry)


REMEMBERED_PLACES = 512

_APPEND = """
local current = redis.call('HGET', KEYS[1], ARGV[1])
local version, sha256 = 0, '-'
if current then
  local v, s = string.match(current, '^(%d+) (%S+) ')
  version, sha256 = tonumber(v), s
end
if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= version then return {'moved', version} end
if sha256 == ARGV[3] then return {'same', version} end
if (redis.call('GET', KEYS[4]) or '') ~= ARGV[6] then return {'overtaken', version} end
version = redis.call('RPUSH', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[1], ARGV[1], version .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('SADD', KEYS[3], ARGV[2])
redis.call('SET', KEYS[4], ARGV[7])
return {'appended', version}
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All current versions under one hash tag, with the stamp at which they were read."""

    stamp: str
    versions: dict[Slot, Version]

    def directives(self) -> tuple[Directive, ...]:
        """Return the current directives, without cleared slots."""
        return _active(self.versions.values())


class Directives:
    """Store of directives under the keys above.

    Every method raises `StoreUnavailable` if Redis does not answer, and `UnknownFormat` for values of a newer release.
    """

    def __init__(
        self, redis: Redis, timeout_seconds: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._redis = redis
        self._timeout = timeout_seconds
        self._now = now
        self._cache: OrderedDict[Place, tuple[str, tuple[Directive, ...]]] = OrderedDict()

    async def load(self, scope: Scope, stamps: Sequence[str] | None = None) -> tuple[Directive, ...]:
        """Load all directives that apply in *scope*, for `policy.compose`.

        Takes one round trip if nothing changed since the last call, else two. The next call sees a change by any
        process. *stamps* is the result of `stamps_call`, if it was read before.
        """
        places = places_of(scope)
        async with self._time_limit():
            if stamps is None:
                stamps = await ask(self._redis, self.stamps_call(scope))
            cached = [self._cache.get(place) for place in places]
            stale = {
                place: stamp
                for place, entry, stamp in zip(places, cached, stamps, strict=True)
                if entry is None or entry[0] != stamp
            }
            loaded = await self._current(list(stale)) if stale else {}
        directives: list[Directive] = []
        for place, entry in zip(places, cached, strict=True):
            if entry is None or (stale and place in stale):
                entry = stale[place], _active(loaded[place].values())
            self._cache[place] = entry  # a concurrent load may have evicted it
            self._cache.move_to_end(place)
            directives += entry[1]
        while len(self._cache) > REMEMBERED_PLACES:
            self._cache.popitem(last=False)
        return tuple(directives)

    def last_loaded(self, scope: Scope) -> tuple[Directive, ...] | None:
        """Return the last result of `load` for *scope* in this process, without asking Redis, or None if not cached.

        For turns while Redis is unavailable, because old rules are better than none.
        """
        cached = [self._cache.get(place) for place in places_of(scope)]
        if None in cached:
            return None
        return tuple(directive for entry in cached if entry is not None for directive in entry[1])

    def stamps_call(self, scope: Scope) -> RedisCall[list[str]]:
        """Return the call that reads the stamps of the places of *scope*, which change with their directives."""
        keys = [_key(place, "stamp") for place in places_of(scope)]
        distinct = list(dict.fromkeys(keys))  # a workspace and its contexts share a stamp

        def stamps(found: Sequence[str | None]) -> list[str]:
            by_key = dict(zip(distinct, found, strict=True))
            return [by_key[key] or "" for key in keys]

        return RedisCall(tuple(("GET", key) for key in distinct), stamps)

    async def latest(self, slot: Slot) -> Version | None:
        """Return the newest version of *slot*, which may have cleared it, or None if it never had a version."""
        async with self._time_limit():
            packed = await cast("Any", self._redis.hget(_current_key(slot.place), slot.field))
        return None if packed is None else unpack(slot, packed)

    async def version(self, slot: Slot, number: int) -> Version:
        """Return version *number* of *slot*. Raises `NoSuchVersion`."""
        entry = None
        if number >= 1:
            async with self._time_limit():
                entry = await cast("Any", self._redis.lindex(_log_key(slot), number - 1))
        if entry is None:
            raise NoSuchVersion(f"{slot.label} has no version {number}")
        return read(slot, number, entry)

    async def history(self, slot: Slot, limit: int = 50, before: int | None = None) -> list[Version]:
        """Return at most *limit* versions of *slot*, newest first; with *before*, only versions older than that."""
        async with self._time_limit():
            newest = await cast("Any", self._redis.llen(_log_key(slot)))
            if before is not None:
                newest = min(newest, before - 1)
            if newest < 1 or limit < 1:
                return []
            oldest = max(1, newest - limit + 1)
            entries = await cast("Any", self._redis.lrange(_log_key(slot), oldest - 1, newest - 1))
        return [read(slot, oldest + index, entry) for index, entry in enumerate(entries)][::-1]

    async def snapshot(self, home: Place, only: Place | None = None) -> Snapshot:
        """Return the current versions under the hash tag of *home*: global ones, or of a workspace and its contexts.

        With *only*, a context of the workspace, returns only those of that context and of the workspace itself.
        """
        async with self._time_limit():
            pipe = self._redis.pipeline(transaction=False)
            pipe.get(_key(home, "stamp"))
            if only is None:
                pipe.smembers(_key(home, "slots"))
            stamp, *listed = await pipe.execute()
            places = {home, only} if only is not None else set()
            places |= {place_in(home, encoded.partition("/")[0]) for slots in listed for encoded in slots}
            current = await self._current(sorted(places, key=lambda place: place.encoded))
        versions = {slot: version for by_slot in current.values() for slot, version in by_slot.items()}
        return Snapshot(stamp or "", versions)

    async def workspaces(self) -> list[Place]:
        """Return the workspaces that ever had a directive, sorted by id."""
        async with self._time_limit():
            names = await cast("Any", self._redis.smembers(_key(EVERYWHERE, "workspaces")))
        return [Place(Scope(name)) for name in sorted(names)]

    async def append(
        self, slot: Slot, draft: Draft, stamp: str, expected_version: int | None = None
    ) -> tuple[Literal["appended", "same", "moved", "overtaken"], int]:
        """Append *draft* as the newest version of *slot*, atomically. Returns the outcome and the newest version.

        ``appended``: *draft* is the newest version. ``same``: the newest version already has this text, so nothing
        was appended. ``moved``: the newest version is not *expected_version* (0 means none). ``overtaken``: something
        under the same hash tag changed since *stamp* (from `snapshot`), so the caller must repeat its checks.
        """
        place = slot.place
        keys = (_current_key(place), _log_key(slot), _key(place, "slots"), _key(place, "stamp"))
        expected = "" if expected_version is None else str(expected_version)
        entry = pack(draft, self._now())
        arguments = (slot.field, slot.encoded, draft.sha256, entry, expected, stamp, uuid.uuid4().hex)
        async with self._time_limit():
            if place.scope is not None:
                # A separate command, because the key has another hash tag. It comes first: an extra name is harmless,
                # a missing one is not.
                names = _key(EVERYWHERE, "workspaces")
                await cast("Any", self._redis.sadd(names, place.scope.workspace_id))
            outcome, version = await cast("Any", self._redis.eval(_APPEND, len(keys), *keys, *arguments))
        return outcome, int(version)

    async def forget_workspace(self, scope: Scope) -> None:
        """Delete all directives of the workspace and of its contexts, with their history."""
        home = Place(Scope(scope.workspace_id))
        async with self._time_limit():
            slots = await cast("Any", self._redis.smembers(_key(home, "slots")))
            keys = {_key(home, "slots"), _key(home, "stamp")}
            for encoded in slots:
                keys |= {_current_key(place_in(home, encoded.partition("/")[0])), _key(home, f"log:{encoded}")}
            await cast("Any", self._redis.delete(*sorted(keys)))
            await cast("Any", self._redis.srem(_key(EVERYWHERE, "workspaces"), scope.workspace_id))

    async def _current(self, places: list[Place]) -> dict[Place, dict[Slot, Version]]:
        pipe = self._redis.pipeline(transaction=False)
        for place in places:
            pipe.hgetall(_current_key(place))
        versions: dict[Place, dict[Slot, Version]] = {}
        for place, fields in zip(places, await pipe.execute(), strict=True):
            slots = {slot_in(place, field): packed for field, packed in sorted(fields.items())}
            versions[place] = {slot: unpack(slot, packed) for slot, packed in slots.items()}
        return versions

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis gave no answer about directives in {self._timeout} s") from error


def _active(versions: Iterable[Version]) -> tuple[Directive, ...]:
    return tuple(
        Directive(version.slot, version.version, version.text) for version in versions if version.text is not None
    )


def _key(place: Place, part: str) -> str:
    return redis_key("directives", place.tag, part)


def _current_key(place: Place) -> str:
    return redis_key("directives", place.tag, "current", place.encoded)


def _log_key(slot: Slot) -> str:
    return redis_key("directives", slot.place.tag, "log", slot.encoded)
