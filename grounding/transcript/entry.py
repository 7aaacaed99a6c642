"""One entry of a conversation's log, and its form in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from connectors.message import AgentRuntimeError, ConversationKey

VERSION = "1"


class EntryRole(StrEnum):
    """The direction of a message. Tool entries never reach the tail."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Reach:
    """The length of a conversation, or of the part that a document covers, in answered turns and log entries."""

    turns: int = 0
    entries: int = 0


class UnknownFormat(AgentRuntimeError):
    """A newer version of the runtime wrote the stored data."""

    user_text = "A newer version of me has stored this conversation. Please tell an administrator."


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One message of a conversation. ``at`` is RFC 3339 in UTC; ``user`` is ``connector:user_id``.

    For an answer ``foreign`` names the text in the prompt that the asking person had not written: ``retrieved``
    (documents, files, pictures), ``others`` (other people's words), or empty. For a person's message it is ``others``
    if the message is forwarded.
    """

    role: EntryRole
    text: str
    turn_id: str
    at: str
    author: str = ""
    user: str = ""
    message_id: str = ""
    foreign: str = ""

    def fields(self) -> dict[str, str]:
        return {
            "v": VERSION,
            "role": self.role.value,
            "text": self.text,
            "turn": self.turn_id,
            "at": self.at,
            "author": self.author,
            "user": self.user,
            "message": self.message_id,
            "foreign": self.foreign,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> TranscriptEntry:
        """Return the entry stored as *fields*. Raises `UnknownFormat` if a newer version wrote it."""
        if fields.get("v") != VERSION:
            raise UnknownFormat(
                f"a log entry has version {fields.get('v')!r}; this runtime reads {VERSION}: upgrade it"
            )
        return cls(
            role=EntryRole(fields["role"]),
            text=fields["text"],
            turn_id=fields["turn"],
            at=fields["at"],
            author=fields["author"],
            user=fields["user"],
            message_id=fields["message"],
            foreign=fields.get("foreign", ""),
        )


@dataclass(frozen=True, slots=True)
class Forget:
    """An instruction to the Markdown copy: remove a turn, or without a ``turn_id`` the whole file."""

    turn_id: str = ""


@dataclass(frozen=True, slots=True)
class ToCopy:
    """One change to a conversation's Markdown copy. ``what`` is None if the entry was deleted since."""

    export_id: str
    key: ConversationKey
    what: TranscriptEntry | Forget | None
