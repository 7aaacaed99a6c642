"""Decides who may call which route. Each route declares its `Permission`; one that declares none is refused to all.

`Guard` stands around the whole application and checks the declarations: without a token only public routes are reached,
no token enters another workspace, whether path, query or body names it, and a token for the chat page reaches nothing
here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import structlog
from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as RequestScope

from config.settings import Settings
from connectors.message import ConversationKey, Role, Scope
from runtime.access import ApiTokens, Caller, InvalidTokenName, Unauthenticated, check_token_name
from runtime.http.errors import ApiError, error_response, read_json
from runtime.ingress import PLATFORMS

if TYPE_CHECKING:
    from runtime.process import Runtime

USER_HEADER = "X-Agent-Runtime-User"
"""The name of the person who uses the admin's token, percent-encoded; the command line sends it."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_LONGEST_SHOWN = 255
READING = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_CONNECTOR = "http:"
"""Begins the names of places and people of the http connector: they are the programs' own."""
_CONNECTORS_OF_PEOPLE = frozenset({"console", "web", *(platform.name for platform in PLATFORMS)})
"""The memory of these is closed to the tokens of programs."""
_ERROR = {
    "description": "An error",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
User = Annotated[str, Field(pattern=r"^[a-z]+:.+$", max_length=600)]
"""A person as connector:user_id, or a place as connector:id."""
Endpoint = Callable[..., Awaitable[Response]]
B = TypeVar("B", bound=BaseModel)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Permission:
    """Who may call a route: holders of a token with at least *role*; for None the route authenticates its callers
    itself, if it has to.

    *reach* says whose token: one for the ``workspace`` that the path names, one for all workspaces (``everywhere``), or
    any, because the route shows and changes only what is the caller's ``own``.
    """

    role: Role | None
    reach: Literal["workspace", "everywhere", "own"] = "workspace"


PUBLIC = Permission(None)


class Security:
    """Checks host, origin and token of requests. ``await security(request)`` returns the caller."""

    def __init__(self, settings: Settings, tokens: ApiTokens) -> None:
        self._tokens = tokens
        self._hosts = _LOOPBACK | {settings.http_host.lower(), *(host.lower() for host in settings.http_allowed_hosts)}
        if settings.http_public_url:
            self._hosts |= {(urlsplit(settings.http_public_url).hostname or "").lower()}

    async def __call__(self, request: HTTPConnection) -> Caller:
        """Return the caller, and remember it with the request. Raises HTTPException (401, 403) and
        `connectors.message.StoreUnavailable`."""
        caller: Caller | None = getattr(request.state, "caller", None)
        if caller is None:
            caller = request.state.caller = await self._authenticate(request)
        return caller

    async def _authenticate(self, request: HTTPConnection) -> Caller:
        self.check_host(request)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not bearer.strip():
            raise HTTPException(401, "send the token as 'Authorization: Bearer …'", {"WWW-Authenticate": "Bearer"})
        try:
            caller = await self._tokens.authenticate(bearer.strip())
        except Unauthenticated as error:
            raise HTTPException(401, error.user_text, {"WWW-Authenticate": "Bearer"}) from None
        # Several people share the admin's token: each may give a name, so that changes name them. It allows nothing.
        name = unquote(request.headers.get(USER_HEADER, ""))
        if caller.workspace_id is not None or not name:
            return caller
        try:
            return replace(caller, name=check_token_name(name) or caller.name)
        except InvalidTokenName:
            return caller

    def check_host(self, request: HTTPConnection) -> None:
        """Refuse host names that are not ours (DNS rebinding) and other sites' pages. Raises HTTPException 403."""
        host = request.headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts and host not in self._hosts:
            raise HTTPException(
                403, f"host {host[:_LONGEST_SHOWN]!r} is not served here; add it to AGENT_RUNTIME_HTTP_ALLOWED_HOSTS"
            )
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() != f"{request.url.scheme}://{host}":
            raise HTTPException(403, "requests from other sites' pages are refused")


class Guard:
    """ASGI middleware that lets requests in and answers the errors that no route handled.

    *routes* are all routes of the application, in the order in which it tries them; *permissions* has what each
    declares, by its `id`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        security: Security,
        routes: Sequence[BaseRoute],
        permissions: Mapping[int, Permission],
    ) -> None:
        self._app = app
        self._security = security
        self._routes = routes
        self._permissions = permissions

    async def __call__(self, scope: RequestScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            _check_path(scope)
            await self._check(Request(scope))
            await self._app(scope, receive, send_and_note)
        except Exception as error:
            response = error_response(error)
            if begun:
                raise  # the server breaks the connection, so that nobody takes half an answer for a whole one
            await response(scope, receive, send)

    async def _check(self, request: Request) -> None:
        route, parameters, allowed = self._find(request.scope)
        permission = self._permissions.get(id(route))
        if permission is not None and permission.role is None:
            self._security.check_host(request)
        else:
            await self._check_token(request, route, parameters, permission)
        if request.method not in allowed:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})

    def _find(self, scope: RequestScope) -> tuple[BaseRoute | None, Mapping[str, Any], frozenset[str]]:
        """Return the route that the application will run, its parameters and its methods; None for an unknown path. If
        only the method is wrong, returns the first route of the path."""
        other: tuple[BaseRoute, Mapping[str, Any], frozenset[str]] | None = None
        for route in self._routes:
            match, found = route.matches(scope)
            if match is not Match.NONE:
                methods = frozenset(getattr(route, "methods", None) or {scope["method"]})
                answer = (route, found.get("path_params", {}), methods)
                if match is Match.FULL:
                    return answer
                other = other or answer
        return other or (None, {}, frozenset({scope["method"]}))

    async def _check_token(
        self,
        request: Request,
        route: BaseRoute | None,
        parameters: Mapping[str, Any],
        permission: Permission | None,
    ) -> None:
        caller = await self._security(request)
        if caller.person:  # programs may name any person, and read all that was said to them
            raise HTTPException(403, "this token signs a person in to the chat page; programs need `access token`")
        if route is None:
            raise HTTPException(404)
        if permission is None or permission.role is None:
            _log.error("http.undeclared", path=getattr(route, "path", ""))
            raise HTTPException(403, "this route declares no permission")
        named = (parameters.get("workspace_id"), parameters.get("vault_id"), request.query_params.get("workspace"))
        for workspace_id in named:
            require_entry(caller, workspace_id)
        if permission.reach == "everywhere":
            require_everywhere(caller)
        require_role(caller, permission.role)


def _check_path(scope: RequestScope) -> None:
    """Raise `ApiError` 400 for a path that is no UTF-8: the server would turn many such names into one."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError:
        raise ApiError(400, "bad_request", "the path is not UTF-8") from None


class Routes:
    """A group of routes under ``/v1``. *name* groups them in the OpenAPI document."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.router = APIRouter(prefix="/v1", tags=[name])
        self.schemas: dict[str, Any] = {}
        """Schemas that the routes' bodies refer to, for the OpenAPI document."""
        self.permissions: dict[int, Permission] = {}
        """What each route declares, by its `id`."""
        self._runtime = runtime

    def add(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        role: Role,
        *,
        reach: Literal["workspace", "everywhere", "own"] = "workspace",
        body: type[BaseModel] | None = None,
        answers: str,
    ) -> None:
        """Let *endpoint* answer *method* on *path* for callers of at least *role*; *answers* describes the answer.

        For *reach* see `Permission`. Raises `ValueError` if it is ``workspace``, and the path names none.
        """
        if reach == "workspace" and not ("{workspace_id}" in path or "{vault_id}" in path):
            raise ValueError(f"{method} {path} names no workspace: declare its reach")
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_class=Response,
            operation_id=f"{method.lower()}{_words(path)}",
            responses={200: {"description": answers}, "4XX": _ERROR, "5XX": _ERROR},
            dependencies=[Depends(_refuse_unknown_parameters)],
            openapi_extra={"security": [{"bearer": []}], **self._openapi_body(body), "x-least-role": role.value},
        )
        self.permissions[id(self.router.routes[-1])] = Permission(role, reach)

    async def enter(self, workspace_id: str) -> Scope:
        """Return the scope of a workspace that exists. Raises `UnknownWorkspace` and `InvalidWorkspaceId`."""
        return Scope(await self._runtime.workspaces.require(workspace_id))

    async def read(self, request: Request, kind: type[B]) -> B:
        """Return the JSON body as *kind*. Raises `ApiError` 400 and 413, and 403 if its ``workspace`` is not open to
        the caller."""
        body = await read_json(request, kind, self._runtime.settings.http_max_body_bytes)
        require_entry(caller_of(request), getattr(getattr(body, "root", body), "workspace", None))
        return body

    def _openapi_body(self, body: type[BaseModel] | None) -> dict[str, Any]:
        if body is None:
            return {}
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        self.schemas |= schema.pop("$defs", {})
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _enter(request: Request, workspace_id: str) -> Scope:
    return Scope(await request.app.state.runtime.workspaces.require(workspace_id))


Workspace = Annotated[Scope, Depends(_enter)]
"""The scope of the workspace that the path names. If it does not exist, the call is refused."""


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown parameters of a call that changes something: a misspelt one might change more than was meant."""
    if request.method in READING:
        return
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    if any(name not in known for name in request.query_params):
        what = f"{', '.join(known)}, and nothing else" if known else "no parameters"
        raise ApiError(400, "bad_request", f"query: this takes {what}")


def _words(path: str) -> str:
    parts = (part.strip("{}").partition(":")[0] for part in path.split("/") if part)
    return "".join("".join(word.capitalize() for word in part.replace("-", "_").split("_")) for part in parts)


def caller_of(request: Request) -> Caller:
    """Return the caller whom `Guard` has authenticated."""
    caller: Caller = request.state.caller
    return caller


def idempotency_key(request: Request) -> str:
    """Return the key under which the stores recognise a repeated call; empty if the caller sent none."""
    key = request.headers.get("idempotency-key", "")
    return f"api:{caller_of(request).id}:{request.method}:{request.url.path}:{key}" if key else ""


def may_read(caller: Caller, connector: str, audience: str | None) -> bool:
    """Return whether *caller* may read what was said to *audience* in a place of *connector*.

    All may read what the whole workspace can see, and all of the http connector, whose places and people are the
    programs' own; the runtime's administrator may read everything.
    """
    return audience is None or connector == "http" or caller.sees_all


def require_role(caller: Caller, role: Role) -> None:
    """Raise `ApiError` 403 if the caller's token is for less than *role*."""
    if not caller.role.covers(role):
        raise ApiError(403, "forbidden", f"this needs a token with the role {role}; yours has the role {caller.role}")


def require_everywhere(caller: Caller) -> None:
    """Raise `ApiError` 403 if the caller's token is for one workspace only."""
    if caller.workspace_id is not None:
        raise ApiError(403, "forbidden", "this reaches beyond one workspace; it needs the admin token")


def require_entry(caller: Caller, workspace_id: str | None) -> None:
    """Raise `ApiError` 403 if the caller's token is for another workspace than *workspace_id*; None or an empty text
    names none."""
    if workspace_id and not caller.may_enter(workspace_id):
        raise ApiError(403, "forbidden", "the token is for another workspace")


def require_reader(caller: Caller, key: ConversationKey) -> None:
    """Raise `ApiError` 403 if the caller may not read the memory of the conversation *key*.

    Members may read that of the http connector's places, only the runtime's administrator that of platforms, because
    people there did not speak to the holder of a token, and admins that of names which programs made up.
    """
    if key.connector in _CONNECTORS_OF_PEOPLE and not caller.sees_all:
        raise ApiError(
            403, "forbidden", "only the runtime's admin token may use the memory of another connector's places"
        )
    if not caller.role.covers(Role.MEMBER if key.connector == "http" else Role.ADMIN):
        raise ApiError(403, "forbidden", "only an admin's token may read this memory")
