"""Lines of the global context: listed, edited and shared, with their history and the edits that wait for approval."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import PLACE_PREFIX, Role, Scope, place_audience
from grounding.memory.global_context import Editor, EditOrigin, Line
from runtime.http.auth import OWN_CONNECTOR, Routes, User, Workspace, caller_of, idempotency_key
from runtime.http.errors import ApiError, Body, reply

if TYPE_CHECKING:
    from runtime.process import Runtime

UserQuery = Annotated[User | None, Query()]
Number = Annotated[int, Path(ge=0, le=10**9)]
Version = Annotated[int | None, Query(ge=1, le=2**53)]


class Owner(Body):
    user: User | None = Field(default=None, description="connector:user_id: that person's own lines.")
    context: User | None = Field(default=None, description="connector:id of a private place: that place's own lines.")


class NewLine(Owner):
    content: str


class ChangedLine(NewLine):
    expected_version: Annotated[int, Field(ge=1, le=2**53)] | None = None


class Decision(Owner):
    decision: Literal["approve", "deny"]


class GlobalContextRoutes(Routes):
    """The lines of people and places need the runtime's admin token, except those of the http connector, whose names
    are the programs' own.

    Line numbers stay the same for programs until they list the lines after a pause of SESSION_IDLE_SECONDS.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("global context", runtime)
        self._lines = runtime.global_contexts
        here = "/workspaces/{workspace_id}/global-context"
        self.add("GET", here, self.show, Role.VIEWER, answers="The lines")
        self.add("POST", here, self.append, Role.MEMBER, body=NewLine, answers="The new line")
        # These names come before the routes with a line's number.
        self.add("GET", f"{here}/history", self.history, Role.VIEWER, answers="The newest edits")
        self.add("GET", f"{here}/waiting", self.waiting, Role.VIEWER, answers="Edits that wait for approval")
        self.add("GET", f"{here}/owners", self.owners, Role.ADMIN, answers="Which places and people have lines")
        self.add("POST", f"{here}/waiting/{{id}}", self.decide, Role.ADMIN, body=Decision, answers="What was decided")
        self.add("PUT", f"{here}/{{line}}", self.replace, Role.MEMBER, body=ChangedLine, answers="The line")
        self.add("DELETE", f"{here}/{{line}}", self.delete, Role.MEMBER, answers="The line's number")
        share = f"{here}/{{line}}/share"
        self.add("POST", share, self.share, Role.MEMBER, body=Owner, answers="The line that is shared")

    async def show(
        self, request: Request, scope: Workspace, user: UserQuery = None, context: UserQuery = None
    ) -> Response:
        editor = self._editor(request, scope, user, context)
        return reply({"lines": [_line_row(line) for line in await self._lines.open(editor)]})

    async def append(self, request: Request, scope: Workspace) -> Response:
        body = await self.read(request, NewLine)
        editor = self._editor(request, scope, body.user, body.context)
        edited = await self._lines.append(editor, body.content, _by(request))
        return reply(await self._row(editor, edited.number), 201)

    async def replace(self, request: Request, scope: Workspace, line: Number) -> Response:
        body = await self.read(request, ChangedLine)
        editor = self._editor(request, scope, body.user, body.context)
        edited = await self._lines.replace(editor, line, body.content, _by(request), body.expected_version)
        return reply(await self._row(editor, edited.number))

    async def delete(
        self,
        request: Request,
        scope: Workspace,
        line: Number,
        user: UserQuery = None,
        context: UserQuery = None,
        expected_version: Version = None,
    ) -> Response:
        editor = self._editor(request, scope, user, context)
        await self._lines.delete(editor, line, _by(request), expected_version)
        return reply({"line": line, "deleted": True})

    async def share(self, request: Request, scope: Workspace, line: Number) -> Response:
        body = await self.read(request, Owner)
        editor = self._editor(request, scope, body.user, body.context)
        content = await self._lines.share(editor, line, _by(request))
        return reply({"line": line, "content": content, "shared": True})

    async def owners(self, request: Request, scope: Workspace) -> Response:
        _require_administrator(request)
        counts = await self._lines.counts(scope)
        return reply({"owners": [_owner_row(audience, lines) for audience, lines in counts.items() if audience]})

    async def history(
        self,
        request: Request,
        scope: Workspace,
        user: UserQuery = None,
        context: UserQuery = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Response:
        scope = self._editor(request, scope, user, context).scope
        rows = [asdict(edit) for edit in await self._lines.history(scope, limit)]
        return reply({"edits": [{"line_id": row.pop("line"), **row} for row in rows]})

    async def waiting(
        self, request: Request, scope: Workspace, user: UserQuery = None, context: UserQuery = None
    ) -> Response:
        scope = self._editor(request, scope, user, context).scope
        return reply({"waiting": [asdict(edit) for edit in await self._lines.waiting(scope)]})

    async def decide(self, request: Request, scope: Workspace, id: str) -> Response:  # noqa: A002 - as the path has it
        body = await self.read(request, Decision)
        scope = self._editor(request, scope, body.user, body.context).scope
        decide = self._lines.approve if body.decision == "approve" else self._lines.deny
        await decide(scope, id, caller_of(request).signature)
        return reply({"id": id, "decision": body.decision})

    def _editor(self, request: Request, scope: Scope, user: str | None, context: str | None) -> Editor:
        if user is not None and context is not None:
            raise ApiError(400, "bad_request", "name a user or a context, not both")
        owner = user or context
        if owner is not None and not owner.startswith(OWN_CONNECTOR):
            _require_administrator(request)
        audience = user if context is None else place_audience(context)
        return Editor(Scope(scope.workspace_id, None, audience), "api")

    async def _row(self, editor: Editor, number: int) -> dict[str, Any]:
        lines = await self._lines.open(editor, store=False)
        line = next((line for line in lines if line.number == number), None)
        if line is None:  # in between it got another number, or was deleted with its person
            raise ApiError(409, "line_changed", "the line was changed in the meantime; look again")
        return _line_row(line)


def _require_administrator(request: Request) -> None:
    if not caller_of(request).sees_all:
        why = "lines of another connector's people and places need the runtime's admin token"
        raise ApiError(403, "forbidden", why)


def _by(request: Request) -> EditOrigin:
    return EditOrigin(caller_of(request).signature, key=idempotency_key(request))


def _owner_row(audience: str, lines: int) -> dict[str, Any]:
    if audience.startswith(PLACE_PREFIX):
        return {"context": audience.removeprefix(PLACE_PREFIX), "lines": lines}
    return {"user": audience, "lines": lines}


def _line_row(line: Line) -> dict[str, Any]:
    row = asdict(line)
    return {"line": row.pop("number"), **row}
