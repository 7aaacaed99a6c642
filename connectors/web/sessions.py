"""Who is signed in to the chat page, and the cookie by which the browser shows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from connectors.message import Role

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

    @property
    def name(self) -> str:
        """What people call the token's holder."""

    @property
    def person(self) -> str:
        """The id of the person for whom the token was made; empty for a program's, and the admin's."""


@dataclass(frozen=True, slots=True)
class Session:
    """A person at the page."""

    caller_id: str
    role: Role
    workspace_id: str
    name: str = ""
    person: str = ""


class Sessions(Protocol):
    """Keeps sessions by a random secret that only the browser has. Raises `connectors.message.StoreUnavailable`."""

    async def begin(self, token: str, session: Session) -> str:
        """Keep *session*, begun with the API token *token*; its new secret. The token itself is not kept."""

    async def find(self, secret: str) -> Session | None:
        """The session of *secret*, with what its token allows now; None where either is gone."""

    async def move(self, secret: str, workspace_id: str) -> Session | None:
        """Let the session be in another workspace from now on; None where its token is not for that one."""

    async def end(self, secret: str) -> None:
        """Forget the session."""


Authenticate = Callable[[Request], Awaitable[WebCaller]]
"""By the bearer token. Raises `starlette.exceptions.HTTPException` (401, 403) and `StoreUnavailable`."""
CheckPlace = Callable[[Request], None]
"""Refuses foreign hosts and origins: raises `starlette.exceptions.HTTPException` 403."""
