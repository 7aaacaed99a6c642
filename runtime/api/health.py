"""Alive, ready, and the numbers for Prometheus: open to whoever reaches the host, and without anything secret."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from starlette.responses import Response

from connectors.connector import Health, State
from connectors.message import Scope, StoreUnavailable
from runtime.api.metrics import CONTENT_TYPE, Gauge, Metrics
from runtime.api.replies import reply
from runtime.environment.machine import MIB, Seen
from runtime.stored import NewerFormat

if TYPE_CHECKING:
    from runtime.bootstrap import Runtime

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
