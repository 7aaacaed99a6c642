"""What a turn costs the bot's processes, and how much of that is LiteLLM's.

LiteLLM's own CPU is measured beside it, in turn with the bot, against the same model server and with the same prompt;
it is taken off for every call that the bot made, those for summaries and records too, which are never streamed. It is
measured as the runtime calls it, through `runtime.llm.Model`, and called by itself. What is left is ours: HTTP, Redis's
client, grounding, everything after the reply, the interpreter.
Redis itself is a process of its own and is shown by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from bench.bots import Bot
from bench.children import Child, child, children_of, cpu_ms
from bench.figures import Spread, Verdict, row, title
from bench.overhead import MESSAGES, Scene, scene

QUIET_SECONDS = 2.0
"""What follows replies ends within it."""
TEXT = MESSAGES["none"]


@dataclass(frozen=True)
class Kind:
    name: str
    stream: bool
    chunks: int


KINDS = (Kind("plain", False, 1), Kind("stream of 1 chunk", True, 1), Kind("stream of 40 chunks", True, 40))


@dataclass
class _Costs:
    """CPU milliseconds a turn, of each repeat."""

    bot: list[float] = field(default_factory=list)
    litellm: list[float] = field(default_factory=list)
    """As the runtime calls it."""
    itself: list[float] = field(default_factory=list)
    """The same calls by LiteLLM's own `acompletion`."""
    calls: list[float] = field(default_factory=list)
    """Of the model, a turn."""
    redis: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)


async def idle_ms(bot: Bot) -> float:
    """What the bot computes in `QUIET_SECONDS` in which nobody talks to it."""
    before = bot.cpu_ms
    await asyncio.sleep(QUIET_SECONDS)
    return bot.cpu_ms - before


async def measure(folder: Path, turns: int, repeats: int) -> list[Verdict]:
    """CPU per turn, plain and streamed."""
    title("b. CPU of a turn in the bot's own process, ms: median over repeats [lowest … highest]")
    found = {kind: _Costs() for kind in KINDS}
    async with scene(folder, module="runtime") as made, child("bench.alone") as alone:
        await alone.ask("start", base_url=await made.model.ask("base_url"))
        await asyncio.sleep(QUIET_SECONDS)
        idle = await idle_ms(made.bot)
        for repeat in range(repeats):
            for kind in KINDS:
                await _one(made, alone, kind, turns, idle, f"{kind.name} {repeat}", found[kind])
    print(f"  with nobody talking: {idle / QUIET_SECONDS:.1f} ms CPU a second (taken off for the wait after the end)")
    for kind, costs in found.items():
        print(f"\n {kind.name}: {repeats} × {turns} turns, one after the other")
        row("the bot's process", Spread.of(costs.bot))
        row("of it LiteLLM, alone, as we call it", Spread.of(costs.litellm))
        row("  LiteLLM called by itself", Spread.of(costs.itself))
        row("calls of the model, with what follows replies", Spread.of(costs.calls))
        row("our own", Spread.of(costs.own))
        row("Redis, beside it", Spread.of(costs.redis))
    return [
        Verdict(f"own CPU a turn, {kind.name}", Spread.of(costs.own).median, 4.0, "ms") for kind, costs in found.items()
    ]


async def _one(made: Scene, alone: Child, kind: Kind, turns: int, idle: float, place: str, costs: _Costs) -> None:
    await made.model.ask("chunks", count=kind.chunks)
    await made.talk(TEXT, 5, place, stream=kind.stream)
    await asyncio.sleep(QUIET_SECONDS)
    redis = next(pid for name, pid in children_of(made.bot.pid).items() if "valkey" in name or "redis" in name)
    bot, store, asked = made.bot.cpu_ms, cpu_ms(redis), await made.model.ask("asked")
    await made.talk(TEXT, turns, place, stream=kind.stream)
    messages = (await made.model.ask("last"))["messages"]
    await asyncio.sleep(QUIET_SECONDS)
    costs.bot.append((made.bot.cpu_ms - bot - idle) / turns)
    costs.redis.append((cpu_ms(redis) - store) / turns)
    costs.calls.append((await made.model.ask("asked") - asked) / turns)
    one = await alone.ask("cost", messages=messages, stream=kind.stream, calls=turns)
    plain = await alone.ask("cost", messages=messages, stream=False, calls=turns) if kind.stream else one
    for way, found in (("called", costs.litellm), ("itself", costs.itself)):
        found.append(one[way] + plain[way] * (costs.calls[-1] - 1))
    costs.own.append(costs.bot[-1] - costs.litellm[-1])
