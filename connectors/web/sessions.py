"""Who is signed in to the chat page, and the cookie by which the browser shows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from connectors.message import ConversationKey, OutboundMessage, Role

COOKIE = "agent_runtime_chat"
SESSION_SECONDS = 7 * 24 * 3600
"""How long a sign-in lasts."""


class WebCaller(Protocol):
    """Whoever holds a token, after authentication."""

    @property
    def role(self) -> Role: ...

    @property
    def workspace_id(self) -> str | None:
        """The only workspace that the token is for; None for all."""

    @property
    def id(self) -> str:
        """Begins with `connectors.message.CALLER_PREFIX`."""


@dataclass(frozen=True, slots=True)
class Session:
    """A person at the page. ``name`` is what they call themselves, normalised; may be empty."""

    caller_id: str
    role: Role
    workspace_id: str
    name: str = ""


class Sessions(Protocol):
    """Keeps sessions by a random secret that only the browser has. Raises `connectors.message.StoreUnavailable`."""

    async def begin(self, token: str, session: Session) -> str:
        """Keep *session*, begun with the API token *token*; its new secret. The token itself is not kept."""

    async def find(self, secret: str) -> Session | None:
        """The session of *secret*, with the role that its token has now; None where either is gone."""

    async def end(self, secret: str) -> None:
        """Forget the session."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a conversation's past. ``reply`` is what is known of the bot's, None for a person's;
    ``at`` is RFC 3339."""

    message_id: str
    text: str
    at: str
    reply: OutboundMessage | None = None


Authenticate = Callable[[Request], Awaitable[WebCaller]]
"""By the bearer token. Raises `starlette.exceptions.HTTPException` (401, 403) and `StoreUnavailable`."""
CheckPlace = Callable[[Request], None]
"""Refuses foreign hosts and origins: raises `starlette.exceptions.HTTPException` 403."""
Recent = Callable[[ConversationKey, int], Awaitable[Sequence[Said]]]
"""The last so many messages of a conversation, oldest first. Raises `StoreUnavailable`."""
KnowsWorkspace = Callable[[str], Awaitable[bool]]
"""Whether there is such a workspace. Raises `StoreUnavailable`."""
