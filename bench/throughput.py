"""Turns a second with everything on this machine, by how many workers there are.

A gateway and workers are processes that share one Redis (``appendfsync always``). There is no Qdrant server here:
what turns leave to be recalled later waits in Redis, which a worker with Qdrant would pay for, too. ``all`` is one
process with embedded stores, which does that work.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.bots import NOWHERE, bot, settings
from bench.children import Child, child, cpu_ms
from bench.cost import KINDS, Kind
from bench.figures import Spread, Verdict, row, share, title
from bench.overhead import MESSAGES
from bench.provider import provider
from tests.emulators.own_redis import OwnRedis

WORKERS = (1, 2, 4)
AT_ONCE = 50
LIMITS = {"plain": 120.0, "stream of 40 chunks": 50.0}


@dataclass
class _Rates:
    """Of each repeat."""

    rate: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    unanswered: int = 0
    cpu: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class _Crew:
    url: str
    processes: dict[str, int]


@asynccontextmanager
async def crew(folder: Path, base_url: str, workers: int) -> AsyncIterator[_Crew]:
    """A gateway and so many *workers*, or, for 0, one process that is both."""
    async with AsyncExitStack() as stack:
        if not workers:
            alone = await stack.enter_async_context(bot(settings(base_url, folder / "data")))
            await alone.ready()
            yield _Crew(alone.url, {"all": alone.pid})
            return
        redis = OwnRedis(folder / "redis")
        await asyncio.to_thread(redis.start)
        stack.callback(redis.kill)
        given = settings(base_url, folder / "data", REDIS_URL=redis.url, QDRANT_URL=NOWHERE)
        gateway = await stack.enter_async_context(bot(given, "gateway"))
        others = [await stack.enter_async_context(bot(given, "worker")) for _ in range(workers)]
        for one in (gateway, *others):
            await one.ready()
        yield _Crew(
            gateway.url, {"gateway": gateway.pid, **{f"worker {n + 1}": one.pid for n, one in enumerate(others)}}
        )


async def measure(folder: Path, turns: int, repeats: int, workers: tuple[int, ...] = (0, *WORKERS)) -> list[Verdict]:
    """Rates by worker count; the best of them counts."""
    title(f"d. Turns a second, {AT_ONCE} conversations at once: median over repeats [lowest … highest]")
    best: dict[str, float] = {}
    unanswered = 0
    kinds = [kind for kind in KINDS if kind.name in LIMITS]
    for count in workers:
        async with provider() as (model, base_url), child("bench.people") as people:
            own = folder / f"workers-{count}"
            own.mkdir()
            async with crew(own, base_url, count) as running:
                for kind in kinds:
                    rates = await _rates(running, model, people, kind, turns, repeats)
                    _show(count, kind, rates)
                    unanswered += rates.unanswered
                    best[kind.name] = max(best.get(kind.name, 0.0), Spread.of(rates.rate).median)
    verdicts = [Verdict(f"turns a second, {name}", best[name], limit, "/s", True) for name, limit in LIMITS.items()]
    return [*verdicts, Verdict(f"messages without an answer, {AT_ONCE} at once", unanswered, 0, "")]


async def _rates(running: _Crew, model: Child, people: Child, kind: Kind, turns: int, repeats: int) -> _Rates:
    found = _Rates()
    await model.ask("chunks", count=kind.chunks)
    each = max(1, turns // AT_ONCE)
    for repeat in range(-1, repeats):  # the first time warms up
        places = [f"{kind.name} {repeat} {number}" for number in range(AT_ONCE)]
        pids = {**running.processes, "people": people.pid, "model server": model.pid}
        before = {name: cpu_ms(pid) for name, pid in pids.items()}
        came: dict[str, Any] = await people.ask(
            "talk", url=running.url, text=MESSAGES["none"], turns=each, places=places, stream=kind.stream
        )
        if came["wrong"]:
            print("  wrong:", *came["wrong"], sep="\n    ")
        found.unanswered += came["asked"] - len(came["spans"])
        if repeat < 0:
            continue
        took = [ended - started for started, ended in came["spans"]]
        found.rate.append(len(took) / came["seconds"])
        found.p50.append(statistics.median(took))
        found.p95.append(share(took, 0.95))
        for name, pid in pids.items():
            found.cpu.setdefault(name, []).append((cpu_ms(pid) - before[name]) / max(1, len(took)))
    return found


def _show(workers: int, kind: Kind, rates: _Rates) -> None:
    who = f"gateway and {workers} workers" if workers else "one process"
    print(f"\n {who}, {kind.name}")
    row("turns a second", Spread.of(rates.rate))
    row("until the answer, p50", Spread.of(rates.p50), "s")
    row("until the answer, p95", Spread.of(rates.p95), "s")
    for name, costs in rates.cpu.items():
        row(f"CPU a turn, {name}", Spread.of(costs), "ms")
    print(f"  not answered: {rates.unanswered}")
