"""A short storm over three masters: what is promised of one server holds for a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.emulators.cluster import running_cluster
from tests.emulators.storm import Storm, conversations, storm


@pytest.mark.storm
@pytest.mark.timeout(300)
async def test_a_short_storm_on_a_cluster_loses_doubles_and_reorders_nothing(data_dir: Path) -> None:
    async with running_cluster(data_dir) as (ports, _), asyncio.timeout(180):
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        async with storm(data_dir, url, conversations(12)) as weather:
            weather.start_gateway()
            weather.start_worker(1)
            await weather.ready()
            await weather.talk(1, (0.0, 0.5))
            await weather.recorded()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_kill_each_once(weather))
                tasks.create_task(weather.talk(3, (0.5, 2.0)))
            await weather.settled()
            outcome = await weather.outcome()

    assert outcome.said == 48
    assert (outcome.lost, outcome.out_of_order, outcome.doubled, outcome.doubled_untold) == ([], [], [], [])
    assert len(outcome.unseen) <= outcome.ambiguous


async def _kill_each_once(weather: Storm) -> None:
    await asyncio.sleep(weather.chance.uniform(0.5, 1.5))
    weather.kill_worker(1)
    weather.start_worker(1)
    await asyncio.sleep(weather.chance.uniform(0.5, 1.5))
    weather.kill_gateway()
    weather.start_gateway()
