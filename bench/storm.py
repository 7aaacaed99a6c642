"""What comes of every message in a long storm of kills. ``python -m bench.storm [MESSAGES [CONVERSATIONS]]``

Two workers and a gateway, a Redis with ``appendfsync always``, an emulated Telegram, Slack and Discord, HTTP with
Idempotency-Key, and a model that streams. While 2,000 messages are said in 200 conversations a random worker is
killed (``kill -9``) every few seconds, every tenth time the gateway with it, and once in the middle Redis. Printed
are what was lost, out of order, doubled or is unknown, and how long it took; the exit code says whether it held.

A process is mostly killed only once it has done something again, so that a machine on which processes start slowly
has a storm, too, and not a time in which nobody works; one time in four a worker dies whatever it does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.emulators.own_redis import OwnRedis
from tests.emulators.storm import Outcome, Storm, conversations, storm

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


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.storm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("messages", metavar="MESSAGES", type=int, nargs="?", default=2000, help="said (%(default)s)")
    parser.add_argument(
        "conversations", metavar="CONVERSATIONS", type=int, nargs="?", default=200, help="they are of (%(default)s)"
    )
    return parser.parse_args(given)


def main() -> int:
    """0 where nothing was lost, doubled or out of order."""
    # That a worker was killed in the middle of a call is nothing that the model's server need tell.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    asked = arguments()
    outcome = asyncio.run(run(asked.messages, asked.conversations))
    return 1 if outcome.lost or outcome.out_of_order or outcome.doubled else 0


if __name__ == "__main__":
    sys.exit(main())
