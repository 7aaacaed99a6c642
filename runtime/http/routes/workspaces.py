"""Workspaces, the platform places that belong to them, the settings of places, budgets and usage."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import structlog
from pydantic import Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from connectors.message import InvalidWorkspaceId, Role, Scope
from runtime.billing import TERMS, BudgetState, ModelUsage
from runtime.http.auth import Endpoint, Routes, Workspace, caller_of
from runtime.http.errors import ApiError, Body, reply
from runtime.ingress import remove_workspace
from runtime.workspaces import (
    EVERYWHERE,
    MAX_PLACE_CHARACTERS,
    Answering,
    PlaceSettings,
    QueueMode,
    make_document_folder,
)

if TYPE_CHECKING:
    from runtime.process import Runtime

Tokens = Annotated[int, Field(ge=0, le=10**12, strict=True)] | Literal["unlimited"] | None
Usd = Annotated[float, Field(ge=0, le=10**6, strict=True)] | Literal["unlimited"] | None
_log = structlog.get_logger()


class NewWorkspace(Body):
    id: str


class NewRoute(Body):
    workspace: str


class WorkspaceRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("workspaces", runtime)
        self.add("GET", "/workspaces", self.listing, Role.VIEWER, reach="own", answers="Workspaces and routes")
        self._administer("POST", "/workspaces", self.create, "Whether it was created", NewWorkspace)
        self._administer("DELETE", "/workspaces/{workspace_id}", self.delete, "What was deleted")
        self._administer("PUT", "/routes/{place:path}", self.route, "The route", NewRoute)
        self._administer("DELETE", "/routes/{place:path}", self.unroute, "The place")

    def _administer(
        self, method: str, path: str, endpoint: Endpoint, answers: str, body: type[Body] | None = None
    ) -> None:
        self.add(method, path, endpoint, Role.ADMIN, reach="everywhere", body=body, answers=answers)

    async def listing(self, request: Request) -> Response:
        caller, workspaces = caller_of(request), self._runtime.workspaces
        return reply(
            {
                "workspaces": [
                    {
                        "id": workspace.id,
                        "created_at": workspace.created_at.isoformat() if workspace.created_at else None,
                    }
                    for workspace in await workspaces.all()
                    if caller.may_enter(workspace.id)
                ],
                "routes": [
                    {
                        "place": route.place,
                        "workspace": route.workspace_id,
                        "from": "settings" if route.from_settings else "stored",
                    }
                    for route in await workspaces.routes()
                    if caller.may_enter(route.workspace_id)
                ],
            }
        )

    async def create(self, request: Request) -> Response:
        body = await self.read(request, NewWorkspace)
        try:
            created = await self._runtime.workspaces.create(body.id)
        except InvalidWorkspaceId as error:  # in a path this means an unknown workspace, in a body a bad request
            raise ApiError(400, "invalid_workspace_id", str(error)) from None
        await asyncio.to_thread(make_document_folder, self._runtime.settings, body.id)
        return reply({"id": body.id, "created": created}, 201 if created else 200)

    async def delete(self, scope: Workspace) -> Response:
        await remove_workspace(self._runtime, scope)
        return reply({"id": scope.workspace_id, "deleted": True})

    async def route(self, request: Request, place: str) -> Response:
        body = await self.read(request, NewRoute)
        try:
            await self._runtime.workspaces.route(place, body.workspace)
        except (InvalidWorkspaceId, ValueError) as error:
            raise ApiError(400, "bad_request", str(error)) from None
        return reply({"place": place, "workspace": body.workspace})

    async def unroute(self, place: str) -> Response:
        if not await self._runtime.workspaces.unroute(place):
            raise ApiError(404, "not_found", f"no stored route for {place!r}")
        return reply({"place": place, "deleted": True})


class Place(Body):
    """The settings of a place; a field that is null, or left out, is as the process's settings have it."""

    answering: Answering | None = None
    model: str | None = None
    queue: QueueMode | None = None
    sources: StrictBool | None = None


class PlaceRoutes(Routes):
    """The settings of single places, or of all places of a workspace (``*``)."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("places", runtime)
        here = "/workspaces/{workspace_id}/places"
        self.add("GET", here, self.listing, Role.ADMIN, answers="The places for which something was settled")
        self.add("GET", f"{here}/{{place:path}}", self.show, Role.ADMIN, answers="What was settled for the place")
        self.add("PUT", f"{here}/{{place:path}}", self.settle, Role.ADMIN, body=Place, answers="What holds there now")

    async def listing(self, scope: Workspace) -> Response:
        found = await self._runtime.places.all(scope)
        return reply({"places": [_row(place, settled) for place, settled in found.items()]})

    async def show(self, scope: Workspace, place: str) -> Response:
        return reply(_row(place, await self._runtime.places.get(scope, _check_place(place))))

    async def settle(self, request: Request, scope: Workspace, place: str) -> Response:
        body = await self.read(request, Place)
        names = self._runtime.model.names
        if body.model is not None and body.model not in names:
            raise ApiError(400, "bad_request", f'"model": the configured ones are {", ".join(names)}')
        settled = PlaceSettings(body.answering, body.model, body.queue, body.sources)
        await self._runtime.places.put(scope, _check_place(place), settled)
        return reply(_row(place, settled))


def _check_place(place: str) -> str:
    if place == EVERYWHERE:
        return place
    connector, colon, rest = place.partition(":")
    if not (connector and colon and rest) or len(place) > MAX_PLACE_CHARACTERS or not place.isprintable():
        shown = repr(place[:100])
        raise ApiError(400, "bad_request", f"{shown} is not a place: write connector:place, e.g. telegram:-10001, or *")
    return place


def _row(place: str, settled: PlaceSettings) -> dict[str, Any]:
    return {"place": place, **asdict(settled)}


class Budget(Body):
    """The limits of a workspace; a field that is null, or left out, is as the settings have it."""

    workspace_tokens_per_day: Tokens = None
    workspace_tokens_per_month: Tokens = None
    workspace_usd_per_day: Usd = None
    workspace_usd_per_month: Usd = None
    user_tokens_per_day: Tokens = None
    user_tokens_per_month: Tokens = None
    user_usd_per_day: Usd = None
    user_usd_per_month: Usd = None


class BudgetRoutes(Routes):
    """The limits of what a workspace, and each person in it, may spend on model calls."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("usage", runtime)
        here = "/workspaces/{workspace_id}/budget"
        self.add("GET", here, self.show, Role.ADMIN, answers="The limits, and what is left of them; `user`: for whom")
        # The operator pays: a workspace's own admins see its budget, but do not set it.
        self.add("PUT", here, self.put, Role.ADMIN, reach="everywhere", body=Budget, answers="The limits that hold now")

    async def show(self, scope: Workspace, user: str = "") -> Response:
        return reply(budget_row(scope.workspace_id, await self._runtime.budgets.state(scope, user), user))

    async def put(self, request: Request, scope: Workspace) -> Response:
        caller = caller_of(request)
        body = await self.read(request, Budget)
        limits = body.model_dump(exclude_none=True)
        await self._runtime.budgets.set(scope, limits)
        _log.info("budget.changed", workspace_id=scope.workspace_id, limits=limits, by=caller.signature)
        return reply(budget_row(scope.workspace_id, await self._runtime.budgets.state(scope)))


def budget_row(workspace_id: str, state: BudgetState, user: str = "") -> dict[str, Any]:
    """Return limit, spending and rest by term, in tokens and dollars; a person's terms have the last two only if *user*
    is named."""
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


class UsageRoutes(Routes):
    """The tokens and the cost of model calls."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("usage", runtime)
        self.add("GET", "/usage", self.listing, Role.VIEWER, reach="own", answers="All workspaces")
        self.add("GET", "/workspaces/{workspace_id}/usage", self.show, Role.VIEWER, answers="One workspace")

    async def listing(self, request: Request) -> Response:
        caller = caller_of(request)
        workspaces = [workspace for workspace in await self._runtime.workspaces.all() if caller.may_enter(workspace.id)]
        return reply({"workspaces": [await self._row(Scope(workspace.id)) for workspace in workspaces]})

    async def show(self, scope: Workspace) -> Response:
        return reply({"workspaces": [await self._row(scope)]})

    async def _row(self, scope: Scope) -> dict[str, Any]:
        row = usage_row(scope.workspace_id, await self._runtime.usage.totals(scope))
        state = await self._runtime.budgets.state(scope)
        return row | {"budget": budget_row(scope.workspace_id, state)["budget"]}


def usage_row(workspace_id: str, models: list[ModelUsage]) -> dict[str, Any]:
    """Return the sums over *models*, and each model's own. ``calls`` counts those of turns and of background work."""
    return {
        "workspace": workspace_id,
        "turns": sum(model.replies for model in models),
        "calls": sum(model.calls for model in models),
        "prompt": sum(model.prompt for model in models),
        "cached": sum(model.cached for model in models),
        "completion": sum(model.completion for model in models),
        "cost_usd": sum(model.cost_usd for model in models),
        "estimated": sum(model.estimated for model in models),
        "models": {
            model.model: {key: value for key, value in asdict(model).items() if key != "model"} for model in models
        },
    }
