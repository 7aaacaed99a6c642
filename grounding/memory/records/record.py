"""The data types of the typed records. Pure: no store, no clock."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from connectors.message import AgentRuntimeError


class Type(StrEnum):
    """The type of a record."""

    DECISION = "decision"
    FACT = "fact"
    PROCEDURE = "procedure"
    EPISODE = "episode"
    CENSOR = "censor"
    ITEM = "item"


class State(StrEnum):
    """The state of a record in its lifecycle. `STATES` lists the states of each type."""

    NEW = "new"
    CONFIRMED = "confirmed"
    CORE = "core"
    SUPERSEDED = "superseded"
    INACTIVE = "inactive"
    ACTIVE = "active"
    SUMMARIZED = "summarized"
    ARCHIVED = "archived"
    EFFECTIVE = "effective"
    INEFFECTIVE = "ineffective"
    RETIRED = "retired"
    CREATED = "created"
    ESCALATED = "escalated"
    RECORDED = "recorded"
    PENDING = "pending"
    REVIEWED = "reviewed"
    OPEN = "open"
    DONE = "done"
    CANCELLED = "cancelled"


STATES: dict[Type, tuple[State, ...]] = {
    Type.FACT: (State.NEW, State.CONFIRMED, State.CORE, State.SUPERSEDED, State.INACTIVE),
    Type.EPISODE: (State.ACTIVE, State.SUMMARIZED, State.ARCHIVED, State.INACTIVE),
    Type.PROCEDURE: (State.ACTIVE, State.EFFECTIVE, State.INEFFECTIVE, State.RETIRED),
    Type.CENSOR: (State.CREATED, State.ACTIVE, State.ESCALATED, State.RETIRED),
    Type.DECISION: (State.RECORDED, State.PENDING, State.REVIEWED),
    Type.ITEM: (State.OPEN, State.DONE, State.CANCELLED, State.INACTIVE),
}
"""The states of each type, in the order of its lifecycle. A new record begins in the first."""
HIDDEN = frozenset({State.INACTIVE, State.RETIRED})
"""Lists and searches leave out records in these states, unless a caller asks for the state by name."""

Outcome = Literal["success", "partial", "failure", "pending"]
Severity = Literal["warn", "block"]
ItemKind = Literal["task", "event", "note"]
ItemStatus = Literal["open", "done", "cancelled"]
Origin = Literal["person", "tool", "extraction", "retrieved", "others"]
"""Who worded a record:

- ``person``: a person, by command, HTTP or console
- ``tool``: the model, by a tool call
- ``extraction``: the model or a pattern, from the messages of a finished turn
- ``retrieved``: the model, in a turn whose prompt held retrieved text
- ``others``: the model, in a turn whose prompt held other people's words
"""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Provenance(_Strict):
    """The origin of a record.

    ``author`` is ``connector:user_id`` or the name of a token. It is empty if the runtime wrote the record.
    """

    author: str = ""
    turn_id: str = ""
    context_id: str = ""
    origin: Origin = "person"


class Record(_Strict):
    """One stored record. Times are RFC 3339 in UTC.

    ``audience`` says who may see it, as in `connectors.message.Scope`; empty means the workspace. Format 1 called the
    field ``user`` and knew no places (see `runtime.audiences`). ``text`` is the full text; ``micro`` (about 20 tokens)
    and ``summary`` (50 to 100) are computed when the record is written. ``confidence`` is between 0 and 1.
    """

    v: Literal[1, 2] = 2
    id: str
    type: Type
    audience: str = Field(default="", validation_alias=AliasChoices("audience", "user"))
    shared_by: str = ""
    """The person who shared it with the workspace; empty if nobody did."""
    text: str
    micro: str
    summary: str
    state: State
    created_at: str
    changed_at: str
    provenance: Provenance
    confidence: float = Field(default=1.0, ge=0.0, le=1.0)
    confirmations: int = Field(default=0, ge=0)
    """Facts: how often somebody said it again, or said it in another turn."""
    confirmed_at: str = ""
    activations: int = Field(default=0, ge=0)
    """Procedures: how often the bot followed it. Censors: how often it acted."""
    successes: int = Field(default=0, ge=0)
    failures: int = Field(default=0, ge=0)
    """Procedures: how often following it succeeded and failed."""
    outcome: Outcome | None = None
    verbatim: bool = False
    """Pruning never shortens or drops it."""
    supersedes: str = ""
    superseded_by: str = ""
    trigger: str = ""
    """Censors: the words and phrases that trigger it, separated by ``|``."""
    reason: str = ""
    severity: Severity = "warn"
    false_positives: int = Field(default=0, ge=0)
    kind: ItemKind = "task"
    """For items only."""
    due: str = ""
    """Items: a day (``2026-11-30``) or an RFC 3339 time; empty if there is no due date."""
    version: int = Field(default=1, gt=0)
    """Grows by one with each change."""

    @property
    def is_hidden(self) -> bool:
        return self.state in HIDDEN


class RecordRefused(AgentRuntimeError):
    """The record cannot be written like this; nothing was changed.

    People and models read the text, which says what to do.
    """

    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message[:1].upper() + message[1:]


class NoSuchRecord(RecordRefused):
    """The scope has no record with this id."""


class RecordBusy(RecordRefused):
    """Too many others are writing the record at this moment; try again."""

    retryable = True

    def __init__(self, message: str = "this record is being changed by many at once: try again") -> None:
        super().__init__(message)


class NeverDeleted(RecordRefused):
    """Decisions cannot be deleted."""
