"""Alive, ready, and the numbers for Prometheus: open to whoever reaches the host, and without anything secret."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from connectors.connector import Health, State
from connectors.message import AgentRuntimeError, Role, Scope, StoreUnavailable
from grounding.documents import Progress
from grounding.strategy import Strategy
from runtime.background import Rebuilding, Reindexed, Restored, Tells
from runtime.http.auth import Routes, caller_of, require_everywhere
from runtime.http.errors import ApiError, Body, read_json, reply
from runtime.http.routes.workspaces import enter
from runtime.http.sse import Emit, EventResponse
from runtime.machine import MIB, Seen
from runtime.observability import CONTENT_TYPE, Gauge, Metrics, newest, tail
from runtime.stores import NewerFormat

if TYPE_CHECKING:
    from runtime.process import Runtime


STORES_NEEDED = {"redis": (State.CONNECTED,), "qdrant": (State.CONNECTED, State.DEGRADED)}
"""Without Redis nothing is accepted. Without the index turns are answered, degraded; it is only waited for
while it is being opened."""


class HealthRoutes:
    """The paths outside of ``/v1``."""

    def __init__(self, runtime: Runtime, metrics: Metrics) -> None:
        self._runtime = runtime
        self._metrics = metrics

    def endpoints(self) -> tuple[tuple[str, Callable[[], Awaitable[Response]], str], ...]:
        """Each path, what answers ``GET`` there, and with what."""
        return (
            ("/healthz", self.alive, "The process is alive"),
            ("/readyz", self.ready, "Ready for messages; 503 where it is not"),
            ("/metrics", self.measure, "Prometheus text"),
        )

    async def alive(self) -> Response:
        return reply({"status": "ok", "name": "agent-runtime"})

    async def ready(self) -> Response:
        stores = await self._runtime.store_health()
        connectors = self._runtime.connector_health()
        door = connectors.get(self._runtime.http.name)  # a process that only works has none
        accepting = door is None or door.state is State.CONNECTED
        ready = accepting and all(stores[name].state in states for name, states in STORES_NEEDED.items())
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
        except (StoreUnavailable, NewerFormat, TimeoutError):
            pass  # nobody knows how many wait; that the store is away is among the gauges
        return Response(self._metrics.exposition(gauges), media_type=CONTENT_TYPE)


def _shown(healths: Mapping[str, Health]) -> dict[str, dict[str, str]]:
    return {
        name: {"state": health.state.value, **({"why": health.why} if health.why else {})}
        for name, health in healths.items()
    }


def machine_gauges(seen: Seen | None) -> Iterator[Gauge]:
    """The machine as it was seen last; nothing before the first look, and of what it does not say."""
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
    """What workspaces with a limit may spend, and what is left of it, in tokens and dollars."""
    scopes = [Scope(one.id) for one in await runtime.workspaces.all()]
    gauges = []
    for scope, state in zip(scopes, await runtime.budgets.states(scopes), strict=True):
        for term in state.bounded("workspace"):
            labels = (("period", term.period), ("what", term.what), ("workspace", scope.workspace_id))
            for name, units in (("budget_limit", state.limits[term]), ("budget_left", state.left(term))):
                gauges.append(Gauge(name, term.amount(units or 0), labels))
    return gauges


def _states(name: str, label: str, healths: Mapping[str, Health]) -> list[Gauge]:
    return [
        Gauge(name, float(health.state is state), ((label, one), ("state", state.value)))
        for one, health in healths.items()
        for state in State
    ]


# ---- events ----
#
# What happened, and what happens now: the stream of events.


MAX_LISTED = 5000
_EVENT = re.compile(r"[a-z_]+(\.[a-z_]+)+")


class EventRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("events")
        self._runtime = runtime
        self._stopping = stopping
        self.add("GET", "/events", self.follow, Role.VIEWER, answers="Server-sent events, each named after the event")

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
        wanted = workspace or caller.workspace_id
        if wanted is not None and not caller.may_enter(wanted):
            raise ApiError(403, "forbidden", "the token is for another workspace")
        redis = self._runtime.store.client
        # Before the answer begins: an outage can still be one of its own, and what comes after it is missed by nobody.
        until = await newest(redis)

        async def produce(emit: Emit) -> None:
            kinds = {"workspace": wanted, "strategy": strategy or None, "event": event or None}
            async for one in tail(redis, until=until, limit=limit, follow=follow, **kinds):
                await emit(one["event"], one)

        return EventResponse(produce, self._stopping, lambda: self._runtime.api_tokens.still_holds(caller))


# ---- rebuilding ----
#
# The index built anew from documents and transcripts, and transcripts from the chat logs. For the runtime's admin.


class ReindexRun(Body):
    """Of one workspace, or of all."""

    workspace: str | None = None


class RestoreRun(Body):
    """Of one workspace, or of all that have chat logs; *dry_run* changes nothing."""

    workspace: str | None = None
    dry_run: bool = False


class RebuildingRoutes(Routes):
    def __init__(self, runtime: Runtime, stopping: asyncio.Event) -> None:
        super().__init__("rebuilding")
        self._runtime = runtime
        self._stopping = stopping
        self._limit = runtime.settings.http_max_body_bytes
        self._rebuilding = Rebuilding(
            runtime.settings.data_dir,
            runtime.knowledge,
            runtime.transcript,
            runtime.contexts,
            runtime.copy,
            runtime.workspaces,
        )
        events = "Events: progress, done, error"
        self.add("POST", "/reindex", self.reindex, Role.ADMIN, body=ReindexRun, answers=events)
        self.add("POST", "/logs/restore", self.restore, Role.ADMIN, body=RestoreRun, answers=events)

    async def reindex(self, request: Request) -> Response:
        require_everywhere(caller_of(request))
        run = await read_json(request, ReindexRun, self._limit)
        if run.workspace is not None:
            scopes = [await enter(self._runtime, run.workspace)]
        else:
            scopes = [Scope(workspace.id) for workspace in await self._runtime.workspaces.all()]
        done = Reindexed()

        async def work(scope: Scope, tell: Tells) -> None:
            await self._rebuilding.reindex(scope, done, tell)

        return self._events(scopes, work, lambda: asdict(done))

    async def restore(self, request: Request) -> Response:
        require_everywhere(caller_of(request))
        run = await read_json(request, RestoreRun, self._limit)
        names = [run.workspace] if run.workspace else await asyncio.to_thread(self._rebuilding.workspaces_with_logs)
        scopes = [Scope(name) for name in names]
        done = Restored()

        async def work(scope: Scope, tell: Tells) -> None:
            await self._rebuilding.restore(scope, done, tell, dry_run=run.dry_run)

        return self._events(scopes, work, lambda: {**asdict(done), "dry_run": run.dry_run})

    def _events(
        self,
        scopes: Sequence[Scope],
        work: Callable[[Scope, Tells], Awaitable[None]],
        result: Callable[[], dict[str, object]],
    ) -> Response:
        """*work* on each of *scopes*, with its progress, and then its result."""

        async def produce(emit: Emit) -> None:
            news: asyncio.Queue[tuple[str, Progress] | None] = asyncio.Queue()
            failure: AgentRuntimeError | OSError | None = None

            async def tell() -> None:
                while (told := await news.get()) is not None:
                    await emit("progress", {"workspace": told[0], **asdict(told[1])})

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(tell())
                try:
                    for scope in scopes:
                        name = scope.workspace_id
                        await work(scope, lambda progress, name=name: news.put_nowait((name, progress)))  # type: ignore[misc]
                except (AgentRuntimeError, OSError) as error:
                    failure = error
                news.put_nowait(None)
            if failure is not None:
                raise failure
            await emit("done", result())

        return EventResponse(produce, self._stopping)
