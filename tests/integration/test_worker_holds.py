"""What a worker holds: nobody is told of it again, and it takes nothing from itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Author, ConversationKey, InboundMessage, Role
from runtime.coordination import GROUP, Hub
from runtime.turns.batch import Batch, Envelope, Lane, PutResult, WorkItem
from runtime.turns.mailbox import Mailbox
from runtime.turns.worker import Worker

KEY = ConversationKey("acme", "http", "desk")


class Answered:
    """Stands for the turns: keeps what it is given, and waits where it is to."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def answer(self, batch: Batch) -> None:
        self.batches.append(batch)
        await self.goes_on.wait()

    async def apologise(self, batch: Batch) -> None: ...

    async def add(self, batch: Batch, why: str, lane: Lane) -> None: ...

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.batches) < count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def working(redis: Redis, settings: Settings, mailbox: Mailbox, *, alone: bool = True) -> AsyncIterator[Answered]:
    answered = Answered()
    hub = Hub(redis, shared=False)
    worker = Worker(settings, mailbox, answered, hub, answered, alone=alone)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(10):
        while not worker._prepared:  # it tells it nowhere else
            await asyncio.sleep(0.001)
    try:
        yield answered
    finally:
        answered.goes_on.set()
        running.cancel()
        await asyncio.wait([running])


async def store(mailbox: Mailbox, number: int, key: ConversationKey = KEY) -> PutResult:
    message = InboundMessage(
        connector=key.connector,
        external_id=key.external_id,
        message_id=f"m{number}",
        author=Author("u1", "Lena"),
        text=str(number),
        direct=True,
        addressed=True,
    )
    return await mailbox.store(key, Envelope(message, Role.MEMBER, time.time()))


def texts(batch: Batch) -> list[str]:
    return [one.message.text for one in batch.envelopes]


async def test_what_comes_during_a_turn_waits_for_the_next_one(redis: Redis, settings: Callable[..., Settings]) -> None:
    mailbox = Mailbox(redis)
    async with working(redis, settings(), mailbox) as answered:
        answered.goes_on.clear()
        await store(mailbox, 1)
        await answered.until(1)
        later = [await store(mailbox, number) for number in (2, 3)]
        answered.goes_on.set()
        await answered.until(2)

    turn_id = answered.batches[0].turn_id
    assert [(one.held, one.current_turn) for one in later] == [(True, turn_id)] * 2
    assert [texts(one) for one in answered.batches] == [["1"], ["2", "3"]]


async def test_workers_are_told_of_what_waits_unless_one_holds_the_conversation(redis: Redis) -> None:
    mailbox = Mailbox(redis)
    await mailbox.prepare()
    assert not (await store(mailbox, 1)).held
    assert not (await store(mailbox, 2)).held  # the news of the first may be lost
    (offer,) = await mailbox.offers([KEY.partition], 1)
    lease = await mailbox.claim(offer)
    assert lease is not None
    assert (await store(mailbox, 3)).held
    assert await mailbox.release(lease)
    assert not (await store(mailbox, 4)).held


@pytest.mark.parametrize("alone", [True, False])
async def test_a_worker_takes_no_turn_from_itself_where_the_store_stood_still(
    redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """It could not renew its hold, and nobody else could take it: the model would be asked, and paid, again."""
    mailbox = Mailbox(redis)
    looked = asyncio.Event()
    abandoned = mailbox.abandoned

    async def looking(silent_seconds: float, most: int, *, spares: bool) -> list[WorkItem]:
        found = await abandoned(silent_seconds, most, spares=spares)
        if found:
            looked.set()
        return found

    async with working(redis, settings(), mailbox, alone=alone) as answered:
        answered.goes_on.clear()
        await store(mailbox, 1)
        await answered.until(1)
        monkeypatch.setattr(mailbox, "abandoned", looking)
        stream = mailbox._work(KEY.tag)
        await redis.hset(f"{mailbox._all_work[0]}:asked", "spared", 0)  # as if it had been asked for all the time
        entries: Any = await redis.xrange(stream)
        await redis.xclaim(stream, GROUP, mailbox._streams.consumer, 0, [entries[0][0]], idle=3_600_000, justid=True)
        async with asyncio.timeout(20):
            await looked.wait()
        await asyncio.sleep(0.1)  # what it holds anew begins at once
        answered.goes_on.set()
        async with asyncio.timeout(10):
            while await mailbox.ready():
                await asyncio.sleep(0.001)

    assert [(one.attempt, one.resumed) for one in answered.batches] == [(1, False)]
