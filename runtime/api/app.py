"""The HTTP face as one application: on TCP, on the unix socket, and inside a command that runs alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from connectors.connector import MountsRoutes
from runtime.api.access import AccessRoutes
from runtime.api.budget import BudgetRoutes
from runtime.api.codex import CodexRoutes
from runtime.api.contexts import ContextRoutes
from runtime.api.cues import CueRoutes
from runtime.api.dead_letters import DeadLetterRoutes
from runtime.api.documents import DocumentRoutes
from runtime.api.errors import error_response
from runtime.api.events import EventRoutes
from runtime.api.frames import FrameRoutes
from runtime.api.global_context import GlobalContextRoutes
from runtime.api.ground import GroundRoutes
from runtime.api.guard import Guard
from runtime.api.health import DoctorRoutes, HealthRoutes
from runtime.api.marks import MarkRoutes
from runtime.api.metrics import Metrics
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


def create_app(runtime: Runtime, metrics: Metrics | None = None) -> FastAPI:
    """The application around *runtime*. *metrics* is what `/metrics` shows; it is fed by whoever sets events up.

    ``app.state.stopping`` is an `asyncio.Event`: set it when the process stops, so that streams end.
    """
    app = FastAPI(
        title="Agent Runtime",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    stopping = asyncio.Event()
    app.state.stopping = stopping
    app.add_middleware(Guard, check_place=runtime.security.check_place, authenticate=runtime.security)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _refused)
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
    app.router.routes.extend(HealthRoutes(runtime, metrics or Metrics()).router.routes)
    # Made for whoever asks first: it takes 0.1 s, which a start would have to wait for.
    described = functools.cache(lambda: _openapi(app, groups, runtime.http.openapi))

    async def openapi(_request: Request) -> Response:
        return reply(await asyncio.to_thread(described))

    app.add_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
    return app


def create_health_app(runtime: Runtime, metrics: Metrics) -> FastAPI:
    """The application of a process that only works: whether it is alive and ready, and its numbers."""
    app = FastAPI(title="Agent Runtime", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.stopping = asyncio.Event()
    app.add_middleware(Guard, check_place=runtime.security.check_place, authenticate=runtime.security)
    app.router.routes.extend(HealthRoutes(runtime, metrics).router.routes)
    return app


async def _refused(_request: Request, error: Exception) -> Response:
    return error_response(error)


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
