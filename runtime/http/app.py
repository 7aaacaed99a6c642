"""Builds the FastAPI application, which answers on TCP, on the unix socket, and inside a command that runs alone.

Every path needs a token except the public ones: health and metrics, the OpenAPI document, and what connectors mount
outside of ``/v1``, whose callers they authenticate themselves.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from connectors.connector import MountsRoutes
from connectors.message import Role
from runtime.http.auth import PUBLIC, Guard, Permission, Routes
from runtime.http.doctor import DoctorRoutes
from runtime.http.errors import error_response, reply
from runtime.http.routes.access import AccessRoutes
from runtime.http.routes.admin import EventRoutes, HealthRoutes, RebuildingRoutes
from runtime.http.routes.context_documents import ContextRoutes
from runtime.http.routes.documents import CodexRoutes, DocumentRoutes
from runtime.http.routes.global_context import GlobalContextRoutes
from runtime.http.routes.prompts import PromptRoutes
from runtime.http.routes.records import RecordRoutes
from runtime.http.routes.turns import DeadLetterRoutes, GroundRoutes, MarkRoutes, TurnRoutes
from runtime.http.routes.workspaces import BudgetRoutes, PlaceRoutes, UsageRoutes, WorkspaceRoutes
from runtime.observability import Metrics

if TYPE_CHECKING:
    from runtime.process import Runtime


def create_app(runtime: Runtime, metrics: Metrics | None = None) -> FastAPI:
    """Build the application around *runtime*. *metrics* is what `/metrics` shows; the caller feeds it with events.

    ``app.state.stopping`` is an `asyncio.Event`: set it when the process stops, so that streams end.
    """
    stopping = asyncio.Event()
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
        PlaceRoutes(runtime),
        AccessRoutes(runtime),
        EventRoutes(runtime, stopping),
        UsageRoutes(runtime),
        BudgetRoutes(runtime),
        DoctorRoutes(runtime),
        RebuildingRoutes(runtime, stopping),
    ]
    mounted = [
        route
        for connector in runtime.connectors.values()
        if isinstance(connector, MountsRoutes)
        for route in connector.routes()
    ]

    async def openapi(_request: Request) -> Response:
        return reply(await asyncio.to_thread(document))

    openapi_route = Route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
    app, permissions = _app(runtime, metrics or Metrics(), stopping)
    permissions[id(openapi_route)] = PUBLIC
    for route in mounted:
        if isinstance(route, Route):
            permissions[id(route)] = Permission(Role.MEMBER) if route.path.startswith("/v1/") else PUBLIC
    app.router.routes += [openapi_route, *mounted]
    for group in groups:
        app.router.routes += group.router.routes
        permissions |= group.permissions
    # Built at the first request: it takes 0.1 s.
    document = functools.cache(lambda: _openapi(app, groups, runtime.http.openapi))
    return app


def create_health_app(runtime: Runtime, metrics: Metrics) -> FastAPI:
    """Build the application of a worker process: whether it is alive and ready, and its metrics."""
    app, _ = _app(runtime, metrics, asyncio.Event())
    return app


def _app(runtime: Runtime, metrics: Metrics, stopping: asyncio.Event) -> tuple[FastAPI, dict[int, Permission]]:
    """Build an application with the public paths of health and metrics. Return it and what its routes declare, by their
    `id`."""
    app = FastAPI(
        title="Agent Runtime",
        version=_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for path, endpoint, answers in HealthRoutes(runtime, metrics).endpoints():
        responses: dict[int | str, dict[str, Any]] = {200: {"description": answers}}
        app.add_api_route(
            path, endpoint, methods=["GET"], response_class=Response, responses=responses, tags=["health"]
        )
    permissions = {id(route): PUBLIC for route in app.router.routes}
    app.add_middleware(Guard, security=runtime.security, routes=app.router.routes, permissions=permissions)
    for kind in (HTTPException, RequestValidationError):  # FastAPI's own answers have another form
        app.add_exception_handler(kind, _answer)
    app.state.stopping = stopping
    app.state.permissions = permissions
    app.state.runtime = runtime
    return app, permissions


async def _answer(_request: Request, error: Exception) -> Response:
    return error_response(error)


def _openapi(app: FastAPI, groups: Sequence[Routes], mounted: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document: our routes, the http connector's, and the schemas that bodies refer to."""
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
