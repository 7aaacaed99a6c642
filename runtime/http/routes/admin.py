"""Health, metrics and the stream of events; the index and the transcripts, built anew by the administrator.

Health and metrics need no token and say nothing secret.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from connectors.connector import ConnectionState, Health
from connectors.message import Role, Scope, StoreUnavailable
from grounding.documents import Progress
from grounding.strategy import Strategy
from runtime.background import ProgressCallback, ReindexCounts, RestoreCounts
from runtime.http.auth import Routes, caller_of
from runtime.http.errors import ApiError, Body, reply
from runtime.http.sse import Emit, EventResponse, Report, progress_response
from runtime.machine import MIB, MachineState
from runtime.observability import CONTENT_TYPE, Gauge, Metrics, newest_id, read_events, read_memory_figures
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from runtime.process import Runtime


MAX_LISTED = 5000
_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")
STORES_NEEDED = {"redis": (ConnectionState.CONNECTED,), "qdrant": (ConnectionState.CONNECTED, ConnectionState.DEGRADED)}
"""The states in which a store lets the process be ready. Without Redis no message is accepted; without the index turns
are answered, degraded, so only its opening is waited for."""


class HealthRoutes:
    """The paths outside of ``/v1``."""

    def __init__(self, runtime: Runtime, metrics: Metrics) -> None:
        self._runtime = runtime
        self._metrics = metrics

    def endpoints(self) -> tuple[tuple[str, Callable[[], Awaitable[Response]], str], ...]:
        """Return each path, the function that answers ``GET`` there, and the answer's description."""
        return (
            ("/healthz", self.alive, "The process is alive"),
            ("/readyz", self.ready, "Ready for messages; 503 if it is not"),
            ("/metrics", self.measure, "Prometheus text"),
        )

    async def alive(self) -> Response:
        return reply({"status": "ok", "name": "agent-runtime"})

    async def ready(self) -> Response:
        stores = await self._runtime.store_health()
        connectors = self._runtime.connector_health()
        http = connectors.get(self._runtime.http.name)  # a worker process has none
        accepting = http is None or http.state is ConnectionState.CONNECTED
        working = all(stores[name].state in states for name, states in STORES_NEEDED.items())
        ready = self._runtime.is_warm and accepting and working
        answer = {"ready": ready, "connectors": _shown(connectors), "stores": _shown(stores)}
        return reply(answer, 200 if ready else 503)

    async def measure(self) -> Response:
        runtime = self._runtime
        gauges = [
            *_states("connector_up", "connector", runtime.connector_health()),
            *_states("store_up", "store", await runtime.store_health()),
            *_states("model_up", "model", {runtime.model.name: runtime.model.health}),
            *machine_gauges(runtime.surroundings.seen),
            Gauge("events_dropped_total", runtime.events.dropped),
        ]
        try:
            async with asyncio.timeout(runtime.settings.redis_timeout_seconds):
                gauges.append(Gauge("conversations_waiting", len(await runtime.mailbox.ready())))
                names = [workspace.id for workspace in await runtime.workspaces.all()]
                gauges.append(Gauge("dead_letters", sum((await runtime.dead_letters.counts(names)).values())))
                gauges += await _budgets(runtime)
                figures = await read_memory_figures(runtime.store.client, datetime.now(UTC))
                gauges += [Gauge(name, value) for name, value in figures.items()]
        except (StoreUnavailable, NewerFormat, TimeoutError):
            pass  # these figures are unknown now; the gauge store_up says why
        return Response(self._metrics.exposition(gauges), media_type=CONTENT_TYPE)


def _shown(healths: Mapping[str, Health]) -> dict[str, dict[str, str]]:
    return {
        name: {"state": health.state.value, **({"why": health.why} if health.why else {})}
        for name, health in healths.items()
    }


def machine_gauges(seen: MachineState | None) -> Iterator[Gauge]:
    """Yield the figures of the machine that are known; none before it was first looked at."""
    if seen is None:
        return
    for device in seen.environment.devices:
        kinds = {"total": device.total_mib, "used": device.used_mib, "free": device.free_mib}
        for kind, mib in kinds.items():
            yield Gauge("gpu_memory_bytes", mib * MIB, (("gpu", device.name), ("kind", kind)))
        yield Gauge("gpu_throttled", float(device.throttled), (("gpu", device.name),))
    if seen.free_memory_mib is not None:
        yield Gauge("machine_memory_free_bytes", seen.free_memory_mib * MIB)
    yield Gauge("machine_low_power", float(seen.environment.low_power))


async def _budgets(runtime: Runtime) -> list[Gauge]:
    """Return limit and rest of the workspaces that have a budget, in tokens and dollars."""
    scopes = [Scope(workspace.id) for workspace in await runtime.workspaces.all()]
    gauges = []
    for scope, state in zip(scopes, await runtime.budgets.states(scopes), strict=True):
        for term in state.bounded("workspace"):
            labels = (("period", term.period), ("what", term.what), ("workspace", scope.workspace_id))
            for name, units in (("budget_limit", state.limits[term]), ("budget_left", state.left(term))):
                gauges.append(Gauge(name, term.amount(units or 0), labels))
    return gauges


def _states(name: str, label: str, healths: Mapping[str, Health]) -> list[Gauge]:
    return [
        Gauge(name, float(health.state is state), ((label, key), ("state", state.value)))
        for key, health in healths.items()
        for state in ConnectionState
    ]


class EventRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("events", runtime)
        self._stopping = stopping
        answers = "Server-sent events, each named after the event"
        self.add("GET", "/events", self.follow, Role.VIEWER, reach="own", answers=answers)

    async def follow(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=0, le=MAX_LISTED)] = 50,
        workspace: str = "",
        strategy: str = "",
        event: str = "",
        follow: bool = True,
    ) -> Response:
        if strategy and strategy not in set(Strategy):
            raise ApiError(400, "bad_request", f"query.strategy: expected one of {', '.join(Strategy)}")
        if event and not _EVENT.fullmatch(event):
            raise ApiError(400, "bad_request", "query.event: expected the name of an event, as turn.answered")
        caller = caller_of(request)
        only = workspace or caller.workspace_id
        redis = self._runtime.store.client
        # Asked before the answer begins, so that an outage is still an error answer, and no later event is missed.
        until = await newest_id(redis)

        async def produce(emit: Emit) -> None:
            filters = {"workspace": only, "strategy": strategy or None, "event": event or None}
            async for found in read_events(redis, until=until, limit=limit, follow=follow, **filters):
                await emit(found["event"], found)

        return EventResponse(produce, self._stopping, lambda: self._runtime.api_tokens.is_valid(caller))


class ReindexRun(Body):
    """Rebuild the index of one workspace, or of all."""

    workspace: str | None = None


class RestoreRun(Body):
    """Restore the transcripts of one workspace, or of all that have chat logs; ``dry_run`` changes nothing."""

    workspace: str | None = None
    dry_run: bool = False


class RebuildingRoutes(Routes):
    """The index built anew from documents and transcripts, and transcripts from the chat logs."""

    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("rebuilding", runtime)
        self._stopping = stopping
        self._rebuilding = runtime.rebuilding
        events = "Events: progress, done, error"
        self.add("POST", "/reindex", self.reindex, Role.ADMIN, reach="everywhere", body=ReindexRun, answers=events)
        self.add("POST", "/logs/restore", self.restore, Role.ADMIN, reach="everywhere", body=RestoreRun, answers=events)

    async def reindex(self, request: Request) -> Response:
        run = await self.read(request, ReindexRun)
        if run.workspace is not None:
            scopes = [await self.enter(run.workspace)]
        else:
            scopes = [Scope(workspace.id) for workspace in await self._runtime.workspaces.all()]
        done = ReindexCounts()

        async def work(scope: Scope, tell: ProgressCallback) -> None:
            await self._rebuilding.reindex(scope, done, tell)

        return self._events(scopes, work, lambda: asdict(done))

    async def restore(self, request: Request) -> Response:
        run = await self.read(request, RestoreRun)
        names = [run.workspace] if run.workspace else await asyncio.to_thread(self._rebuilding.workspaces_with_logs)
        scopes = [Scope(name) for name in names]
        done = RestoreCounts()

        async def work(scope: Scope, tell: ProgressCallback) -> None:
            await self._rebuilding.restore(scope, done, tell, dry_run=run.dry_run)

        return self._events(scopes, work, lambda: {**asdict(done), "dry_run": run.dry_run})

    def _events(
        self,
        scopes: Sequence[Scope],
        work: Callable[[Scope, ProgressCallback], Awaitable[None]],
        result: Callable[[], dict[str, Any]],
    ) -> Response:
        """Do *work* for each of *scopes*, with its progress, then answer with *result*."""

        async def work_on_all(report: Report) -> dict[str, Any]:
            for scope in scopes:

                def tell(progress: Progress, name: str = scope.workspace_id) -> None:
                    report({"workspace": name, **asdict(progress)})

                await work(scope, tell)
            return result()

        return progress_response(work_on_all, self._stopping)
