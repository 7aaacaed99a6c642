"""The strict, frozen input of one turn's prompt: everything that the prompt is built from.

A stored RunContext rebuilds its prompt byte for byte, so nothing here is read from a clock, a store or
a setting while the prompt is built.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from config.settings import Settings
from grounding.blocks import Layout

SelectionReason = Literal["nothing_kept", "cold", "frame", "topic", "acting", "changed", "reused"]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Budgets(_Strict):
    """Ceilings in tokens, bytes and lines; see the settings of the same names."""

    top_k: int = Field(gt=0)
    excerpt_bytes: int = Field(gt=0)
    prompt_bytes: int = Field(gt=0)
    prompt_tokens: int = Field(gt=0)
    query_tokens: int = Field(gt=0)
    summary_tokens: int = Field(gt=0)
    tail_tokens: int = Field(gt=0)
    retrieved_tokens: int = Field(gt=0)
    tail_lines: int = Field(gt=0)
    tail_bytes: int = Field(gt=0)
    records_tokens: int = Field(default=1000, gt=0)
    """Of the block ``records``, what recalled turns may take; records have what their types share out."""
    frame_tokens: int = Field(default=500, gt=0)
    censors_tokens: int = Field(default=300, gt=0)
    global_context_tokens: int = Field(default=800, gt=0)
    hint_tokens: int = Field(default=40, gt=0)
    policy_tokens: int = Field(gt=0)
    context_tokens: int = Field(gt=0)
    window_tokens: int = Field(gt=0)
    output_tokens: int = Field(gt=0)
    tools_tokens: int = Field(default=0, ge=0)
    """What the descriptions of the tools take that are offered."""

    @classmethod
    def from_settings(cls, settings: Settings, window_tokens: int, tools_tokens: int = 0) -> Budgets:
        """The budgets of *settings* for a model with a window of *window_tokens*, of which tools take some."""
        return cls(
            top_k=settings.llm_grounding_top_k,
            excerpt_bytes=settings.llm_grounding_max_doc_excerpt_bytes,
            prompt_bytes=settings.llm_grounding_max_prompt_bytes,
            prompt_tokens=settings.llm_grounding_max_prompt_tokens,
            query_tokens=settings.llm_grounding_user_max_tokens,
            summary_tokens=settings.llm_grounding_memory_summary_max_tokens,
            tail_tokens=settings.llm_grounding_chat_tail_max_tokens,
            retrieved_tokens=settings.llm_grounding_qmd_max_tokens,
            tail_lines=settings.llm_grounding_chat_tail_lines,
            tail_bytes=settings.llm_grounding_chat_tail_bytes,
            frame_tokens=settings.frame_max_tokens,
            censors_tokens=settings.censors_max_tokens,
            global_context_tokens=settings.global_context_max_tokens,
            policy_tokens=settings.policy_max_tokens,
            context_tokens=settings.context_max_tokens,
            window_tokens=window_tokens,
            output_tokens=settings.llm_max_output_tokens,
            tools_tokens=tools_tokens,
        )


class Participant(_Strict):
    """An author of the turn's messages. ``user`` is ``connector:user_id``."""

    user: str
    name: str
    role: Literal["admin", "member", "viewer"]


class QuotedMessage(_Strict):
    """What a message replies to."""

    author: str
    text: str


class AttachedText(_Strict):
    """A file that came with the message and its text, as far as it could be read; ``note`` says what could not."""

    name: str
    text: str = ""
    note: str = ""


class AttachedImage(_Strict):
    """A picture that the model sees beside the prompt. Its bytes are not kept: ``sha256`` says which they were."""

    name: str
    media_type: str
    sha256: str


class Query(_Strict):
    """What was said in this turn: the messages of its batch, joined by blank lines."""

    text: str
    relayed: bool = False
    """Whether some of it was only forwarded: it is what somebody else wrote."""
    quotes: tuple[QuotedMessage, ...] = ()
    attachments: tuple[str, ...] = ()
    """Names of all attached files."""
    files: tuple[AttachedText, ...] = ()
    """Those of them of which there is something to say."""
    images: tuple[AttachedImage, ...] = ()
    """Those of them that the model sees."""


class TailEntry(_Strict):
    """One earlier message of the conversation."""

    speaker: str
    text: str
    turn_id: str
    user: str = ""
    """``connector:user_id`` of the person; empty for the assistant, and where it is not known."""
    foreign: str = ""
    """See `grounding.transcript.entry.Entry`."""


class ContextLine(_Strict):
    """A line of the global context under the number of this session; without content it was deleted in it.

    ``marked``: it came from untrusted text, and nobody has approved it.
    """

    number: int = Field(ge=0)
    content: str
    marked: bool = False


class SummaryInput(_Strict):
    """The context document as it stood, and up to which turn it reaches."""

    text: str
    turns: int = Field(ge=0)
    version: int = Field(ge=0)
    newest_turn_id: str = ""
    """The last turn that it was made of."""


class RecalledTurn(_Strict):
    """An earlier turn of this conversation that bears on the message. ``said_on`` is a day."""

    turn_id: str
    said_on: str
    text: str
    score: float


class FrameInput(_Strict):
    """How the message is gone about, and the cue that said so; see `grounding.memory.frames`."""

    name: str
    description: str = ""
    questions: tuple[str, ...] = ()
    reason: str = ""
    cue: str = ""


class SelectedRecord(_Strict):
    """A record that was chosen for the message, at a level of detail; its type and state are words of
    `grounding.memory.records.record`. ``made_on`` is a day, ``due`` a day or a time."""

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
    tokens: int = Field(ge=0)


class Selection(_Strict):
    """How the records were come by. ``why`` is why they were chosen anew, or ``reused``; ``budget`` is what they could
    have taken, in tokens; ``found`` how many were above the relevance floor."""

    why: SelectionReason
    found: int = Field(ge=0)
    budget: int = Field(ge=0)


class Censor(_Strict):
    """A censor that is in force: what must not be said or done. ``trigger`` is words and phrases separated by ``|``."""

    id: str
    severity: Literal["warn", "block"]
    text: str
    trigger: str = ""
    reason: str = ""


class Calibration(_Strict):
    """How the decisions that were reviewed came out, next to how sure people were of them; see
    `grounding.memory.selection.calibration`."""

    reviewed: int = Field(gt=0)
    accuracy: float
    brier: float
    confidence: float
    """The mean."""


class Passage(_Strict):
    """A passage of a workspace document; ``source`` is its path under ``docs/``."""

    source: str
    heading: str
    text: str
    score: float


class DegradedBlock(_Strict):
    """A block that could not be had, and why, in a word or two."""

    block: str
    why: str


class RunContext(_Strict):
    """All that one prompt is built from."""

    v: Literal[1] = 1
    """Version of this form; a stored one of another version is refused."""
    turn_id: str
    workspace_id: str
    context_id: str
    connector: str
    external_id: str
    direct: bool
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
    hint: str = ""
    degraded: tuple[DegradedBlock, ...] = ()
    layout: Layout = "user_first"
    tools: tuple[str, ...] = ()
    """Names of the tools that the model is offered beside the prompt."""
    budgets: Budgets
