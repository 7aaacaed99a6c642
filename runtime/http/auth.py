"""What stands before every path: our own host and origin, a token, and what the token allows at least.

Whatever a route forgets, nobody without a token gets beyond the public paths, nor with one that is for the chat page
alone, no token enters another workspace's paths, and a viewer changes nothing. Errors that no route handled are
answered here, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from config.settings import Settings
from connectors.message import Role
from runtime.access import Caller, InvalidTokenName, Tokens, Unauthenticated, check_token_name
from runtime.http.errors import ApiError, error_response

# ---- security ----
#
# Who may call the HTTP face: a bearer token on everything that is not public, a known host, our own origin.


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_LONGEST_SHOWN = 255
USER_HEADER = "X-Agent-Runtime-User"
"""The name of the person who uses the admin's token, percent-encoded; commands send it."""


class Security:
    """Checks requests. Called as ``await security(request)`` it returns the caller behind the token."""

    def __init__(self, settings: Settings, tokens: Tokens) -> None:
        self._tokens = tokens
        self._hosts = _LOOPBACK | {settings.http_host.lower(), *(host.lower() for host in settings.http_allowed_hosts)}
        if settings.http_public_url:
            self._hosts |= {(urlsplit(settings.http_public_url).hostname or "").lower()}

    async def __call__(self, request: HTTPConnection) -> Caller:
        """The caller; asked again of the same request, as it was found out the first time. Raises HTTPException (401,
        403) and `connectors.message.StoreUnavailable`."""
        found: Caller | None = getattr(request.state, "caller", None)
        if found is None:
            found = request.state.caller = await self._found(request)
        return found

    async def _found(self, request: HTTPConnection) -> Caller:
        self.check_place(request)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not bearer.strip():
            raise HTTPException(401, "send the token as 'Authorization: Bearer …'", {"WWW-Authenticate": "Bearer"})
        try:
            caller = await self._tokens.authenticate(bearer.strip())
        except Unauthenticated as error:
            raise HTTPException(401, error.user_text, {"WWW-Authenticate": "Bearer"}) from None
        return _named(caller, request)

    def check_place(self, request: HTTPConnection) -> None:
        """Refuse names that are not ours (DNS rebinding) and other sites' pages. Raises HTTPException 403."""
        host = request.headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts and host not in self._hosts:
            raise HTTPException(
                403, f"host {host[:_LONGEST_SHOWN]!r} is not served here; add it to AGENT_RUNTIME_HTTP_ALLOWED_HOSTS"
            )
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() != f"{request.url.scheme}://{host}":
            raise HTTPException(403, "requests from other sites' pages are refused")


def _named(caller: Caller, request: HTTPConnection) -> Caller:
    """The admin's token is shared: who uses it may say who they are, so that changes name them. They gain nothing."""
    said = unquote(request.headers.get(USER_HEADER, ""))
    if caller.workspace_id is not None or not said:
        return caller
    try:
        return replace(caller, name=check_token_name(said) or caller.name)
    except InvalidTokenName:
        return caller


# ---- guard ----


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


# ---- routing ----
#
# How a group of routes is declared: each with the least role that may call it.


ERROR = {"description": "An error", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}

Endpoint = Callable[..., Awaitable[Response]]
_LOOKS = ("GET", "HEAD")


class Routes:
    """A group of routes under ``/v1``. *name* groups them in the OpenAPI document."""

    def __init__(self, name: str) -> None:
        self.router = APIRouter(prefix="/v1", tags=[name])
        self.schemas: dict[str, Any] = {}
        """Schemas that the routes' bodies refer to, for the OpenAPI document."""

    def add(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        role: Role,
        *,
        body: type[BaseModel] | None = None,
        answers: str,
    ) -> None:
        """Let *endpoint* answer *method* on *path* for callers of at least *role*; *answers* says with what."""
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_class=Response,
            operation_id=f"{method.lower()}{_words(path)}",
            responses={200: {"description": answers}, "4XX": ERROR, "5XX": ERROR},
            dependencies=[Depends(_check_caller(role))],
            openapi_extra={"security": [{"bearer": []}], **self._described(body), "x-least-role": role.value},
        )

    def _described(self, body: type[BaseModel] | None) -> dict[str, Any]:
        if body is None:
            return {}
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        self.schemas |= schema.pop("$defs", {})
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _check_caller(least: Role) -> Callable[[Request], Awaitable[None]]:
    """The dependency of a route for callers of at least the role *least*. Of a call that changes something it refuses
    parameters that the route does not know: a misspelt one is no wish to change more."""

    async def check_caller(request: Request) -> None:
        require_role(caller_of(request), least)
        if request.method in _LOOKS:
            return
        known = [one.alias for one in request.scope["route"].dependant.query_params]
        if any(name not in known for name in request.query_params):
            what = f"{', '.join(known)}, and nothing else" if known else "no parameters"
            raise ApiError(400, "bad_request", f"query: this takes {what}")

    return check_caller


def _words(path: str) -> str:
    parts = (part.strip("{}").partition(":")[0] for part in path.split("/") if part)
    return "".join("".join(word.capitalize() for word in part.replace("-", "_").split("_")) for part in parts)
