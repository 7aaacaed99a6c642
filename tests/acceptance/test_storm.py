"""Processes are killed again and again while people talk: nothing is lost, doubled or said in the wrong order."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.emulators.openai import in_background
from tests.emulators.own_redis import OwnRedis
from tests.emulators.storm import LEASE_SECONDS, PLATFORMS, Storm, conversations, storm, until

WORKERS = (1, 2)
SECONDS = 480
"""After which a test has failed; most of it would be the starts of processes."""


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
        if kill == 2:
            redis.kill()
            weather.kills["redis"] += 1
            await asyncio.sleep(0.5)
            redis.start()


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_a_storm_of_kills_loses_doubles_and_reorders_nothing(data_dir: Path) -> None:
    """Telegram cannot be asked: there a reply may be shown twice whose call was under way when a process died."""
    redis = OwnRedis(data_dir / "redis")
    redis.start()
    try:
        async with asyncio.timeout(SECONDS), storm(data_dir, redis.url, conversations(40)) as weather:
            weather.start_gateway()
            for number in WORKERS:
                weather.start_worker(number)
            await weather.ready()
            await weather.talk(1, (0.0, 0.5))
            await weather.recorded()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(rage(weather, redis, worker_kills=4))
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
    assert outcome.unseen == []
    assert outcome.kills == {"worker": 4, "gateway": 1, "redis": 1}


async def ten_more_asked(weather: Storm) -> None:
    before = len(weather.model.requests)
    await until(lambda: len(weather.model.requests) >= before + 10)


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.storm)])
async def test_ten_turns_in_hand_when_the_only_process_dies_are_all_answered_once_in_the_end(
    data_dir: Path, kills: int
) -> None:
    """``serve`` with its embedded stores, killed once or as often as a turn may fail; nobody else is written to, and
    nobody gets an apology."""
    talking = conversations(10, PLATFORMS[:3])
    async with asyncio.timeout(SECONDS), storm(data_dir, None, talking) as weather:
        weather.crew.start("alone", "all")
        await weather.ready("alone")
        weather.model.chunk_delay_seconds = 0.5  # nothing is answered before the end comes
        await weather.talk(1, (0.0, 0.1))
        for _ in range(kills):
            await ten_more_asked(weather)
            weather.crew.kill("alone")
            weather.crew.start("alone", "all")
        weather.model.chunk_delay_seconds = 0.01
        await until(lambda: all(weather.done(one) == one.said for one in talking))
        assert await weather.crew.stop("alone") == 0

    assert [weather.done(one) for one in talking] == [one.said for one in talking]
    assert weather.strangers() == []


async def stand_still(weather: Storm, redis: OwnRedis, *, store: bool) -> None:
    """Have the store, or processes in turn, stand still for longer than a lease, again and again."""
    for name in ("worker-1", "gateway", "worker-2"):
        await asyncio.sleep(weather.chance.uniform(1.0, 2.5))
        if store:
            redis.freeze()
        else:
            weather.crew.freeze(name)
        await asyncio.sleep(LEASE_SECONDS * weather.chance.uniform(1.2, 2.0))
        if store:
            redis.thaw()
        else:
            weather.crew.thaw(name)


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", [True, False])
async def test_what_stands_still_for_longer_than_a_lease_loses_doubles_and_reorders_nothing(
    data_dir: Path, store: bool
) -> None:
    """Where it is the store, every worker keeps its turns, and no message is asked of the model twice. Where it is a
    worker, another asks again. Telegram cannot be asked: there a reply may be shown twice."""
    redis = OwnRedis(data_dir / "redis")
    redis.start()
    try:
        async with asyncio.timeout(SECONDS), storm(data_dir, redis.url, conversations(16)) as weather:
            weather.start_gateway()
            for number in WORKERS:
                weather.start_worker(number)
            await weather.ready("gateway", "worker-1", "worker-2")
            await weather.talk(1, (0.0, 0.5))
            await weather.recorded()
            weather.model.chunk_delay_seconds = 0.15  # a turn takes longer than a lease
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(stand_still(weather, redis, store=store))
                tasks.create_task(weather.talk(4, (0.5, 4.0)))
            await weather.settled()
            outcome = await weather.outcome()
            asked = Counter(mark for request in weather.model.requests for mark in asks(request))
    finally:
        redis.kill()

    assert outcome.said == 80
    assert (outcome.lost, outcome.out_of_order, outcome.doubled) == ([], [], [])
    assert outcome.unseen == []
    if store:
        assert {mark for mark, times in asked.items() if times > 1} == set()


def asks(request: dict[str, Any]) -> list[str]:
    """The messages that a request for a reply is to have answered."""
    return [] if in_background(request) else re.findall(r"^ask (c\d+m\d+)", request["messages"][-1]["content"], re.M)


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_a_worker_that_is_told_to_stop_under_load_loses_nothing_and_hands_back_its_conversations(
    data_dir: Path,
) -> None:
    """With a lease of an hour nobody could go on who was not handed them."""
    redis = OwnRedis(data_dir / "redis")
    redis.start()
    try:
        settings = {"TURN_LEASE_SECONDS": "3600", "SHUTDOWN_GRACE_SECONDS": "1"}
        async with asyncio.timeout(SECONDS), storm(data_dir, redis.url, conversations(12), settings) as weather:
            weather.start_gateway()
            for number in WORKERS:
                weather.start_worker(number)
            await weather.ready("gateway", "worker-1", "worker-2")
            weather.model.chunk_delay_seconds = 0.1  # a turn takes longer than the grace
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(weather.talk(3, (0.0, 1.0)))
                tasks.create_task(_stop_in_turn(weather))
            await weather.settled()
            outcome = await weather.outcome()
    finally:
        redis.kill()

    assert (outcome.lost, outcome.out_of_order, outcome.doubled) == ([], [], [])
    assert (outcome.unseen, outcome.doubled_untold, outcome.ambiguous) == ([], [], 0)


async def _stop_in_turn(weather: Storm) -> None:
    for number in WORKERS:
        await asyncio.sleep(1.5)
        assert await weather.crew.stop(f"worker-{number}") == 0
        weather.start_worker(number)
    await asyncio.sleep(1.0)
    assert await weather.crew.stop("gateway") == 0
    weather.start_gateway()


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dies", ["worker-1", "gateway"])
async def test_a_process_may_die_while_an_answer_is_begun_again_because_more_was_said(
    data_dir: Path, dies: str
) -> None:
    """Both messages are answered, together or one after the other, and neither twice."""
    redis = OwnRedis(data_dir / "redis")
    redis.start()
    try:
        talking = conversations(9, PLATFORMS[:3])
        settings = {"QUEUE_MODE": "interrupt"}
        async with asyncio.timeout(SECONDS), storm(data_dir, redis.url, talking, settings) as weather:
            weather.start_gateway()
            weather.start_worker(1)
            await weather.ready("gateway", "worker-1")
            weather.model.chunk_delay_seconds = 0.5  # nothing is answered before all have said more
            await weather.talk(1, (0.0, 0.1))
            await until(lambda: len(weather.model.requests) >= len(talking))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(weather.talk(1, (0.0, 0.5)))
                await weather.crew.told("worker-1", "turn.interrupted", 2)
                weather.crew.kill(dies)
            weather.model.chunk_delay_seconds = 0.01
            if dies == "gateway":
                weather.start_gateway()
            else:
                weather.start_worker(1)
            await weather.settled()
            outcome = await weather.outcome()
    finally:
        redis.kill()

    assert outcome.said == 2 * len(talking)
    assert (outcome.lost, outcome.out_of_order, outcome.doubled) == ([], [], [])
    assert (outcome.unseen, weather.strangers()) == ([], [])
    if dies == "worker-1":  # a gateway may die in the middle of a call, and Telegram cannot be asked
        assert outcome.doubled_untold == []
