"""Delivery: part by part, each state stored before the platform is called."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from redis.asyncio import Redis

from connectors.connector import Accept, Capabilities, ConnectionState, Connector, Health, SendFailed
from connectors.message import (
    ConversationKey,
    Degraded,
    Fence,
    OutboundMessage,
    OutboundPart,
    Receipt,
    Source,
    StoreUnavailable,
    Superseded,
    Usage,
)
from runtime.coordination import Hub, WorkStreams
from runtime.delivery import Delivery, Outbox, RateLimiters
from runtime.delivery.outbox import streams_of
from runtime.delivery.rate_limiter import RateLimiter
from runtime.delivery.sender import NoConnector
from runtime.stores import NewerFormat

KEY = ConversationKey("acme", "paper", "desk")
REPLY = OutboundMessage(
    KEY,
    "t1",
    "one|two|three",
    answers=("m1",),
    strategy="qmd",
    sources=(Source("a.md", "H"),),
    degraded=(Degraded("tail", "timeout"),),
    usage=Usage(1, 2, 3, 0.5),
)


class Paper:
    """A platform that keeps what it is sent, and fails as told."""

    name = "paper"
    capabilities = Capabilities(max_part_units=10)
    health = Health(ConnectionState.CONNECTED)
    typing_lasts_seconds = 0.01

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.failures: list[SendFailed | BaseException] = []
        self.signs = 0

    async def run(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        texts = message.text.split("|")
        return [OutboundPart(n, len(texts), text, f"{message.turn_id}:{n}") for n, text in enumerate(texts)]

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        if self.failures:
            raise self.failures.pop(0)
        self.shown.append(part.text)
        return Receipt(str(len(self.shown)))

    async def typing(self, key: ConversationKey) -> None:
        self.signs += 1

    async def close(self) -> None:
        return None


class Box:
    """What a worker stores and a gateway delivers, here by one hand."""

    def __init__(
        self,
        redis: Redis,
        paper: Paper,
        ambiguous: Literal["skip", "resend"] = "skip",
        send_seconds: float = 90.0,
        give_up_seconds: float = 600.0,
        rate_limiters: RateLimiters | None = None,
    ) -> None:
        connectors: dict[str, Connector] = {"paper": paper}
        self.outbox = Outbox(redis, Hub(redis, shared=False))
        self.delivery = Delivery(
            self.outbox,
            connectors,
            rate_limiters or RateLimiters(),
            ambiguous,
            send_seconds=send_seconds,
            backoff_seconds=(0.001, 0.001),
            give_up_seconds=give_up_seconds,
        )
        self.load = self.outbox.load

    async def deliver(self, message: OutboundMessage) -> int:
        await self.outbox.put(message, ["paper"])
        return await self.delivery.deliver(message.key, message.turn_id)


outbox = Box


async def test_all_parts_arrive_in_order_and_the_reply_can_be_read_again(redis: Redis) -> None:
    paper = Paper()
    box = outbox(redis, paper)

    assert await box.deliver(REPLY) == 3

    assert paper.shown == ["one", "two", "three"]
    assert await box.load(KEY, "t1") == REPLY
    assert await box.load(KEY, "t2") is None


async def test_a_reply_delivered_again_sends_nothing_twice(redis: Redis) -> None:
    paper = Paper()
    await outbox(redis, paper).deliver(REPLY)
    await outbox(redis, paper).deliver(REPLY)

    assert paper.shown == ["one", "two", "three"]


@pytest.mark.parametrize(("ambiguous", "shown"), [("skip", ["one", "three"]), ("resend", ["one", "two", "three"])])
async def test_a_part_whose_sending_was_interrupted_follows_the_setting(
    redis: Redis, ambiguous: Literal["skip", "resend"], shown: list[str]
) -> None:
    paper = Paper()

    async def die(message: OutboundMessage, part: OutboundPart) -> Receipt:
        if part.index == 1:
            raise asyncio.CancelledError
        return await Paper.send(paper, message, part)

    paper.send = die  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await outbox(redis, paper, ambiguous).deliver(REPLY)
    del paper.send

    await outbox(redis, paper, ambiguous).deliver(REPLY)

    assert paper.shown == shown


async def test_a_send_of_which_nobody_knows_is_not_repeated_by_default_nor_after_a_restart(redis: Redis) -> None:
    paper = Paper()
    paper.failures = [SendFailed("lost", retryable=True, ambiguous=True)]
    await outbox(redis, paper).deliver(REPLY)
    assert paper.shown == ["two", "three"]
    await outbox(redis, paper, "resend").deliver(REPLY)

    assert paper.shown == ["two", "three"]


async def test_a_send_of_which_nobody_knows_is_repeated_where_the_setting_says_so(redis: Redis) -> None:
    paper = Paper()
    paper.failures = [SendFailed("lost", retryable=False, ambiguous=True)]

    await outbox(redis, paper, "resend").deliver(REPLY)

    assert paper.shown == ["one", "two", "three"]


async def test_a_send_that_may_be_tried_again_is_after_the_wait_that_the_platform_asks_for(redis: Redis) -> None:
    paper = Paper()
    paper.failures = [SendFailed("slow down", retryable=True, retry_after_seconds=0.2)]
    began = asyncio.get_running_loop().time()

    await outbox(redis, paper).deliver(REPLY)

    assert asyncio.get_running_loop().time() - began >= 0.2
    assert paper.shown == ["one", "two", "three"]


class Clock:
    """A rate limiter's clock, on which an hour takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def limiter(self, connector: Connector) -> RateLimiter:
        return RateLimiter(connector, lambda: self.now, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(1.1)


async def test_a_part_is_not_given_up_for_a_wait_that_the_platform_asks_for(redis: Redis) -> None:
    """However long that is, and though the first attempt after it fails, too."""
    paper, clock = Paper(), Clock()
    paper.failures = [SendFailed("slow down", retryable=True, retry_after_seconds=3600.0)]
    paper.failures += [SendFailed("out of order", retryable=True)] * 2
    box = Box(redis, paper, give_up_seconds=1.0, rate_limiters=RateLimiters(clock.limiter))

    await box.deliver(replace(REPLY, text="one"))

    assert paper.shown == ["one"]
    assert clock.now >= 3600.0


async def test_a_part_that_fails_again_and_again_is_given_up(redis: Redis) -> None:
    paper = Paper()
    paper.failures = [SendFailed("out of order", retryable=True)] * 1000
    with pytest.raises(SendFailed, match="out of order"):
        await Box(redis, paper, give_up_seconds=0.02).deliver(REPLY)
    assert paper.shown == []


async def test_a_stored_reply_goes_after_a_while(redis: Redis) -> None:
    await outbox(redis, Paper()).deliver(REPLY)

    assert [await redis.ttl(name) > 0 async for name in redis.scan_iter("ar:outbox:*:turn:*")] == [True]


async def test_a_reply_of_a_newer_format_is_refused_by_name(redis: Redis) -> None:
    await outbox(redis, Paper()).deliver(REPLY)
    async for name in redis.scan_iter("ar:outbox:*:turn:*"):
        await redis.hset(name, mapping={"v": "2"})

    with pytest.raises(NewerFormat, match="upgrade"):
        await outbox(redis, Paper()).load(KEY, "t1")


async def test_a_refusal_for_good_is_raised(redis: Redis) -> None:
    paper = Paper()
    paper.failures = [SendFailed("blocked", retryable=False)]

    with pytest.raises(SendFailed, match="blocked"):
        await outbox(redis, paper).deliver(REPLY)


async def test_a_place_without_a_connector_is_named(redis: Redis) -> None:
    states = Box(redis, Paper()).outbox
    with pytest.raises(NoConnector, match="paper"):
        await Delivery(states, {}, RateLimiters(), "skip").deliver(KEY, "t1")


async def test_a_part_that_was_refused_for_now_is_still_unsent_after_an_end_of_the_process(redis: Redis) -> None:
    paper = Paper()
    paper.failures = [SendFailed("busy", retryable=True, retry_after_seconds=60)]
    delivering = asyncio.create_task(outbox(redis, paper).deliver(REPLY))
    async with asyncio.timeout(20):
        while paper.failures:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)  # it waits for the platform to be ready again
    delivering.cancel()
    await asyncio.wait([delivering])

    await outbox(redis, paper).deliver(REPLY)

    assert paper.shown == ["one", "two", "three"]


async def test_a_store_that_goes_silent_before_a_send_is_waited_for(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = Paper()
    box = outbox(redis, paper, "resend")
    run = redis.evalsha
    troubles = 1

    async def silent(*args: Any) -> Any:
        """Takes the mark, and cannot say so."""
        nonlocal troubles
        done = await run(*args)
        if troubles and "part:0" in args:
            troubles -= 1
            raise StoreUnavailable("Redis: timeout")
        return done

    await box.outbox.put(REPLY, ["paper"])
    monkeypatch.setattr(redis, "evalsha", silent)
    await box.deliver(REPLY)

    assert paper.shown == ["one", "two", "three"]
    assert troubles == 0


async def test_a_send_that_never_ends_counts_as_one_of_which_nobody_knows(redis: Redis) -> None:
    paper = Paper()

    async def hang(message: OutboundMessage, part: OutboundPart) -> Receipt:
        if part.index == 0:
            await asyncio.Event().wait()
        return await Paper.send(paper, message, part)

    paper.send = hang  # type: ignore[method-assign]
    async with asyncio.timeout(20):
        await outbox(redis, paper, send_seconds=0.05).deliver(REPLY)

    assert paper.shown == ["two", "three"]


async def test_what_was_forgotten_is_not_delivered(redis: Redis) -> None:
    paper = Paper()
    box = Box(redis, paper)
    await box.outbox.put(REPLY, ["paper"])
    await box.outbox.forget(KEY, ["t1"])

    assert await box.delivery.deliver(KEY, "t1") == 0
    assert paper.shown == []


async def test_who_was_replaced_while_delivering_can_mark_nothing_more(redis: Redis) -> None:
    """Two processes with the same reply in hand show it once: the one that began last goes on."""
    slow, paper = Paper(), Paper()
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def hang(message: OutboundMessage, part: OutboundPart) -> Receipt:
        waiting.set()
        await go_on.wait()
        return Receipt("late")

    slow.send = hang  # type: ignore[method-assign]
    first = asyncio.create_task(Box(redis, slow, "resend").deliver(REPLY))
    await waiting.wait()
    await Box(redis, paper, "resend").deliver(REPLY)
    go_on.set()

    with pytest.raises(Superseded):
        await first
    assert paper.shown == ["one", "two", "three"]


async def test_a_reply_of_a_worker_that_was_replaced_is_not_stored(redis: Redis) -> None:
    """Its conversation is another worker's, who answers it."""
    box = Box(redis, Paper())
    await redis.hset("ar:mailbox:held", mapping={"token": "another"})
    with pytest.raises(Superseded):
        await box.outbox.put(REPLY, ["paper"], Fence("ar:mailbox:held", "mine"))
    assert await box.load(KEY, "t1") is None


async def test_a_reply_that_is_put_twice_waits_once(redis: Redis) -> None:
    """A turn that is taken up again after it had stored its reply changes nothing."""
    box = Box(redis, Paper())
    assert await box.outbox.put(REPLY, ["paper"])
    assert not await box.outbox.put(replace(REPLY, text="other"), ["paper"])
    assert await box.load(KEY, "t1") == REPLY
    assert len(await WorkStreams(redis).all(streams_of(["paper"]))) == 1


async def test_who_asks_again_elsewhere_while_the_turn_runs_is_answered_there_too(redis: Redis) -> None:
    """The process at which the first request waited may be dead."""
    box, streams = Box(redis, Paper()), WorkStreams(redis)
    await box.outbox.expect(KEY, "m1", "paper@second")
    await box.outbox.expect(KEY, "m2", "paper@third")

    await box.outbox.put(replace(REPLY, answers=("m1",)), ["paper@first"])
    await box.outbox.put(replace(REPLY, answers=("m1",)), ["paper@first"])

    waiting = {address: await streams.all(streams_of([address])) for address in ("paper@first", "paper@second")}
    assert [[one.fields["turn"] for one in entries] for entries in waiting.values()] == [["t1"], ["t1"]]
    assert await streams.all(streams_of(["paper@third"])) == []
