"""Directives in Redis: the current ones, and every version that there ever was.

Keys (owner ``directives``; one hash tag for everywhere, one for each workspace with its contexts):

- ``…:current:<place>`` hash, slot field → ``<version> <sha256> <entry>``; the digest of nothing is ``-``
- ``…:log:<place>/<field>`` list of entries; version N is the N-th. Nothing is ever taken out of it
- ``…:slots`` set of ``<place>/<field>`` that ever had a version
- ``…:stamp`` a value that is new after each change: what a reader compares with what it remembers
- ``…:workspaces`` (tag of everywhere) set of workspaces that ever had a directive

An entry is a version as `promptpolicy.versions` packs it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from connectors.message import Scope, StoreUnavailable, redis_key
from promptpolicy.slot import EVERYWHERE, Directive, Place, Slot, place_in, places_of, slot_in
from promptpolicy.versions import Draft, NoSuchVersion, Version, pack, read, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
    """All current entries under one hash tag, and the stamp that they belong to."""

    stamp: str
    versions: dict[Slot, Version]

    def directives(self) -> tuple[Directive, ...]:
        """Those entries that were not cleared."""
        return _held(self.versions.values())


class Directives:
    """Versions of directives under the keys above. Every method raises `StoreUnavailable` when Redis
    is away and `UnknownFormat` for values of a newer release."""

    def __init__(
        self, redis: Redis, timeout_seconds: float, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._redis = redis
        self._timeout = timeout_seconds
        self._now = now
        self._remembered: OrderedDict[Place, tuple[str, tuple[Directive, ...]]] = OrderedDict()

    async def load(self, scope: Scope) -> tuple[Directive, ...]:
        """All directives that hold in *scope*, for `policy.compose`.

        One round trip when nothing changed since the last call, else two. A change made anywhere is
        seen by the next call.
        """
        places = places_of(scope)
        async with self._in_time():
            stamps = await self._stamps(places)
            known = [self._remembered.get(place) for place in places]
            stale = {
                place: stamp
                for place, one, stamp in zip(places, known, stamps, strict=True)
                if one is None or one[0] != stamp
            }
            found = await self._current(list(stale)) if stale else {}
        held: list[Directive] = []
        for place, one in zip(places, known, strict=True):
            if one is None or (stale and place in stale):
                one = stale[place], _held(found[place].values())
            self._remembered[place] = one  # another load may have dropped it meanwhile
            self._remembered.move_to_end(place)
            held += one[1]
        while len(self._remembered) > REMEMBERED_PLACES:
            self._remembered.popitem(last=False)
        return tuple(held)

    def last_loaded(self, scope: Scope) -> tuple[Directive, ...] | None:
        """What `load` last found for the places of *scope* in this process, without asking Redis; None
        where that is not remembered. For a turn while Redis is away: old rules are better than none."""
        known = [self._remembered.get(place) for place in places_of(scope)]
        if None in known:
            return None
        return tuple(directive for one in known if one is not None for directive in one[1])

    async def latest(self, slot: Slot) -> Version | None:
        """The newest version of *slot*, which may be a clearing; None where there never was one."""
        async with self._in_time():
            packed = await cast("Any", self._redis.hget(_current_key(slot.place), slot.field))
        return None if packed is None else unpack(slot, packed)

    async def version(self, slot: Slot, number: int) -> Version:
        """Version *number* of *slot*. Raises `NoSuchVersion`."""
        entry = None
        if number >= 1:
            async with self._in_time():
                entry = await cast("Any", self._redis.lindex(_log_key(slot), number - 1))
        if entry is None:
            raise NoSuchVersion(f"{slot.label} has no version {number}")
        return read(slot, number, entry)

    async def history(self, slot: Slot, limit: int = 50, before: int | None = None) -> list[Version]:
        """At most *limit* versions of *slot*, newest first, older than version *before* if given."""
        async with self._in_time():
            newest = await cast("Any", self._redis.llen(_log_key(slot)))
            if before is not None:
                newest = min(newest, before - 1)
            if newest < 1 or limit < 1:
                return []
            oldest = max(1, newest - limit + 1)
            entries = await cast("Any", self._redis.lrange(_log_key(slot), oldest - 1, newest - 1))
        return [read(slot, oldest + index, entry) for index, entry in enumerate(entries)][::-1]

    async def snapshot(self, home: Place, only: Place | None = None) -> Snapshot:
        """All that is current under the hash tag of *home*: everywhere, or a workspace and its contexts.

        With *only*, a context of the workspace: what is current in that context and in the workspace.
        """
        async with self._in_time():
            pipe = self._redis.pipeline(transaction=False)
            pipe.get(_key(home, "stamp"))
            if only is None:
                pipe.smembers(_key(home, "slots"))
            stamp, *listed = await pipe.execute()
            places = {home, only} if only is not None else set()
            places |= {place_in(home, encoded.partition("/")[0]) for slots in listed for encoded in slots}
            found = await self._current(sorted(places, key=lambda place: place.encoded))
        versions = {slot: one for place in found.values() for slot, one in place.items()}
        return Snapshot(stamp or "", versions)

    async def workspaces(self) -> list[Place]:
        """The workspaces that ever had a directive, by id."""
        async with self._in_time():
            names = await cast("Any", self._redis.smembers(_key(EVERYWHERE, "workspaces")))
        return [Place(Scope(name)) for name in sorted(names)]

    async def append(
        self, slot: Slot, draft: Draft, stamp: str, expected_version: int | None = None
    ) -> tuple[Literal["appended", "same", "moved", "overtaken"], int]:
        """Make *draft* the newest version of *slot*, atomically, and say what the newest version now is.

        ``same``: that is its text already, so that nothing was added; ``moved``: its newest version is
        not *expected_version* (0 for none yet); ``overtaken``: something under the same hash tag changed
        since *stamp* (from `snapshot`), so that what was checked against it must be checked again.
        """
        place = slot.place
        keys = (_current_key(place), _log_key(slot), _key(place, "slots"), _key(place, "stamp"))
        expected = "" if expected_version is None else str(expected_version)
        entry = pack(draft, self._now())
        arguments = (slot.field, slot.encoded, draft.sha256, entry, expected, stamp, uuid.uuid4().hex)
        async with self._in_time():
            if place.scope is not None:
                # Before the change and under another tag: a name too many is harmless, one too few is not.
                names = _key(EVERYWHERE, "workspaces")
                await cast("Any", self._redis.sadd(names, place.scope.workspace_id))
            outcome, version = await cast("Any", self._redis.eval(_APPEND, len(keys), *keys, *arguments))
        return outcome, int(version)

    async def forget_workspace(self, scope: Scope) -> None:
        """Delete all directives of the workspace and of its contexts, with their history."""
        home = Place(Scope(scope.workspace_id))
        async with self._in_time():
            slots = await cast("Any", self._redis.smembers(_key(home, "slots")))
            keys = {_key(home, "slots"), _key(home, "stamp")}
            for encoded in slots:
                keys |= {_current_key(place_in(home, encoded.partition("/")[0])), _key(home, f"log:{encoded}")}
            await cast("Any", self._redis.delete(*sorted(keys)))
            await cast("Any", self._redis.srem(_key(EVERYWHERE, "workspaces"), scope.workspace_id))

    async def _stamps(self, places: Sequence[Place]) -> list[str]:
        keys = [_key(place, "stamp") for place in places]
        asked = list(dict.fromkeys(keys))  # a workspace and its contexts share one
        pipe = self._redis.pipeline(transaction=False)
        for key in asked:
            pipe.get(key)
        found = dict(zip(asked, await pipe.execute(), strict=True))
        return [found[key] or "" for key in keys]

    async def _current(self, places: list[Place]) -> dict[Place, dict[Slot, Version]]:
        pipe = self._redis.pipeline(transaction=False)
        for place in places:
            pipe.hgetall(_current_key(place))
        found: dict[Place, dict[Slot, Version]] = {}
        for place, fields in zip(places, await pipe.execute(), strict=True):
            slots = {slot_in(place, field): packed for field, packed in sorted(fields.items())}
            found[place] = {slot: unpack(slot, packed) for slot, packed in slots.items()}
        return found

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis gave no answer about directives in {self._timeout} s") from error


def _held(versions: Iterable[Version]) -> tuple[Directive, ...]:
    return tuple(Directive(one.slot, one.version, one.text) for one in versions if one.text is not None)


def _key(place: Place, part: str) -> str:
    return redis_key("directives", place.tag, part)


def _current_key(place: Place) -> str:
    return redis_key("directives", place.tag, "current", place.encoded)


def _log_key(slot: Slot) -> str:
    return redis_key("directives", slot.place.tag, "log", slot.encoded)
