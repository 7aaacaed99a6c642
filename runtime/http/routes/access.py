"""People, their roles, pairing codes, tokens and invitations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from config.settings import Settings
from connectors.message import Role
from promptpolicy.sigils import Sigil, Sigils
from runtime.access import AlreadyInvited, ApiToken, Caller, InvalidTokenName, Person
from runtime.http.auth import Routes, caller_of, require_everywhere
from runtime.http.errors import ApiError, Body, reply

if TYPE_CHECKING:
    from runtime.process import Runtime


class Judge(Body):
    """Let in, as ``role``, or turn away the person who got a pairing code."""

    action: Literal["approve", "deny"]
    code: str
    role: Role = Role.MEMBER


class GiveRole(Body):
    """Give a person a role in a workspace; null takes it away."""

    action: Literal["role"]
    user: str
    role: Role | None
    workspace: str


class MakeToken(Body):
    """Make a token; it belongs to ``owner`` (an id or a name), or to who makes it."""

    action: Literal["token"]
    workspace: str
    role: Role
    name: str = ""
    owner: str = ""


class Invite(Body):
    """Make a link that signs a person in to the chat page; ``renew`` replaces their present one."""

    action: Literal["invite"]
    workspace: str
    name: str
    role: Role | None = None
    renew: bool = False


class RevokeToken(Body):
    action: Literal["revoke"]
    token_id: str


class Change(RootModel[Annotated[Judge | GiveRole | MakeToken | Invite | RevokeToken, Field(discriminator="action")]]):
    """One of five changes, by its ``action``."""


class AccessRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("access", runtime)
        self._sigils = Sigils.from_settings(runtime.settings)
        self.add("GET", "/access", self.listing, Role.ADMIN, reach="own", answers="People, who waits, tokens")
        self.add("POST", "/access", self.change, Role.ADMIN, reach="own", body=Change, answers="What was done")

    async def listing(self, request: Request, workspace: str = "") -> Response:
        runtime, caller = self._runtime, caller_of(request)
        only = workspace or caller.workspace_id
        if only is None:
            workspaces = [found.id for found in await runtime.workspaces.all()]
        else:
            workspaces = [(await self.enter(only)).workspace_id]
        people = [person for id_ in workspaces for person in await runtime.access.people(id_)]
        tokens = [token for id_ in workspaces for token in await runtime.api_tokens.of_workspace(id_)]
        people += [Person(token.user, token.name, token.role, token.workspace_id) for token in tokens if token.person]
        return reply(
            {
                "people": [
                    {**_person(person), **_sigil_row(self._sigils.of_person(person.user, person.role))}
                    for person in dict.fromkeys(people)
                ],
                "pending": [
                    {
                        "user": request_.user,
                        "name": request_.name,
                        "workspace": request_.workspace_id,
                        "asked_in": list(request_.asked_in),
                        "code": request_.code,
                        "expires_in_seconds": request_.expires_in_seconds,
                    }
                    for request_ in await runtime.access.pending()
                    if only in (None, request_.workspace_id)
                ],
                "tokens": [_token(token) for token in tokens],
                "policy": runtime.settings.access_policy,
                "sigils": [
                    {"bound": bound, **_sigil_row(sigil)}
                    for bound, sigil in self._sigils.bindings.items()
                    # Only the runtime's administrator sees what is bound to people and contexts.
                    if caller.workspace_id is None or bound.startswith("role:")
                ],
            }
        )

    async def change(self, request: Request) -> Response:
        change, caller = (await self.read(request, Change)).root, caller_of(request)
        match change:
            case Judge():
                return await self._judge(change, caller)
            case GiveRole():
                return await self._give_role(change, caller)
            case MakeToken():
                return await self._make_token(change, caller)
            case Invite():
                return await self._invite(change, caller, request)
            case RevokeToken():
                return await self._revoke(change, caller)

    async def _judge(self, change: Judge, caller: Caller) -> Response:
        # Only using a code shows which workspace it is for, and then it is used up.
        require_everywhere(caller)
        if change.action == "approve":
            person = await self._runtime.access.approve(change.code, role=change.role, by=caller.signature)
            return reply({"approved": _person(person)})
        denied = await self._runtime.access.deny(change.code, by=caller.signature)
        return reply({"denied": {"user": denied.user, "name": denied.name, "workspace": denied.workspace_id}})

    async def _give_role(self, change: GiveRole, caller: Caller) -> Response:
        scope = await self.enter(change.workspace)
        if change.user.startswith("web:"):
            why = "to change the role of a link's holder, run `agent-runtime access invite NAME --role ROLE --renew`"
            raise ApiError(400, "bad_request", why)
        try:
            revoked = await self._runtime.access.set_role(
                change.user, change.role, scope.workspace_id, by=caller.signature
            )
        except ValueError as error:
            raise ApiError(400, "bad_request", str(error)) from None
        role = change.role.value if change.role else None
        ids = [token.id for token in revoked]
        return reply({"user": change.user, "role": role, "workspace": scope.workspace_id, "revoked_tokens": ids})

    async def _make_token(self, change: MakeToken, caller: Caller) -> Response:
        scope = await self.enter(change.workspace)
        try:
            owner = await self._runtime.access.account_of(change.owner, scope.workspace_id) or caller.owner
            token = await self._runtime.api_tokens.create(
                scope.workspace_id, change.role, name=change.name, owner=owner, by=caller.signature
            )
        except (InvalidTokenName, ValueError) as error:
            raise ApiError(400, "bad_request", str(error)) from None
        return reply({"token": token}, 201)

    async def _invite(self, change: Invite, caller: Caller, request: Request) -> Response:
        scope = await self.enter(change.workspace)
        try:
            secret, token = await self._runtime.api_tokens.invite(
                scope.workspace_id, change.name, change.role, renew=change.renew, by=caller.signature
            )
        except InvalidTokenName as error:
            raise ApiError(400, "bad_request", str(error)) from None
        except AlreadyInvited as error:
            raise ApiError(409, "already_invited", str(error)) from None
        link = f"{_chat_url(self._runtime.settings, request)}#token={secret}"
        return reply({**_token(token), "user": token.user, "token": secret, "link": link}, 201)

    async def _revoke(self, change: RevokeToken, caller: Caller) -> Response:
        tokens = self._runtime.api_tokens
        if caller.workspace_id is not None:
            own = await tokens.of_workspace(caller.workspace_id)
            if all(token.id != change.token_id for token in own):
                raise _no_token(change.token_id)
        if not await tokens.revoke(change.token_id, by=caller.signature):
            raise _no_token(change.token_id)
        return reply({"token_id": change.token_id, "revoked": True})


def _chat_url(settings: Settings, request: Request) -> str:
    """Return the address at which people reach the chat page."""
    if settings.http_public_url or not settings.http_port:
        return f"{(settings.http_public_url or str(request.base_url)).rstrip('/')}/chat"
    host = settings.http_host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - all addresses, of which this one is reached here
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.http_port}/chat"


def _no_token(token_id: str) -> ApiError:
    return ApiError(404, "not_found", f"there is no token {token_id!r}; `agent-runtime access list` shows the ids")


def _person(person: Person) -> dict[str, Any]:
    return {
        "user": person.user,
        "name": person.name,
        "role": person.role.value,
        "workspace": person.workspace_id,
        "given_by": person.given_by,
        "given_at": person.given_at.isoformat() if person.given_at else None,
    }


def _token(token: ApiToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "workspace": token.workspace_id,
        "role": token.role.value,
        "owner": token.owner_text,
        "created_at": token.created_at.isoformat() if token.created_at else None,
        "last_used_at": token.last_used_at.isoformat() if token.last_used_at else None,
    }


def _sigil_row(sigil: Sigil) -> dict[str, Any]:
    return {"sigil": sigil.name, "scopes": list(sigil.scopes)}
