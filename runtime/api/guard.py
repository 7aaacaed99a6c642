"""What stands before every path: our own host and origin, a token, and what the token allows at least.

Whatever a route forgets, nobody without a token gets beyond the public paths, nor with one that is for the chat page
alone, no token enters another workspace's paths, and a viewer changes nothing. Errors that no route handled are
answered here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.message import Role
from runtime.api.errors import ApiError, error_response
from runtime.api.security import Security
from runtime.tokens import Caller

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """ASGI middleware around the whole application: only the routes of *public* are reached without a token."""

    def __init__(self, app: ASGIApp, *, security: Security, public: Sequence[BaseRoute]) -> None:
        self._app = app
        self._security = security
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            _check_path(scope)
            await self._enter(Request(scope))
            await self._app(scope, receive, watched)
        except Exception as error:
            response = error_response(error)
            if begun:
                raise  # half an answer is out; the server breaks the connection, so that nobody takes it for whole
            await response(scope, receive, send)

    async def _enter(self, request: Request) -> None:
        path = request.scope["path"]
        if any(route.matches(request.scope)[0] is not Match.NONE for route in self._public):
            self._security.check_place(request)
            return
        caller = await self._security(request)
        _, _, group, *rest = path.split("/", 4) if path.count("/") >= 2 else ("", "", "")
        if group in ("workspaces", "vaults") and rest and rest[0] and not caller.may_enter(rest[0]):
            raise HTTPException(403, "the token is for another workspace")
        if caller.person:  # programs may name any person, and read all that was said to them
            raise HTTPException(403, "this token signs a person in to the chat page; programs need `access token`")
        if request.method not in _READING:
            require_role(caller, Role.MEMBER)


def _check_path(scope: Scope) -> None:
    """Raises `ApiError` 400 for a path that is no UTF-8: the server would have made one name of many."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        raise ApiError(400, "bad_request", "the path is not UTF-8") from None


def caller_of(request: Request) -> Caller:
    """Who calls, as `Guard` found out."""
    caller: Caller = request.state.caller
    return caller


def may_read(caller: Caller, connector: str, audience: str | None) -> bool:
    """Whether *caller* may read what was said where *audience* reads: what is the workspace's, and all of the http
    connector, whose places and people are the programs' own; the administrator of the runtime everything."""
    return audience is None or connector == "http" or caller.sees_all


def require_role(caller: Caller, role: Role) -> None:
    """Raises `ApiError` 403 where the caller's token is for less than *role*."""
    if not caller.role.covers(role):
        raise ApiError(403, "forbidden", f"this needs a token with the role {role}; yours has the role {caller.role}")


def require_everywhere(caller: Caller) -> None:
    """Raises `ApiError` 403 where the caller's token is for one workspace only."""
    if caller.workspace_id is not None:
        raise ApiError(403, "forbidden", "this reaches beyond one workspace; it needs the admin token")
