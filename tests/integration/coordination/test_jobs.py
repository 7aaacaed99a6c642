"""Jobs after turns are done once, in their order, and outlive crashes and outages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from redis.asyncio import Redis

from connectors.message import AgentRuntimeError, ConversationKey
from runtime.coordination import Job, Jobs
from tests.emulators.jobs import until_idle

KEY = ConversationKey("acme", "http", "default")
OTHER = ConversationKey("acme", "http", "other")


class Flaky(AgentRuntimeError):
    retryable = True


async def test_a_job_is_done_once_and_tried_again_when_it_may_succeed(redis: Redis) -> None:
    done: list[str] = []

    async def work(job: Job) -> None:
        done.append(job.turn_id)
        if len(done) == 1:
            raise Flaky("not yet")

    jobs = Jobs(redis, {"work": work})
    assert await jobs.enqueue(Job("work", KEY, "t1"))
    assert not await jobs.enqueue(Job("work", KEY, "t1"))
    await run_until_idle(jobs)

    assert done == ["t1", "t1"]


async def test_jobs_that_follow_one_turn_are_kept_together_and_each_once(redis: Redis) -> None:
    done: list[tuple[str, str]] = []

    async def work(job: Job) -> None:
        done.append((job.kind, job.turn_id))

    jobs = Jobs(redis, {"refresh": work, "recall": work})
    await jobs.enqueue(Job("refresh", KEY, "t1"))

    assert await jobs.enqueue(Job("refresh", KEY, "t1"), Job("recall", KEY, "t1"), Job("recall", KEY, "t2")) == 2
    await run_until_idle(jobs)

    assert sorted(done) == [("recall", "t1"), ("recall", "t2"), ("refresh", "t1")]


async def test_a_broken_job_stops_no_other_and_is_not_repeated_for_ever(redis: Redis) -> None:
    done: list[str] = []

    async def work(job: Job) -> None:
        if job.turn_id == "t1":
            raise ZeroDivisionError
        done.append(job.turn_id)

    jobs = Jobs(redis, {"work": work})
    for turn_id in ("t1", "t2"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == ["t2"]


async def test_a_job_that_cannot_be_done_now_is_kept_and_holds_up_no_other_kind(redis: Redis) -> None:
    done: list[str] = []
    tries: list[str] = []
    away = True

    async def recall(job: Job) -> None:
        if away:
            tries.append(job.turn_id)
            raise Busy
        done.append(f"recall {job.turn_id}")

    async def refresh(job: Job) -> None:
        done.append(f"refresh {job.turn_id}")

    jobs = Jobs(redis, {"recall": recall, "refresh": refresh}, sweep_seconds=0.02, attempts=1)
    for turn_id in ("t1", "t2"):
        await jobs.enqueue(Job("recall", KEY, turn_id))
        await jobs.enqueue(Job("refresh", KEY, turn_id))
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        while len(done) < 2 or len(tries) < 6:  # each by itself, and again after every rest
            await asyncio.sleep(0.01)
        assert done == ["refresh t1", "refresh t2"]
        away = False
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])

    assert done[2:] == ["recall t1", "recall t2"]


async def test_a_job_that_fails_longer_than_an_outage_lasts_is_given_up(redis: Redis) -> None:
    done: list[str] = []

    async def work(job: Job) -> None:
        if job.turn_id == "t1":
            raise Busy
        done.append(job.turn_id)

    jobs = Jobs(redis, {"work": work}, sweep_seconds=0.02, give_up_seconds=0.1, attempts=1)
    for turn_id in ("t1", "t2"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == ["t2"]


async def test_jobs_of_a_burst_are_done_together_and_those_that_are_left_one_by_one(redis: Redis) -> None:
    together: list[list[str]] = []
    singly: list[str] = []

    async def one(job: Job) -> None:
        singly.append(job.turn_id)

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        together.append(sorted(job.turn_id for job in jobs))
        return [job for job in jobs if job.turn_id == "t2"]

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    running = asyncio.create_task(jobs.run())
    await until_idle(jobs)  # nothing waits yet
    for turn_id in ("t1", "t2", "t3"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await jobs.enqueue(Job("work", OTHER, "t4"))
    async with asyncio.timeout(10):
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])

    assert sorted(itertools.chain(*together)) == ["t1", "t2", "t3", "t4"]
    assert len(together) < 4
    assert singly == ["t2"]


async def test_what_comes_while_a_job_is_done_by_itself_is_done_together_again(redis: Redis) -> None:
    singly: list[str] = []
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def one(job: Job) -> None:
        singly.append(job.turn_id)
        begun.set()
        await goes_on.wait()

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        return [job for job in jobs if job.turn_id == "t1"]

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    await jobs.enqueue(Job("work", KEY, "t1"))
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await begun.wait()
        for turn_id in ("t2", "t3"):
            await jobs.enqueue(Job("work", KEY, turn_id))
        goes_on.set()
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])

    assert singly == ["t1"]


async def test_jobs_that_cannot_be_done_together_are_done_one_by_one_and_only_the_broken_one_fails(
    redis: Redis,
) -> None:
    done: list[str] = []

    async def one(job: Job) -> None:
        if job.turn_id == "t2":
            raise ZeroDivisionError
        done.append(job.turn_id)

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        for job in jobs:
            await one(job)
        return ()

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    for turn_id in ("t1", "t2", "t3"):
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == ["t1", "t1", "t3"]  # the first was done before it failed: again does no harm


async def test_more_jobs_than_are_read_at_once_are_all_done_in_their_order(redis: Redis) -> None:
    done: list[str] = []

    async def one(job: Job) -> None:
        raise AssertionError

    async def many(jobs: Sequence[Job]) -> Sequence[Job]:
        done.extend(job.turn_id for job in jobs)
        return ()

    jobs = Jobs(redis, {"work": one}, together={"work": many})
    turn_ids = [f"t{number}" for number in range(150)]
    for turn_id in turn_ids:
        await jobs.enqueue(Job("work", KEY, turn_id))
    await run_until_idle(jobs)

    assert done == turn_ids


async def test_what_another_process_leaves_to_be_done_is_found(redis: Redis) -> None:
    done = asyncio.Event()

    async def work(job: Job) -> None:
        done.set()

    async def nobody(job: Job) -> None:
        raise AssertionError

    jobs = Jobs(redis, {"work": work}, alone=False, sweep_seconds=0.02)
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await until_idle(jobs)
        await Jobs(redis, {"work": nobody}).enqueue(Job("work", KEY, "t1"))
        await done.wait()
        await until_idle(jobs)
    running.cancel()
    await asyncio.wait([running])


async def test_a_job_that_was_cut_off_is_done_when_the_same_process_has_the_duty_again(redis: Redis) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    async def work(job: Job) -> None:
        if begun.is_set():
            done.set()
            return
        begun.set()
        await asyncio.Event().wait()

    jobs = Jobs(redis, {"work": work})
    await jobs.enqueue(Job("work", KEY, "t1"))
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await begun.wait()
        running.cancel()
        await asyncio.wait([running])
        await run_until_idle(jobs)

    assert done.is_set()


async def test_an_orderly_stop_waits_for_what_can_be_done_and_for_nothing_that_failed(redis: Redis) -> None:
    done: list[str] = []

    async def fine(jobs: Sequence[Job]) -> Sequence[Job]:
        done.extend(job.turn_id for job in jobs)
        return ()

    async def away(job: Job) -> None:
        raise Busy

    jobs = Jobs(
        redis,
        {"fine": away, "away": away},
        together={"fine": fine},
        sweep_seconds=3600.0,
        collect_seconds=3600.0,
        attempts=1,
    )
    await jobs.finish()  # nobody does them here: others will
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await until_idle(jobs)
        await jobs.enqueue(Job("fine", KEY, "t1"), Job("away", KEY, "t1"))
        await jobs.finish()
    running.cancel()
    await asyncio.wait([running])

    assert done == ["t1"]


class Busy(AgentRuntimeError):
    retryable = True


async def run_until_idle(jobs: Jobs) -> None:
    running = asyncio.create_task(jobs.run())
    async with asyncio.timeout(10):
        await until_idle(jobs)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
