"""The data types of the typed records, and their short forms for prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import AliasChoices, Field

from connectors.message import AgentRuntimeError
from grounding.memory.context_document import sentences
from grounding.memory.records.dates import in_words
from grounding.prompt_input import Strict, Tokens, clip


class Type(StrEnum):
    """The type of a record."""

    DECISION = "decision"
    FACT = "fact"
    PROCEDURE = "procedure"
    EPISODE = "episode"
    CENSOR = "censor"
    ITEM = "item"
    RULE = "rule"
    """A standing instruction or a preference of a person, for all later answers that it applies to."""


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
    Type.RULE: (State.ACTIVE, State.RETIRED),
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


class Provenance(Strict):
    """The origin of a record.

    ``author`` is ``connector:user_id`` or the name of a token. It is empty if the runtime wrote the record.
    """

    author: str = ""
    turn_id: str = ""
    context_id: str = ""
    origin: Origin = "person"


class Record(Strict):
    """One stored record. Times are RFC 3339 in UTC.

    ``audience`` says who may see it, as in `connectors.message.Scope`; empty means the workspace. Format 1 called the
    field ``user`` and knew no places (see `runtime.ingress.upgrade`). ``text`` is the full text; ``micro`` (about 20
    tokens) and ``summary`` (50 to 100) are computed when the record is written. ``confidence`` is between 0 and 1.
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
    abstract: str = ""
    """What a model, or else the beginning of the text, says in place of a text that is too long for the summary; empty
    until then, and if the summary has the whole text."""
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

    def __init__(self) -> None:
        super().__init__("decisions are kept for good: log what came of it instead, or record another decision")


AddOutcome = Literal["new", "confirmed", "superseded", "unchanged"]
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
    came: AddOutcome


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record that a search found.

    ``similarity`` is the cosine of question and record (-1 to 1), ``matched`` the raw BM25 score (0 if they share no
    word). ``deep`` is the cosine of the deeper model's vectors and ``vector`` the record's own one, if they are there.
    """

    record: Record
    similarity: float
    matched: float
    deep: float | None = None
    vector: Sequence[float] = ()


# The short forms, computed when a record is written
#
# ``micro`` is one line of at most `MICRO_TOKENS`, ``summary`` has at most `SUMMARY_TOKENS`. Both are the first
# sentences of the text, cut at natural boundaries, with the record's status in brackets: "Chose Postgres [success, 0.85
# confidence]". Once a model has summed up a long text, the summary is made of that (`Record.abstract`).

MICRO_TOKENS = 24
"""About twenty tokens: a sentence and the status."""
SUMMARY_TOKENS = 100
_READ_CHARACTERS = 4000
"""The length of the text that may enter a summary: 100 tokens are seldom more than 600 characters."""
_LINE_CHARACTERS = 600
_HEADS = {Type.DECISION: "Decision", Type.PROCEDURE: "Procedure", Type.EPISODE: "Episode"}


def with_short_forms(record: Record, tokens: Tokens) -> Record:
    """Return *record* with micro and summary of its present text.

    An archived episode whose text is already reduced to the summary stays as it is.
    """
    if record.summary and record.text == record.summary and record.state is State.ARCHIVED:
        return record
    said = _sentences(record.text)
    summed_up = _sentences(record.abstract) if record.abstract else said
    summary = _summary(record, summed_up, tokens)
    return record.model_copy(update={"micro": _micro(record, said, tokens), "summary": summary})


def is_shortened(record: Record) -> bool:
    """Say whether the summary leaves out some of the text."""
    if len(record.text) > _READ_CHARACTERS:
        return True
    return not all(sentence.rstrip() in record.summary for sentence in _sentences(record.text))


def indexed_text(record: Record) -> str:
    """Return the text of *record* that is embedded and indexed: micro, full text, trigger, reason, and the due date in
    words."""
    parts = [record.micro, record.text, record.trigger, record.reason]
    parts += [f"{record.kind} due {in_words(record.due)}"] if record.due else []
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _micro(record: Record, said: list[str], tokens: Tokens) -> str:
    head = f"{record.severity.upper()}: " if record.type is Type.CENSOR else ""
    bracket = _bracket(record, short=True)
    room = MICRO_TOKENS - tokens.count(head) - (tokens.count(bracket) + 1 if bracket else 0)
    line = _fitting(said, tokens, room)
    while tokens.count(micro := f"{head}{line} {bracket}".strip()) > MICRO_TOKENS and room > 1:
        room -= 1  # joined parts may count one token more
        line = _fitting(said, tokens, room)
    return micro


def _summary(record: Record, said: list[str], tokens: Tokens) -> str:
    head = _HEADS.get(record.type, "")
    head = f"{head}: " if head else f"{record.severity.upper()}: " if record.type is Type.CENSOR else ""
    tail = _tail(record, tokens)
    room = SUMMARY_TOKENS - tokens.count(head) - (tokens.count(tail) + 1 if tail else 0)
    text = _fitting(said, tokens, room)
    while tokens.count(summary := head + text + tail) > SUMMARY_TOKENS and room > 1:
        room -= 1
        text = _fitting(said, tokens, room)
    return summary


def _tail(record: Record, tokens: Tokens) -> str:
    if record.type is Type.CENSOR:
        return f" — {clip(' '.join(record.reason.split()), tokens, SUMMARY_TOKENS // 3)}" if record.reason else ""
    if record.type is Type.DECISION:
        return f"\nOutcome: {record.outcome or 'not known yet'}. Confidence: {_number(record.confidence)}."
    bracket = _bracket(record, short=False)
    return f" {bracket}" if bracket else ""


def _bracket(record: Record, *, short: bool) -> str:
    parts: list[str] = []
    if record.type is Type.DECISION:
        parts += [record.outcome] if record.outcome else []
        parts.append(f"{_number(record.confidence)}{'' if short else ' confidence'}")
    elif record.type is Type.ITEM:
        parts.append(record.state.value)
        parts += [f"due {record.due[:10] if short else in_words(record.due)}"] if record.due else []
    elif record.type is Type.PROCEDURE and record.state in (State.EFFECTIVE, State.INEFFECTIVE):
        parts.append(record.state.value)
    elif record.type is Type.EPISODE:
        parts.append(record.created_at[:10])
    elif record.type is Type.FACT and record.confidence < 1.0:
        parts.append(f"{_number(record.confidence)}{'' if short else ' confidence'}")
    if record.state is State.SUPERSEDED or record.superseded_by:
        parts.append("superseded")
    return f"[{', '.join(parts)}]" if parts else ""


def _sentences(text: str) -> list[str]:
    """Return the sentences of *text*, or *text* on one line if it has no sentences."""
    text = text[:_READ_CHARACTERS]
    return sentences(text) or [" ".join(text.split())[:_LINE_CHARACTERS]]


def _fitting(said: list[str], tokens: Tokens, room: int) -> str:
    """Return as many first sentences as fit into *room* tokens. If not even the first fits, cut it."""
    line = clip(said[0], tokens, max(room, 1))
    if line != said[0].rstrip():
        return line
    for sentence in said[1:]:
        longer = f"{line} {sentence}"
        if not tokens.fits(longer, room):
            break
        line = longer
    return line


def _number(share: float) -> str:
    return f"{share:.2f}"
