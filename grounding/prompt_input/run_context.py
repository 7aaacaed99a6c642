"""The strict, frozen input of one turn's prompt: everything that the prompt is built from.

A stored RunContext rebuilds its prompt byte for byte, so nothing here is read from a clock, a store or
a setting while the prompt is built.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from connectors.message import place_audience
from grounding.prompt_input.blocks import PLACES, Layout, Volatility, may_follow
from grounding.prompt_input.budgets import Budgets, Strict

SelectionReason = Literal["nothing_kept", "cold", "frame", "topic", "acting", "changed", "reused", "aside"]


class Participant(Strict):
    """An author of the turn's messages. ``user`` is ``connector:user_id``."""

    user: str
    name: str
    role: Literal["admin", "member", "viewer"]


class QuotedMessage(Strict):
    """What a message replies to."""

    author: str
    text: str


class AttachedText(Strict):
    """A file that came with the message and its text, as far as it could be read; ``note`` says what could not."""

    name: str
    text: str = ""
    note: str = ""


class AttachedImage(Strict):
    """A picture that the model sees beside the prompt. Its bytes are not kept: ``sha256`` says which they were."""

    name: str
    media_type: str
    sha256: str


class Query(Strict):
    """What was said in this turn: the messages of its batch, joined by blank lines."""

    text: str
    begins: tuple[int, ...] = ()
    """Where in it each message after the first begins, in characters."""
    relayed: bool = False
    """Whether some of it was only forwarded: it is what somebody else wrote."""
    quotes: tuple[QuotedMessage, ...] = ()
    attachments: tuple[str, ...] = ()
    """Names of all attached files."""
    files: tuple[AttachedText, ...] = ()
    """Those of them of which there is something to say."""
    images: tuple[AttachedImage, ...] = ()
    """Those of them that the model sees."""


class TailEntry(Strict):
    """One earlier message of the conversation."""

    speaker: str
    text: str
    turn_id: str
    user: str = ""
    """``connector:user_id`` of the person; empty for the assistant, and where it is not known."""
    foreign: str = ""
    """See `grounding.transcript.entry.Entry`."""


class ContextLine(Strict):
    """A line of the global context under the number of this session; without content it was deleted in it.

    ``marked``: it came from untrusted text, and nobody has approved it.
    """

    number: int = Field(ge=0)
    content: str
    marked: bool = False


class SummaryInput(Strict):
    """The context document as it stood, and up to which turn it reaches."""

    text: str
    turns: int = Field(ge=0)
    version: int = Field(ge=0)
    newest_turn_id: str = ""
    """The last turn that it was made of."""
    id: str = ""
    """Of the document, as its store gave it."""


class RecalledTurn(Strict):
    """An earlier turn of this conversation that bears on the message. ``said_on`` is a day."""

    turn_id: str
    said_on: str
    text: str
    score: float


class FrameInput(Strict):
    """How the message is gone about, and the cue that said so; see `grounding.memory.frames`."""

    name: str
    description: str = ""
    questions: tuple[str, ...] = ()
    reason: str = ""
    cue: str = ""


class SelectedRecord(Strict):
    """A record that was chosen for the message, at a level of detail; its type and state are words of
    `grounding.memory.records.model`. ``made_on`` is a day, ``due`` a day or a time."""

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
    """Whose words it is, where they are nobody's who is trusted here."""
    verbatim: bool = False
    """Whether it stands in every prompt, word for word, whatever else has to go."""
    tokens: int = Field(ge=0)


class Selection(Strict):
    """How the records were come by. ``why`` is why they were chosen anew, or ``reused``, or ``aside``: none is shown,
    as none bears on the message; ``budget`` is what they could have taken, in tokens; ``found`` how many were above
    the relevance floor."""

    why: SelectionReason
    found: int = Field(ge=0)
    budget: int = Field(ge=0)


class Censor(Strict):
    """A censor that is in force: what must not be said or done. ``trigger`` is words and phrases separated by ``|``."""

    id: str
    severity: Literal["warn", "block"]
    text: str
    trigger: str = ""
    reason: str = ""


class Calibration(Strict):
    """How the decisions that were reviewed came out, next to how sure people were of them; see
    `grounding.memory.selection.calibration`."""

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
    """The run of turns without a long pause that the turn belongs to. ``id`` is the turn id of its first turn,
    ``began_on`` a day, ``turns`` how many came before this one."""

    id: str
    began_on: str
    turns: int = Field(ge=0)


class CodexFile(Strict):
    """One piece of material."""

    path: str
    text: str


class CodexInput(Strict):
    """Material that an admin attached. ``tokens`` is what all of it takes when it is given whole, ``limit`` what it
    may take then, and ``weight`` what it takes of the model's window, in tokens of the model's own; ``why`` is what
    decided between the two. What may not be read for whoever asks is withheld: neither shown nor searched."""

    mode: Literal["whole", "search", "withheld"]
    why: str
    tokens: int = Field(ge=0)
    weight: int = Field(ge=0)
    limit: int = Field(ge=0)
    count: int = Field(ge=0)
    """How many files there are."""
    files: tuple[CodexFile, ...] = ()
    """By path; none where they are searched instead."""
    retrieved: int = Field(default=0, ge=0)
    """How many of the turn's passages are of this material."""


class Device(Strict):
    """A GPU's memory in MiB, and whether it is slowed down."""

    name: str
    total_mib: int = Field(ge=0)
    used_mib: int = Field(ge=0)
    free_mib: int = Field(ge=0)
    throttled: bool = False


class Link(Strict):
    """What the runtime depends on, and how it is reached: ``state`` is a word of `connectors.connector.State`."""

    name: str
    state: str


class EnvironmentInput(Strict):
    """The machine as it was when the session began, or when it last changed in a way that matters."""

    devices: tuple[Device, ...] = ()
    note: str = ""
    """Why there are no devices, in a word or two."""
    links: tuple[Link, ...] = ()
    power: Literal["", "mains", "battery"] = ""
    low_power: bool = False


class ModelMemory(Strict):
    """What the attention cache of a model on this machine takes, and what there is for it; see
    `grounding.prompt.memory_budget`."""

    bytes_per_token: int = Field(gt=0)
    free_mib: int = Field(ge=0)
    buffer_mib: int = Field(ge=0)
    """What is to stay free of that."""
    reserved_tokens: int = Field(default=0, ge=0)
    """Tokens for which the model's server has set memory aside already."""
    where: Literal["gpu", "ram"]
    source: Literal["gguf", "ollama", "settings"]
    """Whose description of the model it is."""


class SigilInput(Strict):
    """The set of permissions that holds in the turn. The prompt mentions it; code enforces it."""

    name: str
    scopes: tuple[str, ...] = ()


class Trace(Strict):
    """An exchange that people marked as good. ``marked_on`` is a day, ``good`` how many did."""

    turn_id: str
    asked: str
    answered: str
    marked_on: str
    good: int = Field(gt=0)
    score: float = 0.0
    """Likeness to the message; 0 for those that stand whatever is asked."""
    foreign: Literal["", "retrieved", "others"] = ""
    """Whose words the answer was made of, where they are nobody's who asked."""
    shared: bool = False
    """Whether it is the workspace's, so that anybody may have asked."""


class Injected(Strict):
    """Text that a formatter made (see `grounding.prompt.formatters`): a block of its own in *message* behind the block
    *place*, or, where *place* is its name too, what that block says. ``source`` is the distribution it came from.

    ValueError where that cannot be: text that changes with every turn in front of what does not.
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


CONDENSED = "condensed"
"""Why a block is missing, or is less than it was, that was taken out to save memory."""


class DegradedBlock(Strict):
    """A block that could not be had, and why, in a word or two."""

    block: str
    why: str


class RunContext(Strict):
    """All that one prompt is built from."""

    v: Literal[1] = 1
    """Version of this form; a stored one of another version is refused."""
    turn_id: str
    workspace_id: str
    context_id: str
    connector: str
    external_id: str
    direct: bool
    audience: str | None = None
    """Who reads the answer, as in `connectors.message.Scope`, empty for the workspace; None where an earlier version
    kept it: see `audience_of`."""
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
    """None where it could not be had."""
    summary: SummaryInput | None = None
    tail: tuple[TailEntry, ...] = ()
    recalled: tuple[RecalledTurn, ...] = ()
    frame: FrameInput | None = None
    records: tuple[SelectedRecord, ...] = ()
    """The best first."""
    selection: Selection | None = None
    """None where no records were looked for."""
    censors: tuple[Censor, ...] = ()
    calibration: Calibration | None = None
    passages: tuple[Passage, ...] = ()
    session: SessionInput | None = None
    codex: CodexInput | None = None
    environment: EnvironmentInput | None = None
    memory: ModelMemory | None = None
    """None where the model runs elsewhere, or nothing is known of it."""
    sigil: SigilInput | None = None
    karma_floor: tuple[Trace, ...] = ()
    """The same throughout a session."""
    karma: tuple[Trace, ...] = ()
    """Chosen for the message, the best first."""
    today: str = ""
    """A day, as 2026-11-22."""
    deltas: tuple[str, ...] = ()
    """What changed since the session's snapshot, a line each."""
    injected: tuple[Injected, ...] = ()
    """What formatters made."""
    hint: str = ""
    degraded: tuple[DegradedBlock, ...] = ()
    layout: Layout = "user_first"
    tools: tuple[str, ...] = ()
    """Names of the tools that the model is offered beside the prompt."""
    budgets: Budgets

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [one.name for one in self.injected]
        if len({*names}) != len(names):
            raise ValueError("two formatters made one block")
        return self


def audience_of(context: RunContext) -> str | None:
    """Who reads the answer, as in `connectors.message.Scope`. Where an earlier version kept the turn it is the one
    person of a direct message, else the place: nothing says that it was public."""
    if context.audience is not None:
        return context.audience or None
    users = {author.user for author in context.authors}
    return users.pop() if context.direct and len(users) == 1 else place_audience(context.context_id)
