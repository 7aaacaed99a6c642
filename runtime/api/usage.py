"""What model calls cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from connectors.message import Role, Scope
from runtime.api.budget import budget_row
from runtime.api.guard import caller_of
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.workspaces import enter
from runtime.usage import ModelUsage

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


class UsageRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("usage")
        self._runtime = runtime
        self.add("GET", "/usage", self.listing, Role.VIEWER, answers="All workspaces")
        self.add("GET", "/workspaces/{workspace_id}/usage", self.one, Role.VIEWER, answers="One workspace")

    async def listing(self, request: Request) -> Response:
        caller = caller_of(request)
        found = [one.id for one in await self._runtime.workspaces.all() if caller.may_enter(one.id)]
        return reply({"workspaces": [await self._row(Scope(workspace_id)) for workspace_id in found]})

    async def one(self, workspace_id: str) -> Response:
        return reply({"workspaces": [await self._row(await enter(self._runtime, workspace_id))]})

    async def _row(self, scope: Scope) -> dict[str, Any]:
        row = usage_row(scope.workspace_id, await self._runtime.usage.totals(scope))
        state = await self._runtime.budgets.state(scope)
        return row | {"budget": budget_row(scope.workspace_id, state)["budget"]}


def usage_row(workspace_id: str, models: list[ModelUsage]) -> dict[str, Any]:
    """The sums over *models*, and each model's own. ``calls`` are turns and background work alike."""
    return {
        "workspace": workspace_id,
        "turns": sum(one.replies for one in models),
        "calls": sum(one.calls for one in models),
        "prompt": sum(one.prompt for one in models),
        "cached": sum(one.cached for one in models),
        "completion": sum(one.completion for one in models),
        "cost_usd": sum(one.cost_usd for one in models),
        "estimated": sum(one.estimated for one in models),
        "models": {one.model: {key: value for key, value in asdict(one).items() if key != "model"} for one in models},
    }
