"""All paths under ``/v1`` with what the OpenAPI document says of them, on FastAPI.

Imported when the first of them is asked for (`runtime.api.app`): nothing that a start needs may stand here.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from connectors.connector import MountsRoutes
from runtime.api.access import AccessRoutes
from runtime.api.budget import BudgetRoutes
from runtime.api.codex import CodexRoutes
from runtime.api.contexts import ContextRoutes
from runtime.api.cues import CueRoutes
from runtime.api.dead_letters import DeadLetterRoutes
from runtime.api.doctor import DoctorRoutes
from runtime.api.documents import DocumentRoutes
from runtime.api.events import EventRoutes
from runtime.api.frames import FrameRoutes
from runtime.api.global_context import GlobalContextRoutes
from runtime.api.ground import GroundRoutes
from runtime.api.health import HealthRoutes
from runtime.api.marks import MarkRoutes
from runtime.api.places import PlaceRoutes
from runtime.api.prompts import PromptRoutes
from runtime.api.rebuilding import RebuildingRoutes
from runtime.api.records import RecordRoutes
from runtime.api.replies import reply
from runtime.api.routing import Routes
from runtime.api.turns import TurnRoutes
from runtime.api.usage import UsageRoutes
from runtime.api.workspaces import WorkspaceRoutes

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime


def described(runtime: Runtime, health: HealthRoutes, stopping: asyncio.Event) -> FastAPI:
    """The application of all paths, those included that `runtime.api.app` answers itself. It is never served as it is:
    `asgi` is."""
    app = FastAPI(
        title="Agent Runtime",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    groups: list[Routes] = [
        WorkspaceRoutes(runtime),
        DocumentRoutes(runtime, stopping),
        CodexRoutes(runtime),
        GroundRoutes(runtime),
        ContextRoutes(runtime),
        TurnRoutes(runtime),
        MarkRoutes(runtime),
        DeadLetterRoutes(runtime),
        PromptRoutes(runtime),
        GlobalContextRoutes(runtime),
        RecordRoutes(runtime),
        CueRoutes(runtime),
        FrameRoutes(runtime),
        PlaceRoutes(runtime),
        AccessRoutes(runtime),
        EventRoutes(runtime, stopping),
        UsageRoutes(runtime),
        BudgetRoutes(runtime),
        DoctorRoutes(runtime),
        RebuildingRoutes(runtime, stopping),
    ]
    for connector in runtime.connectors.values():
        if isinstance(connector, MountsRoutes):
            app.router.routes.extend(connector.routes())
    # Not by `include_router`, which builds each route a second time when the first request looks for its own.
    for group in groups:
        app.router.routes.extend(group.router.routes)
    for path, endpoint, answers in health.endpoints():
        responses: dict[int | str, dict[str, Any]] = {200: {"description": answers}}
        app.add_api_route(
            path, endpoint, methods=["GET"], response_class=Response, responses=responses, tags=["health"]
        )
    # Made for whoever asks first: it takes 0.1 s, which other paths would have to wait for.
    document = functools.cache(lambda: _openapi(app, groups, runtime.http.openapi))

    async def openapi(_request: Request) -> Response:
        return reply(await asyncio.to_thread(document))

    app.add_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
    return app


def asgi(app: FastAPI) -> ASGIApp:
    """The paths of *app* within another application, whose middleware and errors count for them."""
    return AsyncExitStackMiddleware(app.router)


def _openapi(app: FastAPI, groups: Iterable[Routes], mounted: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document: our routes, the http connector's, and what bodies refer to."""
    document = app.openapi()
    for path, operations in mounted["paths"].items():
        document["paths"].setdefault(path, {}).update(operations)
    components = document.setdefault("components", {})
    for kind, entries in mounted["components"].items():
        components.setdefault(kind, {}).update(entries)
    for group in groups:
        components.setdefault("schemas", {}).update(group.schemas)
    return document


def _version() -> str:
    try:
        return metadata.version("agent-runtime")
    except metadata.PackageNotFoundError:  # run from a checkout
        return "0"
