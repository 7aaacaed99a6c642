"""The HTTP face as one application: on TCP, on the unix socket, and inside a command that runs alone.

Whether the process is ready, and what the connectors have of their own, is answered here. All other paths are made when
the first of them is asked for (`runtime.api.described`): FastAPI's import and their making take 0.3 s of processor,
which each start would have to wait for, and a bot to which people only write never needs them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from connectors.connector import MountsRoutes
from runtime.api.guard import Guard
from runtime.api.health import HealthRoutes
from runtime.api.metrics import Metrics
from runtime.api.security import Security

if TYPE_CHECKING:
    from fastapi import FastAPI

    from runtime.bootstrap import Runtime


def create_app(runtime: Runtime, metrics: Metrics | None = None) -> Starlette:
    """The application around *runtime*. *metrics* is what `/metrics` shows; it is fed by whoever sets events up.

    ``app.state.stopping`` is an `asyncio.Event`: set it when the process stops, so that streams end.
    ``app.state.described`` makes the paths that are made later, at the first call, and returns them; blocking.
    """
    health, stopping = HealthRoutes(runtime, metrics or Metrics()), asyncio.Event()

    @functools.cache
    def described() -> FastAPI:
        from runtime.api import described

        return described.described(runtime, health, stopping)

    mounted = [
        route
        for connector in runtime.connectors.values()
        if isinstance(connector, MountsRoutes)
        for route in connector.routes()
    ]
    app = _app(runtime, [*mounted, *_routes(health), _Rest(described)], stopping)
    app.state.described = described
    return app


def create_health_app(runtime: Runtime, metrics: Metrics) -> Starlette:
    """The application of a process that only works: whether it is alive and ready, and its numbers."""
    return _app(runtime, _routes(HealthRoutes(runtime, metrics)), asyncio.Event())


class _Rest(BaseRoute):
    """All paths of *described*, and all that there are not; made in a thread for whoever asks first."""

    def __init__(self, described: Callable[[], FastAPI]) -> None:
        self._described = described
        self._making = asyncio.Lock()
        self._app: ASGIApp | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL, {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self._made()
        await app(scope, receive, send)

    async def _made(self) -> ASGIApp:
        async with self._making:
            if self._app is not None:  # made while this one waited
                return self._app
            app = await asyncio.to_thread(_within_another, self._described)
            self._app = app
            return app


class _Application(Starlette):
    """Routes behind the guard alone, which answers every error: Starlette's own layers would do so a second time."""

    def __init__(self, security: Security, *, routes: list[BaseRoute]) -> None:
        self._security = security
        super().__init__(routes=routes)

    def build_middleware_stack(self) -> ASGIApp:
        return Guard(self.router, check_place=self._security.check_place, authenticate=self._security)


def _app(runtime: Runtime, routes: Iterable[BaseRoute], stopping: asyncio.Event) -> Starlette:
    app = _Application(runtime.security, routes=list(routes))
    app.router.redirect_slashes = False
    app.state.stopping = stopping
    return app


def _within_another(described: Callable[[], FastAPI]) -> ASGIApp:
    from runtime.api.described import asgi

    return asgi(described())


def _routes(health: HealthRoutes) -> list[Route]:
    return [Route(path, _answering(endpoint), methods=["GET"]) for path, endpoint, _ in health.endpoints()]


def _answering(endpoint: Callable[[], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return await endpoint()

    return answer
