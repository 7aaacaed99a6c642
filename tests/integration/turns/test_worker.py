"""The worker: conversations side by side, each in order, whatever one of them runs into."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import (
    PARTITIONS,
    Author,
    ConversationKey,
    Fence,
    InboundMessage,
    Role,
    Superseded,
    partition_tag,
    redis_key,
)
from grounding.transcript import EntryRole, Transcript, TranscriptEntry
from runtime.coordination import GROUP, Hub
from runtime.stores import connect
from runtime.turns import Batch, Envelope, Lane, Mailbox, Worker, notify_worker
from runtime.turns.batch import Lease, WorkItem
from runtime.turns.lease import hold_lease
from tests.emulators.own_redis import OwnRedis

Answer = Callable[[Batch], Coroutine[Any, Any, None]]


class Scripted:
    """Stands for the turns: what is done with a batch is a function."""

    def __init__(self, answer: Answer, apology_error: Exception | None) -> None:
        self.answer = answer
        self._apology_error = apology_error

    async def apologise(self, batch: Batch) -> None:
        if self._apology_error is not None:
            raise self._apology_error


class Letters:
    """Keeps what was given up, by turn."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.attempts: list[int] = []

    async def add(self, batch: Batch, why: str, lane: Lane) -> None:
        self.kept[batch.turn_id] = why
        self.attempts.append(batch.attempt)


@dataclass
class Working:
    """A worker that runs, and how its process is told of work."""

    worker: Worker
    hub: Hub
    letters: Letters

    async def ring(self, key: ConversationKey) -> None:
        await notify_worker(self.hub, Lane.TURNS, key)


@asynccontextmanager
async def working(
    settings: Settings,
    mailbox: Mailbox,
    answer: Answer,
    redis: Redis,
    *,
    apology_error: Exception | None = None,
    **more: Any,
) -> AsyncIterator[Working]:
    hub, letters = Hub(redis, shared=False), Letters()
    pauses: dict[str, Any] = {"retry_seconds": (0.01, 0.01), "crash_pause_seconds": (0.002, 0.05)}
    worker = Worker(settings, mailbox, Scripted(answer, apology_error), hub, letters, **pauses, **more)
    running = asyncio.create_task(worker.run())
    try:
        yield Working(worker, hub, letters)
    finally:
        running.cancel()
        await asyncio.wait([running])


def envelope(key: ConversationKey, number: int) -> Envelope:
    message = InboundMessage(
        connector=key.connector,
        external_id=key.external_id,
        message_id=f"m{number}",
        author=Author("u1", "Lena"),
        text=str(number),
        direct=True,
        addressed=True,
    )
    return Envelope(message, Role.MEMBER, time.time())


async def test_a_platform_that_takes_no_replies_holds_up_no_other(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    mailbox = Mailbox(redis)
    answered = asyncio.Event()
    begun = 0

    async def answer(batch: Batch) -> None:
        nonlocal begun
        if batch.key.connector == "telegram":
            begun += 1
            await asyncio.Event().wait()
        answered.set()

    quick = settings(shutdown_grace_seconds=0.1)
    async with working(quick, mailbox, answer, redis, max_concurrent_turns=4) as now, asyncio.timeout(20):
        for number in range(10):
            key = ConversationKey("acme", "telegram", str(number))
            await mailbox.store(key, envelope(key, 1))
            await now.ring(key)
        while begun < 4:
            await asyncio.sleep(0.01)
        key = ConversationKey("acme", "http", "desk")
        await mailbox.store(key, envelope(key, 1))
        await now.ring(key)
        await answered.wait()


async def test_a_message_that_comes_as_its_conversation_goes_idle_does_not_wait_for_the_sweep(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    mailbox = Mailbox(redis)
    key = ConversationKey("acme", "http", "desk")
    answered: list[str] = []
    told = asyncio.Event()

    async def answer(batch: Batch) -> None:
        answered.extend(one.message.message_id for one in batch.envelopes)
        told.set()

    calm = settings(turn_lease_seconds=3600)
    async with working(calm, mailbox, answer, redis, sweep_seconds=3600.0) as now, asyncio.timeout(60):
        for number in range(300):
            told.clear()
            await mailbox.store(key, envelope(key, number))
            await now.ring(key)
            while f"m{number}" not in answered:
                await told.wait()
                told.clear()
            await asyncio.sleep(0.0002 * (number % 8))  # somewhere between the answer and the end of the work

    assert answered == [f"m{number}" for number in range(300)]


async def test_a_worker_that_is_stopped_hands_its_turns_to_another_at_once(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """The second one need not wait until the lease of the first is over."""
    key = ConversationKey("acme", "http", "desk")
    began, answered = asyncio.Event(), asyncio.Event()

    async def hang(batch: Batch) -> None:
        began.set()
        await asyncio.Event().wait()

    async def finish(batch: Batch) -> None:
        assert batch.resumed
        answered.set()

    async with working(settings(shutdown_grace_seconds=0.1), Mailbox(redis), hang, redis) as first:
        await Mailbox(redis).store(key, envelope(key, 1))
        await first.ring(key)
        await began.wait()
    async with working(settings(), Mailbox(redis), finish, redis), asyncio.timeout(20):
        await answered.wait()


async def test_a_silent_workers_turn_goes_to_another_and_it_can_write_no_more(
    redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was paused too long finds itself replaced."""
    key = ConversationKey("acme", "http", "desk")
    paused, began, answered = Mailbox(redis), asyncio.Event(), asyncio.Event()
    fences: list[Fence] = []

    async def hang(batch: Batch) -> None:
        fences.append(batch.fence)
        began.set()
        await asyncio.Event().wait()

    async def finish(batch: Batch) -> None:
        fences.append(batch.fence)
        answered.set()

    async def nothing(lease: object) -> bool:
        return True

    async def nobody(silent_seconds: float, most: int, *, spares: bool) -> list[WorkItem]:
        return []

    monkeypatch.setattr(paused, "renew", nothing)
    monkeypatch.setattr(paused, "abandoned", nobody)
    async with working(settings(turn_lease_seconds=1, shutdown_grace_seconds=0.1), paused, hang, redis) as first:
        await Mailbox(redis).store(key, envelope(key, 1))
        await first.ring(key)
        await began.wait()
        async with working(settings(turn_lease_seconds=1), Mailbox(redis), finish, redis), asyncio.timeout(60):
            await answered.wait()
        lost, held, *_ = fences
        said = [TranscriptEntry(EntryRole.INBOUND, "hello", "t1", "")]
        with pytest.raises(Superseded):
            await Transcript(redis).append(key, "t1", said, lost)
        assert lost.token != held.token


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_after_an_outage_of_the_store_each_worker_keeps_the_turns_that_it_has_in_hand(
    data_dir: Path, settings: Callable[..., Settings], how: str
) -> None:
    """Though none could renew its holds for longer than a lease: nothing is asked of the model a second time. What a
    dead one had is taken up all the same, also by one that started after the outage."""
    server = OwnRedis(data_dir / "own")
    server.start()
    keys = [ConversationKey("acme", "telegram", str(number)) for number in range(8)]
    answers: Counter[ConversationKey] = Counter()
    answered: set[ConversationKey] = set()
    over = asyncio.Event()

    async def answer(batch: Batch) -> None:
        answers[batch.key] += 1
        await over.wait()
        answered.add(batch.key)

    redis = connect(server.url, 5.0)
    settled = settings(turn_lease_seconds=3, shutdown_grace_seconds=0.1)
    try:
        async with AsyncExitStack() as stack:
            dead = Mailbox(redis)
            for key in keys:
                await dead.store(key, envelope(key, 1))
            (offer,) = await dead.offers([keys[0].partition], 1)
            lease = await dead.claim(offer)
            assert lease is not None
            assert await dead.take(lease) is not None
            for _ in range(2):
                await stack.enter_async_context(working(settled, Mailbox(redis), answer, redis))
            async with asyncio.timeout(20):
                while len(answers) < len(keys) - 1:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1.0)  # holds are renewed by now
            server.freeze() if how == "frozen" else server.kill()
            await asyncio.sleep(3.5)
            server.thaw() if how == "frozen" else server.start()
            await stack.enter_async_context(working(settled, Mailbox(redis), answer, redis))
            async with asyncio.timeout(20):
                while offer.key not in answers:
                    await asyncio.sleep(0.01)
            over.set()
            async with asyncio.timeout(20):
                while len(answered) < len(keys):
                    await asyncio.sleep(0.01)
    finally:
        await redis.aclose()
        server.kill()

    assert answers == Counter(keys)


@pytest.mark.parametrize("apology_error", [None, ValueError("the reply cannot be stored either")])
async def test_a_turn_that_breaks_every_time_is_given_up_and_the_next_one_answered(
    redis: Redis, settings: Callable[..., Settings], apology_error: Exception | None
) -> None:
    """One poisonous message costs itself."""
    key, mailbox = ConversationKey("acme", "http", "desk"), Mailbox(redis)
    attempts: list[int] = []
    answered = asyncio.Event()

    async def answer(batch: Batch) -> None:
        if batch.envelopes[0].message.text == "0":
            attempts.append(batch.attempt)
            raise ValueError("poison")
        answered.set()

    async with working(settings(), mailbox, answer, redis, apology_error=apology_error) as now:
        await mailbox.store(key, envelope(key, 0))
        await now.ring(key)
        async with asyncio.timeout(10):
            while not now.letters.kept:
                await asyncio.sleep(0.01)
            await mailbox.store(key, envelope(key, 1))
            await now.ring(key)
            await answered.wait()

    assert attempts == [1, 2, 3]
    assert list(now.letters.kept.values()) == ["ValueError"]


async def crash(mailbox: Mailbox, key: ConversationKey, times: int) -> None:
    """Begin the turn that waits in *key*, and end as a process that is killed does, so often."""
    for _ in range(times):
        (offer,) = await mailbox.offers([key.partition], 1) or await mailbox.abandoned(0.0, 1)
        lease = await mailbox.claim(offer)
        assert lease is not None
        assert await mailbox.take(lease)


async def test_a_message_that_ends_its_process_every_time_is_given_up(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """After as many crashes as the settings say it is not begun again."""
    key, mailbox = ConversationKey("acme", "http", "desk"), Mailbox(redis)
    await mailbox.prepare()
    await mailbox.store(key, envelope(key, 0))
    await crash(mailbox, key, settings().turn_max_crashes)

    async def answer(batch: Batch) -> None:
        raise AssertionError("it is not tried again")

    async with working(settings(), Mailbox(redis), answer, redis, alone=True) as now, asyncio.timeout(10):
        while not now.letters.kept:
            await asyncio.sleep(0.01)

    assert list(now.letters.kept.values()) == ["interrupted"]
    assert now.letters.attempts == [10]


@pytest.mark.parametrize(("crashes", "paused"), [(2, None), (3, 0.002), (4, 0.004), (9, 0.05)])
async def test_a_crash_is_no_failure_of_a_turn_and_from_the_third_on_it_waits_longer_each_time(
    redis: Redis, settings: Callable[..., Settings], crashes: int, paused: float | None
) -> None:
    """However often its process was killed before, it is answered at its first attempt."""
    key, mailbox = ConversationKey("acme", "http", "desk"), Mailbox(redis)
    await mailbox.prepare()
    await mailbox.store(key, envelope(key, 0))
    await crash(mailbox, key, crashes)
    answered: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()

    async def answer(batch: Batch) -> None:
        answered.set_result(batch)

    with structlog.testing.capture_logs() as events:
        async with working(settings(), Mailbox(redis), answer, redis, alone=True), asyncio.timeout(10):
            batch = await answered

    assert (batch.attempt, batch.crashes) == (1, crashes)
    pauses = [(event["crashes"], event["seconds"]) for event in events if event["event"] == "turn.paused"]
    assert pauses == ([] if paused is None else [(crashes, paused)])


async def test_two_workers_share_the_work_and_keep_each_conversations_order(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """Whoever answers, each message is answered once and in its turn."""
    keys = [ConversationKey("acme", "http", f"desk{number}") for number in range(20)]
    answered: dict[ConversationKey, list[str]] = {key: [] for key in keys}
    mailbox = Mailbox(redis)

    async def answer(batch: Batch) -> None:
        await asyncio.sleep(0.002)
        answered[batch.key] += [one.message.text for one in batch.envelopes]

    async with (
        working(settings(), Mailbox(redis), answer, redis) as one,
        working(settings(), Mailbox(redis), answer, redis) as two,
        asyncio.timeout(20),
    ):
        for number in range(10):
            for at, key in enumerate(keys):
                await mailbox.store(key, envelope(key, number))
                await (one, two)[(at + number) % 2].ring(key)
        while await mailbox.ready():
            await asyncio.sleep(0.01)

    assert all(texts == [str(number) for number in range(10)] for texts in answered.values())


async def abandon(redis: Redis, keys: Sequence[ConversationKey]) -> None:
    """Something waits in each of *keys*, and a worker that is no more was given it."""
    dead = Mailbox(redis, worker="dead")
    for key in keys:
        await dead.store(key, envelope(key, 1))
    assert len(await dead.offers({key.partition for key in keys}, len(keys))) == len(keys)


async def given_to(redis: Redis, worker: str) -> int:
    """How many conversations are in the hands of *worker*."""
    found = 0
    for partition in range(PARTITIONS):
        summary: Any = await redis.xpending(redis_key("mailbox", partition_tag(partition), "work"), GROUP)
        found += sum(one["pending"] for one in summary["consumers"] if one["name"] == worker)
    return found


async def test_a_worker_reclaims_what_it_has_room_for_and_the_rest_when_it_has(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    keys = [ConversationKey("acme", "http", f"desk{number}") for number in range(45)]
    go_on = asyncio.Event()
    began: list[ConversationKey] = []

    async def answer(batch: Batch) -> None:
        began.append(batch.key)
        await go_on.wait()

    await abandon(redis, keys)
    with structlog.testing.capture_logs() as logs:
        async with (
            working(settings(turn_lease_seconds=1), Mailbox(redis, worker="new"), answer, redis, max_held=10),
            asyncio.timeout(20),
        ):
            while len(began) < 10:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.5)  # sweeps come and go
            while await given_to(redis, "new") != 10:  # while it looks for more it is given what it passes on at once
                await asyncio.sleep(0.01)
            held = len(began)
            go_on.set()
            while await Mailbox(redis).ready():
                await asyncio.sleep(0.01)

    assert held == 10
    assert sorted(key.external_id for key in began) == sorted(key.external_id for key in keys)
    assert [log["event"] for log in logs] == ["turn.reclaimed"] * 45


@pytest.mark.parametrize("left_by", ["nobody", "a dead worker"])
async def test_a_flood_of_one_connector_holds_up_no_conversation_of_another(
    redis: Redis, settings: Callable[..., Settings], left_by: str
) -> None:
    """However many wait there, and though none of them comes to an end."""
    flood = [ConversationKey("acme", "telegram", str(number)) for number in range(150)]
    other = ConversationKey("acme", "http", "desk")
    go_on, answered = asyncio.Event(), Counter[ConversationKey]()
    begun: set[ConversationKey] = set()

    async def answer(batch: Batch) -> None:
        if batch.key != other:
            begun.add(batch.key)
            await go_on.wait()
        answered[batch.key] += 1

    mailbox = Mailbox(redis, worker="one")
    if left_by == "nobody":
        for key in flood:
            await mailbox.store(key, envelope(key, 1))
    else:
        await abandon(redis, flood)
    await mailbox.store(other, envelope(other, 1))
    quick = settings(turn_lease_seconds=1)
    async with working(quick, mailbox, answer, redis, max_held=4, sweep_seconds=0.5), asyncio.timeout(30):
        while not answered[other]:
            await asyncio.sleep(0.01)
        assert answered == {other: 1}
        assert len(begun) <= 4
        go_on.set()
        while await mailbox.ready():
            await asyncio.sleep(0.01)
        assert answered == Counter([*flood, other])

        await mailbox.store(other, envelope(other, 2))
        while answered[other] < 2:  # the flood is over, the worker is not
            await asyncio.sleep(0.01)


async def test_who_waits_for_longest_is_answered_first_in_a_flood(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """Whichever partition it is in."""
    keys = [ConversationKey("acme", "telegram", str(number)) for number in range(40)]
    answered: list[ConversationKey] = []

    async def answer(batch: Batch) -> None:
        answered.append(batch.key)

    mailbox = Mailbox(redis)
    for key in keys:
        await mailbox.store(key, envelope(key, 1))
        await asyncio.sleep(0.002)
    async with working(settings(), mailbox, answer, redis, max_held=4, sweep_seconds=60.0), asyncio.timeout(30):
        while len(answered) < len(keys):
            await asyncio.sleep(0.01)
    assert set(answered[:4]) == set(keys[:4])  # these are begun together
    assert sorted(key.external_id for key in answered) == sorted(key.external_id for key in keys)


async def test_many_abandoned_conversations_of_one_connector_are_each_reclaimed_and_answered_once(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    """Most of them wait for a slot, for longer than a lease."""
    keys = [ConversationKey("acme", "telegram", str(number)) for number in range(60)]
    answered: list[ConversationKey] = []

    async def answer(batch: Batch) -> None:
        for _ in range(10):  # the model writes, and something is stored now and then
            await asyncio.sleep(0.05)
            await redis.set(f"shown:{batch.key.external_id}", batch.turn_id)
        answered.append(batch.key)

    await abandon(redis, keys)
    with structlog.testing.capture_logs() as logs:
        quick = settings(turn_lease_seconds=1)
        async with working(quick, Mailbox(redis), answer, redis, max_concurrent_turns=16), asyncio.timeout(30):
            while await Mailbox(redis).ready():
                await asyncio.sleep(0.01)

    assert sorted(key.external_id for key in answered) == sorted(key.external_id for key in keys)
    # A machine that stands still for a second lets leases end: whose turn is taken away is told, and given again.
    told = Counter(log["event"] for log in logs)
    assert set(told) <= {"turn.reclaimed", "turn.superseded"}
    assert told["turn.reclaimed"] == len(keys) + told["turn.superseded"]


async def test_what_waits_for_a_slot_when_its_worker_stops_goes_to_another_at_once_and_neither_failed_nor_crashed(
    redis: Redis, settings: Callable[..., Settings]
) -> None:
    keys = [ConversationKey("acme", "http", f"desk{number}") for number in range(3)]
    began = asyncio.Event()
    counted: list[tuple[int, int]] = []

    async def hang(batch: Batch) -> None:
        began.set()
        await asyncio.Event().wait()

    async def finish(batch: Batch) -> None:
        counted.append((batch.attempt, batch.crashes))

    for key in keys:
        await Mailbox(redis).store(key, envelope(key, 1))
    quick, first = settings(shutdown_grace_seconds=0.1), Mailbox(redis, worker="first")
    async with working(quick, first, hang, redis, max_concurrent_turns=1):
        await began.wait()
        while await given_to(redis, "first") < len(keys):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
    async with working(settings(), Mailbox(redis), finish, redis), asyncio.timeout(20):
        while len(counted) < len(keys):
            await asyncio.sleep(0.01)

    assert counted == [(1, 0)] * 3


async def test_who_lets_go_of_a_conversation_while_its_hold_is_renewed_has_not_lost_it() -> None:
    """The store may let go first, and its word on the hold be read first."""

    class Released:
        renewed = asyncio.Event()

        async def renew(self, lease: Lease) -> bool:
            self.renewed.set()
            return False

        async def release(self, lease: Lease) -> bool:
            raise Superseded("another has it")

    released = Released()
    key = ConversationKey("acme", "telegram", "1")
    async with hold_lease(cast("Mailbox", released), Lease(key, "1-1", Fence("current", "token")), 0.001):
        await released.renewed.wait()
        await asyncio.sleep(0)
    with pytest.raises(Superseded):
        async with hold_lease(cast("Mailbox", released), Lease(key, "1-1", Fence("current", "token")), 0.001):
            await asyncio.Event().wait()


@pytest.mark.parametrize("alone", [True, False])
async def test_a_worker_takes_no_turn_from_itself_where_the_store_stood_still(
    redis: Redis, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """It could not renew its lease, and nobody else could take it: the model would be asked, and paid, again."""
    mailbox, key = Mailbox(redis), ConversationKey("acme", "http", "desk")
    goes_on, looked = asyncio.Event(), asyncio.Event()
    batches: list[Batch] = []
    abandoned = mailbox.abandoned

    async def answer(batch: Batch) -> None:
        batches.append(batch)
        await goes_on.wait()

    async def looking(silent_seconds: float, most: int, *, spares: bool) -> list[WorkItem]:
        found = await abandoned(silent_seconds, most, spares=spares)
        if found:
            looked.set()
        return found

    async with (
        working(settings(), mailbox, answer, redis, alone=alone, sweep_seconds=0.2) as now,
        asyncio.timeout(30),
    ):
        await mailbox.store(key, envelope(key, 1))
        await now.ring(key)
        while not batches:
            await asyncio.sleep(0.001)
        monkeypatch.setattr(mailbox, "abandoned", looking)
        stream = redis_key("mailbox", key.tag, "work")
        asked = f"{redis_key('mailbox', partition_tag(0), 'work')}:asked"
        await redis.hset(asked, "spared", 0)  # as if it had been asked for all the time
        entries: Any = await redis.xrange(stream)
        consumers: Any = await redis.xinfo_consumers(stream, GROUP)
        await redis.xclaim(stream, GROUP, consumers[0]["name"], 0, [entries[0][0]], idle=3_600_000, justid=True)
        await looked.wait()
        await asyncio.sleep(0.1)  # what it holds anew begins at once
        goes_on.set()
        while await mailbox.ready():
            await asyncio.sleep(0.001)

    assert [(one.attempt, one.resumed) for one in batches] == [(1, False)]
