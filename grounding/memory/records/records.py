"""The typed records of all workspaces: add, change, find, and forget them.

`Records` does that on a store and an index; the pure functions below it build new and changed records.
"""

from __future__ import annotations

import asyncio
import builtins
import hashlib
import random
import re
import secrets
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import structlog
from pydantic import ValidationError

from connectors.message import EVERYONE, Scope
from connectors.redis_calls import RedisCall
from grounding.memory.records import lifecycle
from grounding.memory.records.lifecycle import Rules
from grounding.memory.records.model import (
    STATES,
    Added,
    AddOutcome,
    FoundRecord,
    NeverDeleted,
    NewRecord,
    NoSuchRecord,
    Provenance,
    Record,
    RecordBusy,
    RecordRefused,
    State,
    Type,
    indexed_text,
    with_short_forms,
)
from grounding.memory.records.store import AddLookup, Change, RecordStore, RecordWrite
from grounding.prompt_input import Tokens
from grounding.retrieval import EmbedderUnavailable, IndexUnavailable

_ATTEMPTS = 16
"""Attempts to write a record that others write at the same time."""
_PAUSE_SECONDS = (0.001, 0.1)
"""Upper bounds of the first and of the longest random pause between two attempts."""
_PAGE = 200
MOST_SUMMED_UP = 20
"""So many records are summed up at most before other workspaces have their turn."""
SUMMARY_RETRY = timedelta(hours=1)
"""When a record is summed up that no model could sum up."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_CHARACTERS = 10
"""50 bits: among a million records of a workspace two ids collide with a chance of 1 in 2,000. Then the later record is
refused."""
TEXT_MAX_CHARACTERS = 20_000
SHORT_MAX_CHARACTERS = 2_000
"""Applies to a censor's trigger and reason."""
TRUSTED = frozenset({"person", "tool", "extraction"})
"""Origins that are people's own words, or the model's wording of these alone."""
MODELS = frozenset({"tool", "extraction"})
"""The trusted origins whose wording is the model's."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NOT_WORDS = re.compile(r"(?:(?!(?<!\w)[-−]\d)[^\w%$€£+#<>=≠≤≥])+")
"""Everything but letters, digits and the signs that can reverse a text's meaning (signs of numbers, comparisons)."""
_log = structlog.get_logger()


class RecordHit(NamedTuple):
    """A record that the index found.

    ``owner`` is its audience (empty: the workspace). ``deep`` is the cosine of the deeper vectors and ``vector`` the
    record's own one, if they were wanted and are there.
    """

    owner: str
    id: str
    similarity: float
    matched: float
    deep: float | None = None
    vector: Sequence[float] = ()


class RecordSearch(Protocol):
    """The index of the records. Raises `IndexUnavailable` and `EmbedderUnavailable`."""

    async def find(
        self, scope: Scope, query: str, searches: Sequence[tuple[int, Collection[Type]]], *, deep: bool = False
    ) -> Sequence[RecordHit]:
        """Return what each of *searches* (how many records at most, of which types; no types: all) finds for *query*,
        the best first, one search after the other; with *deep* also the deeper vectors."""

    async def follow(self, scope: Scope, ids: Sequence[str]) -> None:
        """Update the index for these records of the scope's owner."""


class Records:
    """Adds, changes, finds and forgets records on a store and an index.

    *summarise* asks a model to sum up a long record; it returns None if that cannot be done now. `sweep` calls it.

    Reading shows the records of the workspace and of the scope's audience, and nobody else's (only
    `connectors.message.EVERYONE` sees all). What is written belongs to the scope's audience. A write that the index
    cannot follow now is indexed later. Every method raises `connectors.message.StoreUnavailable`, and those that write
    `RecordRefused`.
    """

    def __init__(
        self,
        store: RecordStore,
        tokens: Tokens,
        index: RecordSearch,
        rules: Rules | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        summarise: Callable[[Scope, Record], Awaitable[str | None]] | None = None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._index = index
        self._rules = replace(rules or Rules(), sums_up=summarise is not None)
        self._clock = clock
        self._summarise = summarise

    async def add(self, scope: Scope, new: NewRecord, by: Provenance, key: str = "") -> Added:
        """Store *new*. If a record with the same text exists, confirm it instead.

        Calls with the same non-empty *key* take effect once. Raises `NoSuchRecord` if *new* supersedes a record of
        another owner.
        """
        async for _ in _attempts():
            at = stamp(self._clock())
            record = self._detailed(build_record(new, new_id(), scope.audience or "", by, at))
            seen = await self._store.look(scope, key, digest(record), new.supersedes)
            if seen.was_done and seen.done is None:
                raise RecordRefused("what this call kept has been erased since")
            if seen.done is not None:
                return Added(seen.done, "unchanged")
            if new.supersedes and seen.other is None:
                raise NoSuchRecord(f"there is no record {new.supersedes!r} to be superseded")
            same = seen.same
            puts = self._confirming(seen, new, by, at) or self._adding(seen, record, by, at)
            if by.context_id and puts[0].after.provenance is by:
                # Noted before the write: if the write fails, readers skip the id.
                await self._store.note_source(scope, by.context_id, puts[0].after.id)
            wrote = await self._store.write(scope, puts, key=key, turn_id=by.turn_id, known=same.id if same else "")
            if wrote == "said" and same is not None:
                return Added(same, "unchanged")
            if wrote == "ok":
                await self._after_write(scope, puts)
                return Added(puts[0].after, outcome_of_add(puts[0].before, puts[0].after))
        raise RecordBusy

    def _confirming(self, seen: AddLookup, new: NewRecord, by: Provenance, at: str) -> list[RecordWrite]:
        """Return the writes that confirm the stored record with the same text; empty if there is none."""
        same = seen.same
        if same is None or not lifecycle.confirms_on_repeat(same) or same.id == new.supersedes:
            return []
        again = self._detailed(confirm_record(same, new, by, self._rules, at))
        return [
            self._put(same, again, by, "confirmed", said_in=by.turn_id),
            *self._superseding(seen.other, again, by, at),
        ]

    def _adding(self, seen: AddLookup, record: Record, by: Provenance, at: str) -> list[RecordWrite]:
        due = lifecycle.next_due(record, self._rules)
        change = _change(None, record, by, "added")
        puts = [RecordWrite(record, None, change, digest(record), same_id=seen.same_id, said_in=by.turn_id, due=due)]
        return puts + self._superseding(seen.other, record, by, at)

    def _superseding(self, other: Record | None, record: Record, by: Provenance, at: str) -> list[RecordWrite]:
        if other is None or other.superseded_by == record.id:
            return []
        old = self._detailed(lifecycle.supersede(other, record.id, at))
        return [] if old == other else [self._put(other, old, by, "superseded")]

    async def change(
        self, scope: Scope, record_id: str, fields: Mapping[str, Any], by: Provenance, key: str = ""
    ) -> Record:
        """Change fields of a record, and compute micro and summary anew.

        See `apply_changes` for the fields. Calls with the same non-empty *key* take effect once. Raises `NoSuchRecord`
        and `NeverDeleted`.
        """
        trusted = by.origin in TRUSTED

        def step(record: Record, at: str) -> Record:
            after = apply_changes(record, fields, self._rules, at, is_trusted=trusted)
            return with_new_provenance(record, after, by)

        return await self._apply(scope, record_id, step, by, _why(fields), key)

    async def share(self, scope: Scope, record_id: str, by: Provenance) -> Record:
        """Make a record of the scope's audience visible to the whole workspace.

        Raises `NoSuchRecord`, and `RecordRefused` if the record is superseded.
        """
        async for _ in _attempts():
            before = await self.get(scope, record_id)
            if not before.audience:
                return before
            if before.superseded_by:
                raise RecordRefused(f"{record_id} was superseded by {before.superseded_by}: share that one")
            # The record that it superseded stays private, and its id too.
            fields = {"v": 2, "audience": "", "shared_by": by.author, "supersedes": "", "version": before.version + 1}
            after = before.model_copy(update={**fields, "changed_at": stamp(self._clock())})
            if await self.move(scope, before, after, _change(before, after, by, "shared")):
                _log.info("record.shared", workspace_id=scope.workspace_id, record_id=record_id, by=by.author)
                return after
        raise RecordBusy

    async def move(self, scope: Scope, before: Record, after: Record, change: Change) -> bool:
        """Move *before* to another audience, as *after*, and log *change*. Returns False if it changed meanwhile."""
        if not await self._store.move(scope, before, after, digest(after), change):
            return False
        for record in (before, after):
            await self.follow(_owner(scope, record), [record.id])
        return True

    async def count_use(self, scope: Scope, ids: Collection[str]) -> None:
        """Count one more activation of procedures that were followed, or of censors that acted.

        Ids that no longer exist are skipped.
        """

        def step(record: Record, at: str) -> Record:
            return lifecycle.use(record, self._rules, at)

        async def one(record_id: str) -> None:
            with suppress(NoSuchRecord):
                await self._apply(scope, record_id, step, Provenance(), "used")

        await asyncio.gather(*map(one, dict.fromkeys(ids)))

    async def erase(self, scope: Scope, record_id: str, by: Provenance) -> None:
        """Delete a record with its history. Raises `NoSuchRecord`, and `NeverDeleted` for decisions."""
        async for _ in _attempts():
            record = await self.get(scope, record_id)
            if record.type is Type.DECISION:
                raise NeverDeleted
            if await self._erase_unchanged(scope, record, "erased"):
                return
        raise RecordBusy

    async def forget(self, scope: Scope) -> int:
        """Delete all records of the scope's audience, decisions too, and return their number.

        Raises ValueError if the scope names nobody.
        """
        if scope.audience is None:
            raise ValueError("one audience's records are forgotten: name it in the scope")
        count, contexts, is_indexed = 0, {""}, True
        while some := await self._store.sample(scope):
            for record in some:
                if await self._store.erase(scope, record, digest(record)):
                    _log_change(scope, record, record.state, "", "forgotten")
                    contexts.add(record.provenance.context_id)
                    count += 1
            is_indexed = await self.follow(scope, [record.id for record in some]) and is_indexed
        await self._store.forget_owner(scope, contexts, is_indexed=is_indexed)
        return count

    async def forget_said(self, scope: Scope, turn_ids: Collection[str] | None = None) -> int:
        """Delete the records that came from the scope's context, or only from the turns *turn_ids* of it.

        Deletes those of the scope's audience if it names one, else those of the workspace; decisions too. Returns their
        number. Repeating it does no harm.
        """
        count, ids = 0, await self._store.ids_from_context(scope)
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            for record in await self._store.read(scope, page, own=True):
                of = record.provenance
                if of.context_id == scope.context_id and (turn_ids is None or of.turn_id in turn_ids):
                    count += await self._erase_any(scope, record)
            if turn_ids is None:
                await self._store.forget_source(scope, page)
        return count

    async def _erase_any(self, scope: Scope, record: Record) -> bool:
        async for _ in _attempts():
            if await self._erase_unchanged(scope, record, "forgotten"):
                return True
            found = await self._store.read(scope, [record.id], own=True)
            if not found:
                return False
            record = found[0]
        raise RecordBusy

    async def _erase_unchanged(self, scope: Scope, record: Record, why: str) -> bool:
        """Delete *record*, also from the index. Returns False if it changed meanwhile."""
        if not await self._store.erase(scope, record, digest(record)):
            return False
        _log_change(scope, record, record.state, "", why)
        await self.follow(_owner(scope, record), [record.id])
        return True

    async def read(self, scope: Scope, ids: Collection[str]) -> list[Record]:
        """Return the records of *ids* that exist and are not hidden, in the order of *ids*; one round trip."""
        return [one for one in await self._store.read(scope, list(ids)) if not one.is_hidden]

    async def count(self, scope: Scope) -> int:
        """Return the number of records, hidden ones and censors included, in one round trip."""
        return await self._store.count(scope)

    async def get(self, scope: Scope, record_id: str) -> Record:
        """Return one record. Raises `NoSuchRecord`."""
        found = await self._store.read(scope, [record_id])
        if not found:
            raise NoSuchRecord(f"there is no record {record_id!r} here")
        return found[0]

    async def list(
        self,
        scope: Scope,
        types: Collection[Type] = (),
        states: Collection[State] = (),
        limit: int = 100,
        before: str = "",
        *,
        own: bool = False,
    ) -> list[Record]:
        """Return the newest *limit* records, the newest first. Without *states* hidden ones are left out.

        *before* is the `place` of the previous page's last record. *own*: only those of the scope's audience.
        """
        return await self._store.page(scope, types, states, limit, before, own=own)

    async def standing(self, scope: Scope, newest: builtins.list[Record] | None = None) -> Sequence[Record]:
        """Return the censors in force and the verbatim records, the oldest first, without a search. *newest* is the
        result of `standing_call`, if it was read before."""
        return await self._store.standing(scope, newest)

    def standing_call(self, scope: Scope) -> RedisCall[builtins.list[Record]]:
        """See `RecordStore.standing_call`."""
        return self._store.standing_call(scope)

    def count_call(self, scope: Scope) -> RedisCall[int]:
        """Return the call of `count`."""
        return self._store.count_call(scope)

    async def search(self, scope: Scope, query: str, top_k: int, types: Collection[Type] = ()) -> Sequence[FoundRecord]:
        """Return at most *top_k* records of *types* (empty: all) that are relevant to *query*, the best first.

        Hidden records are left out. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        if not query.strip() or top_k < 1:
            return []
        searches = [(top_k, types)]
        if scope.audience != EVERYONE:
            return await self._found(scope, await self._index.find(scope, query, searches))
        hits: dict[str, RecordHit] = {}
        for owner in await self._store.owners(scope):
            hits |= {hit.id: hit for hit in await self._index.find(owner, query, searches)}
        return await self._found(scope, sorted(hits.values(), key=lambda hit: hit.similarity, reverse=True)[:top_k])

    async def search_by_type(self, scope: Scope, query: str, limits: Mapping[Type, int]) -> Sequence[FoundRecord]:
        """Return the records that are relevant to *query*, of each type at most as many as *limits* says, the best of
        each type first, with their deeper vectors.

        Hidden records are left out. Raises `IndexUnavailable` and `EmbedderUnavailable`.
        """
        if not query.strip():
            return []
        searches = [(most, (of,)) for of, most in limits.items()]
        return await self._found(scope, await self._index.find(scope, query, searches, deep=True))

    async def _found(self, scope: Scope, hits: Sequence[RecordHit]) -> builtins.list[FoundRecord]:
        records = {one.id: one for one in await self._store.read(scope, [hit.id for hit in hits])}
        found: builtins.list[FoundRecord] = []
        for hit in hits:
            record = records.get(hit.id)  # the index may be behind the store
            if record is not None and record.audience == hit.owner and not record.is_hidden:
                found.append(FoundRecord(record, hit.similarity, hit.matched, hit.deep, hit.vector))
        return found

    async def history(self, scope: Scope, record_id: str) -> Sequence[Change]:
        """Return the newest changes of a record, the newest first. Raises `NoSuchRecord`."""
        return await self._store.history(scope, await self.get(scope, record_id))

    async def counts(self, scope: Scope) -> Mapping[tuple[Type, State], int]:
        """Count the scope's own records by type and state, hidden ones too."""
        return await self._store.counts(scope)

    async def sweep(self, scope: Scope) -> int:
        """Apply age to all due records of the workspace, and have long ones summed up, a page at a time; return
        their number."""
        count = 0
        while due := await self._store.due(scope, self._clock()):
            asks_model = self._summarise is not None and any(map(lifecycle.lacks_abstract, due))
            swept = due[:MOST_SUMMED_UP] if asks_model else due
            for record in swept:
                await self._sweep_one(scope, record)
            count += len(swept)
            if asks_model:  # other workspaces have their turn before it goes on
                await self._store.mark_behind(scope)
                break
        return count

    async def catch_up(self, scope: Scope) -> bool:
        """Update the index for all pending records of the workspace. Returns False if the index is not available."""
        while waiting := await self._store.unindexed(scope):
            for owner in dict.fromkeys(owner for owner, _, _ in waiting):
                if not await self.follow(owner, [record_id for one, record_id, _ in waiting if one == owner]):
                    return False
        return True

    async def _sweep_one(self, scope: Scope, record: Record) -> None:
        after, why = lifecycle.sweep(record, self._rules, stamp(self._clock())), "aged"
        if after == record and self._summarise is not None and lifecycle.lacks_abstract(record):
            abstract = await self._summarise(scope, record)
            if abstract is None:
                await self._store.set_due(scope, record, self._clock() + SUMMARY_RETRY)
                return
            after = record.model_copy(update={"abstract": abstract, "version": record.version + 1})
            why = "summed up"
        if after != record:
            put = self._put(record, self._detailed(after), Provenance(), why)
            if await self._store.write(scope, [put]) == "ok":
                await self._after_write(scope, [put])
            return  # if another write was quicker, the record is still due
        await self._store.set_due(scope, record, lifecycle.next_due(record, self._rules))

    async def follow(self, scope: Scope, ids: Sequence[str]) -> bool:
        """Update the index for these records of the scope's owner. Returns False if it has to be done later."""
        try:
            await self._index.follow(scope, ids)
        except (IndexUnavailable, EmbedderUnavailable, TimeoutError) as error:
            why = str(error) or "timeout"
            _log.warning("index.failed", workspace_id=scope.workspace_id, why=why)
            await self._store.mark_behind(scope)
            return False
        return True

    async def _apply(
        self,
        scope: Scope,
        record_id: str,
        step: Callable[[Record, str], Record],
        by: Provenance,
        why: str,
        key: str = "",
    ) -> Record:
        async for _ in _attempts():
            before = await self.get(scope, record_id)
            if key and await self._store.was_done(scope, key):
                return before
            after = step(before, stamp(self._clock()))
            if after == before:
                return before
            after = self._detailed(after.model_copy(update={"version": before.version + 1}))
            put = self._put(before, after, by, why)
            if after.provenance != before.provenance:
                await self._store.note_source(_owner(scope, after), after.provenance.context_id, after.id)
            if await self._store.write(scope, [put], key=key) == "ok":
                await self._after_write(scope, [put])
                return after
        raise RecordBusy

    def _detailed(self, record: Record) -> Record:
        return with_short_forms(record, self._tokens)

    def _put(self, before: Record, after: Record, by: Provenance, why: str, said_in: str = "") -> RecordWrite:
        restated = any(getattr(before, name) != getattr(after, name) for name in ("trigger", "kind", "due"))
        restated = restated or (before.text != after.text and after.state is not State.ARCHIVED)
        return RecordWrite(
            after,
            before,
            _change(before, after, by, why),
            digest=digest(after) if restated else "",
            digest_before=digest(before) if restated else "",
            said_in=said_in,
            due=lifecycle.next_due(after, self._rules),
            indexed=indexed_text(before) != indexed_text(after) or before.is_hidden is not after.is_hidden,
        )

    async def _after_write(self, scope: Scope, puts: Sequence[RecordWrite]) -> None:
        for put in puts:
            if put.before is None or put.before.state is not put.after.state:
                from_state = put.before.state if put.before else ""
                _log_change(scope, put.after, from_state, put.after.state, put.change.why)
            former = put.before.provenance.context_id if put.before else ""
            if former not in ("", put.after.provenance.context_id):
                await self._store.forget_source(replace(_owner(scope, put.after), context_id=former), [put.after.id])
        if any(put.due is not None and put.due <= self._clock() for put in puts):
            await self._store.mark_behind(scope)
        wanted = [put.after for put in puts if put.indexed]
        if wanted:
            await self.follow(_owner(scope, wanted[0]), [record.id for record in wanted])


def new_id() -> str:
    """Return a random id."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_ID_CHARACTERS))


def _owner(scope: Scope, record: Record) -> Scope:
    return Scope(scope.workspace_id, None, record.audience or None)


def _change(before: Record | None, after: Record, by: Provenance, why: str) -> Change:
    return Change(after.changed_at, by.author, by.turn_id, before.state if before else "", after.state, why)


def _why(fields: Mapping[str, Any]) -> str:
    """Return the word for the history that describes a change of *fields*."""
    words = {
        "confirm": "confirmed",
        "outcome": "outcome",
        "false_positive": "false positive",
        "take_back": "taken back",
        "state": "by hand",
        "status": "by hand",
        "verbatim": "verbatim",
    }
    return next((word for name, word in words.items() if name in fields), "changed")


def _log_change(scope: Scope, record: Record, from_state: str, to_state: str, why: str) -> None:
    _log.info(
        "record.changed",
        workspace_id=scope.workspace_id,
        record_id=record.id,
        type=record.type.value,
        from_state=str(from_state),
        to_state=str(to_state),
        why=why,
    )


async def _attempts() -> AsyncIterator[int]:
    """Yield attempt numbers, and pause for a growing random time before each but the first."""
    pause, longest = _PAUSE_SECONDS
    for number in range(_ATTEMPTS):
        if number:
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311 - jitter, no secret
            pause = min(pause * 2, longest)
        yield number


# New and changed records


def build_record(new: NewRecord, record_id: str, audience: str, by: Provenance, at: str) -> Record:
    """Build the record *record_id* of *audience* (empty: the workspace) from *new*, without micro and summary.

    Raises `RecordRefused`.
    """
    _require(new.type is Type.ITEM or (not new.due and new.status == "open"), "a status and a due day are for items")
    state = State(new.status) if new.type is Type.ITEM else STATES[new.type][0]
    if new.type is Type.DECISION and new.outcome is not None:
        state = State.PENDING if new.outcome == "pending" else State.REVIEWED
    try:
        return Record(
            id=record_id,
            type=new.type,
            audience=audience,
            text=cleaned(new.text),
            micro="",
            summary="",
            state=state,
            created_at=normalise_time(new.created_at) if new.created_at else at,
            changed_at=at,
            provenance=by,
            confidence=float(new.confidence),
            outcome=new.outcome,
            verbatim=new.verbatim,
            supersedes=new.supersedes,
            trigger=_short(new.trigger),
            reason=_short(new.reason),
            severity=new.severity,
            kind=new.kind,
            due=due_day(new.due),
        )
    except ValidationError as error:
        raise RecordRefused(_validation_message(error)) from None


def digest(record: Record) -> str:
    """Return a hash that is equal for records that say the same.

    They have the same type and the same words; case, white space and punctuation do not matter. Censors must also have
    the same trigger, items the same kind and due date.
    """
    parts: list[str] = [record.type, _words(record.text)]
    if record.type is Type.CENSOR:
        parts.append(_words(record.trigger))
    if record.type is Type.ITEM:
        parts += [record.kind, record.due]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def confirm_record(known: Record, new: NewRecord, by: Provenance, rules: Rules, at: str) -> Record:
    """Return *known*, confirmed by *new*, which says the same. People's own words replace an untrusted provenance."""
    is_trusted = by.origin in TRUSTED
    again = lifecycle.confirm(known, rules, at, is_trusted=is_trusted)
    if is_trusted and known.provenance.origin not in TRUSTED:
        again = again.model_copy(update={"provenance": by})
    if new.outcome is not None and new.outcome != known.outcome:
        again = lifecycle.log_outcome(again, new.outcome, rules, at)
    if new.verbatim:
        again = lifecycle.mark_verbatim(again, True, at)
    if new.supersedes:
        again = again.model_copy(update={"supersedes": new.supersedes})
    return again.model_copy(update={"version": known.version + 1})


def apply_changes(
    record: Record, fields: Mapping[str, Any], rules: Rules, at: str, *, is_trusted: bool = True
) -> Record:
    """Return *record* with *fields* changed.

    Besides texts and numbers by their names the fields are ``state`` (or an item's ``status``), ``outcome``,
    ``severity``, ``verbatim``, ``confirm`` and ``false_positive`` (both true), and ``take_back`` (see
    `lifecycle.take_back`). Raises `RecordRefused`, also for an unknown field.
    """
    result = _with_values(record, {name: fields[name] for name in _NORMALISERS if name in fields}, at)
    steps: dict[str, Callable[[Record, Any], Record]] = {
        "state": lambda one, value: lifecycle.set_state(one, _state(one, value), at),
        "status": lambda one, value: lifecycle.set_state(one, _status(one, value), at),
        "outcome": lambda one, value: lifecycle.log_outcome(one, value, rules, at),
        "severity": lambda one, value: lifecycle.set_severity(one, value, at),
        "verbatim": lambda one, value: lifecycle.mark_verbatim(one, bool(value), at),
        "confirm": lambda one, value: lifecycle.confirm(one, rules, at, is_trusted=is_trusted) if value else one,
        "take_back": lambda one, value: lifecycle.take_back(one, value, rules, at),
        "false_positive": lambda one, value: lifecycle.report_false_positive(one, rules, at) if value else one,
    }
    unknown = sorted(set(fields) - set(steps) - set(_NORMALISERS))
    if unknown:
        raise RecordRefused(f"a record has no field {unknown[0]!r} that can be changed")
    for name, step in steps.items():
        if name in fields:
            result = step(result, fields[name])
    try:  # `model_copy` does not validate
        result = Record.model_validate(result.model_dump())
    except ValidationError as error:
        raise RecordRefused(_validation_message(error)) from None
    return result if result == record else result.model_copy(update={"version": record.version + 1})


def with_new_provenance(before: Record, after: Record, by: Provenance) -> Record:
    """Return *after* with the provenance *by* if a conversation changed its text, so that forgetting the conversation
    forgets the record too.

    If the old text was other people's words, a new wording by the model keeps their origin.
    """
    if not by.context_id or after.text == before.text:
        return after
    known = before.provenance.origin
    origin = known if known not in TRUSTED and by.origin in MODELS else by.origin
    return after.model_copy(update={"provenance": by.model_copy(update={"origin": origin})})


def outcome_of_add(before: Record | None, after: Record) -> AddOutcome:
    """Return what adding did; *before* is the record that existed, if one did."""
    if before is not None:
        return "confirmed"
    return "superseded" if after.supersedes else "new"


def cleaned(text: str) -> str:
    """Return *text* without control characters and surrounding white space. Raises `RecordRefused`."""
    kept = _CONTROLS.sub("", text.encode("utf-8", "replace").decode()).strip()
    if not kept:
        raise RecordRefused("a record needs a text")
    if len(kept) > TEXT_MAX_CHARACTERS:
        raise RecordRefused(f"a record holds at most {TEXT_MAX_CHARACTERS} characters; this text has {len(kept)}")
    return kept


def normalise_time(text: str) -> str:
    """Return a time with its zone in the form of records: UTC with milliseconds. Raises `RecordRefused`."""
    try:
        when = datetime.fromisoformat(text)
        return stamp(when if when.tzinfo is not None else when.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise RecordRefused(f"{text!r} is no time: write it like 2026-11-27T16:00:00Z") from None


def stamp(when: datetime) -> str:
    """Return *when* in the form of records. Years have four digits, so that text order is time order."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def due_day(text: str) -> str:
    """Return a day, or a time in UTC; empty for an empty one. Raises `RecordRefused`."""
    if not text:
        return ""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        return normalise_time(text)


_NORMALISERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda value: cleaned(str(value)),
    "trigger": lambda value: _short(str(value)),
    "reason": lambda value: _short(str(value)),
    "kind": str,
    "due": lambda value: due_day(str(value or "")),
    "confidence": float,
}
"""Fields that hold a value of their own, each with the function that normalises a new value."""


def _with_values(record: Record, fields: Mapping[str, Any], at: str) -> Record:
    _require(record.type is Type.ITEM or "due" not in fields, "a due day is for items")
    try:
        stated = {name: _NORMALISERS[name](value) for name, value in fields.items()}
    except (TypeError, ValueError) as error:
        raise RecordRefused(f"that is no value of a record: {error}") from None
    if all(getattr(record, name) == value for name, value in stated.items()):
        return record
    if "text" in stated:
        stated["abstract"] = ""  # it summed up the former text
    return record.model_copy(update={**stated, "changed_at": at})


def _state(record: Record, value: Any) -> State:
    if value in (State.INACTIVE, State.RETIRED):
        return State(value)  # each type has one of the two, and both mean hidden
    if value not in STATES[record.type]:
        raise RecordRefused(f"a {record.type} is never {value!r}: it is one of {', '.join(STATES[record.type])}")
    return State(value)


def _status(record: Record, value: Any) -> State:
    _require(record.type is Type.ITEM, "a status is for items; other records have a state")
    return _state(record, value)


def _short(text: str) -> str:
    kept = " ".join(_CONTROLS.sub("", text.encode("utf-8", "replace").decode()).split())
    if len(kept) > SHORT_MAX_CHARACTERS:
        raise RecordRefused(f"a trigger and a reason hold at most {SHORT_MAX_CHARACTERS} characters")
    return kept


def _words(text: str) -> str:
    """Return only letters, digits and meaningful signs: "I prefer Celsius." equals "i prefer  celsius"."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("!=", "≠")
    return _NOT_WORDS.sub(" ", folded).strip() or folded


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RecordRefused(otherwise)


def _validation_message(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
