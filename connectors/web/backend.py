"""The interface of the chat page to the runtime: a person's conversations, their files, and actions on answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from connectors.message import ConversationKey, OutboundMessage, Role

Mark = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation in a person's list. ``at`` (RFC 3339) is the time of its last message."""

    id: str
    title: str
    at: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that a person attached to a message. The runtime chose ``id``; the browser reported the rest."""

    id: str
    name: str
    media_type: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """An earlier message of a conversation.

    ``reply`` has the details of the bot's message and is None for a person's. ``mark`` is the person's mark of an
    answer. ``at`` is RFC 3339.
    """

    message_id: str
    text: str
    at: str
    reply: OutboundMessage | None = None
    files: tuple[File, ...] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """The person who acts. ``user`` is ``connector:user_id``."""

    user: str
    role: Role


class Backend(Protocol):
    """The runtime's services for the chat page.

    All methods raise `connectors.message.StoreUnavailable`, and `connectors.web.convert.RequestError` if something
    does not exist or is not allowed. A key always belongs to the person who asks.
    """

    async def has_workspace(self, workspace_id: str) -> bool: ...

    async def workspaces(self) -> Sequence[str]:
        """Return the ids of all workspaces, sorted."""

    async def conversations(self, workspace_id: str, person: str, words: str = "") -> Sequence[Conversation]:
        """Return the conversations of *person*, the last used first. With *words*, only those that contain all of
        them."""

    async def recent(self, key: ConversationKey, person: Person, limit: int) -> Sequence[Said]:
        """Return the last *limit* messages, oldest first."""

    async def add_message(
        self, key: ConversationKey, message_id: str, text: str, files: Sequence[File]
    ) -> Conversation:
        """Record a person's message with its files. The first message of a conversation gives it its title."""

    async def rename(self, key: ConversationKey, title: str) -> Conversation: ...

    async def delete(self, key: ConversationKey, person: Person) -> None:
        """Delete the conversation and everything derived from it."""

    async def replace(
        self, key: ConversationKey, person: Person, replaced: Sequence[str], message_id: str, files: Sequence[File]
    ) -> Sequence[str]:
        """Delete the last turn, which answered the messages *replaced*. *message_id* (with *files*) replaces them.

        Returns the page's ids of the deleted messages, or none if the turn was not recorded.
        """

    async def stop(self, key: ConversationKey) -> bool:
        """Stop the answer that is being written. Returns False if there is none."""

    async def mark(self, key: ConversationKey, person: Person, turn_id: str, mark: Mark | None) -> None:
        """Set *person*'s mark of an answer. None removes it."""

    async def section(self, key: ConversationKey, source: str, heading: str) -> str:
        """Return the current text (Markdown) below a heading of a document that was a source in this conversation."""

    async def keep_file(self, key: ConversationKey, data: bytes) -> str:
        """Store a file and return its id."""

    async def find_file(self, key: ConversationKey, file_id: str) -> Path | None:
        """Return the path of a stored file, or None if it does not exist."""
