"""How long the bot's event loop is ever held up. ``python -m bench.loop [SECONDS] [PER_SECOND]``

People write on the three emulated platforms at once, *PER_SECOND* messages on each (100), for *SECONDS* (20), to a
whole bot: ``serve`` in a process of its own, with embedded stores and a provider on loopback that answers at once. They
write in `PEOPLE` direct messages on each platform; a quarter of what they say asks for documents.

In the bot's process every callback that the event loop runs is timed: ``blocked`` is how long one kept all others
waiting, ``computing`` how much of that the loop's own thread was computing, for a machine with few cores takes the
processor away, too. What blocked for more than `BLOCKED_SECONDS` is named by the stack that a second thread saw. A
task that wakes every `TICK_SECONDS` says how late the loop comes round (``late``): many short callbacks do that, too.
Then: whether every message was stored, and stands in the chat logs, which hold what turns have taken up.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from bench.provider import provider

TICK_SECONDS = 0.005
BLOCKED_SECONDS = 0.05
LOOK_SECONDS = 0.01
PEOPLE = 25
QUIET_SECONDS = 8.0
LONGEST_SECONDS = 240.0
SAYINGS = (
    "thanks, number {}!",
    "what is the tallest lighthouse in the world, number {}?",
    "as we discussed, what was it again, number {}?",
    "what does the refund policy say about windows, number {}?",
)
PREFIX = "AGENT_RUNTIME_"
REPORT = "BENCH_LOOP_REPORT"
ROOT = Path(__file__).parents[1]
OURS = tuple(f"{ROOT / room}{os.sep}" for room in ("config", "connectors", "grounding", "promptpolicy", "runtime"))


# In the bot's process


@dataclass
class Probe:
    """Watches the loop between `begin` and `end`."""

    late_ms: list[float] = field(default_factory=list)
    blocked_ms: list[float] = field(default_factory=list)
    computing_ms: list[float] = field(default_factory=list)
    culprits: Counter[str] = field(default_factory=Counter)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    collections_ms: list[float] = field(default_factory=list)
    is_on: bool = False
    _running_since: float | None = None
    _thread: int = 0
    _began: float = 0.0

    async def tick(self) -> None:
        """The task that ought to wake in time."""
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collected)
        self._time_callbacks()
        try:
            while True:
                ticked = time.perf_counter()
                await asyncio.sleep(TICK_SECONDS)
                if self.is_on:
                    self.late_ms.append((time.perf_counter() - ticked - TICK_SECONDS) * 1000)
        finally:
            gc.callbacks.remove(self._collected)

    def _time_callbacks(self) -> None:
        """What the loop's debug mode does, without the rest of what that costs."""
        handles: Any = asyncio.Handle
        run = handles._run
        now, computed = time.perf_counter, time.thread_time

        def timed(handle: asyncio.Handle) -> None:
            if not self.is_on:
                run(handle)
                return
            cpu, started = computed(), now()
            self._running_since = started
            run(handle)
            self._running_since = None
            self.blocked_ms.append((now() - started) * 1000)
            self.computing_ms.append((computed() - cpu) * 1000)

        handles._run = timed

    def look(self) -> None:
        """The thread that sees what the loop is doing while one callback keeps it."""
        seen: float | None = None
        while True:
            time.sleep(LOOK_SECONDS)
            since = self._running_since
            if since is None or since == seen or time.perf_counter() - since < BLOCKED_SECONDS:
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                seen = since
                here = culprit(frame)
                self.culprits[here] += 1
                self.stacks.setdefault(here, traceback.format_stack(frame)[-14:])

    def _collected(self, phase: str, _about: Any) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self.is_on:
            self.collections_ms.append((time.perf_counter() - self._began) * 1000)

    def report(self) -> dict[str, Any]:
        return {
            "late_ms": self.late_ms,
            "blocked_ms": self.blocked_ms,
            "computing_ms": self.computing_ms,
            "culprits": self.culprits.most_common(12),
            "stacks": self.stacks,
            "collections_ms": self.collections_ms,
        }


def culprit(frame: FrameType) -> str:
    """The innermost line of ours, and what it was in."""
    stack = traceback.extract_stack(frame)
    inner = stack[-1]
    ours = next((one for one in reversed(stack) if one.filename.startswith(OURS)), None)
    where = f"{Path(inner.filename).parent.name}/{Path(inner.filename).name}:{inner.lineno} {inner.name}"
    if ours is None:
        return where
    return f"{Path(ours.filename).relative_to(ROOT)}:{ours.lineno} {ours.name} ← {where}"


async def bot(report: Path) -> None:
    """``serve`` as by the command, watched between SIGUSR1 and SIGUSR2."""
    from config.load import load
    from runtime.process.serve import serve

    probe = Probe()
    loop = asyncio.get_running_loop()

    def switch(on: bool) -> None:
        probe.is_on = on

    loop.add_signal_handler(signal.SIGUSR1, switch, True)
    loop.add_signal_handler(signal.SIGUSR2, switch, False)
    threading.Thread(target=probe.look, daemon=True).start()
    ticking = asyncio.create_task(probe.tick())
    try:
        await serve(load(os.environ).settings)
    finally:
        ticking.cancel()
        report.write_text(json.dumps(probe.report()))


# Around it


@dataclass
class Counts:
    """What the bot's events say."""

    events: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def read(self, path: Path) -> Counts:
        """All events printed so far."""
        self.events.clear()
        self.others.clear()
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # half a line, which is read whole the next time
            self.events[event["event"]] += 1
            if event["level"] in ("warning", "error"):
                self.others[f"{event['event']} {event.get('connector', '')} {str(event.get('why', ''))[:60]}"] += 1
        return self


async def paced(say: Callable[[int], Awaitable[None]], count: int, per_second: float) -> float:
    """Says *count* things at that pace; the seconds it took."""
    started = time.perf_counter()
    for number in range(count):
        wait = started + number / per_second - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await say(number)
    return time.perf_counter() - started


async def platforms(stack: AsyncExitStack) -> tuple[dict[str, Callable[[int], Awaitable[None]]], dict[str, str]]:
    """How somebody says the n-th thing on each platform, and where the platforms are."""
    from tests.emulators import discord, slack, telegram
    from tests.emulators.play.discord import DiscordPlay
    from tests.emulators.play.slack import SlackPlay
    from tests.emulators.play.telegram import TelegramPlay
    from tests.emulators.play.world import Crew

    crew = Crew()
    there = TelegramPlay(crew), SlackPlay(crew), DiscordPlay(crew)
    there[1].emulator.redeliver_seconds = 60.0  # Slack's second attempt comes after a minute
    for one in there:
        await stack.enter_async_context(one)
    on_telegram, on_slack, on_discord = there[0].emulator, there[1].emulator, there[2].emulator

    async def by_telegram(number: int) -> None:
        await on_telegram.say(text("telegram", number), by=telegram.Person(501 + number % PEOPLE, "Ann"))
        # What was taken is of no use any more, and is gone through for each poll.
        on_telegram._updates[:] = [one for one in on_telegram._updates if one["update_id"] >= on_telegram.confirmed]

    async def by_slack(number: int) -> None:
        on_slack.say(text("slack", number), by=slack.Person(f"U{501 + number % PEOPLE}", "Ann"))
        on_slack.deliveries[:] = [one for one in on_slack.deliveries if not one.acknowledged]

    async def by_discord(number: int) -> None:
        await on_discord.say(text("discord", number), by=discord.Person(501 + number % PEOPLE, "Ann"))

    addresses = {name: value for one in there for name, value in one.environment().items()}
    return {"telegram": by_telegram, "slack": by_slack, "discord": by_discord}, addresses


def text(name: str, number: int) -> str:
    return SAYINGS[number // PEOPLE % len(SAYINGS)].format(f"{name}-{number:06}")


async def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether *holds* became true in time."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if await asyncio.to_thread(holds):
            return True
        await asyncio.sleep(0.5)
    return False


async def quiet(path: Path) -> float:
    """Waits until the bot has printed nothing for a while; the seconds until it fell silent."""
    started = changed = time.perf_counter()
    size = -1
    while time.perf_counter() - changed < QUIET_SECONDS and time.perf_counter() - started < LONGEST_SECONDS:
        await asyncio.sleep(0.25)
        if (now := path.stat().st_size) != size:
            size, changed = now, time.perf_counter()
    return changed - started


def logged(folder: Path, name: str) -> int:
    """How many of the messages that were said stand in the chat logs."""
    found: set[str] = set()
    for path in folder.glob(f"workspaces/*/logs/chats/{name}/*.md"):
        found |= set(re.findall(rf"{name}-\d{{6}}", path.read_text("utf-8")))
    return len(found)


def show(report: dict[str, Any]) -> None:
    """The loop's figures."""
    collections = report["collections_ms"]
    print(f"\n{'the loop, ms':<14}{'p50':>8}{'p99':>8}{'p99.9':>8}{'max':>8}{'over 50':>9}{'of':>9}")
    for name in ("blocked", "computing", "late"):
        found = sorted(report[f"{name}_ms"])
        at = [found[min(len(found) - 1, int(len(found) * share))] for share in (0.5, 0.99, 0.999)]
        over = sum(one > BLOCKED_SECONDS * 1000 for one in found)
        print(f"{name:<14}{at[0]:>8.2f}{at[1]:>8.1f}{at[2]:>8.1f}{found[-1]:>8.1f}{over:>9}{len(found):>9}")
    if collections:
        print(f"garbage collection: {len(collections)} times, longest {max(collections):.1f} ms, ", end="")
        print(f"median {statistics.median(collections):.2f} ms")
    for where, times in report["culprits"]:
        print(f"  {times:>4} × over {BLOCKED_SECONDS * 1000:.0f} ms in {where}")


async def main(seconds: float, per_second: float) -> None:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ar-bench-")))
        _, base_url = await stack.enter_async_context(provider())
        say, addresses = await platforms(stack)
        settings = addresses | {
            "DATA_DIR": str(folder), "HTTP_PORT": "0", "ACCESS_POLICY": "open", "DEFAULT_WORKSPACE": "sample",
            "RATE_LIMIT_MESSAGES": "1000000", "LLM_MODEL": "openai/bench", "LLM_API_BASE": base_url,
            "LLM_API_KEY": "none",
        }  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        environment |= {PREFIX + name: value for name, value in settings.items()}
        report, printed = folder / "report.json", folder / "events.jsonl"
        with printed.open("wb") as output:
            serving = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.loop", env=environment | {REPORT: str(report)}, cwd=ROOT,
                stdout=output, stderr=None,
            )  # fmt: skip
        try:
            counts = Counts()
            heard = await wait_until(lambda: _connected(printed) >= set(say), 60)
            assert heard, printed.read_text()[-2000:]
            await asyncio.gather(*(paced(one, PEOPLE, 50) for one in say.values()))  # everybody is known
            await quiet(printed)
            print(f"{os.cpu_count()} cores; {per_second:g} messages a second on each of {len(say)} for {seconds:g} s")
            before = Counts().read(printed).events
            serving.send_signal(signal.SIGUSR1)
            count = int(seconds * per_second)
            took = await asyncio.gather(*(paced(_after(one), count, per_second) for one in say.values()))
            serving.send_signal(signal.SIGUSR2)
            at_end = counts.read(printed).events["message.accepted"] - before["message.accepted"]
            print(f"accepted by then: {at_end} of {count * len(say)}")
            print("said in " + ", ".join(f"{one:.1f} s" for one in took), end="; ")
            print(f"all was answered {await quiet(printed):.1f} s after the last")
            serving.send_signal(signal.SIGTERM)
            await serving.wait()
            counts.read(printed)
            new = {name: counts.events[name] - before[name] for name in ("message.accepted", "turn.answered")}
            print(f"events: {new}, turn.failed {counts.events['turn.failed']}, notices {dict(counts.others)}")
            print(f"messages a turn: {new['message.accepted'] / max(1, new['turn.answered']):.1f}")
            for name in say:
                print(f"  {name}: {logged(folder, name)} of {PEOPLE + count} messages in the chat logs")
            found = json.loads(report.read_text())
            show(found)
            if os.environ.get("BENCH_LOOP_STACKS"):
                for where, lines in found["stacks"].items():
                    print(f"\n{where}\n{''.join(lines)}")
        finally:
            if serving.returncode is None:
                serving.kill()
                await serving.wait()


def _connected(printed: Path) -> set[str]:
    events = [json.loads(line) for line in printed.read_text().splitlines() if line.endswith("}")]
    return {one["connector"] for one in events if one["event"] == "connector.state" and one["state"] == "connected"}


def _after(say: Callable[[int], Awaitable[None]]) -> Callable[[int], Awaitable[None]]:
    """Numbers go on behind those of the warming up."""
    return lambda number: say(number + PEOPLE)


if __name__ == "__main__":
    if os.environ.get(REPORT):
        asyncio.run(bot(Path(os.environ[REPORT])))
    else:
        given = [float(one) for one in sys.argv[1:3]]
        asyncio.run(main(given[0] if given else 20.0, given[1] if len(given) > 1 else 100.0))
