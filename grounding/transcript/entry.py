"""One entry of a conversation's log, and its form in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from connectors.message import AgentRuntimeError, ConversationKey

VERSION = "1"


class EntryRole(StrEnum):
    """Which way a message went; tool entries never reach the tail."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a conversation, or the document made of it, has come: answered turns and log entries."""

    turns: int = 0
    entries: int = 0


class UnknownFormat(AgentRuntimeError):
    """Something stored was written by a newer version of the runtime."""

    user_text = "A newer version of me has stored this conversation. Please tell an administrator."


@dataclass(frozen=True, slots=True)
class Entry:
    """One message of a conversation. ``at`` is RFC 3339 in UTC; ``user`` is ``connector:user_id``.

    ``foreign`` says of an answer what it was made of that the person who asked has not written: ``retrieved``
    (documents, files, pictures), ``others`` (other people's words), or nothing; and of a person's message that it is
    only forwarded (``others``).
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
    def from_fields(cls, fields: Mapping[str, str]) -> Entry:
        """Raises `UnknownFormat` for a version that this one does not know."""
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
    """An order to the Markdown copy: to take a turn out, or, without a ``turn_id``, to delete the whole."""

    turn_id: str = ""


@dataclass(frozen=True, slots=True)
class ToCopy:
    """One thing to be done to a conversation's Markdown copy. ``what`` is None for an entry that is gone again."""

    export_id: str
    key: ConversationKey
    what: Entry | Forget | None
