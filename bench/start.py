"""From the start of the process to being ready and to the first reply; and how much memory it holds after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from bench.bots import bot, settings
from bench.children import Child, child, memory_mb
from bench.figures import Spread, Verdict, row, title
from bench.overhead import MESSAGES
from bench.platforms import platforms
from bench.provider import provider
from bench.throughput import crew

ALL = ("telegram", "slack", "discord")
ANSWERED = 100
"""Turns after which memory is looked at."""


async def measure(folder: Path, turns: int, repeats: int) -> list[Verdict]:
    """Times to ready and to the first reply, and memory by role."""
    title("e. Start, s, and memory, MB: median over repeats [lowest … highest]")
    async with provider() as (_, base_url), child("bench.people") as people, platforms(*ALL) as (_, addresses):
        plain = settings(base_url, folder / "plain" / "data")
        (folder / "plain").mkdir()
        full = settings(base_url, folder / "full" / "data", **addresses)
        (folder / "full").mkdir()
        verdicts = await _starts("without platform SDKs", plain, people, repeats, 1.5, ())
        verdicts += await _starts("with all three", full, people, repeats, 4.0, ALL)
        verdicts += await _memory(folder, base_url, people, turns)
    return verdicts


async def _starts(
    what: str, given: Mapping[str, str], people: Child, repeats: int, limit: float, connectors: tuple[str, ...]
) -> list[Verdict]:
    """The first start, with an empty folder, is shown by itself."""
    ready, replied, connected = [], [], []
    for _ in range(repeats + 1):
        async with bot(given) as running:
            first = asyncio.create_task(people.ask("first", url=running.url, text=MESSAGES["none"].format(n=0)))
            ready.append(await running.ready())
            connected.append(await running.connected(*connectors))
            replied.append(await first - running.started)
    print(f"\n {what} (very first start: ready after {ready[0]:.2f} s, first reply {replied[0]:.2f} s)")
    row("process start → ready", Spread.of(ready[1:]), "s")
    if connectors:
        row("process start → all connected", Spread.of(connected[1:]), "s")
    row("process start → first reply", Spread.of(replied[1:]), "s")
    return [
        Verdict(f"ready, {what}", Spread.of(ready[1:]).median, limit, "s"),
        Verdict(f"first reply, {what}", Spread.of(replied[1:]).median, 6.0, "s"),
    ]


async def _memory(folder: Path, base_url: str, people: Child, turns: int) -> list[Verdict]:
    worst = 0.0
    for workers, is_again in ((0, False), (0, True), (1, False)):
        own = folder / f"memory-{workers}"
        own.mkdir(exist_ok=is_again)
        async with crew(own, base_url, workers) as running:
            await people.ask("talk", url=running.url, text=MESSAGES["none"], turns=turns, places=["memory"])
            await people.ask(
                "talk", url=running.url, text=MESSAGES["qmd"], turns=max(1, turns // 10), places=["memory"]
            )
            print(f"\n after {turns} turns" + (", started again on what they left" if is_again else ""))
            for name, pid in running.processes.items():
                rss, pss = memory_mb(pid)
                print(f"  {name:<46}{rss:8.0f} MB RSS, {pss:.0f} MB PSS")
                worst = max(worst, rss) if name != "gateway" else worst
    return [Verdict("resident memory of a worker", worst, 380, "MB")]
