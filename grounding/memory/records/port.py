"""Protocols of the record store, as the parts of the memory use it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from connectors.message import Scope
from grounding.memory.records.record import ItemKind, ItemStatus, Outcome, Provenance, Record, Severity, State, Type

Came = Literal["new", "confirmed", "superseded", "unchanged"]
"""What adding did: it made a record, confirmed an equal one, or made one that supersedes another.

``unchanged``: the same call, or the same turn, had added the record before.
"""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to add; see `Record` for the fields. The scope of the call decides whose it is."""

    type: Type
    text: str
    confidence: float = 1.0
    outcome: Outcome | None = None
    created_at: str = ""
    """RFC 3339; empty means now."""
    verbatim: bool = False
    supersedes: str = ""
    trigger: str = ""
    reason: str = ""
    severity: Severity = "warn"
    kind: ItemKind = "task"
    status: ItemStatus = "open"
    due: str = ""


@dataclass(frozen=True, slots=True)
class Added:
    """The record after adding, and what adding did."""

    record: Record
    came: Came


@dataclass(frozen=True, slots=True)
class Found:
    """A record that a search found.

    ``similarity`` is the cosine of question and record (-1 to 1), ``matched`` the raw BM25 score (0 if they share no
    word).
    """

    record: Record
    similarity: float
    matched: float


class ReadsRecords(Protocol):
    """Read access.

    Every method sees the records of the workspace and of the scope's audience, and nobody else's (only
    `connectors.message.EVERYONE` sees all). Raises `connectors.message.StoreUnavailable`; `search` also raises
    `IndexUnavailable` and `EmbedderUnavailable`.
    """

    async def search(self, scope: Scope, query: str, top_k: int, types: Collection[Type] = ()) -> Sequence[Found]:
        """Return at most *top_k* records of *types* (empty: of all types) that are relevant to *query*, the best first.

        Hidden records are left out. Costs one query.
        """

    async def standing(self, scope: Scope) -> Sequence[Record]:
        """Return the censors in force and the verbatim records, in a stable order, without a search."""

    async def get(self, scope: Scope, record_id: str) -> Record:
        """Return one record. Raises `NoSuchRecord`."""

    async def read(self, scope: Scope, ids: Collection[str]) -> Sequence[Record]:
        """Return the records of *ids* that exist and are not hidden, in the order of *ids*; one round trip."""

    async def count(self, scope: Scope) -> int:
        """Return the number of records, censors included. It is cheap, so that a workspace without records needs no
        search."""

    async def list(
        self,
        scope: Scope,
        types: Collection[Type] = (),
        states: Collection[State] = (),
        limit: int = 100,
        *,
        own: bool = False,
    ) -> Sequence[Record]:
        """Return the newest *limit* records, the newest first. Without *states* hidden ones are left out.

        *own*: only those of the scope's user, if the scope names one.
        """


class WritesRecords(Protocol):
    """Write access. Raises `RecordRefused` and `connectors.message.StoreUnavailable`."""

    async def add(self, scope: Scope, new: NewRecord, by: Provenance, key: str = "") -> Added:
        """Store *new* for the scope's audience. If a record with the same text exists, confirm it instead.

        Calls with the same non-empty *key* take effect once.
        """

    async def change(
        self, scope: Scope, record_id: str, fields: Mapping[str, Any], by: Provenance, key: str = ""
    ) -> Record:
        """Change fields of a record, and compute micro and summary anew.

        Besides the record's own fields there are ``state`` (for an item also ``status``), ``confirm`` and
        ``false_positive`` (both true), and ``take_back`` (one of `grounding.memory.records.lifecycle.TakenBack`). Calls
        with the same non-empty *key* take effect once. Raises `NoSuchRecord` and `NeverDeleted`.
        """

    async def share(self, scope: Scope, record_id: str, by: Provenance) -> Record:
        """Make a record of the scope's audience visible to the whole workspace.

        Raises `NoSuchRecord`, and `RecordRefused` if the record is superseded.
        """

    async def erase(self, scope: Scope, record_id: str, by: Provenance) -> None:
        """Delete the record with its history. Raises `NoSuchRecord`, and `NeverDeleted` for decisions."""

    async def forget(self, scope: Scope) -> int:
        """Delete all records of the scope's user, decisions too, and return their number.

        Raises ValueError if the scope names nobody.
        """

    async def count_use(self, scope: Scope, ids: Collection[str]) -> None:
        """Count one more activation of procedures that were followed, or of censors that acted."""


class ForgetsRecords(Protocol):
    """Deletes records of any type for good, also from the index.

    A person's wish to have something forgotten outranks the rule that decisions stay. Raises
    `connectors.message.StoreUnavailable`.
    """

    async def forget_said(self, scope: Scope, turn_ids: Collection[str] | None = None) -> int:
        """Delete the records that came from the scope's context, or only from the turns *turn_ids* of it.

        Deletes records of the scope's user if the scope names one, else those of the workspace. Returns their number.
        Repeating it does no harm. Records of other contexts cost nothing.
        """


class KeepsRecords(ReadsRecords, WritesRecords, ForgetsRecords, Protocol):
    """All that the memory needs of the record store."""
