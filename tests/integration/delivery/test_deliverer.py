"""Replies on their way from the outbox to people, by one process and by several with one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from config.settings import Settings
from connectors.connector import Accept, Capabilities, ConnectionState, Connector, Health, SendFailed
from connectors.message import ConversationKey, OutboundMessage, OutboundPart, Receipt, StoreUnavailable
from connectors.redis_calls import RoundTrip, ask
from runtime.coordination import Hub, WorkStreams
from runtime.delivery import Deliverer, Delivery, Outbox, Previews, RateLimiters
from runtime.delivery.outbox import VERSION, PartStage, stream_of, streams_of
from runtime.delivery.rate_limiter import CHAT_BURST
from tests.conftest import MakeSettings

KEY = ConversationKey("acme", "paper", "desk")
FIRST = OutboundMessage(KEY, "t1", "first")
SECOND = OutboundMessage(KEY, "t2", "second")


class Paper:
    """A platform that keeps what it is sent. While ``open`` is not set it takes its time over texts with ``slow``."""

    health = Health(ConnectionState.CONNECTED)

    def __init__(self, shown: list[str], name: str = "paper") -> None:
        self.name = name
        self.capabilities = Capabilities(max_part_units=10, local=name == "room")
        self.shown = shown
        self.open = asyncio.Event()
        self.open.set()
        self.slow = ""
        self.asked: list[str] = []
        self.refuses = False

    async def run(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return [OutboundPart(0, 1, message.text, message.turn_id)]

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        self.asked.append(part.text)
        if self.slow in part.text:
            await self.open.wait()
        if self.refuses:
            raise SendFailed("never", retryable=False)
        self.shown.append(part.text)
        return Receipt(f"{self.name}{len(self.shown)}")

    async def close(self) -> None:
        return None


class Process:
    """What one process has of delivery, and its way to the platform."""

    def __init__(
        self,
        redis: Redis,
        settings: Settings,
        paper: Paper,
        then: Literal["skip", "resend"] = "skip",
        *,
        alone: bool = False,
    ) -> None:
        connectors: dict[str, Connector] = {paper.name: paper}
        self.paper = paper
        self.hub = Hub(redis, shared=False)
        self.outbox = Outbox(redis, self.hub)
        rate_limiters = RateLimiters()
        shows = Previews(connectors, self.outbox, rate_limiters, self.hub)
        delivery = Delivery(self.outbox, connectors, rate_limiters, then)
        self.deliverer = Deliverer(
            settings,
            self.outbox,
            connectors,
            delivery,
            shows,
            self.hub,
            alone=alone,
            sweep_seconds=0.05,
            turn_seconds=0.01,
        )

    async def put(self, message: OutboundMessage) -> bool:
        return await self.outbox.put(message, ["paper"])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        task = asyncio.create_task(self.deliverer.run())
        await asyncio.sleep(0.02)
        try:
            yield self
        finally:
            self.paper.open.set()
            task.cancel()
            await asyncio.wait({task})


async def until(happened: Any) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.005)


async def waiting(redis: Redis, address: str = "paper") -> list[str]:
    return [one.fields["turn"] for one in await WorkStreams(redis).all(streams_of([address]))]


async def until_none_wait(redis: Redis) -> None:
    async with asyncio.timeout(10):
        while await waiting(redis):
            await asyncio.sleep(0.01)


async def test_a_later_reply_waits_for_the_earlier_one_that_another_process_delivers(
    redis: Redis, settings: MakeSettings
) -> None:
    shown: list[str] = []
    one, other = (Process(redis, settings(), Paper(shown)) for _ in range(2))
    rate_limiter = other.deliverer._delivery._rate_limiters.of(other.paper)
    for _ in range(CHAT_BURST - 2):
        await rate_limiter.wait_for_turn(KEY)
    async with one.running(), other.running():
        one.paper.open.clear()
        one.paper.slow = "first"
        await one.put(FIRST)
        await until(lambda: one.paper.asked)
        await other.put(SECOND)
        await other.put(replace(SECOND, key=replace(KEY, external_id="elsewhere"), text="elsewhere"))
        await until(lambda: shown == ["elsewhere"])  # nobody else is held up
        assert "second" not in one.paper.asked + other.paper.asked

        one.paper.open.set()
        await until_none_wait(redis)

    assert shown == ["elsewhere", "first", "second"]


async def test_a_later_reply_waits_for_the_earlier_one_of_a_dead_process(redis: Redis, settings: MakeSettings) -> None:
    shown: list[str] = []
    dead = Process(redis, settings(), Paper(shown))
    await dead.put(FIRST)
    assert len(await dead.outbox.streams.read_new([stream_of(KEY.partition, "paper")], 1)) == 1
    async with Process(redis, settings(turn_lease_seconds=1), Paper(shown)).running() as living:
        await living.put(SECOND)
        await until_none_wait(redis)

    assert shown == ["first", "second"]
    assert await redis.keys("ar:outbox:*:line:*") == []


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_delivery_that_was_taken_over_marks_nothing_and_gives_nothing_back(
    redis: Redis, settings: MakeSettings, refuses: bool
) -> None:
    """Whatever the platform says to the one that was too slow, the other goes on as if it had not been."""
    slow, other = (Process(redis, settings(), Paper([]), "resend") for _ in range(2))
    stream = stream_of(KEY.partition, "paper")
    async with slow.running(), other.running():
        slow.paper.open.clear()
        other.paper.open.clear()
        await slow.put(FIRST)
        await until(lambda: slow.paper.asked)
        other.deliverer._line_up(await other.outbox.streams.reclaim([stream], 0.0, 10))
        await until(lambda: other.paper.asked)

        slow.paper.refuses = refuses
        slow.paper.open.set()
        await until(lambda: not slow.deliverer._lines)
        states = await other.outbox.part_states(KEY, "t1")

        assert await waiting(redis) == ["t1"]
        assert states[0].stage is PartStage.SENDING

        other.paper.open.set()
        await until_none_wait(redis)
        states = await other.outbox.part_states(KEY, "t1")
        assert (states[0].stage, states[0].message_id) == (PartStage.SENT, "paper1")


async def test_what_another_process_was_given_is_not_begun_by_the_one_that_lost_it(
    redis: Redis, settings: MakeSettings
) -> None:
    """It waited behind another reply when its lease was over."""
    slow, other = (Process(redis, settings(), Paper([])) for _ in range(2))
    stream = stream_of(KEY.partition, "paper")
    async with slow.running():
        slow.paper.open.clear()
        await slow.put(FIRST)
        await slow.put(SECOND)
        await until(lambda: slow.paper.asked)
        assert len(await other.outbox.streams.reclaim([stream], 0.0, 10)) == 2
        slow.paper.open.set()
        await until(lambda: not slow.deliverer._lines)

        assert slow.paper.asked == ["first"]
        assert await waiting(redis) == ["t2"]


async def test_renewing_takes_nothing_back_that_another_process_was_given(redis: Redis) -> None:
    mine, others = WorkStreams(redis), WorkStreams(redis)
    await redis.xadd("ar:x", {"key": "a"})
    await redis.xadd("ar:x", {"key": "b"})
    given = await mine.read_new(["ar:x"], 10)
    await redis.xclaim("ar:x", "workers", others.consumer, 0, [given[0].id])
    await redis.xclaim("ar:x", "workers", mine.consumer, 0, [given[1].id], idle=5_000)

    await mine.renew(given)
    pending: Any = await redis.xpending_range("ar:x", "workers", "-", "+", 10)

    assert [one["consumer"] for one in pending] == [others.consumer, mine.consumer]
    assert pending[1]["time_since_delivered"] < 5_000
    assert [one.fields["key"] for one in await mine.read_own(["ar:x"])] == ["b"]


async def test_an_entry_that_was_taken_away_without_its_line_holds_up_nobody(
    redis: Redis, settings: MakeSettings
) -> None:
    """As a process of an earlier version does, which knows of no lines."""
    shown: list[str] = []
    early = Process(redis, settings(), Paper(shown))
    await early.put(FIRST)
    (given,) = await early.outbox.streams.read_new([stream_of(KEY.partition, "paper")], 1)
    await early.outbox.streams.remove(given)
    async with Process(redis, settings(), Paper(shown)).running() as later:
        await later.put(SECOND)
        await until(lambda: shown == ["second"])


async def test_a_reply_of_another_process_to_who_is_connected_to_this_one_arrives(
    redis: Redis, settings: MakeSettings
) -> None:
    shown: list[str] = []
    key = replace(KEY, connector="room")
    async with Process(redis, settings(), Paper(shown, "room")).running() as process:
        worker = Outbox(redis, Hub(redis, shared=False))
        await worker.put(replace(FIRST, key=key), [f"room@{process.hub.name}"])
        await until(lambda: shown)
        await asyncio.sleep(0.2)

    assert shown == ["first"]


@pytest.mark.parametrize(
    ("call", "lost", "then"),
    [
        ("_hold", "request", "skip"),
        ("_hold", "answer", "skip"),
        ("_mark", "request", "skip"),
        ("_mark", "request", "resend"),
        ("_mark", "answer", "skip"),
        ("_mark", "answer", "resend"),
        ("_done", "request", "skip"),
        ("_done", "request", "resend"),
        ("_done", "answer", "skip"),
        ("_done", "answer", "resend"),
    ],
)
async def test_a_store_that_is_silent_around_a_send_neither_loses_nor_doubles_a_part(
    redis: Redis,
    settings: MakeSettings,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    lost: str,
    then: Literal["skip", "resend"],
) -> None:
    """The process that sends it knows what became of it, whatever `DELIVERY_AMBIGUOUS` says."""
    shown: list[str] = []
    process = Process(redis, settings(), Paper(shown), then)
    script, silent = getattr(process.outbox, call), True

    async def breaking(**said: Any) -> Any:
        nonlocal silent
        answer = None if silent and lost == "request" else await script(**said)
        if silent:
            silent = False
            raise StoreUnavailable("Redis: timeout")
        return answer

    monkeypatch.setattr(process.outbox, call, breaking)
    async with process.running():
        await process.put(FIRST)
        await until_none_wait(redis)
        await until(lambda: not process.deliverer._known)

    assert shown == ["first"]


async def test_a_reply_that_was_stored_without_an_answer_is_delivered_before_the_lease_is_over(
    redis: Redis, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Process(redis, settings(turn_lease_seconds=600), Paper([])).running() as process:
        send = RoundTrip.send

        async def silent(trip: RoundTrip) -> None:
            await send(trip)
            raise StoreUnavailable("Redis: timeout")

        with monkeypatch.context() as lost:
            lost.setattr(RoundTrip, "send", silent)
            with pytest.raises(StoreUnavailable):
                await process.put(FIRST)
        await until(lambda: process.paper.shown == ["first"])


@pytest.mark.parametrize("name", ["paper", "room"])
async def test_who_stores_a_reply_may_end_before_anybody_was_told(
    redis: Redis, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In a process alone, which rarely looks for what it does not know of."""
    shown: list[str] = []
    process = Process(redis, settings(turn_lease_seconds=600), Paper(shown, name), alone=True)
    message = replace(FIRST, key=replace(KEY, connector=name))
    send, stored = RoundTrip.send, asyncio.Event()

    async def held_up(trip: RoundTrip) -> None:
        await send(trip)
        stored.set()
        await asyncio.Event().wait()

    async with process.running():
        await asyncio.sleep(0.1)  # it has looked once, and is quiet now
        monkeypatch.setattr(RoundTrip, "send", held_up)
        address = name if name == "paper" else f"{name}@{process.hub.name}"
        worker = asyncio.create_task(process.outbox.put(message, [address]))
        await stored.wait()
        worker.cancel()
        await until(lambda: shown)

    assert shown == ["first"]


@pytest.mark.parametrize("name", ["paper", "room"])
async def test_a_reply_that_is_stored_again_is_delivered_if_nobody_was_told_of_it(
    redis: Redis, settings: MakeSettings, name: str
) -> None:
    """Also at the other address where it is awaited; and once, however often that is."""
    shown: list[str] = []
    process = Process(redis, settings(turn_lease_seconds=600), Paper(shown, name), alone=True)
    message = replace(FIRST, key=replace(KEY, connector=name), answers=("m1",))
    addresses = ["paper"] if name == "paper" else [f"room@{process.hub.name}"]
    async with process.running():
        await asyncio.sleep(0.1)  # it has looked once, and is quiet now
        if name == "room":  # who asked again is answered in this process, too
            await process.outbox.expect(message.key, "m1", addresses[0])
            addresses = ["room@another"]
        await ask(redis, process.outbox.put_call(message, addresses[0], None))
        await asyncio.sleep(0.1)
        assert shown == []
        for _ in range(3):
            assert not await process.outbox.put(message, addresses)
        await until(lambda: shown)
        await asyncio.sleep(0.1)
        assert not await process.outbox.put(message, addresses)
        await asyncio.sleep(0.1)

    assert shown == ["first"]


async def test_a_reply_in_a_newer_format_to_who_is_connected_here_holds_up_no_other(
    redis: Redis, settings: MakeSettings
) -> None:
    """As while processes are upgraded one after the other."""
    shown: list[str] = []
    key = replace(KEY, connector="room")
    process = Process(redis, settings(), Paper(shown, "room"))
    worker = Outbox(redis, Hub(redis, shared=False))
    address = f"room@{process.hub.name}"
    await worker.put(replace(FIRST, key=key), [address])
    (turn,) = await redis.keys("ar:outbox:*:turn:*")
    await redis.hset(turn, "v", "99")
    await worker.put(replace(SECOND, key=key), [address])
    async with process.running():
        await until(lambda: shown)

    assert shown == ["second"]


async def test_a_reply_in_a_newer_format_is_left_to_a_newer_process_and_so_is_what_follows_it(
    redis: Redis, settings: MakeSettings
) -> None:
    process = Process(redis, settings(turn_lease_seconds=1), Paper([]))
    await process.put(FIRST)
    (turn,) = await redis.keys("ar:outbox:*:turn:*")
    await redis.hset(turn, "v", "99")
    await process.put(SECOND)
    async with process.running():
        with capture_logs() as logs:
            await until(lambda: [one["event"] for one in logs].count("delivery.failed") == 2)  # it tries again
        assert await waiting(redis) == ["t1", "t2"]
        assert process.paper.shown == []

        await redis.hset(turn, "v", VERSION)
        await until_none_wait(redis)
    assert process.paper.shown == ["first", "second"]


async def test_a_fault_of_ours_keeps_a_reply_for_the_length_of_a_lease_only(
    redis: Redis, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(redis, settings(turn_lease_seconds=1), Paper([]))

    async def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as fault, capture_logs() as logs:
        fault.setattr(process.outbox, "done", broken)
        async with process.running():
            await process.put(FIRST)
            await until(lambda: "delivery.failed" in [one["event"] for one in logs])
            fault.undo()
            await until_none_wait(redis)

    assert process.paper.shown == ["first"]


async def test_what_waits_for_another_process_uses_nothing_up_of_what_the_platform_allows(
    redis: Redis, settings: MakeSettings
) -> None:
    one, other = (Process(redis, settings(shutdown_grace_seconds=0.1), Paper([])) for _ in range(2))
    other.paper.capabilities = replace(other.paper.capabilities, sends_per_second=0.001)
    rate_limiter = other.deliverer._delivery._rate_limiters.of(other.paper)
    for _ in range(CHAT_BURST - 2):
        await rate_limiter.wait_for_turn(KEY)
    async with one.running(), other.running():
        one.paper.open.clear()
        await one.put(FIRST)
        await until(lambda: one.paper.asked)
        await other.put(SECOND)
        await asyncio.sleep(0.2)  # it has looked many times whether the first is through

        async with asyncio.timeout(5):
            await rate_limiter.wait_for_turn(KEY)


async def test_a_store_that_is_silent_at_the_end_holds_up_only_for_the_grace_period(
    redis: Redis, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    process = Process(redis, settings(shutdown_grace_seconds=0.1), Paper(shown, "room"))

    async def silent(entry: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(process.outbox.streams, "remove", silent)
    running = asyncio.create_task(process.deliverer.run())
    await asyncio.sleep(0.05)
    await process.outbox.put(replace(FIRST, key=replace(KEY, connector="room")), [f"room@{process.hub.name}"])
    await until(lambda: shown)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class TwoPages(Paper):
    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        words = message.text.split()
        return [OutboundPart(index, len(words), word, message.turn_id) for index, word in enumerate(words)]


async def test_a_reply_that_is_forgotten_on_its_way_holds_up_nobody(redis: Redis, settings: MakeSettings) -> None:
    """What of it was not shown yet is not shown any more."""
    process = Process(redis, settings(turn_lease_seconds=600), TwoPages([]), alone=True)
    async with process.running():
        await asyncio.sleep(0.1)  # it has looked once, and is quiet now
        process.paper.open.clear()
        await process.put(replace(FIRST, text="one two"))
        await until(lambda: process.paper.asked)
        await process.outbox.forget(KEY)
        process.paper.open.set()
        await process.put(replace(SECOND, text="forgotten"))
        await until(lambda: "forgotten" in process.paper.shown)

    assert process.paper.shown == ["one", "forgotten"]
    assert await waiting(redis) == []


class Chokes(Paper):
    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        if message.text == "first":
            raise ValueError("a fault of the adapter")
        return super().render(message)


async def test_a_reply_that_its_connector_chokes_on_is_given_up_and_holds_up_no_other(
    redis: Redis, settings: MakeSettings
) -> None:
    process = Process(redis, settings(), Chokes([]))
    async with process.running():
        with capture_logs() as logs:
            await process.put(FIRST)
            await process.put(SECOND)
            await until_none_wait(redis)

    assert process.paper.shown == ["second"]
    assert [(one["event"], one["why"]) for one in logs if one["event"] == "turn.failed"] == [
        ("turn.failed", "undeliverable")
    ]
