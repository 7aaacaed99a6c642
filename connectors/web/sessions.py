"""Sessions of people who are signed in to the chat page, and the browser's cookie for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from connectors.message import Role

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
