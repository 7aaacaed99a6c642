"""`RunContext`: the strict, frozen input of one turn's prompt.

A stored `RunContext` rebuilds its prompt byte for byte, so that no clock, store or setting is read while the prompt is
built.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from connectors.message import place_audience
from grounding.prompt_input.blocks import PLACES, Layout, Strict, Volatility, may_follow
from grounding.prompt_input.budgets import PromptLimits

SelectionReason = Literal["nothing_kept", "cold", "frame", "topic", "acting", "changed", "reused", "aside"]
CONDENSED = "condensed"
"""The reason in a `DegradedBlock` if a block was shortened or removed to save memory."""


class Participant(Strict):
    """An author of the turn's messages. ``user`` is ``connector:user_id``."""

    user: str
    name: str
    role: Literal["admin", "member", "viewer"]


class QuotedMessage(Strict):
    """A message to which the user's message replies."""

    author: str
    text: str


class AttachedText(Strict):
    """An attached file with its readable text; ``note`` says what could not be read."""

    name: str
    text: str = ""
    note: str = ""


class AttachedImage(Strict):
    """A picture that the model sees beside the prompt. Only the ``sha256`` of its bytes is stored."""

    name: str
    media_type: str
    sha256: str


class Query(Strict):
    """The user's messages in this turn, joined by blank lines."""

    text: str
    begins: tuple[int, ...] = ()
    """The positions in ``text``, in characters, at which each message after the first begins."""
    relayed: bool = False
    """Whether some of it was only forwarded, and somebody else wrote it."""
    quotes: tuple[QuotedMessage, ...] = ()
    attachments: tuple[str, ...] = ()
    """Names of all attached files."""
    files: tuple[AttachedText, ...] = ()
    """Attached files with text or a note."""
    images: tuple[AttachedImage, ...] = ()
    """Attached pictures that the model sees."""


class TailEntry(Strict):
    """One earlier message of the conversation."""

    speaker: str
    text: str
    turn_id: str
    user: str = ""
    """``connector:user_id`` of the person; empty for the assistant, or if unknown."""
    foreign: str = ""
    """See `grounding.transcript.entry.TranscriptEntry`."""


class ContextLine(Strict):
    """A line of the global context with its number in this session; without content, it was deleted in this session.

    ``marked``: it came from untrusted text, and nobody has approved it.
    """

    number: int = Field(ge=0)
    content: str
    marked: bool = False


class SummaryInput(Strict):
    """The text of the context document, and the number of turns that it covers."""

    text: str
    turns: int = Field(ge=0)
    version: int = Field(ge=0)
    newest_turn_id: str = ""
    """The last turn that it covers."""
    id: str = ""
    """The document's id in its store."""
    problem: str = ""
    """Why it is not refreshed, or not shown whole, and what to do; empty if all is well."""


class RecalledTurn(Strict):
    """An earlier turn of this conversation that is relevant to the message. ``said_on`` is a day."""

    turn_id: str
    said_on: str
    text: str
    score: float


class FrameInput(Strict):
    """The frame of the message and the cue that chose it; see `grounding.memory.frames`."""

    name: str
    description: str = ""
    questions: tuple[str, ...] = ()
    reason: str = ""
    cue: str = ""


class SelectedRecord(Strict):
    """A record that was selected for the message, at a level of detail.

    Its type and state are words of `grounding.memory.records.model`. ``made_on`` is a day, ``due`` a day or a time.
    """

    id: str
    type: str
    level: Literal["summary", "micro"]
    text: str
    state: str
    made_on: str = ""
    due: str = ""
    score: float
    similarity: float
    origin: Literal["", "retrieved", "others"] = ""
    """The source of its words, if it is not trusted: documents, or people other than those of this conversation."""
    verbatim: bool = False
    """Whether every prompt shows it word for word, whatever else has to go."""
    tokens: int = Field(ge=0)


class Selection(Strict):
    """How the records were selected.

    ``why`` is the reason for a new selection, or ``reused``, or ``aside`` if no record is relevant and none is shown.
    ``budget`` is the records' budget in tokens, ``found`` the number of records above the relevance floor.
    """

    why: SelectionReason
    found: int = Field(ge=0)
    budget: int = Field(ge=0)


class Censor(Strict):
    """A censor in force, which forbids to say or do something. ``trigger`` is words and phrases separated by ``|``."""

    id: str
    severity: Literal["warn", "block"]
    text: str
    trigger: str = ""
    reason: str = ""


class Calibration(Strict):
    """The outcomes of the reviewed decisions beside people's confidence in them; see
    `grounding.memory.selection`."""

    reviewed: int = Field(gt=0)
    accuracy: float
    brier: float
    confidence: float
    """The mean."""


class Passage(Strict):
    """A passage of a workspace document; ``source`` is its path under ``docs/``."""

    source: str
    heading: str
    text: str
    score: float


class SessionInput(Strict):
    """The session of the turn. ``id`` is the id of its first turn, ``began_on`` a day, ``turns`` the number of turns
    before this one."""

    id: str
    began_on: str
    turns: int = Field(ge=0)


class CodexFile(Strict):
    """One file of material."""

    path: str
    text: str


class CodexInput(Strict):
    """Material that an admin attached.

    ``tokens`` is its size if it is given whole, ``limit`` the limit for that, and ``weight`` its share of the model's
    window in the model's own tokens. ``why`` is the reason for the ``mode``. Material that the users may not read is
    withheld: neither shown nor searched.
    """

    mode: Literal["whole", "search", "withheld"]
    why: str
    tokens: int = Field(ge=0)
    weight: int = Field(ge=0)
    limit: int = Field(ge=0)
    count: int = Field(ge=0)
    """The number of files."""
    files: tuple[CodexFile, ...] = ()
    """By path; empty if they are searched instead."""
    retrieved: int = Field(default=0, ge=0)
    """The number of the turn's passages from this material."""


class Device(Strict):
    """A graphics card: its memory in MiB, and whether it is slowed down."""

    name: str
    total_mib: int = Field(ge=0)
    used_mib: int = Field(ge=0)
    free_mib: int = Field(ge=0)
    throttled: bool = False


class Link(Strict):
    """A connection of the runtime. ``state`` is a word of `connectors.connector.ConnectionState`."""

    name: str
    state: str


class EnvironmentInput(Strict):
    """The machine at the beginning of the session, or at its last important change."""

    devices: tuple[Device, ...] = ()
    note: str = ""
    """The reason if there are no devices, in a word or two."""
    links: tuple[Link, ...] = ()
    power: Literal["", "mains", "battery"] = ""
    low_power: bool = False


class ModelMemory(Strict):
    """The size of the attention cache of a model on this machine, and the memory for it; see
    `grounding.prompt.memory_budget`."""

    bytes_per_token: int = Field(gt=0)
    free_mib: int = Field(ge=0)
    buffer_mib: int = Field(ge=0)
    """The part of it that must stay free."""
    reserved_tokens: int = Field(default=0, ge=0)
    """Tokens for which the model's server has already reserved memory."""
    where: Literal["gpu", "ram"]
    source: Literal["gguf", "ollama", "settings"]
    """The source of the model's description."""


class SigilInput(Strict):
    """The permissions of the turn. The prompt mentions them; code enforces them."""

    name: str
    scopes: tuple[str, ...] = ()


class Trace(Strict):
    """An exchange that people marked as good. ``marked_on`` is a day, ``good`` the number of people."""

    turn_id: str
    asked: str
    answered: str
    marked_on: str
    good: int = Field(gt=0)
    score: float = 0.0
    """Similarity to the message; 0 for the standing ones."""
    foreign: Literal["", "retrieved", "others"] = ""
    """The source of the answer's words, if they come from others than the people who asked."""
    shared: bool = False
    """Whether it belongs to the workspace, so that anybody may have asked."""


class Injected(Strict):
    """Text of a formatter (see `grounding.prompt.formatters`): a block of its own in *message* behind the block
    *place*, or, if *place* is also its name, a rendering of that block. ``source`` is the formatter's distribution.

    Raises ValueError if text that changes with every turn would be in front of text that does not.
    """

    name: str
    message: Literal["system", "user"]
    place: str
    volatility: Literal["static", "session", "turn"]
    text: str
    budget: int = Field(gt=0)
    source: str = ""

    @model_validator(mode="after")
    def _stands_where_it_may(self) -> Self:
        behind = PLACES.get(self.place)
        if behind is None or behind.message != self.message or (self.name in PLACES and self.name != self.place):
            raise ValueError(f"{self.name!r} cannot stand behind {self.place!r} in the {self.message} message")
        if self.name not in PLACES and not may_follow(behind, Volatility(self.volatility)):
            raise ValueError(f"{self.name!r} changes with every turn, and {self.place!r} is in front of what does not")
        return self


class DegradedBlock(Strict):
    """A block that is missing or incomplete, and the reason, in a word or two."""

    block: str
    why: str


class RunContext(Strict):
    """The whole input of one prompt."""

    v: Literal[1] = 1
    """The version of this format; a stored context of another version is refused."""
    turn_id: str
    workspace_id: str
    context_id: str
    connector: str
    external_id: str
    direct: bool
    audience: str | None = None
    """The readers of the answer, as in `connectors.message.Scope`; empty for the workspace, None if an earlier version
    stored the context: see `audience_of`."""
    authors: tuple[Participant, ...]
    identity: str
    identity_versions: tuple[str, ...] = ()
    query: Query
    strategy: Literal["none", "tail", "qmd"]
    reason: str
    small_talk: bool
    wants_history: bool
    wants_documents: bool
    global_context: tuple[ContextLine, ...] | None = None
    """None if it could not be read."""
    summary: SummaryInput | None = None
    tail: tuple[TailEntry, ...] = ()
    recalled: tuple[RecalledTurn, ...] = ()
    frame: FrameInput | None = None
    records: tuple[SelectedRecord, ...] = ()
    """The best first."""
    selection: Selection | None = None
    """None if no records were looked for."""
    censors: tuple[Censor, ...] = ()
    calibration: Calibration | None = None
    passages: tuple[Passage, ...] = ()
    translation: str = ""
    """The message as the documents were searched for it, if they are in another language."""
    session: SessionInput | None = None
    codex: CodexInput | None = None
    environment: EnvironmentInput | None = None
    memory: ModelMemory | None = None
    """None if the model runs elsewhere, or its size is unknown."""
    sigil: SigilInput | None = None
    karma_floor: tuple[Trace, ...] = ()
    """The same throughout a session."""
    karma: tuple[Trace, ...] = ()
    """Chosen for the message, the best first."""
    today: str = ""
    """A day, as 2026-11-22."""
    deltas: tuple[str, ...] = ()
    """Changes since the session's snapshot, a line each."""
    injected: tuple[Injected, ...] = ()
    """The texts of formatters."""
    hint: str = ""
    degraded: tuple[DegradedBlock, ...] = ()
    layout: Layout = "user_first"
    tools: tuple[str, ...] = ()
    """The names of the tools that the model may call."""
    budgets: PromptLimits

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [block.name for block in self.injected]
        if len({*names}) != len(names):
            raise ValueError("two formatters made one block")
        return self


def audience_of(context: RunContext) -> str | None:
    """Return the readers of the answer, as in `connectors.message.Scope`.

    If an earlier version stored the context, they are the one person of a direct message, else those of the place,
    which may have been private.
    """
    if context.audience is not None:
        return context.audience or None
    users = {author.user for author in context.authors}
    return users.pop() if context.direct and len(users) == 1 else place_audience(context.context_id)
