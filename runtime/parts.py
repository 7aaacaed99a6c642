"""How far the parts of a reply have come, and what is found out about that: the nouns of `runtime.part_states`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import TypeAdapter

from connectors.message import OutboundMessage, OutboundPart
from runtime.stored import NewerFormat
from runtime.work_streams import Given

VERSION = "1"
_MESSAGE = TypeAdapter(OutboundMessage)


class Stage(StrEnum):
    """How far a part has come."""

    NEW = ""
    DRAFTING = "drafting"
    """The first message of a preview is being sent. If that is lost, nothing is: the delivery sends the part."""
    SHOWN = "shown"
    """People see it growing, in the message of this id."""
    SENDING = "sending"
    """From before the call to the platform until its receipt: after an end of the process nobody knows."""
    UNSENT = "unsent"
    """The platform has said that it did not take it."""
    SENT = "sent"
    AMBIGUOUS = "ambiguous"
    """Nobody knows whether it was sent, and it is not sent again."""


@dataclass(frozen=True, slots=True)
class PartState:
    """A stage; the platform's id of the message for ``SHOWN`` and ``SENT``; for ``SENDING`` since when (epoch)."""

    stage: Stage = Stage.NEW
    message_id: str = ""
    since: float = 0.0

    def text(self) -> str:
        match self.stage:
            case Stage.SENT | Stage.SHOWN:
                return f"{self.stage}:{self.message_id}"
            case Stage.SENDING:
                return f"{self.stage}:{self.since:.0f}"
            case _:
                return self.stage.value

    @classmethod
    def parse(cls, text: str) -> PartState:
        """The inverse of `text`; what a newer runtime may have written counts as `Stage.NEW`."""
        stage, _, more = text.partition(":")
        match stage:
            case Stage.SENT | Stage.SHOWN:
                return cls(Stage(stage), more)
            case Stage.SENDING:
                return cls(Stage.SENDING, since=float(more or 0))
            case Stage.UNSENT | Stage.AMBIGUOUS | Stage.DRAFTING:
                return cls(Stage(stage))
            case _:
                return cls()


@dataclass(frozen=True, slots=True)
class Held:
    """A reply that is being delivered: the reply if it is stored, and its parts' states. ``begun`` says that the first
    part is marked as being sent by this very step."""

    message: OutboundMessage | None
    states: dict[int, PartState]
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Entered:
    """What came of storing a reply: whether it was the first for its turn, by address the ids of the entries that were
    made, and what this process was given to deliver by the same step. Where nothing was new, ``waiting`` are the
    addresses at which it is not delivered yet."""

    stored: bool
    addresses: Mapping[str, str]
    given: Sequence[Given] = ()
    waiting: Sequence[str] = ()


def drafted(part: OutboundPart) -> OutboundPart:
    """*part* with the token of a preview: a platform that knows tokens again would take its last form for a repeat."""
    return replace(part, token=f"{part.token}.draft")


class NotNext(Exception):
    """An older reply of the conversation is not delivered yet, by whichever process has it."""


class Forgotten(Exception):
    """What was being delivered is not stored any more: nothing is left to do for it."""


def packed(message: OutboundMessage) -> str:
    """*message* as it is stored."""
    return _MESSAGE.dump_json(message).decode()


def message_in(version: str | None, message: str | None) -> OutboundMessage | None:
    """The inverse of `packed`, None where nothing is stored. Raises `runtime.stored.NewerFormat`."""
    if message is None:
        return None
    if version != VERSION:
        raise NewerFormat(f"a reply was stored in format {version}; this runtime reads {VERSION}: upgrade it")
    return _MESSAGE.validate_json(message)


def states_in(fields: Mapping[str, str]) -> dict[int, PartState]:
    """The states of parts, by their index, among the fields that are stored of a turn."""
    return {
        int(name.removeprefix("part:")): PartState.parse(text)
        for name, text in fields.items()
        if name.startswith("part:")
    }
