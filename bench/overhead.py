"""What a turn takes besides the model: from accepting to the model's request, and from its answer to delivery.

Measured from outside: the client's process notes when it sent and when it had the answer, the model server when the
request had come and when the answer was sent, by one clock. All that lies between is overhead: the bot, LiteLLM,
HTTP on both sides, and the switching between four processes. `Stages` are timed inside of the bot.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import stages
from bench.bots import Bot, bot, settings
from bench.children import Child, child
from bench.figures import Spread, Verdict, row, share, title
from bench.provider import provider

MESSAGES = {
    "small talk": "thanks!",
    "none": "what is the tallest lighthouse in the world, number {n}?",
    "tail": "as we discussed, what was it again, number {n}?",
    "qmd": "what does the refund policy say about windows, number {n}?",
}
RETRIEVES = ("qmd",)
WARM_UP = 20
Span = tuple[float, float]


@dataclass(frozen=True)
class Overhead:
    """Of one turn, in milliseconds."""

    before: float
    after: float

    @property
    def whole(self) -> float:
        return self.before + self.after


def overheads(spans: Sequence[Span], requests: Sequence[Span]) -> list[Overhead]:
    """Of turns that followed each other; of each its first request counts, and one without a request is left out."""
    ordered = sorted(requests)
    arrivals = [arrived for arrived, _ in ordered]
    found = []
    for said, heard in spans:
        place = bisect_left(arrivals, said)
        if place < len(ordered) and ordered[place][1] <= heard:
            arrived, answered = ordered[place]
            found.append(Overhead((arrived - said) * 1000, (heard - answered) * 1000))
    return found


@dataclass
class Scene:
    """A bot, its model server and people, each a process."""

    bot: Bot
    model: Child
    people: Child
    report: Path

    async def talk(self, text: str, turns: int, place: str, **more: Any) -> tuple[list[Overhead], dict[str, Any]]:
        """One conversation; the overhead of each turn, and what the people tell."""
        await self.model.ask("times")
        came = await self.people.ask("talk", url=self.bot.url, text=text, turns=turns, places=[place], **more)
        assert len(came["spans"]) == came["asked"], came["wrong"]
        return overheads(came["spans"], await self.model.ask("times")), came

    async def stages(self) -> dict[str, list[float]]:
        """How long each stage took since the last time, in milliseconds."""
        self.report.unlink(missing_ok=True)
        self.bot.process.send_signal(signal.SIGUSR2)
        while not self.report.exists():
            await asyncio.sleep(0.02)
        self.bot.process.send_signal(signal.SIGUSR1)
        found: dict[str, list[float]] = json.loads(self.report.read_text())
        return found


@asynccontextmanager
async def scene(folder: Path, module: str = "bench.stages", **more: str) -> AsyncIterator[Scene]:
    """A bot with embedded stores that has answered and has its documents."""
    report = folder / "stages.json"
    async with (
        provider() as (model, base_url),
        child("bench.people") as people,
        bot(settings(base_url, folder / "data", **more), module=module, more={stages.REPORT: str(report)}) as running,
    ):
        await running.ready()
        await running.told("index.updated")
        made = Scene(running, model, people, report)
        for text in MESSAGES.values():
            await made.talk(text, WARM_UP, "warm-up")
        yield made


async def measure(folder: Path, turns: int, repeats: int) -> list[Verdict]:
    """Overhead over HTTP, for each kind of message."""
    title("a. Overhead of a turn over HTTP, ms: median over repeats of p50 and p99 [lowest … highest]")
    verdicts = []
    alone: list[list[Overhead]] = []
    async with scene(folder) as made, child("bench.alone") as litellm:
        await litellm.ask("start", base_url=await made.model.ask("base_url"))
        found: dict[str, list[list[Overhead]]] = {kind: [] for kind in MESSAGES}
        inside: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in MESSAGES}
        for _ in range(repeats):
            for kind, text in MESSAGES.items():  # in turn, so that none has the machine's best minute
                await made.stages()
                found[kind].append((await made.talk(text, turns, kind))[0])
                inside[kind].append(await made.stages())
            alone.append(await _alone(made, litellm, turns))
    for kind, rounds in found.items():
        p50, p99 = _show(kind, rounds, inside[kind])
        limit = 18.0 if kind in RETRIEVES else 10.0
        verdicts.append(Verdict(f"overhead over HTTP, {kind}, p50", p50, limit, "ms"))
        if kind not in RETRIEVES:
            verdicts.append(Verdict(f"overhead over HTTP, {kind}, p99", p99, 40.0, "ms"))
    print("\n LiteLLM alone, with the bot's last prompt: what of the above no bot around it can save")
    row("call → request sent", Spread.of([statistics.median(t.before for t in one) for one in alone]))
    row("answer → returned", Spread.of([statistics.median(t.after for t in one) for one in alone]))
    row("overhead, p50", Spread.of([statistics.median(t.whole for t in one) for one in alone]))
    return verdicts


async def _alone(made: Scene, litellm: Child, calls: int) -> list[Overhead]:
    """Of calls of LiteLLM with the bot's last prompt, and no bot around them."""
    messages = (await made.model.ask("last"))["messages"]
    await made.model.ask("times")
    spans = await litellm.ask("spans", messages=messages, stream=False, calls=calls)
    return overheads(spans, await made.model.ask("times"))


def _show(kind: str, rounds: list[list[Overhead]], inside: list[dict[str, list[float]]]) -> tuple[float, float]:
    print(f"\n {kind}: {len(rounds)} × {len(rounds[0])} turns")
    whole = [[one.whole for one in turns] for turns in rounds]
    p50 = Spread.of([statistics.median(one) for one in whole])
    p99 = Spread.of([share(one, 0.99) for one in whole])
    row("accept → request sent", Spread.of([statistics.median(t.before for t in one) for one in rounds]))
    row("answer → delivered", Spread.of([statistics.median(t.after for t in one) for one in rounds]))
    row("overhead, p50", p50)
    row("overhead, p99", p99)
    print("  by stage, inside (they overlap; some come after the answer):")
    for stage in stages.STAGES:
        times = [one[stage] for one in inside if one.get(stage)]
        if times:
            row(f"  {stage}", Spread.of([statistics.median(one) for one in times]))
    return p50.median, p99.median
