"""The nouns of the typed records. Pure: no store, no clock."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from connectors.message import AgentRuntimeError


class Type(StrEnum):
    """What a record is."""

    DECISION = "decision"
    FACT = "fact"
    PROCEDURE = "procedure"
    EPISODE = "episode"
    CENSOR = "censor"
    ITEM = "item"


class State(StrEnum):
    """Where a record stands in its life. Which states a type knows, and in what order, says `STATES`."""

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
"""The life of each type, its first state first."""
HIDDEN = frozenset({State.INACTIVE, State.RETIRED})
"""Records in these are in no list and no search unless they are asked for by name."""

Outcome = Literal["success", "partial", "failure", "pending"]
Severity = Literal["warn", "block"]
ItemKind = Literal["task", "event", "note"]
ItemStatus = Literal["open", "done", "cancelled"]
Origin = Literal["person", "tool", "extraction", "retrieved", "others"]
"""Whose words a record is: a person's own, by command, HTTP or console; the model's by a tool, or by extraction from
what was said after a turn; or such of a turn that was shown retrieved text (``retrieved``) or others' words
(``others``)."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Provenance(_Strict):
    """Where a record came from. ``author`` is ``connector:user_id``, a token's name, or empty for the runtime."""

    author: str = ""
    turn_id: str = ""
    context_id: str = ""
    origin: Origin = "person"


class Record(_Strict):
    """One record as it is kept. Times are RFC 3339 in UTC.

    ``audience`` is who may see it, as in `connectors.message.Scope`, empty for the workspace; format 1 called it
    ``user`` and knew no places (see `runtime.audiences`). ``text`` is the whole of it; ``micro``
    (about 20 tokens) and ``summary`` (50 to 100) are made when it is written. ``confidence`` lies in 0 to 1.
    """

    v: Literal[1, 2] = 2
    id: str
    type: Type
    audience: str = Field(default="", validation_alias=AliasChoices("audience", "user"))
    shared_by: str = ""
    """Who gave it to the workspace; empty where nobody did."""
    text: str
    micro: str
    summary: str
    state: State
    created_at: str
    changed_at: str
    provenance: Provenance
    confidence: float = Field(default=1.0, ge=0.0, le=1.0)
    confirmations: int = Field(default=0, ge=0)
    """Facts: how often it was said again by somebody or in another turn."""
    confirmed_at: str = ""
    activations: int = Field(default=0, ge=0)
    """Procedures: how often one was followed; censors: how often one acted."""
    successes: int = Field(default=0, ge=0)
    failures: int = Field(default=0, ge=0)
    """Procedures: what came of it when it was followed."""
    outcome: Outcome | None = None
    verbatim: bool = False
    """Survives every pruning, word for word."""
    supersedes: str = ""
    superseded_by: str = ""
    trigger: str = ""
    """Censors: what sets it off, words and phrases separated by ``|``."""
    reason: str = ""
    severity: Severity = "warn"
    false_positives: int = Field(default=0, ge=0)
    kind: ItemKind = "task"
    """Items."""
    due: str = ""
    """Items: a day (``2026-11-30``) or RFC 3339; empty where there is none."""
    version: int = Field(default=1, gt=0)
    """Counts its changes."""

    @property
    def is_hidden(self) -> bool:
        return self.state in HIDDEN


class RecordRefused(AgentRuntimeError):
    """A record cannot be written so, and nothing has changed. The text says what to do; people and models read it."""

    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.user_text = message[:1].upper() + message[1:]


class NoSuchRecord(RecordRefused):
    """No record of that id in this scope."""


class RecordBusy(RecordRefused):
    """Many write the record at this very moment: to be tried again."""

    retryable = True

    def __init__(self, message: str = "this record is being changed by many at once: try again") -> None:
        super().__init__(message)


class NeverDeleted(RecordRefused):
    """Decisions stay."""
