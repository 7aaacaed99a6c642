"""The audit log: who did which administrative act, when and from where. It shows whether a row was changed or removed.

Keys (owner ``audit``). A chain has the tag of its workspace; acts that reach beyond one workspace are in a chain of
their own, with the tag ``{audit}``: ``rows``, a stream; ``head`` and ``anchor``, the sequence number and hash of the
newest row and of the last row that retention removed; ``retention``, in days; ``appended``, one key for each entry of
the last hour, so that a repeated append adds nothing. People are kept apart from the rows, under ``{audit}``:
``references``, a hash of a person, or of a person and a place, to a random reference; ``names``, a hash of a reference
to what it stands for; ``seen``, references by the time of their last row, in milliseconds.

Rows, head and anchor are signed (HMAC-SHA256) with a key that Redis does not hold, and each row has the hash of the row
before it. Whoever writes only to Redis can therefore remove rows, but not unnoticed. What they can do is to put a whole
former state of the chain back; for that, each append is the event ``audit.appended``, with the head, which a log
outside keeps (`AuditLog.verify` compares).

A stream, because a row's id ``<milliseconds>-<sequence>`` is the index by time and by number in one, a page costs the
same wherever it is, and retention is one cut.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from config.settings import Settings
from connectors.message import AgentRuntimeError, Scope, StoreUnavailable, encode_id, redis_key
from runtime.access import secret_in_file
from runtime.stores import NewerFormat, pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from runtime.workspaces import Workspaces


AUDIT_KEY_FILE = "audit-key"
RETENTION_DAYS = 400
MAX_RETENTION_DAYS = 36_500
MAX_EXCERPT_CHARACTERS = 500
"""Longer texts, before and after a change, are kept as their SHA-256 and size."""
MAX_LABEL_CHARACTERS = 300
"""Longer names, targets, notes and places are cut."""
MAX_SCANNED = 2000
"""Rows that one `AuditLog.read` looks at, if few fit its filter."""
PRUNE_SECONDS = 24 * 3600

Face = Literal["http", "cli", "chat", "console", "file"]
Outcome = Literal["done", "refused", "failed"]

_FORMAT: Literal[1] = 1
_PAGE = 500
_DAY_MS = 24 * 3600 * 1000
_LATEST_MS = 253_402_300_799_000
"""The end of the year 9999."""
_REPEAT_SECONDS = 3600
_CURSOR = re.compile(r"\d{1,19}-\d{1,19}")
_REFERENCES = redis_key("audit", "{audit}", "references")
_NAMES = redis_key("audit", "{audit}", "names")
_SEEN = redis_key("audit", "{audit}", "seen")

# Returns the place of the entry in the chain, or nothing if the head has moved.
_APPEND = """
local known = redis.call('GET', KEYS[3])
if known then return known end
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return '' end
redis.call('XADD', KEYS[1], ARGV[3], 'row', ARGV[4], 'hash', ARGV[5])
redis.call('SET', KEYS[2], ARGV[2])
redis.call('SET', KEYS[3], ARGV[6], 'EX', ARGV[7])
return ARGV[6]
"""
_PRUNE = """
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[3])
return 1
"""
# For each subject the reference that it has, or a new one.
_REFER = """
local found = {}
for i = 2, #ARGV, 4 do
  local reference = redis.call('HGET', KEYS[1], ARGV[i])
  if not reference then
    reference = ARGV[i + 1]
    redis.call('HSET', KEYS[1], ARGV[i], reference)
  end
  redis.call(ARGV[i + 3], KEYS[2], reference, ARGV[i + 2])
  redis.call('ZADD', KEYS[3], ARGV[1], reference)
  found[#found + 1] = reference
end
return found
"""

log = structlog.get_logger()


class InvalidRetention(AgentRuntimeError):
    """An audit log cannot be kept for so many days; the text says how many are possible."""

    code = "bad_request"


class InvalidCursor(AgentRuntimeError):
    """The place from which to read on did not come from `AuditLog.read`."""

    code = "bad_request"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did something, or to whom it was done. ``id`` is ``connector:user_id``, ``token:…`` or another stable id."""

    id: str
    name: str = ""


ERASED = Actor("", "somebody who was erased")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text before or after a change: as it is (``text``) if it is short, else None and its SHA-256 and size."""

    text: str | None
    sha256: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One act to be logged. A repeated append of the same entry (``id``) adds nothing.

    ``workspace_id`` is None for an act that reaches beyond one workspace. ``caller`` says by which right the actor
    acted: ``token ab12``, ``person`` or ``settings``. ``target`` names the thing that the act was about, and
    ``target_person`` the person, who must not be named in ``target``, ``before``, ``after`` or ``note``: these texts
    cannot be erased. ``error`` is the error's code. ``origin`` is the address or the place of the actor.
    """

    operation: str
    actor: Actor
    face: Face
    workspace_id: str | None
    caller: str = ""
    outcome: Outcome = "done"
    error: str = ""
    target: str = ""
    target_person: Actor | None = None
    before: str | None = None
    after: str | None = None
    note: str = ""
    origin: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(frozen=True, slots=True)
class AuditLink:
    """A row of a chain by its number, from 1, and its hash. Number 0 stands before the first row."""

    sequence: int
    hash: str


START = AuditLink(0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One act of the log, with people as they are known now. Fields as in `AuditEntry`.

    ``is_genuine`` is False if the row was not signed with this runtime's key; one that cannot be read at all has only
    a number and a time.
    """

    sequence: int
    at: datetime
    hash: str
    is_genuine: bool
    operation: str = ""
    actor: Actor = ERASED
    caller: str = ""
    face: str = ""
    outcome: str = ""
    error: str = ""
    target: str = ""
    target_person: Actor | None = None
    before: Excerpt | None = None
    after: Excerpt | None = None
    note: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which rows to read. ``actor`` is an id; ``target`` is a part of the target, or a person's id; times inclusive."""

    actor: str = ""
    operation: str = ""
    target: str = ""
    outcome: Outcome | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Rows, the newest first. ``next`` is where the next page begins; empty if there is none.

    A page may be short, or empty, and still have a next one: see `MAX_SCANNED`.
    """

    rows: list[AuditRow]
    next: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a chain is as it was written, from the row after ``anchor`` up to ``head``, the last one checked.

    ``problem`` says in a sentence what is wrong at first, ``row`` at which number; empty and 0 if nothing is.
    """

    anchor: AuditLink
    head: AuditLink
    problem: str = ""
    row: int = 0

    @property
    def is_intact(self) -> bool:
        return not self.problem


class AuditLog:
    """Appends to, reads, checks and prunes the chains. All methods raise `connectors.message.StoreUnavailable`.

    *key* comes from `audit_key`; *clock* gives seconds since the epoch.
    """

    def __init__(self, redis: Redis, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._seal = _Seal(key)
        self._clock = clock

    # Writing

    async def append(self, entry: AuditEntry) -> AuditLink:
        """Add *entry* to the chain of its workspace, and return its number and hash.

        Several processes may append at the same time. If the head of the chain was changed by somebody without the key,
        the row says so, and `verify` tells it from then on.
        """
        chain = _Chain.of(entry.workspace_id)
        actor, person, origin = await self._refer(entry)
        while True:
            stored = await self._text(chain.head)
            head = self._seal.open("head", stored, chain)
            if head is None:
                former, at, is_broken = await self._find_end(chain, bool(stored))
            else:
                former, at, is_broken = AuditLink(head["sequence"], head["hash"]), head["at"], False
            sequence, at = former.sequence + 1, max(self._now(), at)
            row = _Row(
                v=_FORMAT,
                chain=chain.name,
                sequence=sequence,
                former=former.hash,
                at=at,
                key=self._seal.key_id,
                is_broken=is_broken,
                id=entry.id,
                operation=_cut(entry.operation),
                actor=actor,
                caller=_cut(entry.caller),
                face=entry.face,
                outcome=entry.outcome,
                error=_cut(entry.error),
                target=_cut(entry.target),
                person=person,
                before=_excerpt(entry.before),
                after=_excerpt(entry.after),
                note=_cut(entry.note),
                origin=origin,
            ).model_dump_json()
            link = AuditLink(sequence, self._seal.sign("row", row))
            place = await self._redis.eval(
                _APPEND,
                3,
                chain.rows,
                chain.head,
                chain.key("appended", encode_id(entry.id)),
                stored,
                self._seal.close("head", chain, link, at=at),
                f"{at}-{sequence}",
                row,
                link.hash,
                f"{sequence} {link.hash}",
                str(_REPEAT_SECONDS),
            )
            if place:
                number, _, hash_ = str(place).partition(" ")
                log.info("audit.appended", **chain.labels, sequence=int(number), hash=hash_)
                return AuditLink(int(number), hash_)

    async def _find_end(self, chain: _Chain, has_head: bool) -> tuple[AuditLink, int, bool]:
        """Return the last row that is left if the head is missing or false, the least time in milliseconds of the
        next row, and whether anything shows that there was a head."""
        anchor = self._seal.open("anchor", await self._text(chain.anchor), chain)
        link = START if anchor is None else AuditLink(anchor["sequence"], anchor["hash"])
        if not await self._redis.exists(chain.rows):
            return link, 0, has_head or anchor is not None
        for stored in await self._newest(chain, count=1):
            link = AuditLink(stored.sequence, stored.hash)
        last = str((await self._redis.xinfo_stream(chain.rows))["last-generated-id"])
        return link, int(last.partition("-")[0]) + 1, True

    async def _refer(self, entry: AuditEntry) -> list[str]:
        """Return the references of the actor, of the person whom the act was about, and of the origin ("" for none)."""
        subjects = [_subject(entry.actor)]
        if entry.target_person is not None:
            subjects.append(_subject(entry.target_person))
        if entry.origin:
            subjects.append(_subject(entry.actor, _cut(entry.origin)))
        arguments = [str(self._now())]
        for name, value, command in subjects:
            arguments += [name, secrets.token_hex(8), value, command]
        found = await self._redis.eval(_REFER, 3, _REFERENCES, _NAMES, _SEEN, *arguments)
        actor, *rest = [str(reference) for reference in found]
        return [actor, rest.pop(0) if entry.target_person is not None else "", rest.pop(0) if entry.origin else ""]

    # Reading

    async def head(self, workspace_id: str | None) -> AuditLink:
        """Return the newest row of a chain, as its signed head says; `START` if there is none."""
        chain = _Chain.of(workspace_id)
        head = self._seal.open("head", await self._text(chain.head), chain)
        return START if head is None else AuditLink(head["sequence"], head["hash"])

    async def read(
        self, workspace_id: str | None, only: AuditFilter | None = None, *, limit: int = 50, before: str = ""
    ) -> AuditPage:
        """Return at most *limit* rows, the newest first, from *before* on, the ``next`` of the page before.

        Raises `InvalidCursor`.
        """
        if before and not _CURSOR.fullmatch(before):
            raise InvalidCursor("`before` must be the `next` of a page of the audit log")
        chain, only = _Chain.of(workspace_id), only or AuditFilter()
        actor = await self._redis.hget(_REFERENCES, encode_id(only.actor)) if only.actor else None
        if only.actor and actor is None:
            return AuditPage([])
        person = await self._redis.hget(_REFERENCES, encode_id(only.target)) if only.target else None
        oldest = "-" if only.since is None else str(max(0, round(only.since.timestamp() * 1000)))
        newest = "+" if only.until is None else str(max(0, round(only.until.timestamp() * 1000)))
        found: list[_Stored] = []
        scanned, cursor = 0, before
        while scanned < MAX_SCANNED:
            page = await self._newest(chain, newest=f"({cursor}" if cursor else newest, oldest=oldest)
            for stored in page:
                cursor, scanned = stored.id, scanned + 1
                if _fits(stored.row, only, actor, person):
                    found.append(stored)
                    if len(found) == limit:
                        return AuditPage(await self._resolve(found), cursor)
            if len(page) < _PAGE:
                return AuditPage(await self._resolve(found))
        return AuditPage(await self._resolve(found), cursor)

    async def _resolve(self, found: Sequence[_Stored]) -> list[AuditRow]:
        """Return rows of the stream with what their references stand for."""
        names = await self._names(found)
        return [_readable(stored, names, self._seal) for stored in found]

    async def _names(self, found: Sequence[_Stored]) -> dict[str, dict[str, Any]]:
        """Return what is known of the references in *found*: ``name``, and of people ``id``."""
        references = sorted({reference for stored in found if stored.row for reference in stored.row.references})
        values = await self._redis.hmget(_NAMES, references) if references else []
        return {
            reference: unpack(value, _FORMAT, "a name in the audit log")
            for reference, value in zip(references, values, strict=True)
            if value is not None
        }

    # Checking

    async def verify(self, workspace_id: str | None, known: AuditLink | None = None) -> Verdict:
        """Check a whole chain, a page at a time, and return what is wrong at first.

        *known* is a row from a log outside (event ``audit.appended``): the chain must still have it, with that hash.
        What is wrong is also the event ``audit.broken``.
        """
        chain = _Chain.of(workspace_id)
        while True:
            anchor = await self._text(chain.anchor)
            verdict = await self._check(chain, anchor, known)
            if verdict.is_intact:
                return verdict
            if await self._text(chain.anchor) == anchor:  # else rows were pruned meanwhile
                log.error("audit.broken", **chain.labels, why=verdict.problem, sequence=verdict.row)
                return verdict

    async def _check(self, chain: _Chain, anchor: str, known: AuditLink | None) -> Verdict:
        begin = _Anchor.open(anchor, chain, self._seal, self._now())
        walk = _Walk(self._seal, chain, begin.link, known)
        walk.note(begin.problem, 0)
        last = "-"
        while True:
            # The head first: if no row follows then, it is the head of what was checked.
            head = await self._text(chain.head)
            page = await self._oldest(chain, oldest=last)
            for stored in page:
                walk.check(stored)
                last = f"({stored.id}"
            if walk.problem or not page:
                return walk.verdict(head)

    async def export(self, workspace_id: str | None) -> AsyncIterator[str]:
        """Yield the whole chain as JSON lines, which `verify_export` checks wherever they are.

        The first line has ``format``, ``chain``, ``anchor`` and ``head``; each of the others has a row as it was signed
        (``row``, a JSON text), its ``hash``, and in ``names`` what its references stand for now, which is not signed.
        """
        chain = _Chain.of(workspace_id)
        anchor, head = await self._text(chain.anchor), await self._text(chain.head)
        yield json.dumps({"format": _FORMAT, "chain": chain.name, "anchor": anchor, "head": head})
        opened = self._seal.open("head", head, chain)
        end = float("inf") if opened is None else opened["sequence"]
        last = "-"
        while found := await self._oldest(chain, oldest=last):
            names = await self._names(found)
            for stored in found:
                if stored.sequence > end:
                    return  # it was appended since
                last = f"({stored.id}"
                references = stored.row.references if stored.row else ()
                known = {one: names[one]["name"] or names[one]["id"] for one in references if one in names}
                yield json.dumps({"row": stored.text, "hash": stored.hash, "names": known})

    # Forgetting

    async def erase_actor(self, person: str) -> bool:
        """Delete the name and the places of a person; their rows stay. Return False if there was nothing to delete."""
        name = encode_id(person)
        fields = {name: await self._redis.hget(_REFERENCES, name)}
        async for field_, reference in self._redis.hscan_iter(_REFERENCES, match=f"{name}/*", count=_PAGE):
            fields[str(field_)] = reference
        fields = {one: reference for one, reference in fields.items() if reference is not None}
        await self._drop(fields)
        return bool(fields)

    async def _drop(self, fields: Mapping[str, Any]) -> None:
        """Delete references, by their fields."""
        if not fields:
            return
        async with self._redis.pipeline() as pipe:
            pipe.hdel(_REFERENCES, *fields)
            pipe.hdel(_NAMES, *fields.values())
            pipe.zrem(_SEEN, *fields.values())
            await pipe.execute()

    async def retention(self, workspace_id: str | None) -> int:
        """Return for how many days the rows of a chain are kept."""
        stored = await self._redis.get(_Chain.of(workspace_id).key("retention"))
        return RETENTION_DAYS if stored is None else int(unpack(stored, _FORMAT, "a retention")["days"])

    async def set_retention(self, workspace_id: str | None, days: int) -> None:
        """Keep the rows of a chain for *days* days from now on; older ones go when `prune` runs.

        Raises `InvalidRetention`.
        """
        if not 1 <= days <= MAX_RETENTION_DAYS:
            raise InvalidRetention(f"an audit log is kept for 1 to {MAX_RETENTION_DAYS} days")
        await self._redis.set(_Chain.of(workspace_id).key("retention"), pack(_FORMAT, days=days))

    async def prune(self, workspace_id: str | None) -> int:
        """Delete the rows that are older than the retention, and return how many.

        They are checked before. What was wrong with them is the event ``audit.broken``, and `verify` tells it for as
        long as a row would be kept.
        """
        chain = _Chain.of(workspace_id)
        oldest, pruned = self._now() - await self.retention(workspace_id) * _DAY_MS, 0
        while True:
            anchor = await self._text(chain.anchor)
            found = await self._oldest(chain, newest=str(max(0, oldest - 1)))
            if not found:
                break
            begin = _Anchor.open(anchor, chain, self._seal, self._now())
            walk = _Walk(self._seal, chain, begin.link)
            for stored in found:
                walk.check(stored)
            problem, since = (begin.problem, begin.since) if begin.since >= oldest else ("", 0)
            if walk.problem:
                problem, since = walk.problem, self._now()
                log.error("audit.broken", **chain.labels, why=problem, sequence=walk.row)
            link = AuditLink(found[-1].sequence, found[-1].hash)
            signed = self._seal.close("anchor", chain, link, problem=problem, since=since)
            after = f"{found[-1].milliseconds}-{link.sequence + 1}"
            pruned += len(found) * await self._redis.eval(_PRUNE, 2, chain.rows, chain.anchor, anchor, signed, after)
        if pruned:
            log.info("audit.pruned", **chain.labels, rows=pruned)
        return pruned

    async def prune_all(self, workspace_ids: Iterable[str]) -> None:
        """Prune the chains of all workspaces and the one beyond them, and the names that no row is left to need."""
        longest = 0
        for workspace_id in [None, *workspace_ids]:
            await self.prune(workspace_id)
            longest = max(longest, await self.retention(workspace_id))
        unseen = self._now() - longest * _DAY_MS - 1
        while found := await self._redis.zrangebyscore(_SEEN, "-inf", unseen, start=0, num=_PAGE):
            references = [str(reference) for reference in found]
            stored = await self._redis.hmget(_NAMES, references)
            fields = {
                unpack(value, _FORMAT, "a name in the audit log")["field"]: reference
                for reference, value in zip(references, stored, strict=True)
                if value is not None
            }
            await self._drop(fields)
            await self._redis.zrem(_SEEN, *references)

    # Calls

    async def _text(self, key: str) -> str:
        return str(await self._redis.get(key) or "")

    async def _oldest(self, chain: _Chain, *, oldest: str = "-", newest: str = "+") -> list[_Stored]:
        """Return a page of rows between two ids of the stream, the oldest first."""
        page: Any = await self._redis.xrange(chain.rows, min=oldest, max=newest, count=_PAGE)
        return [_Stored.of(id_, values) for id_, values in page]

    async def _newest(
        self, chain: _Chain, *, oldest: str = "-", newest: str = "+", count: int = _PAGE
    ) -> list[_Stored]:
        """Return a page of rows between two ids of the stream, the newest first."""
        page: Any = await self._redis.xrevrange(chain.rows, max=newest, min=oldest, count=count)
        return [_Stored.of(id_, values) for id_, values in page]

    def _now(self) -> int:
        return int(self._clock() * 1000)


async def prune_daily(
    audit: AuditLog, workspaces: Workspaces, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Prune all chains now and every day, until cancelled. Runs in one process for all."""
    while True:
        try:
            await audit.prune_all([workspace.id for workspace in await workspaces.all()])
        except StoreUnavailable as error:
            log.warning("audit.prune_failed", why=str(error))
        await sleep(PRUNE_SECONDS)


async def audit_key(settings: Settings) -> bytes:
    """Return ``AUDIT_KEY``, or the key in ``DATA_DIR/audit-key``, which is generated if it is missing.

    Raises `runtime.access.SecretUnreadable`, and `OSError` if the file can be neither read nor written.
    """
    if settings.audit_key is not None:
        return settings.audit_key.get_secret_value().encode()
    return (await asyncio.to_thread(secret_in_file, settings.data_dir / AUDIT_KEY_FILE)).encode()


def verify_export(lines: Iterable[str], key: bytes, known: AuditLink | None = None) -> Verdict:
    """Check the lines of `AuditLog.export` with the *key*; *known* as for `AuditLog.verify`.

    Raises `ValueError` for lines that are no export.
    """
    rows = (json.loads(line) for line in lines if line.strip())
    try:
        top = next(rows)
        chain = _Chain.of(top["chain"] or None)
        seal = _Seal(key)
        begin = _Anchor.open(top["anchor"], chain, seal, 0)
        walk = _Walk(seal, chain, begin.link, known)
        walk.note(begin.problem, 0)
        for row in rows:
            walk.check(_Stored.of("", {"row": row["row"], "hash": row["hash"]}))
    except (StopIteration, KeyError, TypeError) as error:
        raise ValueError("this is no export of an audit log: its first line, or a field, is missing") from error
    return walk.verdict(top["head"])


# Chains and what is signed


@dataclass(frozen=True, slots=True)
class _Chain:
    """The keys of one chain; ``name`` is the workspace's id, or empty for acts beyond one."""

    name: str
    tag: str

    @classmethod
    def of(cls, workspace_id: str | None) -> _Chain:
        return cls("", "{audit}") if workspace_id is None else cls(workspace_id, Scope(workspace_id).tag)

    def key(self, *parts: str) -> str:
        return redis_key("audit", self.tag, *parts)

    @property
    def rows(self) -> str:
        return self.key("rows")

    @property
    def head(self) -> str:
        return self.key("head")

    @property
    def anchor(self) -> str:
        return self.key("anchor")

    @property
    def labels(self) -> dict[str, str]:
        """What an event about the chain is labelled with."""
        return {"workspace_id": self.name} if self.name else {}


class _Seal:
    """Signs texts with the key, and checks signatures. *what* keeps rows, heads and anchors apart."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.key_id = self.sign("key", "")[:8]
        """Tells two keys apart, and nothing of either."""

    def sign(self, what: str, text: str) -> str:
        return hmac.new(self._key, f"{what}\n{text}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def has_signed(self, what: str, text: str, signature: str) -> bool:
        signed = self.sign(what, text).encode()
        return hmac.compare_digest(signed, signature.encode("utf-8", "surrogatepass"))

    def close(self, what: str, chain: _Chain, link: AuditLink, **fields: Any) -> str:
        """Return a signed text that says where *chain* ends or begins."""
        text = pack(_FORMAT, chain=chain.name, sequence=link.sequence, hash=link.hash, **fields)
        return f"{self.sign(what, text)} {text}"

    def open(self, what: str, signed: str, chain: _Chain) -> dict[str, Any] | None:
        """Return the fields of a text made by `close` for *chain*; None if it is not genuine."""
        signature, _, text = signed.partition(" ")
        if not self.has_signed(what, text, signature):
            return None
        fields = unpack(text, _FORMAT, "the audit log")
        return fields if fields["chain"] == chain.name else None


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Where a chain begins: the last row that was removed, and what was wrong with such rows (``since``, in ms)."""

    link: AuditLink
    problem: str = ""
    since: int = 0

    @classmethod
    def open(cls, signed: str, chain: _Chain, seal: _Seal, now: int) -> _Anchor:
        """Read the signed anchor of *chain*; empty if no row was removed."""
        if not signed:
            return cls(START)
        fields = seal.open("anchor", signed, chain)
        if fields is None:
            return cls(START, "The anchor, which says where the log begins, is not genuine.", now)
        return cls(AuditLink(fields["sequence"], fields["hash"]), fields["problem"], fields["since"])


class _Walk:
    """Checks the rows of a chain one after the other, from the row after *last* on. The first problem stays."""

    def __init__(self, seal: _Seal, chain: _Chain, last: AuditLink, known: AuditLink | None = None) -> None:
        self._seal = seal
        self._chain = chain
        self._anchor = self._last = last
        self._known = known
        self.problem, self.row = "", 0

    def note(self, problem: str, row: int) -> None:
        if not self.problem:
            self.problem, self.row = problem, row

    def check(self, stored: _Stored) -> None:
        """Check that a row is genuine and follows the row before."""
        if self.problem:
            return
        if problem := self._problem_of(stored):
            self.note(problem, self._last.sequence + 1)
        else:
            self._last = AuditLink(self._last.sequence + 1, stored.hash)

    def _problem_of(self, stored: _Stored) -> str:
        number, row = self._last.sequence + 1, stored.row
        if not self._seal.has_signed("row", stored.text, stored.hash):
            if row is not None and row.key != self._seal.key_id:
                return f"Row {number} was changed, or written with another key: AUDIT_KEY must be the same everywhere."
            return f"Row {number} was changed."
        if row is None:
            raise NewerFormat("a newer version wrote rows of the audit log: run that version to check them")
        if row.sequence > number:
            rows = f"Row {number} is" if row.sequence == number + 1 else f"Rows {number} to {row.sequence - 1} are"
            return f"{rows} missing."
        if row.chain != self._chain.name or row.sequence < number or stored.id not in ("", f"{row.at}-{row.sequence}"):
            return f"Another row stands in the place of row {number}."
        if row.is_broken:
            return f"The log was cut before row {number}: its head was removed or changed."
        if row.former != self._last.hash:
            return f"Row {number} does not follow the row before it."
        if self._known is not None and self._known.sequence == number and self._known.hash != stored.hash:
            return f"Row {number} is not the one that was logged outside."
        return ""

    def verdict(self, head: str) -> Verdict:
        """Return the result, if *head* is the chain's signed head."""
        fields, last = self._seal.open("head", head, self._chain), self._last.sequence
        if not head and self._last == START:
            fields = {"sequence": 0, "hash": ""}  # nothing was ever appended
        if fields is None:
            self.note("The head, which says where the log ends, is missing or not genuine.", last)
        elif fields["sequence"] > last:
            self.note(f"The log was cut: it had {fields['sequence']} rows, and it ends after row {last}.", last + 1)
        elif AuditLink(fields["sequence"], fields["hash"]) != self._last:
            number = fields["sequence"] + 1
            self.note(f"A former head was put back: it does not know row {number}.", number)
        elif self._known is not None and self._known.sequence > last:
            self.note(f"Row {self._known.sequence} was logged outside, and the log ends after row {last}.", last + 1)
        return Verdict(self._anchor, self._last, self.problem, self.row)


# Rows and what they hold


class _Row(BaseModel):
    """A row as it is signed; see `AuditEntry`. Actor, person and origin are references, ``at`` is in milliseconds.

    ``former`` is the hash of the row before, ``key`` tells with which key it was signed. ``is_broken``: the head was
    missing or false when this row was appended.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    v: Literal[1]
    chain: str
    sequence: int
    former: str
    at: int
    key: str
    is_broken: bool
    id: str
    operation: str
    actor: str
    caller: str
    face: str
    outcome: str
    error: str
    target: str
    person: str
    before: Excerpt | None
    after: Excerpt | None
    note: str
    origin: str

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.actor, self.person, self.origin)))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A row as the stream has it: its id (empty in an export), the signed text and the signature, which is its hash.

    ``row`` is the text read; None if it is not a row of this format.
    """

    id: str
    text: str
    hash: str
    row: _Row | None

    @classmethod
    def of(cls, id_: str, values: Mapping[str, Any]) -> _Stored:
        text = str(values.get("row"))
        try:
            row = _Row.model_validate_json(text)
        except ValidationError:
            row = None
        return cls(id_, text, str(values.get("hash")), row)

    @property
    def milliseconds(self) -> int:
        return int(self.id.partition("-")[0])

    @property
    def sequence(self) -> int:
        return int(self.id.partition("-")[2])


def _readable(stored: _Stored, names: Mapping[str, Mapping[str, Any]], seal: _Seal) -> AuditRow:
    """Return a row for people, with what its references stand for."""
    row = AuditRow(
        sequence=stored.sequence,
        at=datetime.fromtimestamp(min(stored.milliseconds, _LATEST_MS) / 1000, UTC),
        hash=stored.hash,
        is_genuine=seal.has_signed("row", stored.text, stored.hash),
    )
    if (fields := stored.row) is None:
        return row

    def person(reference: str) -> Actor:
        known = names.get(reference)
        return ERASED if known is None else Actor(known["id"], known["name"])

    return replace(
        row,
        operation=fields.operation,
        actor=person(fields.actor),
        caller=fields.caller,
        face=fields.face,
        outcome=fields.outcome,
        error=fields.error,
        target=fields.target,
        target_person=person(fields.person) if fields.person else None,
        before=fields.before,
        after=fields.after,
        note=fields.note,
        origin=str(names[fields.origin]["name"]) if fields.origin in names else "",
    )


def _subject(actor: Actor, place: str = "") -> tuple[str, str, str]:
    """Return the field of a person, or of a person's place, what it stands for, and the command that stores that."""
    person = encode_id(actor.id)
    if place:
        name = f"{person}/{encode_id(place)}"
        return name, pack(_FORMAT, field=name, id=actor.id, name=place), "HSET"
    # An act without a name must not take the known one away.
    command = "HSET" if actor.name else "HSETNX"
    return person, pack(_FORMAT, field=person, id=actor.id, name=_cut(actor.name)), command


def _cut(text: str) -> str:
    """Return *text* in Unicode that every store accepts, and not too long."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_LABEL_CHARACTERS else text[: MAX_LABEL_CHARACTERS - 1] + "…"


def _excerpt(text: str | None) -> Excerpt | None:
    if text is None:
        return None
    data = text.encode("utf-8", "replace")
    if len(text) <= MAX_EXCERPT_CHARACTERS:
        return Excerpt(data.decode())
    return Excerpt(None, hashlib.sha256(data).hexdigest(), len(data))


def _fits(row: _Row | None, only: AuditFilter, actor: Any, person: Any) -> bool:
    if row is None:  # nobody knows what it said
        return not (only.actor or only.operation or only.target or only.outcome)
    return (
        (not only.actor or row.actor == actor)
        and (not only.operation or row.operation == only.operation)
        and (only.outcome is None or row.outcome == only.outcome)
        and (
            not only.target
            or only.target.casefold() in row.target.casefold()
            or (person is not None and row.person == person)
        )
    )
