"""Messages that wait in mailboxes, the work that a worker takes from them, and its lease."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from connectors.message import AgentRuntimeError, ConversationKey, Fence, InboundMessage, Role
from runtime.delivery import Watched
from runtime.stores import NewerFormat
from runtime.workspaces import QueueMode

_VERSION = 1


class Lane(StrEnum):
    """What is worked through in order by itself: a command is not held up by an answer that is being written."""

    TURNS = ""
    COMMANDS = "commands-"


class AmendResult(StrEnum):
    """If a message was when it was changed: waiting still, in an answer's making, answered, or never seen."""

    AMENDED = "amended"
    ANSWERING = "answering"
    ANSWERED = "answered"
    UNKNOWN = "unknown"


class MailboxFull(AgentRuntimeError):
    """So many messages wait in a conversation that no more is taken; nothing was stored.

    ``first`` says that it is the first one since a turn was over there: people are told once, not with every message.
    """

    retryable = True
    user_text = "Too many messages are waiting here. Please wait until I have answered some."

    def __init__(self, message: str, *, first: bool = True) -> None:
        super().__init__(message)
        self.first = first


@dataclass(frozen=True, slots=True)
class Envelope:
    """A stored inbound message: what was authorised, as what, and when (seconds since the epoch).

    ``origin`` is the process that accepted it (`runtime.coordination.hub.Hub.name`) and ``address`` where its answer
    goes
    (`runtime.delivery.outbox`); ``watched`` says whether somebody there sees the answer grow.
    """

    message: InboundMessage
    role: Role
    accepted_at: float
    origin: str = ""
    address: str = ""
    watched: Watched = Watched.NOT
    queue: QueueMode = "collect"
    """What holds where it was said, for messages that arrive while another is answered."""
    model: str | None = None
    """The model that is asked first where it was said; empty if the settings decide, None if it is to be looked
    up when the turn begins: in the meantime an operator may have chosen another."""
    shows_sources: bool = True
    """Whether replies end with their sources where it was said."""
    v: int = _VERSION


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A conversation that has something waiting, given to this worker; ``entry`` is its place in the stream."""

    key: ConversationKey
    entry: str

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts offers by how long they wait."""
        milliseconds, _, number = self.entry.partition("-")
        return int(milliseconds), int(number)


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's hold of a conversation."""

    key: ConversationKey
    entry: str
    fence: Fence


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages that one turn answers, oldest first. ``attempt`` counts from 1, one more for each failure while its
    process lived; ``crashes`` counts the processes that ended over it. ``resumed`` says that it may have come some way
    already."""

    key: ConversationKey
    turn_id: str
    attempt: int
    envelopes: tuple[Envelope, ...]
    fence: Fence
    resumed: bool = False
    crashes: int = 0

    @property
    def user(self) -> str:
        """Whose budget the turn is paid from: whoever wrote the last message."""
        message = self.envelopes[-1].message
        return message.author.user(message.connector)


@dataclass(frozen=True, slots=True)
class PutResult:
    """Whether a message was new; ``turn_id`` is the turn that answered it before, if one did; ``current_turn`` the turn
    of earlier messages that is being answered, if one is; ``held`` says that a worker has the conversation and looks
    for more before it lets go: no worker need be told."""

    new: bool
    turn_id: str = ""
    current_turn: str = ""
    held: bool = False


class BatchGrown(Exception):
    """A turn's question has grown while it was answered: *batch* is to be answered in its place, as the same turn."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(f"{len(batch.envelopes)} messages")
        self.batch = batch


_ENVELOPE = TypeAdapter(Envelope)


def pack_envelope(envelope: Envelope) -> bytes:
    """*envelope* as it is stored."""
    return _ENVELOPE.dump_json(envelope)


def unpack_envelope(text: str) -> Envelope:
    """The inverse of `pack_envelope`. Raises `runtime.stores.NewerFormat`."""
    envelope = _ENVELOPE.validate_json(text)
    if envelope.v > _VERSION:
        raise NewerFormat(f"a waiting message has version {envelope.v}; this runtime reads {_VERSION}: upgrade it")
    return envelope
