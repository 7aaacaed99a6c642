"""Messages that wait in mailboxes, the work that a worker takes from them, and its lease."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from connectors.message import AgentRuntimeError, ConversationKey, Fence, InboundMessage, Role
from runtime.delivery import PreviewMode
from runtime.stores import NewerFormat
from runtime.workspaces import QueueMode

_VERSION = 1


class Lane(StrEnum):
    """A queue with an order of its own: a command does not wait for an answer that is being written."""

    TURNS = ""
    COMMANDS = "commands-"


class AmendResult(StrEnum):
    """The state of a message when it was changed: it still waited, was being answered, was answered, or is unknown."""

    AMENDED = "amended"
    ANSWERING = "answering"
    ANSWERED = "answered"
    UNKNOWN = "unknown"


class MailboxFull(AgentRuntimeError):
    """The mailbox of the conversation is full; the message was not stored.

    ``first`` says that it is the first rejected message since a turn ended there: people are told once.
    """

    retryable = True
    user_text = "Too many messages are waiting here. Please wait until I have answered some."

    def __init__(self, message: str, *, first: bool = True) -> None:
        super().__init__(message)
        self.first = first


@dataclass(frozen=True, slots=True)
class Envelope:
    """A stored inbound message, the role of its author, and when it was accepted (seconds since the epoch).

    ``origin`` is the process that accepted it (`runtime.coordination.hub.Hub.name`), ``address`` the destination of its
    answer (`runtime.delivery.outbox`); ``watched`` says whether somebody there sees the answer grow.
    """

    message: InboundMessage
    role: Role
    accepted_at: float
    origin: str = ""
    address: str = ""
    watched: PreviewMode = PreviewMode.NOT
    queue: QueueMode = "collect"
    """The place's mode for messages that arrive while another is answered."""
    shows_sources: bool = True
    """Whether replies in the place end with their sources."""
    v: int = _VERSION


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A conversation with waiting messages, assigned to this worker; ``entry`` is its id in the stream."""

    key: ConversationKey
    entry: str

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key by waiting time, the longest first."""
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
    """The messages that one turn answers, oldest first.

    ``attempt`` counts from 1; each failure while its process lived adds 1. ``crashes`` counts the processes that ended
    while they answered it. ``resumed`` says that an earlier attempt may have left a checkpoint.
    """

    key: ConversationKey
    turn_id: str
    attempt: int
    envelopes: tuple[Envelope, ...]
    fence: Fence
    resumed: bool = False
    crashes: int = 0

    @property
    def user(self) -> str:
        """The person whose budget pays for the turn: the author of the last message."""
        message = self.envelopes[-1].message
        return message.author.user(message.connector)


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of storing a message: whether it was new.

    ``turn_id`` is the turn that answered it before, if one did; ``current_turn`` the turn of earlier messages that is
    being answered, if one is. ``held`` says that a worker has the conversation and will see the message: none needs to
    be notified.
    """

    new: bool
    turn_id: str = ""
    current_turn: str = ""
    held: bool = False


class BatchGrown(Exception):
    """The question of a turn has grown while it was answered: the same turn must answer *batch* instead."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(f"{len(batch.envelopes)} messages")
        self.batch = batch


_ENVELOPE = TypeAdapter(Envelope)


def pack_envelope(envelope: Envelope) -> bytes:
    """Return *envelope* as it is stored."""
    return _ENVELOPE.dump_json(envelope)


def unpack_envelope(text: str) -> Envelope:
    """Return a stored envelope. Raises `runtime.stores.NewerFormat`."""
    envelope = _ENVELOPE.validate_json(text)
    if envelope.v > _VERSION:
        raise NewerFormat(f"a waiting message has version {envelope.v}; this runtime reads {_VERSION}: upgrade it")
    return envelope
