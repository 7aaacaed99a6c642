"""A short storm over three masters: what is promised of one server holds for a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.emulators.cluster import MASTERS, kill_caught_up, promoted, running_cluster
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
    assert outcome.unseen == []


@pytest.mark.storm
@pytest.mark.timeout(300)
async def test_a_master_that_dies_under_load_costs_nothing_that_its_replica_has(data_dir: Path) -> None:
    """What it had acknowledged and not passed on yet would be lost: Redis Cluster replicates after acknowledging."""
    async with running_cluster(data_dir, replicas=True) as (ports, processes), asyncio.timeout(240):
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        async with storm(data_dir, url, conversations(24)) as weather:
            weather.start_gateway()
            weather.start_worker(1)
            await weather.ready()
            await weather.talk(1, (0.0, 0.5))
            await weather.recorded()

            async def fail_over() -> None:
                await asyncio.sleep(1.0)
                await kill_caught_up(ports[0], ports[MASTERS], processes[0])
                await promoted(ports[MASTERS])
                weather.kill_worker(1)
                weather.start_worker(1)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail_over())
                tasks.create_task(weather.talk(4, (0.5, 4.0)))
            await weather.settled()
            outcome = await weather.outcome()

    assert outcome.said == 120
    assert (outcome.lost, outcome.out_of_order, outcome.doubled, outcome.doubled_untold) == ([], [], [], [])
    assert outcome.unseen == []


async def _kill_each_once(weather: Storm) -> None:
    await asyncio.sleep(weather.chance.uniform(0.5, 1.5))
    weather.kill_worker(1)
    weather.start_worker(1)
    await asyncio.sleep(weather.chance.uniform(0.5, 1.5))
    weather.kill_gateway()
    weather.start_gateway()
