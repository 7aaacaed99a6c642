"""Processes are killed again and again while people talk: nothing is lost, doubled or said in the wrong order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.emulators.own_redis import OwnRedis
from tests.emulators.storm import Storm, conversations, storm

WORKERS = (1, 2)


async def rage(weather: Storm, redis: OwnRedis, *, worker_kills: int) -> None:
    """Kill a random worker again and again, and in between the gateway once and Redis once."""
    for kill in range(worker_kills):
        await asyncio.sleep(weather.chance.uniform(1.0, 2.5))
        number = weather.chance.choice(WORKERS)
        weather.kill_worker(number)
        weather.start_worker(number)
        if kill == 1:
            await asyncio.sleep(weather.chance.uniform(0.2, 1.0))
            weather.kill_gateway()
            weather.start_gateway()
        if kill == 3:
            redis.kill()
            weather.kills["redis"] += 1
            await asyncio.sleep(0.5)
            redis.start()


async def test_a_storm_of_kills_loses_doubles_and_reorders_nothing(data_dir: Path) -> None:
    redis = OwnRedis(data_dir / "redis")
    redis.start()
    try:
        async with asyncio.timeout(85), storm(data_dir, redis.url, conversations(40)) as weather:
            weather.start_gateway()
            for number in WORKERS:
                weather.start_worker(number)
            await weather.ready()
            await weather.talk(1, (0.0, 0.5))
            await weather.recorded()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(rage(weather, redis, worker_kills=5))
                tasks.create_task(weather.talk(4, (0.5, 4.0)))
            await weather.settled()
            outcome = await weather.outcome()
            print(outcome)
    finally:
        redis.kill()

    assert outcome.said == 200
    assert outcome.lost == []
    assert outcome.out_of_order == []
    assert outcome.doubled == []
    assert outcome.doubled_untold == []
    assert len(outcome.unseen) <= outcome.ambiguous
    assert outcome.kills == {"worker": 5, "gateway": 1, "redis": 1}
