"""The global context over HTTP: lines, edits, what waits for approval, and what was changed by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import PLACE_PREFIX, Role, Scope, place_audience
from grounding.memory.global_context_lines import By, Change, Editor, Line, Waiting
from runtime.api.bodies import Body, read_json
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

OWN_CONNECTOR = "http:"
User = Annotated[str, Field(pattern=r"^[a-z]+:.+$", max_length=600)]
Named = Annotated[User | None, Query()]
Number = Annotated[int, Path(ge=0, le=10**9)]
Version = Annotated[int | None, Query(ge=1, le=2**53)]


class Whose(Body):
    user: User | None = Field(default=None, description="connector:user_id: that person's own lines.")
    context: User | None = Field(default=None, description="connector:id of a private place: that place's own lines.")


class NewLine(Whose):
    content: str


class ChangedLine(NewLine):
    expected_version: Annotated[int, Field(ge=1, le=2**53)] | None = None


class Decision(Whose):
    decision: Literal["approve", "deny"]


class GlobalContextRoutes(Routes):
    """Numbers are those of programs: they stay until a look after a pause of SESSION_IDLE_SECONDS. A person's or
    place's lines are for the runtime's admin, save those of the http connector: its names are the programs' own."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("global context")
        self._runtime = runtime
        self._lines = runtime.global_contexts
        self._limit = runtime.settings.http_max_body_bytes
        here = "/workspaces/{workspace_id}/global-context"
        self.add("GET", here, self.show, Role.VIEWER, answers="The lines")
        self.add("POST", here, self.append, Role.MEMBER, body=NewLine, answers="The new line")
        # These are words, no numbers: before the lines.
        self.add("GET", f"{here}/history", self.history, Role.VIEWER, answers="The newest edits")
        self.add("GET", f"{here}/waiting", self.waiting, Role.VIEWER, answers="Edits that wait for approval")
        self.add("GET", f"{here}/owners", self.owners, Role.ADMIN, answers="Which places and people have lines")
        self.add("POST", f"{here}/waiting/{{id}}", self.decide, Role.ADMIN, body=Decision, answers="What was decided")
        self.add("PUT", f"{here}/{{line}}", self.replace, Role.MEMBER, body=ChangedLine, answers="The line")
        self.add("DELETE", f"{here}/{{line}}", self.delete, Role.MEMBER, answers="The line's number")
        share = f"{here}/{{line}}/share"
        self.add("POST", share, self.share, Role.MEMBER, body=Whose, answers="The line that is shared")

    async def show(self, request: Request, workspace_id: str, user: Named = None, context: Named = None) -> Response:
        editor = await self._editor(request, workspace_id, user, context)
        return reply({"lines": [line_row(line) for line in await self._lines.open(editor)]})

    async def append(self, request: Request, workspace_id: str) -> Response:
        body = await read_json(request, NewLine, self._limit)
        editor = await self._editor(request, workspace_id, body.user, body.context)
        edited = await self._lines.append(editor, body.content, _by(request))
        return reply(await self._row(editor, edited.number), 201)

    async def replace(self, request: Request, workspace_id: str, line: Number) -> Response:
        body = await read_json(request, ChangedLine, self._limit)
        editor = await self._editor(request, workspace_id, body.user, body.context)
        edited = await self._lines.replace(editor, line, body.content, _by(request), body.expected_version)
        return reply(await self._row(editor, edited.number))

    async def delete(
        self,
        request: Request,
        workspace_id: str,
        line: Number,
        user: Named = None,
        context: Named = None,
        expected_version: Version = None,
    ) -> Response:
        editor = await self._editor(request, workspace_id, user, context)
        await self._lines.delete(editor, line, _by(request), expected_version)
        return reply({"line": line, "deleted": True})

    async def share(self, request: Request, workspace_id: str, line: Number) -> Response:
        body = await read_json(request, Whose, self._limit)
        editor = await self._editor(request, workspace_id, body.user, body.context)
        content = await self._lines.share(editor, line, _by(request))
        return reply({"line": line, "content": content, "shared": True})

    async def owners(self, request: Request, workspace_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        _require_all(request)
        counted = await self._lines.counts(scope)
        return reply({"owners": [_owner_row(audience, lines) for audience, lines in counted.items() if audience]})

    async def history(
        self,
        request: Request,
        workspace_id: str,
        user: Named = None,
        context: Named = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Response:
        scope = (await self._editor(request, workspace_id, user, context)).scope
        return reply({"edits": [change_row(one) for one in await self._lines.history(scope, limit)]})

    async def waiting(self, request: Request, workspace_id: str, user: Named = None, context: Named = None) -> Response:
        scope = (await self._editor(request, workspace_id, user, context)).scope
        return reply({"waiting": [waiting_row(one) for one in await self._lines.waiting(scope)]})

    async def decide(self, request: Request, workspace_id: str, id: str) -> Response:  # noqa: A002 - as the path has it
        body = await read_json(request, Decision, self._limit)
        scope = (await self._editor(request, workspace_id, body.user, body.context)).scope
        act = self._lines.approve if body.decision == "approve" else self._lines.deny
        await act(scope, id, caller_of(request).signature)
        return reply({"id": id, "decision": body.decision})

    async def _editor(self, request: Request, workspace_id: str, user: str | None, context: str | None) -> Editor:
        scope = await enter(self._runtime, workspace_id)
        if user is not None and context is not None:
            raise ApiError(400, "bad_request", "name a user or a context, not both")
        named = user or context
        if named is not None and not named.startswith(OWN_CONNECTOR):
            _require_all(request)
        audience = user if context is None else place_audience(context)
        return Editor(Scope(scope.workspace_id, None, audience), "api")

    async def _row(self, editor: Editor, number: int) -> dict[str, Any]:
        lines = await self._lines.open(editor, store=False)
        line = next((one for one in lines if one.number == number), None)
        if line is None:  # renumbered, or taken away with its person, in between
            raise ApiError(409, "line_changed", "the line was changed in the meantime; look again")
        return line_row(line)


def _require_all(request: Request) -> None:
    if not caller_of(request).sees_all:
        why = "lines of another connector's people and places need the runtime's admin token"
        raise ApiError(403, "forbidden", why)


def _owner_row(audience: str, lines: int) -> dict[str, Any]:
    is_place = audience.startswith(PLACE_PREFIX)
    named = {"context": audience.removeprefix(PLACE_PREFIX)} if is_place else {"user": audience}
    return {**named, "lines": lines}


def line_row(line: Line) -> dict[str, Any]:
    return {
        "line": line.number,
        "content": line.content,
        "owner": line.owner,
        "author": line.author,
        "turn_id": line.turn_id,
        "at": line.at,
        "version": line.version,
        "origin": line.origin,
    }


def change_row(one: Change) -> dict[str, Any]:
    return {
        "action": one.action,
        "line_id": one.line,
        "by": one.by,
        "turn_id": one.turn_id,
        "at": one.at,
        "origin": one.origin,
        "before": one.before,
        "after": one.after,
    }


def waiting_row(one: Waiting) -> dict[str, Any]:
    return {
        "id": one.id,
        "action": one.action,
        "owner": one.owner,
        "content": one.content,
        "before": one.before,
        "author": one.author,
        "turn_id": one.turn_id,
        "at": one.at,
        "origin": one.origin,
    }


def _by(request: Request) -> By:
    key = request.headers.get("idempotency-key", "")
    caller = caller_of(request)
    return By(caller.signature, key=f"api:{caller.id}:{request.method}:{request.url.path}:{key}" if key else "")
