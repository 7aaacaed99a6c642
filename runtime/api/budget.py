"""What a workspace, and each person in it, may spend on model calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import structlog
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role
from runtime.api.bodies import Body, read_json
from runtime.api.guard import caller_of, require_everywhere
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.budget_terms import TERMS, State

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

log = structlog.get_logger()

Tokens = Annotated[int, Field(ge=0, le=10**12, strict=True)] | Literal["unlimited"] | None
Usd = Annotated[float, Field(ge=0, le=10**6, strict=True)] | Literal["unlimited"] | None


class Budget(Body):
    """All limits that were set for the workspace; what is null, or left out, is as the settings have it."""

    workspace_tokens_per_day: Tokens = None
    workspace_tokens_per_month: Tokens = None
    workspace_usd_per_day: Usd = None
    workspace_usd_per_month: Usd = None
    user_tokens_per_day: Tokens = None
    user_tokens_per_month: Tokens = None
    user_usd_per_day: Usd = None
    user_usd_per_month: Usd = None


class BudgetRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("usage")
        self._runtime = runtime
        self._limit = runtime.settings.http_max_body_bytes
        here = "/workspaces/{workspace_id}/budget"
        self.add("GET", here, self.show, Role.ADMIN, answers="The limits, and what is left of them; `user`: for whom")
        # Who runs the runtime pays for it: a workspace's own admins see its budget, but do not make it.
        self.add("PUT", here, self.put, Role.ADMIN, body=Budget, answers="The limits that hold now")

    async def show(self, workspace_id: str, user: str = "") -> Response:
        scope = await enter(self._runtime, workspace_id)
        return reply(budget_row(workspace_id, await self._runtime.budgets.state(scope, user), user))

    async def put(self, request: Request, workspace_id: str) -> Response:
        caller = caller_of(request)
        require_everywhere(caller)
        scope = await enter(self._runtime, workspace_id)
        body = await read_json(request, Budget, self._limit)
        limits = body.model_dump(exclude_none=True)
        await self._runtime.budgets.set(scope, limits)
        log.info("budget.changed", workspace_id=workspace_id, limits=limits, by=caller.signature)
        return reply(budget_row(workspace_id, await self._runtime.budgets.state(scope)))


def budget_row(workspace_id: str, state: State, user: str = "") -> dict[str, Any]:
    """How a budget stands, by term, in tokens and dollars; a person's terms have figures only where *user* is named."""
    terms: dict[str, dict[str, float | None]] = {}
    for term in TERMS:
        limit, left = state.limits[term], state.left(term)
        row: dict[str, float | None] = {"limit": None if limit is None else term.amount(limit)}
        if term.whose == "workspace" or user:
            row |= {
                "spent": term.amount(state.spent[term]),
                "left": None if left is None else term.amount(left),
            }
        terms[term.name] = row
    return {"workspace": workspace_id, **({"user": user} if user else {}), "set": state.set_here, "budget": terms}
