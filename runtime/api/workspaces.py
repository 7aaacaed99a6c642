"""Tenants, and which platform places belong to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from connectors.message import InvalidWorkspaceId, Role, Scope
from runtime.api.bodies import Body, read_json
from runtime.api.errors import ApiError
from runtime.api.guard import caller_of, require_everywhere
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.removal import remove_workspace
from runtime.workspaces import make_document_folder

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


class NewWorkspace(Body):
    id: str


class NewRoute(Body):
    workspace: str


async def enter(runtime: Runtime, workspace_id: str, context_id: str | None = None) -> Scope:
    """The scope of a workspace that exists. Raises `UnknownWorkspace`, `InvalidWorkspaceId`."""
    return Scope(await runtime.workspaces.require(workspace_id), context_id)


class WorkspaceRoutes(Routes):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("workspaces")
        self._runtime = runtime
        self._limit = runtime.settings.http_max_body_bytes
        self.add("GET", "/workspaces", self.listing, Role.VIEWER, answers="Workspaces and routes")
        self.add("POST", "/workspaces", self.create, Role.ADMIN, body=NewWorkspace, answers="Whether it was created")
        self.add("DELETE", "/workspaces/{workspace_id}", self.delete, Role.ADMIN, answers="What was deleted")
        self.add("PUT", "/routes/{place:path}", self.route, Role.ADMIN, body=NewRoute, answers="The route")
        self.add("DELETE", "/routes/{place:path}", self.unroute, Role.ADMIN, answers="The place")

    async def listing(self, request: Request) -> Response:
        caller, workspaces = caller_of(request), self._runtime.workspaces
        found, routes = await workspaces.all(), await workspaces.routes()
        return reply(
            {
                "workspaces": [
                    {"id": one.id, "created_at": one.created_at.isoformat() if one.created_at else None}
                    for one in found
                    if caller.may_enter(one.id)
                ],
                "routes": [
                    {
                        "place": route.place,
                        "workspace": route.workspace_id,
                        "from": "settings" if route.from_settings else "stored",
                    }
                    for route in routes
                    if caller.may_enter(route.workspace_id)
                ],
            }
        )

    async def create(self, request: Request) -> Response:
        require_everywhere(caller_of(request))
        body = await read_json(request, NewWorkspace, self._limit)
        try:
            created = await self._runtime.workspaces.create(body.id)
        except InvalidWorkspaceId as error:  # here it is no missing workspace but a bad request
            raise ApiError(400, "invalid_workspace_id", str(error)) from None
        await asyncio.to_thread(make_document_folder, self._runtime.settings, body.id)
        return reply({"id": body.id, "created": created}, 201 if created else 200)

    async def delete(self, request: Request, workspace_id: str) -> Response:
        require_everywhere(caller_of(request))
        scope = await enter(self._runtime, workspace_id)
        await remove_workspace(self._runtime, scope)
        return reply({"id": workspace_id, "deleted": True})

    async def route(self, request: Request, place: str) -> Response:
        require_everywhere(caller_of(request))
        body = await read_json(request, NewRoute, self._limit)
        try:
            await self._runtime.workspaces.route(place, body.workspace)
        except (InvalidWorkspaceId, ValueError) as error:
            raise ApiError(400, "bad_request", str(error)) from None
        return reply({"place": place, "workspace": body.workspace})

    async def unroute(self, request: Request, place: str) -> Response:
        require_everywhere(caller_of(request))
        if not await self._runtime.workspaces.unroute(place):
            raise ApiError(404, "not_found", f"no stored route for {place!r}")
        return reply({"place": place, "deleted": True})
