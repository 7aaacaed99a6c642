"""What comes of every message in a long storm of kills.

``python -m bench.storm [MESSAGES [CONVERSATIONS]]``, or ``python -m bench.storm --crashes N``.

Two workers and a gateway, a Redis with ``appendfsync always``, an emulated Telegram, Slack and Discord, HTTP with
Idempotency-Key, and a model that streams. While 2,000 messages are said in 200 conversations a random worker is
killed (``kill -9``) every few seconds, every tenth time the gateway with it, and once in the middle Redis. Printed
are what was lost, out of order, doubled or is unknown, and how long it took; the exit code says whether it held.

A process is mostly killed only once it has done something again, so that a machine on which processes start slowly
has a storm, too, and not a time in which nobody works; one time in four a worker dies whatever it does.

With ``--crashes``: so many times one process is killed with ten messages in hand, on all three platforms. After
its restart all must be answered, none twice, and nobody else may be written to.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Spread, row
from tests.emulators.own_redis import OwnRedis
from tests.emulators.storm import PLATFORMS, Outcome, Storm, conversations, storm, until

WORKERS = (1, 2)
KILL_SECONDS = (4.0, 8.0)
CARELESS_PART = 0.25
"""Of the kills, those for which it does not matter what the worker has done yet."""
AT_WORK_SECONDS = 60.0
"""How long a process has for that."""
GATEWAY_EVERY = 10
REDIS_AT = 5
PAUSE_SECONDS = (2.0, 18.0)
"""Between two messages of one person, by default; people speak whether or not they were answered."""
IN_HAND = 10
BYSTANDERS = 6
"""People who were answered before a crash, and say nothing any more."""
CHUNK_SECONDS = 0.5
ANSWERED_SECONDS = 120.0
QUIET_SECONDS = 3.0
"""After the last answer, for anything that nobody asked for."""


async def rage(weather: Storm, redis: OwnRedis) -> None:
    """Kill until cancelled."""
    kills = 0
    while True:
        await asyncio.sleep(weather.chance.uniform(*KILL_SECONDS))
        kills += 1
        number = weather.chance.choice(WORKERS)
        if weather.chance.random() > CARELESS_PART:
            await weather.at_work(f"worker-{number}", AT_WORK_SECONDS)
        weather.kill_worker(number)
        weather.start_worker(number)
        if kills % GATEWAY_EVERY == 1:
            await weather.at_work("gateway", AT_WORK_SECONDS)
            weather.kill_gateway()
            weather.start_gateway()
        if kills == REDIS_AT:
            redis.kill()
            weather.kills["redis"] += 1
            await asyncio.sleep(1.0)
            redis.start()


async def run(messages: int, count: int) -> Outcome:
    """The storm from beginning to end."""
    with tempfile.TemporaryDirectory(prefix="ar-storm-") as name:
        folder = Path(name)
        redis = OwnRedis(folder / "redis")
        redis.start()
        try:
            async with storm(folder, redis.url, conversations(count)) as weather:
                started = time.perf_counter()
                weather.start_gateway()
                for number in WORKERS:
                    weather.start_worker(number)
                await weather.ready()
                ready = time.perf_counter()
                await weather.talk(1, (0.0, 5.0))
                await weather.recorded()
                raging = asyncio.create_task(rage(weather, redis))
                await weather.talk(messages // count - 1, PAUSE_SECONDS)
                said = time.perf_counter()
                raging.cancel()
                await asyncio.wait([raging])
                await weather.settled()
                settled = time.perf_counter()
                outcome = await weather.outcome()
        finally:
            redis.kill()
    print(outcome)
    print(f"seconds: ready {ready - started:.1f}, saying it all {said - ready:.1f}, the rest {settled - said:.1f}")
    return outcome


# Crashes


@dataclass(frozen=True)
class Crash:
    """Seconds from the kill to the last answer; how many messages in hand were answered, how many twice, and how much
    was said to people who had not asked."""

    seconds: float
    answered: int
    twice: int
    strangers: int


async def run_crashes(count: int) -> list[Crash]:
    """So many crashes, each of a bot of its own."""
    found = []
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="ar-crash-") as name:
            found.append(await crash(Path(name), number))
    row("seconds from the kill to the last answer", Spread.of([one.seconds for one in found]))
    answered, twice, strangers = (
        sum(getattr(one, name) for one in found) for name in ("answered", "twice", "strangers")
    )
    print(f"in hand {IN_HAND * count}, answered {answered}, answered twice {twice}, said to others {strangers}")
    return found


async def crash(folder: Path, seed: int) -> Crash:
    """One crash, and what came of it."""
    everybody = conversations(IN_HAND + BYSTANDERS, PLATFORMS[:3])
    async with storm(folder, None, everybody, seed=seed) as weather:
        weather.crew.start("alone", "all")
        await weather.ready("alone")
        talking, quiet = everybody[:IN_HAND], everybody[IN_HAND:]
        weather.model.chunk_delay_seconds = 0.0
        weather.conversations = quiet
        await weather.talk(1, (0.0, 0.1))
        await _answered(weather)
        before = {one.number: len(weather.seen(one)) for one in quiet}
        weather.conversations = talking
        weather.model.chunk_delay_seconds = CHUNK_SECONDS  # nothing is answered before the end comes
        asked = len(weather.model.requests)
        await weather.talk(1, (0.0, 0.1))
        async with asyncio.timeout(ANSWERED_SECONDS):
            await until(lambda: len(weather.model.requests) >= asked + IN_HAND)
        killed = time.monotonic()
        weather.crew.kill("alone")
        weather.model.chunk_delay_seconds = 0.0
        weather.crew.start("alone", "all")
        await _answered(weather)
        took = time.monotonic() - killed
        await asyncio.sleep(QUIET_SECONDS)
        await weather.crew.stop("alone")
        done = [weather.done(one) for one in talking]
        others = sum(len(weather.seen(one)) - before[one.number] for one in quiet)
        weather.conversations = everybody
        return Crash(
            took,
            answered=sum(set(one.said) <= set(marks) for one, marks in zip(talking, done, strict=True)),
            twice=sum(len(marks) - len(set(marks)) for marks in done),
            strangers=max(0, others) + len(weather.strangers()),
        )


async def _answered(weather: Storm) -> None:
    """Wait for it; what is not answered in time is counted as not answered."""
    try:
        async with asyncio.timeout(ANSWERED_SECONDS):
            await until(lambda: all(set(one.said) <= set(weather.done(one)) for one in weather.conversations))
    except TimeoutError:
        return


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.storm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("messages", metavar="MESSAGES", type=int, nargs="?", default=2000, help="said (%(default)s)")
    parser.add_argument(
        "conversations", metavar="CONVERSATIONS", type=int, nargs="?", default=200, help="they are of (%(default)s)"
    )
    parser.add_argument("--crashes", metavar="N", type=int, default=0, help="this many crashes instead of the storm")
    return parser.parse_args(given)


def main() -> int:
    """0 where nothing was lost, doubled or out of order."""
    # That a worker was killed in the middle of a call is nothing that the model's server need tell.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    asked = arguments()
    if asked.crashes:
        crashes = asyncio.run(run_crashes(asked.crashes))
        return 1 if any(one.answered < IN_HAND or one.twice or one.strangers for one in crashes) else 0
    outcome = asyncio.run(run(asked.messages, asked.conversations))
    return 1 if outcome.lost or outcome.out_of_order or outcome.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
