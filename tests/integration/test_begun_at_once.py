"""Where no other worker is, the step that stores a message begins its turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import PARTITIONS, Author, ConversationKey, InboundMessage, Role, StoreUnavailable
from runtime import worker as module
from runtime.envelopes import Batch, Envelope, Lease, Offer, Stored
from runtime.hub import Hub
from runtime.mailbox import Mailbox
from runtime.work_streams import GROUP
from runtime.worker import Worker

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

    async def add(self, batch: Batch, why: str) -> None: ...

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.batches) < count:
                await asyncio.sleep(0.001)


class Gone:
    """A process that ends in the moment in which it is given a turn."""

    async def reserve(self, connector: str) -> bool:
        return True

    def begin(self, lease: Lease, batch: Batch) -> None: ...

    def refuse(self, connector: str, given: Offer | None, *, unsure: bool) -> None: ...


@asynccontextmanager
async def working(redis: Redis, settings: Settings, mailbox: Mailbox, *, alone: bool = True) -> AsyncIterator[Answered]:
    answered = Answered()
    worker = Worker(settings, mailbox, answered, Hub(redis, shared=False), answered, alone=alone)
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


async def store(mailbox: Mailbox, number: int, key: ConversationKey = KEY) -> Stored:
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


async def test_a_turn_is_begun_and_over_without_anybody_having_rung(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    mailbox = Mailbox(redis)
    async with working(redis, settings(), mailbox) as answered:
        assert (await store(mailbox, 1)).begun
        await answered.until(1)
        async with asyncio.timeout(5):
            while await mailbox.ready():
                await asyncio.sleep(0.001)
        assert (await store(mailbox, 2)).begun
        await answered.until(2)

    assert [texts(one) for one in answered.batches] == [["1"], ["2"]]
    assert [(one.attempt, one.resumed) for one in answered.batches] == [(1, False)] * 2


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
    assert [(one.begun, one.held, one.at_hand) for one in later] == [(False, True, turn_id)] * 2
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


async def test_with_other_workers_there_nobody_takes_all_that_it_stores(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    mailbox = Mailbox(redis)
    async with working(redis, settings(), mailbox, alone=False):
        assert not (await store(mailbox, 1)).begun


async def test_what_has_waited_for_longer_in_the_partition_is_taken_first(
    redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 3600.0)
    mailbox = Mailbox(redis)
    names = (ConversationKey("acme", "http", str(number)) for number in range(10 * PARTITIONS))
    beside = next(key for key in names if key.partition == KEY.partition)
    async with working(redis, settings(), mailbox) as answered:
        await asyncio.sleep(0.2)  # its first look at all partitions is over
        assert not (await store(Mailbox(redis), 1, beside)).begun
        assert not (await store(mailbox, 2)).begun
        await answered.until(1)

    assert [one.key for one in answered.batches] == [beside]


async def test_who_has_no_room_begins_nothing_and_room_comes_back_however_a_message_was_stored(
    redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONCURRENT_TURNS", 1)
    mailbox = Mailbox(redis)
    async with working(redis, settings(), mailbox) as answered:
        answered.goes_on.clear()
        assert (await store(mailbox, 1)).begun
        await answered.until(1)
        assert not (await store(mailbox, 2, ConversationKey("acme", "http", "other"))).begun
        answered.goes_on.set()
        async with asyncio.timeout(5):
            while await mailbox.ready():
                await asyncio.sleep(0.001)
        for _ in range(3):
            assert not (await store(mailbox, 1)).new
        assert (await store(mailbox, 3)).begun
        await answered.until(3)


async def test_a_turn_whose_process_ended_as_it_began_is_gone_on_with_by_the_next(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    left = Mailbox(redis)
    await left.prepare()
    with left.taken_here(Gone()):
        assert (await store(left, 1)).begun
    async with working(redis, settings(), Mailbox(redis)) as answered:
        await answered.until(1)

    assert [(texts(one), one.attempt, one.resumed) for one in answered.batches] == [(["1"], 1, True)]


@pytest.mark.parametrize("step", ["store", "offers", "begin"])
async def test_a_conversation_that_was_given_by_an_answer_that_was_lost_does_not_wait_for_the_lease(
    step: str, redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its first attempt then: none was begun. Whoever waits beside it, or is answered, is left alone."""
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)
    mailbox = Mailbox(redis)
    async with working(redis, settings(turn_lease_seconds=3600), mailbox) as answered:
        answered.goes_on.clear()
        await store(mailbox, 1, ConversationKey("acme", "http", "busy"))
        await answered.until(1)
        if step == "store":
            loses(monkeypatch, mailbox, "_store")
            with pytest.raises(StoreUnavailable):
                await store(mailbox, 2)
        else:
            loses(monkeypatch, *{"offers": (mailbox._streams, "_offer"), "begin": (mailbox, "_begin")}[step])
            assert not (await store(Mailbox(redis), 2)).begun
        await answered.until(2)
        for _ in range(3):
            await asyncio.sleep(0.1)
        answered.goes_on.set()
        async with asyncio.timeout(10):
            while await mailbox.ready():
                await asyncio.sleep(0.01)

    assert [(texts(one), one.attempt) for one in answered.batches] == [(["1"], 1), (["2"], 1)]


def loses(monkeypatch: pytest.MonkeyPatch, of: object, script: str) -> None:
    """The next answer to *script* is lost."""
    asked = getattr(of, script)

    async def ask(**given: Any) -> Any:
        monkeypatch.setattr(of, script, asked)
        await asked(**given)
        raise StoreUnavailable("Redis: lost on the way back")

    monkeypatch.setattr(of, script, ask)


@pytest.mark.parametrize("alone", [True, False])
async def test_a_worker_takes_no_turn_from_itself_where_the_store_stood_still(
    redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """It could not renew its hold, and nobody else could take it: the model would be asked, and paid, again."""
    mailbox = Mailbox(redis)
    looked = asyncio.Event()
    abandoned = mailbox.abandoned

    async def looking(silent_seconds: float, most: int, *, spares: bool) -> list[Offer]:
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
