"""What kind of machine the figures come from: cores, and how long a few fixed things take on it."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.figures import title
from runtime import stores
from tests.emulators.own_redis import OwnRedis

LOOP = 100_000
ROUNDS = 7
TRIPS = 300


def loop_ms() -> float:
    """CPU milliseconds of a fixed piece of Python: additions in a loop."""
    times = []
    for _ in range(ROUNDS):
        started, total = time.thread_time(), 0
        for number in range(LOOP):
            total += number
        times.append((time.thread_time() - started) * 1000)
    return statistics.median(times)


async def _each_us(call: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Microseconds of one *call*: by the clock, and CPU of this process."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        started, computed = time.perf_counter(), time.process_time()
        for _ in range(TRIPS):
            await call()
        walls.append((time.perf_counter() - started) / TRIPS * 1e6)
        cpus.append((time.process_time() - computed) / TRIPS * 1e6)
    return statistics.median(walls), statistics.median(cpus)


async def describe(folder: Path) -> None:
    """Print it."""
    title("The machine")
    server = OwnRedis(folder)
    await asyncio.to_thread(server.start)
    redis = stores.connect(server.url, 5.0)
    try:
        ping = await _each_us(lambda: redis.exists("nothing"))
        write = await _each_us(lambda: redis.set("something", "x" * 100))
    finally:
        await redis.aclose()
        server.kill()
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"  {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load} before")
    print(f"  {LOOP:,} additions in Python: {loop_ms():.2f} ms CPU")
    print(f"  a Redis round trip: {ping[0]:.0f} µs, of them {ping[1]:.0f} µs CPU here")
    print(f"  a write with appendfsync always: {write[0]:.0f} µs, of them {write[1]:.0f} µs CPU here")
