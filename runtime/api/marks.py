"""What people say of replies, over HTTP: a mark put and taken back, the traces that came of marks, and one removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import ConversationKey, Role, Scope, place_audience
from grounding.memory.karma.marks import Marked, Sign
from grounding.run_context import audience_of
from runtime.api.bodies import Body, read_json
from runtime.api.errors import ApiError
from runtime.api.global_context import OWN_CONNECTOR, User
from runtime.api.guard import caller_of, may_read
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.marking import By
from runtime.tokens import Caller

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

Whose = Annotated[User | None, Query(description="connector:user_id: that person's mark.")]


class MarkBody(Body):
    mark: Literal["good", "bad", "none"]
    user: User | None = Field(default=None, description="connector:user_id: whose mark it is.")


class MarkRoutes(Routes):
    """Marks of people are for admins, and so are those of what was said in direct messages; save those of the http
    connector's people: their names are the programs' own."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("karma")
        self._runtime = runtime
        self._marking = runtime.marking
        self._limit = runtime.settings.http_max_body_bytes
        mark, karma = "/workspaces/{workspace_id}/turns/{turn_id}/mark", "/workspaces/{workspace_id}/karma"
        self.add("POST", mark, self.mark, Role.MEMBER, body=MarkBody, answers="How the turn is marked now")
        self.add("DELETE", mark, self.unmark, Role.MEMBER, answers="How the turn is marked now")
        self.add("GET", karma, self.listing, Role.ADMIN, answers="The marked turns, the newest first")
        self.add("DELETE", f"{karma}/{{turn_id}}", self.remove, Role.ADMIN, answers="Whether there was such a one")

    async def mark(self, request: Request, workspace_id: str, turn_id: str) -> Response:
        body = await read_json(request, MarkBody, self._limit)
        return await self._put(request, workspace_id, turn_id, body.user, None if body.mark == "none" else body.mark)

    async def unmark(self, request: Request, workspace_id: str, turn_id: str, user: Whose = None) -> Response:
        return await self._put(request, workspace_id, turn_id, user, None)

    async def listing(self, request: Request, workspace_id: str) -> Response:
        scope, caller = await enter(self._runtime, workspace_id), caller_of(request)
        found = [one for one in await self._marking.all(scope) if may_read(caller, one.key.connector, _audience(one))]
        return reply({"karma": [marked_row(one) for one in found]})

    async def remove(self, workspace_id: str, turn_id: str) -> Response:
        scope = await enter(self._runtime, workspace_id)
        if not await self._marking.forget(scope, [turn_id]):
            raise ApiError(404, "not_found", f"turn {turn_id!r} is not marked")
        return reply({"turn_id": turn_id, "removed": True})

    async def _put(
        self, request: Request, workspace_id: str, turn_id: str, user: str | None, sign: Sign | None
    ) -> Response:
        scope, caller = await enter(self._runtime, workspace_id), caller_of(request)
        is_admin = caller.role.covers(Role.ADMIN)
        if user is not None and not user.startswith(OWN_CONNECTOR) and not is_admin:
            raise ApiError(403, "forbidden", "marks of another connector's people are for admins' tokens")
        by = By(user or caller.id, caller.role, "api", is_vouched_for=is_admin)
        key = await self._key(scope, turn_id, caller)
        if not self._marking.may(by, key):
            raise ApiError(403, "forbidden", "the sigil of this token does not allow karma:write")
        marked = await self._marking.put(scope, turn_id, by, sign)
        mark = marked.opinion_of(by.user).mark or "none"
        return reply({"turn_id": turn_id, "mark": mark, "good": marked.good, "bad": marked.bad})

    async def _key(self, scope: Scope, turn_id: str, caller: Caller) -> ConversationKey:
        """Where the turn was. Raises `runtime.turns.UnknownTurn`, and `ApiError` where it is none to be marked."""
        context = (await self._runtime.manifests.get(scope, turn_id)).context
        if not may_read(caller, context.connector, audience_of(context)):
            raise ApiError(403, "forbidden", "what was said in a private place needs the runtime's admin token")
        return ConversationKey(context.workspace_id, context.connector, context.external_id)


def _audience(marked: Marked) -> str | None:
    """Of a turn that is no example nothing but its place is known."""
    return (marked.exchange.audience or None) if marked.exchange else place_audience(marked.key.context_id)


def marked_row(marked: Marked) -> dict[str, Any]:
    """*marked* as programs read it; ``trace`` is None where it is no example."""
    exchange = marked.exchange
    trace = {"asked": exchange.asked, "answered": exchange.answered} if exchange and marked.is_good else None
    return {
        "turn_id": marked.turn_id,
        "context_id": marked.key.context_id,
        "good": marked.good,
        "bad": marked.bad,
        "marked_on": marked.marked_on,
        "audience": (exchange.audience or "workspace") if exchange else None,
        "foreign": exchange.foreign if exchange else "",
        "trace": trace,
    }
