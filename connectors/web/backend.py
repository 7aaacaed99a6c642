"""What the chat page asks of the runtime: a person's conversations, their files, and actions on answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from connectors.message import ConversationKey, OutboundMessage, Role

Mark = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation in a person's list. ``at`` (RFC 3339) is when something was said last."""

    id: str
    title: str
    at: str


@dataclass(frozen=True, slots=True)
class File:
    """A file that a person attached to a message. ``id`` is ours, the rest is what the browser says of it."""

    id: str
    name: str
    media_type: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a conversation's past. ``reply`` is what is known of the bot's, None for a person's; ``mark`` is
    what the person said of it; ``at`` is RFC 3339."""

    message_id: str
    text: str
    at: str
    reply: OutboundMessage | None = None
    files: tuple[File, ...] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts: ``user`` is ``connector:user_id``."""

    user: str
    role: Role


class Backend(Protocol):
    """All methods raise `connectors.message.StoreUnavailable`, and `connectors.web.convert.RequestError` for what is
    not there or not allowed. A key is always one of the person who asks."""

    async def has_workspace(self, workspace_id: str) -> bool: ...

    async def workspaces(self) -> Sequence[str]:
        """All workspaces, by name."""

    async def conversations(self, workspace_id: str, person: str, words: str = "") -> Sequence[Conversation]:
        """The conversations of *person*, the last used first; with *words* those in which all of them occur."""

    async def recent(self, key: ConversationKey, person: Person, limit: int) -> Sequence[Said]:
        """The last so many messages, oldest first."""

    async def add_message(
        self, key: ConversationKey, message_id: str, text: str, files: Sequence[File]
    ) -> Conversation:
        """Keep that a message with these files was said; the first one gives the conversation its title."""

    async def rename(self, key: ConversationKey, title: str) -> Conversation: ...

    async def delete(self, key: ConversationKey, person: Person) -> None:
        """Forget the conversation with all that came of it."""

    async def replace(
        self, key: ConversationKey, person: Person, replaced: Sequence[str], message_id: str, files: Sequence[File]
    ) -> Sequence[str]:
        """Forget the last turn, which answered the messages *replaced*, because *message_id* (with *files*) takes its
        place. Returns by which ids the page knows what is gone; nothing where the turn was recorded nowhere."""

    async def stop(self, key: ConversationKey) -> bool:
        """End the answer that is being written; False where none is."""

    async def mark(self, key: ConversationKey, person: Person, turn_id: str, mark: Mark | None) -> None:
        """Let *person*'s mark of an answer be *mark*."""

    async def section(self, key: ConversationKey, source: str, heading: str) -> str:
        """The text (Markdown) below a heading of a document that was a source in this conversation, as it is now."""

    async def keep_file(self, key: ConversationKey, data: bytes) -> str:
        """Keep a file; its id."""

    async def find_file(self, key: ConversationKey, file_id: str) -> Path | None:
        """Where a file lies on this machine."""
