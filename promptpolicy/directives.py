"""Directives in Redis: the current versions and the complete history.

Keys (owner ``directives``; one hash tag for global directives, one for each workspace with its contexts):

- ``…:current:<place>`` hash, slot field → ``<version> <sha256> <entry>``; the digest of a cleared slot is ``-``
- ``…:log:<place>/<field>`` list of entries; version N is the N-th. Entries are never removed
- ``…:slots`` set of every ``<place>/<field>`` that ever had a version
- ``…:stamp`` a value that each change replaces; readers compare it with their cached one
- ``…:workspaces`` (global tag) set of workspaces that ever had a directive or a draft
- ``…:rules`` hash: ``two_person`` is set while a second person must approve each change, ``two_person_off`` to the one
  who asked to end that

An entry is a version as JSON: ``{"v": 1, "text", "author", "at", "origin", "sha256", "bytes", "restores"}``, and
``note``, ``approver`` and ``draft`` if it has them. If the version cleared the slot, ``text`` is null and ``sha256`` is
``-``. The keys of drafts are in `drafts`.
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
from promptpolicy.drafts import SAVE_DRAFT, Draft, DraftMoved, NoSuchDraft, pack_draft, unpack_draft
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
    restored. ``note`` says why, ``approver`` is the second person, ``draft`` the id of the draft that it was.
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
    note: str = ""
    approver: str = ""
    draft: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """The next version of a slot before it is published. If ``text`` is None, it clears the slot.

    ``closes`` is the draft that it publishes, as it will be when that is done.
    """

    text: str | None
    author: str
    origin: Origin
    restores: int | None = None
    note: str = ""
    approver: str = ""
    closes: Draft | None = None

    @property
    def sha256(self) -> str:
        return CLEARED if self.text is None else digest(self.text)


def pack(change: Change, at: datetime) -> str:
    """Encode *change*, published *at*, as an entry."""
    fields: dict[str, Any] = {
        "v": FORMAT,
        "text": change.text,
        "author": change.author,
        "at": at.isoformat(),
        "origin": change.origin,
        "sha256": change.sha256,
        "bytes": len((change.text or "").encode()),
        "restores": change.restores,
    }
    optional = {
        "note": change.note,
        "approver": change.approver,
        "draft": change.closes.id if change.closes else "",
    }
    fields |= {name: value for name, value in optional.items() if value}
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
    optional = {name: fields.get(name, "") for name in ("note", "approver", "draft")}
    return Version(slot, number, *parts, restores=fields["restores"], **optional)


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
if ARGV[8] ~= '' then
  local draft = redis.call('HGET', KEYS[5], ARGV[8])
  if not draft or cjson.decode(draft).revision ~= tonumber(ARGV[9]) then return {'draft', version} end
end
if sha256 == ARGV[3] then return {'same', version} end
if (redis.call('GET', KEYS[4]) or '') ~= ARGV[6] then return {'overtaken', version} end
if ARGV[8] ~= '' then
  redis.call('HDEL', KEYS[5], ARGV[8])
  redis.call('HSET', KEYS[6], ARGV[8], ARGV[10])
end
version = redis.call('RPUSH', KEYS[2], ARGV[4])
redis.call('HSET', KEYS[1], ARGV[1], version .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('SADD', KEYS[3], ARGV[2])
redis.call('SET', KEYS[4], ARGV[7])
return {'appended', version}
"""


_SET_TWO_PERSON = """
local on = redis.call('HEXISTS', KEYS[1], 'two_person') == 1
local asker = redis.call('HGET', KEYS[1], 'two_person_off')
if ARGV[1] == 'on' then
  redis.call('HSET', KEYS[1], 'two_person', ARGV[2])
  redis.call('HDEL', KEYS[1], 'two_person_off')
elseif on and (not asker or asker == ARGV[2]) then
  redis.call('HSET', KEYS[1], 'two_person_off', ARGV[2])
  return 1
else
  redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[2], ARGV[3])
return ARGV[1] == 'on' and 1 or 0
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All current versions under one hash tag, with the stamp at which they were read."""

    stamp: str
    versions: dict[Slot, Version]
    two_person: bool = False
    """Whether a second person must approve each change."""

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
        self.now = now
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
            pipe.hexists(_key(home, "rules"), "two_person")
            if only is None:
                pipe.smembers(_key(home, "slots"))
            stamp, two_person, *listed = await pipe.execute()
            places = {home, only} if only is not None else set()
            places |= {place_in(home, encoded.partition("/")[0]) for slots in listed for encoded in slots}
            current = await self._current(sorted(places, key=lambda place: place.encoded))
        versions = {slot: version for by_slot in current.values() for slot, version in by_slot.items()}
        return Snapshot(stamp or "", versions, bool(two_person))

    async def workspaces(self) -> list[Place]:
        """Return the workspaces that ever had a directive, sorted by id."""
        async with self._time_limit():
            names = await cast("Any", self._redis.smembers(_key(EVERYWHERE, "workspaces")))
        return [Place(Scope(name)) for name in sorted(names)]

    async def append(
        self, slot: Slot, change: Change, stamp: str, expected_version: int | None = None
    ) -> tuple[Literal["appended", "same", "moved", "overtaken", "draft"], int]:
        """Append *change* as the newest version of *slot*, atomically. Returns the outcome and the newest version.

        ``appended``: *change* is the newest version. ``same``: the newest version already has this text, so nothing
        was appended. ``moved``: the newest version is not *expected_version* (0 means none). ``overtaken``: something
        under the same hash tag changed since *stamp* (from `snapshot`), so the caller must repeat its checks.
        ``draft``: the draft that *change* closes was changed since. The draft is closed in the same step.
        """
        place = slot.place
        keys = (
            _current_key(place), _log_key(slot), _key(place, "slots"), _key(place, "stamp"), *_draft_keys(place.home),
        )  # fmt: skip
        expected = "" if expected_version is None else str(expected_version)
        closes = change.closes
        closing = (closes.id, closes.revision - 1, pack_draft(closes)) if closes else ("", 0, "")
        entry = pack(change, self.now())
        arguments = (slot.field, slot.encoded, change.sha256, entry, expected, stamp, uuid.uuid4().hex, *closing)
        async with self._time_limit():
            await self._list_workspace(place)
            outcome, version = await cast("Any", self._redis.eval(_APPEND, len(keys), *keys, *arguments))
        return outcome, int(version)

    async def draft(self, home: Place, draft_id: str) -> Draft:
        """Return a draft of *home* (global, or a workspace with its contexts). Raises `NoSuchDraft`."""
        async with self._time_limit():
            pipe = self._redis.pipeline(transaction=False)
            for key in _draft_keys(home):
                pipe.hget(key, draft_id)
            packed = next((found for found in await pipe.execute() if found is not None), None)
        if packed is None:
            raise NoSuchDraft(f"there is no draft {draft_id!r} {'everywhere' if home.scope is None else 'here'}")
        return unpack_draft(home, packed)

    async def drafts(self, home: Place, slot: Slot | None = None) -> list[Draft]:
        """Return the drafts of *home* that are not closed, newest change first; with *slot* only those of the slot."""
        async with self._time_limit():
            packed = await cast("Any", self._redis.hvals(_draft_keys(home)[0]))
        drafts = [unpack_draft(home, one) for one in packed]
        found = (one for one in drafts if slot is None or one.slot == slot)
        return sorted(found, key=lambda one: (one.changed_at, one.id), reverse=True)

    async def save_draft(self, draft: Draft, text: str | None = None) -> Draft:
        """Store *draft* as the revision after the stored one, and return it.

        Raises `DraftMoved`, with the caller's *text*, if another revision is stored; then nothing is changed.
        """
        home = draft.slot.place.home
        keys, kind = _draft_keys(home), "closed" if draft.is_closed else "active"
        arguments = (draft.id, draft.revision - 1, pack_draft(draft), kind)
        async with self._time_limit():
            await self._list_workspace(home)
            found = await cast("Any", self._redis.eval(SAVE_DRAFT, len(keys), *keys, *arguments))
        if found == "saved":
            return draft
        if not found:
            raise NoSuchDraft(f"there is no draft {draft.id!r} of {draft.slot.label}")
        raise DraftMoved(unpack_draft(home, found), draft.revision - 1, text)

    async def two_person(self, home: Place) -> tuple[bool, str]:
        """Return whether a second person must approve each change in *home*, and who asked to end that ("": nobody)."""
        async with self._time_limit():
            rules = await cast("Any", self._redis.hgetall(_key(home, "rules")))
        return "two_person" in rules, rules.get("two_person_off", "")

    async def set_two_person(self, home: Place, on: bool, author: str) -> bool:
        """Switch the rule of the second person in *home*, atomically, and return whether it holds now.

        Switching it off while it is on needs two persons: the first call only stores who asked.
        """
        keys = [_key(home, "rules"), _key(home, "stamp")]
        async with self._time_limit():
            await self._list_workspace(home)
            held = self._redis.eval(_SET_TWO_PERSON, 2, *keys, "on" if on else "off", author, uuid.uuid4().hex)
            return bool(await cast("Any", held))

    async def _list_workspace(self, place: Place) -> None:
        """List the workspace of *place*, in a command before the change, because the key has another hash tag: an extra
        name is harmless, a missing one is not."""
        if place.scope is not None:
            names = _key(EVERYWHERE, "workspaces")
            await cast("Any", self._redis.sadd(names, place.scope.workspace_id))

    async def forget_workspace(self, scope: Scope) -> None:
        """Delete all directives of the workspace and of its contexts, with their history."""
        home = Place(Scope(scope.workspace_id))
        async with self._time_limit():
            slots = await cast("Any", self._redis.smembers(_key(home, "slots")))
            keys = {_key(home, "slots"), _key(home, "stamp"), _key(home, "rules"), *_draft_keys(home)}
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


def _draft_keys(home: Place) -> tuple[str, str]:
    return _key(home, "drafts"), _key(home, "closed-drafts")


def _current_key(place: Place) -> str:
    return redis_key("directives", place.tag, "current", place.encoded)


def _log_key(slot: Slot) -> str:
    return redis_key("directives", slot.place.tag, "log", slot.encoded)
