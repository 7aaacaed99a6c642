"""Typed records in a dictionary: the port's contract, without Redis and an index."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from connectors.message import EVERYONE, Scope
from grounding.memory.records import (
    Added,
    Change,
    FoundRecord,
    NeverDeleted,
    NewRecord,
    NoSuchRecord,
    Provenance,
    Record,
    RecordRefused,
    Records,
    Rules,
    State,
    Type,
    lifecycle,
    place,
    records,
)
from grounding.memory.records.model import indexed_text, with_short_forms
from grounding.prompt_input import load_tokens
from grounding.retrieval import term_set
from tests.emulators.embedder import HashedWords, cosine

Owned = tuple[str, str]
"""A workspace, and whose in it; empty for its own."""


class RememberedRecords(Records):
    """A search finds what shares a word with the question. ``fails``, if set, is
    raised by every search."""

    def __init__(self, rules: Rules | None = None, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.fails: Exception | None = None
        self._rules = rules or Rules()
        self._clock = clock
        self._tokens = load_tokens()
        self._embedder = HashedWords()
        self._numbers = itertools.count(1)
        self._kept: dict[Owned, dict[str, Record]] = {}
        self._said: dict[str, set[str]] = {}
        self._texts: dict[tuple[Owned, str], str] = {}
        self._done: dict[tuple[Owned, str], str] = {}
        self._changes: list[tuple[str, Change]] = []

    async def search(self, scope: Scope, query: str, top_k: int, types: Collection[Type] = ()) -> Sequence[FoundRecord]:
        if self.fails is not None:
            raise self.fails
        wanted, asked = term_set(query), await self._embedder.embed_query(query)
        found = []
        for record in self._seen(scope):
            text = indexed_text(record)
            shared = len(wanted & term_set(text))
            if shared and not record.is_hidden and (not types or record.type in types):
                found.append(FoundRecord(record, cosine(asked, await self._embedder.embed_query(text)), float(shared)))
        return sorted(found, key=lambda one: (-one.similarity, one.record.id))[:top_k]

    async def search_by_type(self, scope: Scope, query: str, limits: Mapping[Type, int]) -> Sequence[FoundRecord]:
        return [one for of, most in limits.items() for one in await self.search(scope, query, most, (of,))]

    async def standing(self, scope: Scope, newest: builtins.list[Record] | None = None) -> Sequence[Record]:
        return sorted(filter(lifecycle.is_standing, self._seen(scope)), key=place)

    async def get(self, scope: Scope, record_id: str) -> Record:
        for record in self._seen(scope):
            if record.id == record_id:
                return record
        raise NoSuchRecord(f"there is no record {record_id!r} here")

    async def read(self, scope: Scope, ids: Collection[str]) -> list[Record]:
        seen = {record.id: record for record in self._seen(scope) if not record.is_hidden}
        return [seen[record_id] for record_id in ids if record_id in seen]

    async def count(self, scope: Scope) -> int:
        return len(self._seen(scope))

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
        found = [
            record
            for record in self._seen(scope)
            if (not own or record.audience == (scope.audience or ""))
            and (not types or record.type in types)
            and (record.state in states if states else not record.is_hidden)
            and (not before or place(record) < before)
        ]
        return sorted(found, key=place, reverse=True)[:limit]

    async def add(self, scope: Scope, new: NewRecord, by: Provenance, key: str = "") -> Added:
        owner, at = _owner(scope), records.stamp(self._clock())
        record = records.build_record(new, f"r{next(self._numbers)}", scope.audience or "", by, at)
        if key and (owner, key) in self._done:
            return Added(await self.get(scope, self._done[owner, key]), "unchanged")
        kept = self._kept.setdefault(owner, {})
        if new.supersedes and new.supersedes not in kept:
            raise NoSuchRecord(f"there is no record {new.supersedes!r} to be superseded")
        same = kept.get(self._texts.get((owner, records.digest(record)), ""))
        if same is not None and by.turn_id and by.turn_id in self._said.get(same.id, ()):
            return Added(same, "unchanged")
        before = same if same and lifecycle.confirms_on_repeat(same) and same.id != new.supersedes else None
        after = records.confirm_record(before, new, by, self._rules, at) if before else record
        if new.supersedes:
            self._keep(owner, lifecycle.supersede(kept[new.supersedes], after.id, at))
        added = self._keep(owner, after)
        self._said.setdefault(added.id, set()).update({by.turn_id} - {""})
        if key:
            self._done[owner, key] = added.id
        return Added(added, records.outcome_of_add(before, added))

    async def change(
        self, scope: Scope, record_id: str, fields: Mapping[str, Any], by: Provenance, key: str = ""
    ) -> Record:
        record = await self.get(scope, record_id)
        if key and (_owner(scope), key) in self._done:
            return record
        at, trusted = records.stamp(self._clock()), by.origin in records.TRUSTED
        after = records.apply_changes(record, fields, self._rules, at, is_trusted=trusted)
        after = records.with_new_provenance(record, after, by)
        if key:
            self._done[_owner(scope), key] = record_id
        if after != record:
            self._changes.insert(0, (record_id, Change(at, by.author, by.turn_id, record.state, after.state, "")))
        return record if after == record else self._keep((scope.workspace_id, record.audience), after)

    async def history(self, scope: Scope, record_id: str) -> Sequence[Change]:
        """What `change` and `share` did of it, the newest first."""
        return [change for changed, change in self._changes if changed == record_id]

    async def erase(self, scope: Scope, record_id: str, by: Provenance) -> None:
        record = await self.get(scope, record_id)
        if record.type is Type.DECISION:
            raise NeverDeleted
        del self._kept[scope.workspace_id, record.audience][record_id]

    async def share(self, scope: Scope, record_id: str, by: Provenance) -> Record:
        record = await self.get(scope, record_id)
        if record.superseded_by:
            raise RecordRefused(f"{record_id} was superseded by {record.superseded_by}: share that one")
        del self._kept[scope.workspace_id, record.audience][record_id]
        fields = {"audience": "", "shared_by": by.author, "supersedes": "", "version": record.version + 1}
        at = records.stamp(self._clock())
        self._changes.insert(0, (record_id, Change(at, by.author, by.turn_id, record.state, record.state, "shared")))
        return self._keep((scope.workspace_id, ""), record.model_copy(update=fields))

    async def forget(self, scope: Scope) -> int:
        if scope.audience is None:
            raise ValueError("one audience's records are forgotten: name it in the scope")
        return len(self._kept.pop(_owner(scope), {}))

    async def forget_said(self, scope: Scope, turn_ids: Collection[str] | None = None) -> int:
        kept = self._kept.get(_owner(scope), {})
        found = [
            one.id
            for one in kept.values()
            if one.provenance.context_id == scope.context_id
            and (turn_ids is None or one.provenance.turn_id in turn_ids)
        ]
        for record_id in found:
            del kept[record_id]
        return len(found)

    async def count_use(self, scope: Scope, ids: Collection[str]) -> None:
        at = records.stamp(self._clock())
        for record in [one for one in self._seen(scope) if one.id in set(ids)]:
            self._keep((scope.workspace_id, record.audience), lifecycle.use(record, self._rules, at))

    def _seen(self, scope: Scope) -> Sequence[Record]:
        owners = dict.fromkeys(("", scope.audience or ""))
        if scope.audience == EVERYONE:
            owners = dict.fromkeys(of for workspace, of in self._kept if workspace == scope.workspace_id)
        return [record for of in owners for record in self._kept.get((scope.workspace_id, of), {}).values()]

    def _keep(self, owner: Owned, record: Record) -> Record:
        kept = self._kept.setdefault(owner, {})
        before = kept.get(record.id)
        kept[record.id] = with_short_forms(record, self._tokens)
        if before is not None and before.text != record.text:
            self._texts.pop((owner, records.digest(before)), None)
        if before is None or before.text != record.text:
            self._texts[owner, records.digest(record)] = record.id
        return kept[record.id]


def _owner(scope: Scope) -> Owned:
    return scope.workspace_id, scope.audience or ""
