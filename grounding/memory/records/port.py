"""What the parts of the memory ask of the store of records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from connectors.message import Scope
from grounding.memory.records.record import ItemKind, ItemStatus, Outcome, Provenance, Record, Severity, State, Type

Came = Literal["new", "confirmed", "superseded", "unchanged"]
"""What adding did: made a record, confirmed one that says the same, or made one that takes the place of another.
``unchanged``: the same call, or the same turn, said it before."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """What is to be kept; see `Record` for the fields. Whose it is says the scope it is added in."""

    type: Type
    text: str
    confidence: float = 1.0
    outcome: Outcome | None = None
    created_at: str = ""
    """RFC 3339; empty: now."""
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
    """The record as it is now, and what adding did."""

    record: Record
    came: Came


@dataclass(frozen=True, slots=True)
class Found:
    """A record that a search found. ``similarity`` is the cosine of question and record (-1 to 1), ``matched`` the raw
    BM25 score (0 where no word is shared)."""

    record: Record
    similarity: float
    matched: float


class ReadsRecords(Protocol):
    """Reading. In every method the workspace's records are seen and those of the scope's audience; never anybody else's
    (save by `connectors.message.EVERYONE`). Raises `connectors.message.StoreUnavailable`; `search` also
    `IndexUnavailable` and `EmbedderUnavailable`."""

    async def search(self, scope: Scope, query: str, top_k: int, types: Collection[Type] = ()) -> Sequence[Found]:
        """At most *top_k* records of *types* (all of them) that bear on *query*, in one query, the best first. Hidden
        ones are not found."""

    async def standing(self, scope: Scope) -> Sequence[Record]:
        """The censors that are in force, and what is verbatim, in a stable order; no search."""

    async def get(self, scope: Scope, record_id: str) -> Record:
        """The one of that id. Raises `NoSuchRecord`."""

    async def read(self, scope: Scope, ids: Collection[str]) -> Sequence[Record]:
        """Those of *ids* that there are, but for the hidden ones, in the order given; one round trip."""

    async def count(self, scope: Scope) -> int:
        """How many records there are, censors too; one cheap look, so that who has none pays for no search."""

    async def list(
        self,
        scope: Scope,
        types: Collection[Type] = (),
        states: Collection[State] = (),
        limit: int = 100,
        *,
        own: bool = False,
    ) -> Sequence[Record]:
        """The newest *limit*, the newest first; of *states* (all but the hidden ones). *own*: of the scope's user only,
        where it names one."""


class WritesRecords(Protocol):
    """Writing. Raises `RecordRefused` and `connectors.message.StoreUnavailable`."""

    async def add(self, scope: Scope, new: NewRecord, by: Provenance, key: str = "") -> Added:
        """Keep *new* for the scope's audience. The same text again confirms.
        Once for each *key*, if there is one."""

    async def change(
        self, scope: Scope, record_id: str, fields: Mapping[str, Any], by: Provenance, key: str = ""
    ) -> Record:
        """Let fields of the record say something else; micro and summary follow. Beside its own fields: ``state`` (an
        item's also as ``status``), ``confirm`` and ``false_positive`` (both true), ``take_back`` (one of
        `grounding.memory.records.lifecycle.TakenBack`). Once for each *key*, if there is
        one. Raises `NoSuchRecord`, `NeverDeleted`."""

    async def share(self, scope: Scope, record_id: str, by: Provenance) -> Record:
        """Let the whole workspace see a record of the scope's audience. Raises `NoSuchRecord`, and `RecordRefused` for
        one that was superseded."""

    async def erase(self, scope: Scope, record_id: str, by: Provenance) -> None:
        """Take the record away with its history, for good. Raises `NoSuchRecord`, and `NeverDeleted` for decisions."""

    async def forget(self, scope: Scope) -> int:
        """Take away all that the scope's user has, decisions too; how many that were. Raises ValueError where the
        scope names nobody."""

    async def count_use(self, scope: Scope, ids: Collection[str]) -> None:
        """Procedures that were followed, censors that acted: one activation more each."""


class ForgetsRecords(Protocol):
    """Taking away for good, with what searches find, whatever the type: what a person wants forgotten is no mistake of
    the record's that it would have to outlive. Raises `connectors.message.StoreUnavailable`."""

    async def forget_said(self, scope: Scope, turn_ids: Collection[str] | None = None) -> int:
        """The records that came of the scope's context (of those turns of it, if they are named): the scope's user's
        own where it names one, else the workspace's. How many there were; again does no harm. Costs nothing for
        records of other contexts."""


class KeepsRecords(ReadsRecords, WritesRecords, ForgetsRecords, Protocol):
    """All that is asked of the store."""
