"""The interface of the chat page to the runtime: a person's conversations, their files, and actions on answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from starlette.requests import Request

from connectors.message import ConversationKey, OutboundMessage, Role

Mark = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class ListedConversation:
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
class PastMessage:
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
class ChatPerson:
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

    async def conversations(self, workspace_id: str, person: str, words: str = "") -> Sequence[ListedConversation]:
        """Return the conversations of *person*, the last used first. With *words*, only those that contain all of
        them."""

    async def recent(self, key: ConversationKey, person: ChatPerson, limit: int) -> Sequence[PastMessage]:
        """Return the last *limit* messages, oldest first."""

    async def add_message(
        self, key: ConversationKey, message_id: str, text: str, files: Sequence[File]
    ) -> ListedConversation:
        """Record a person's message with its files. The first message of a conversation gives it its title."""

    async def rename(self, key: ConversationKey, title: str) -> ListedConversation: ...

    async def delete(self, key: ConversationKey, person: ChatPerson) -> None:
        """Delete the conversation and everything derived from it."""

    async def replace(
        self, key: ConversationKey, person: ChatPerson, replaced: Sequence[str], message_id: str, files: Sequence[File]
    ) -> Sequence[str]:
        """Delete the last turn, which answered the messages *replaced*. *message_id* (with *files*) replaces them.

        Returns the page's ids of the deleted messages, or none if the turn was not recorded.
        """

    async def stop(self, key: ConversationKey) -> bool:
        """Stop the answer that is being written. Returns False if there is none."""

    async def mark(self, key: ConversationKey, person: ChatPerson, turn_id: str, mark: Mark | None) -> None:
        """Set *person*'s mark of an answer. None removes it."""

    async def section(self, key: ConversationKey, source: str, heading: str) -> str:
        """Return the current text (Markdown) below a heading of a document that was a source in this conversation."""

    async def keep_file(self, key: ConversationKey, data: bytes) -> str:
        """Store a file and return its id."""

    async def find_file(self, key: ConversationKey, file_id: str) -> Path | None:
        """Return the path of a stored file, or None if it does not exist."""


# ---- sessions ----
#
# Sessions of people who are signed in to the chat page, and the browser's cookie for them.


COOKIE = "agent_runtime_chat"
SESSION_SECONDS = 7 * 24 * 3600
"""How long a person stays signed in."""


class WebCaller(Protocol):
    """The authenticated holder of a token."""

    @property
    def role(self) -> Role: ...

    @property
    def workspace_id(self) -> str | None:
        """The only workspace of the token; None for all."""

    @property
    def id(self) -> str:
        """Begins with `connectors.message.CALLER_PREFIX`."""

    @property
    def name(self) -> str:
        """The display name of the token's holder."""

    @property
    def person(self) -> str:
        """The id of the person for whom the token was created. Empty for a program's token and the admin's."""


@dataclass(frozen=True, slots=True)
class Session:
    """The sign-in of one person in one workspace."""

    caller_id: str
    role: Role
    workspace_id: str
    name: str = ""
    person: str = ""


class Sessions(Protocol):
    """Stores sessions by a random secret that only the browser has. Raises `connectors.message.StoreUnavailable`."""

    async def begin(self, token: str, session: Session) -> str:
        """Store *session*, signed in with the API token *token*; return its new secret. Does not store the token."""

    async def find(self, secret: str) -> Session | None:
        """Return the session of *secret* with its token's current permissions, or None if either no longer exists."""

    async def move(self, secret: str, workspace_id: str) -> Session | None:
        """Move the session to another workspace and return it, or None if its token is not for that workspace."""

    async def end(self, secret: str) -> None:
        """Delete the session."""


Authenticate = Callable[[Request], Awaitable[WebCaller]]
"""Authenticates a bearer token. Raises `starlette.exceptions.HTTPException` (401, 403) and `StoreUnavailable`."""
CheckPlace = Callable[[Request], None]
"""Checks host and origin. Raises `starlette.exceptions.HTTPException` (403) for foreign ones."""
