"""People, roles, pairing and tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, RootModel
from starlette.requests import Request
from starlette.responses import Response

from config.settings import Settings
from connectors.message import Role
from promptpolicy.sigils import Sigil, Sigils
from runtime.access import AlreadyInvited, ApiToken, Caller, InvalidTokenName, Person
from runtime.http.auth import Routes, caller_of, require_everywhere
from runtime.http.errors import ApiError, Body, read_json, reply
from runtime.http.routes.workspaces import enter

if TYPE_CHECKING:
    from runtime.process import Runtime


class Judge(Body):
    """Let in, as ``role``, or turn away whoever was given a pairing code."""

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
    action: Literal["token"]
    workspace: str
    role: Role
    name: str = ""


class Invite(Body):
    """Make a link that signs a person in to the chat page; ``renew`` replaces the one that they have."""

    action: Literal["invite"]
    workspace: str
    name: str
    role: Role | None = None
    renew: bool = False


class RevokeToken(Body):
    action: Literal["revoke"]
    token_id: str


Wanted = Judge | GiveRole | MakeToken | Invite | RevokeToken


class Change(RootModel[Annotated[Wanted, Field(discriminator="action")]]):
    """What is to be changed: one of five, by its ``action``."""


class AccessRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("access")
        self._runtime = runtime
        self._sigils = Sigils.from_settings(runtime.settings)
        self.add("GET", "/access", self.listing, Role.ADMIN, answers="People, who waits, tokens")
        self.add("POST", "/access", self.change, Role.ADMIN, body=Change, answers="What was done")

    async def listing(self, request: Request, workspace: str = "") -> Response:
        runtime, caller = self._runtime, caller_of(request)
        wanted = workspace or caller.workspace_id
        workspaces = await self._visible(caller, wanted)
        people = [one for many in await _each(runtime.access.people, workspaces) for one in many]
        tokens = [one for many in await _each(runtime.api_tokens.of_workspace, workspaces) for one in many]
        people += [Person(one.user, one.name, one.role, one.workspace_id) for one in tokens if one.person]
        pending = [one for one in await runtime.access.pending() if wanted in (None, one.workspace_id)]
        return reply(
            {
                "people": [
                    {**_person(person), **_held(self._sigils.of_person(person.user, person.role))}
                    for person in dict.fromkeys(people)
                ],
                "pending": [
                    {
                        "user": one.user,
                        "name": one.name,
                        "workspace": one.workspace_id,
                        "asked_in": list(one.asked_in),
                        "code": one.code,
                        "expires_in_seconds": one.expires_in_seconds,
                    }
                    for one in pending
                ],
                "tokens": [_token(one) for one in tokens],
                "policy": runtime.settings.access_policy,
                "sigils": [
                    {"bound": bound, **_held(sigil)}
                    for bound, sigil in self._sigils.bindings.items()
                    # Who else is known by name is for those who look after all workspaces.
                    if caller.workspace_id is None or bound.startswith("role:")
                ],
            }
        )

    async def _visible(self, caller: Caller, wanted: str | None) -> list[str]:
        """The workspaces that are asked about, if the caller may see them."""
        if wanted is None:
            return [one.id for one in await self._runtime.workspaces.all()]
        _enter_as(caller, wanted)
        return [(await enter(self._runtime, wanted)).workspace_id]

    async def change(self, request: Request) -> Response:
        wanted = (await read_json(request, Change, self._runtime.settings.http_max_body_bytes)).root
        caller = caller_of(request)
        if isinstance(wanted, Judge):
            return await self._judge(wanted, caller)
        if isinstance(wanted, GiveRole):
            return await self._give_role(wanted, caller)
        if isinstance(wanted, MakeToken):
            return await self._make_token(wanted, caller)
        if isinstance(wanted, Invite):
            return await self._invite(wanted, caller, request)
        return await self._revoke(wanted, caller)

    async def _judge(self, wanted: Judge, caller: Caller) -> Response:
        # Whose code it is shows only when it is taken, and then it is used up.
        require_everywhere(caller)
        if wanted.action == "approve":
            person = await self._runtime.access.approve(wanted.code, role=wanted.role, by=caller.signature)
            return reply({"approved": _person(person)})
        denied = await self._runtime.access.deny(wanted.code, by=caller.signature)
        return reply({"denied": {"user": denied.user, "name": denied.name, "workspace": denied.workspace_id}})

    async def _give_role(self, wanted: GiveRole, caller: Caller) -> Response:
        _enter_as(caller, wanted.workspace)
        scope = await enter(self._runtime, wanted.workspace)
        if wanted.user.startswith("web:"):
            why = "to change the role of a link's holder, run `agent-runtime access invite NAME --role ROLE --renew`"
            raise ApiError(400, "bad_request", why)
        try:
            await self._runtime.access.set_role(wanted.user, wanted.role, scope.workspace_id, by=caller.signature)
        except ValueError as error:
            raise ApiError(400, "bad_request", str(error)) from None
        role = wanted.role.value if wanted.role else None
        return reply({"user": wanted.user, "role": role, "workspace": scope.workspace_id})

    async def _make_token(self, wanted: MakeToken, caller: Caller) -> Response:
        _enter_as(caller, wanted.workspace)
        scope = await enter(self._runtime, wanted.workspace)
        try:
            token = await self._runtime.api_tokens.create(
                scope.workspace_id, wanted.role, name=wanted.name, by=caller.signature
            )
        except InvalidTokenName as error:
            raise ApiError(400, "bad_request", str(error)) from None
        return reply({"token": token}, 201)

    async def _invite(self, wanted: Invite, caller: Caller, request: Request) -> Response:
        _enter_as(caller, wanted.workspace)
        scope = await enter(self._runtime, wanted.workspace)
        try:
            secret, token = await self._runtime.api_tokens.invite(
                scope.workspace_id, wanted.name, wanted.role, renew=wanted.renew, by=caller.signature
            )
        except InvalidTokenName as error:
            raise ApiError(400, "bad_request", str(error)) from None
        except AlreadyInvited as error:
            raise ApiError(409, "already_invited", str(error)) from None
        link = f"{_chat_url(self._runtime.settings, request)}#token={secret}"
        return reply({**_token(token), "user": token.user, "token": secret, "link": link}, 201)

    async def _revoke(self, wanted: RevokeToken, caller: Caller) -> Response:
        tokens = self._runtime.api_tokens
        if caller.workspace_id is not None:
            mine = await tokens.of_workspace(caller.workspace_id)
            if all(one.id != wanted.token_id for one in mine):
                raise _no_token(wanted.token_id)
        if not await tokens.revoke(wanted.token_id, by=caller.signature):
            raise _no_token(wanted.token_id)
        return reply({"token_id": wanted.token_id, "revoked": True})


async def _each(ask: Any, workspaces: list[str]) -> list[Any]:
    return list(await asyncio.gather(*[ask(workspace) for workspace in workspaces]))


def _enter_as(caller: Caller, workspace: str) -> None:
    if not caller.may_enter(workspace):
        raise ApiError(403, "forbidden", "the token is for another workspace")


def _chat_url(settings: Settings, request: Request) -> str:
    """Where people reach the chat page."""
    if settings.http_public_url or not settings.http_port:
        return f"{(settings.http_public_url or str(request.base_url)).rstrip('/')}/chat"
    host = settings.http_host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - all addresses, of which this one is reached here
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.http_port}/chat"


def _no_token(token_id: str) -> ApiError:
    return ApiError(404, "not_found", f"there is no token {token_id!r}; `agent-runtime access list` shows the ids")


def _person(person: Person) -> dict[str, Any]:
    return {"user": person.user, "name": person.name, "role": person.role.value, "workspace": person.workspace_id}


def _token(token: ApiToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "workspace": token.workspace_id,
        "role": token.role.value,
        "created_at": token.created_at.isoformat() if token.created_at else None,
        "last_used_at": token.last_used_at.isoformat() if token.last_used_at else None,
    }


def _held(sigil: Sigil) -> dict[str, Any]:
    """What the model may do for somebody, wherever no context has a sigil of its own."""
    return {"sigil": sigil.name, "scopes": list(sigil.scopes)}
