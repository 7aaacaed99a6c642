"""What a turn is likely to read is read by the step that begins it, and never outlives what the turn does itself."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, InboundMessage, Role
from grounding.transcript.scripts import TAIL_PAGE
from runtime import ahead as module
from runtime import redis_connections
from runtime.ahead import Foresight
from runtime.envelopes import Batch, Envelope, Lease, Offer
from runtime.mailbox import Mailbox
from runtime.redis_client import Client
from runtime.redis_exchange import Exchange

KEY, OTHER = ConversationKey("acme", "http", "desk"), ConversationKey("acme", "http", "other")


class Full:
    """A worker here that has no room now."""

    async def reserve(self, connector: str) -> bool:
        return False

    def begin(self, lease: Lease, batch: Batch) -> None: ...

    def refuse(self, connector: str, given: Offer | None, *, unsure: bool) -> None: ...


class House:
    """Begins turns in a mailbox, and lets them read."""

    def __init__(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.redis: Any = redis
        self.sent: list[int] = []
        """Of each exchange with the server, how many commands it had."""
        self.foresight = Foresight(cast("Client", redis), [TAIL_PAGE])
        self.mailbox = Mailbox(redis, foresight=self.foresight)
        self._number = 0
        sent = self.sent

        class Counted(Exchange):
            def __init__(self, transport: Any, parser: Any, packed: bytes, count: int, *more: Any) -> None:
                sent.append(count)
                super().__init__(transport, parser, packed, count, *more)

        monkeypatch.setattr(redis_connections, "Exchange", Counted)

    async def say(self, key: ConversationKey) -> None:
        self._number += 1
        author = Author("u1", "Lena")
        message = InboundMessage("http", key.external_id, f"m{self._number}", author, "hello", direct=True)
        await self.mailbox.store(key, Envelope(message, Role.MEMBER, 0.0))

    async def begin(self, key: ConversationKey = KEY) -> tuple[Lease, Batch]:
        await self.say(key)
        [offer] = await self.mailbox.offers([key.partition], 1)
        self.sent.clear()
        begun = await self.mailbox.begin(offer)
        assert begun is not None
        lease, batch = begun
        assert batch is not None
        return lease, batch

    async def turn(self, *words: tuple[Any, ...], key: ConversationKey = KEY) -> list[Any]:
        """What a turn of *key* is told that asks for *words* one after the other."""
        lease, batch = await self.begin(key)
        with self.foresight.turn(key, batch.ahead):
            told = [await self.redis.execute_command(*one) for one in words]
        sent = list(self.sent)
        await self.mailbox.next(lease, batch)
        self.sent[:] = sent
        return told


@pytest.fixture
async def house(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> House:
    made = House(redis, monkeypatch)
    await redis.set("a", "1")
    await redis.hset("b", "of", "2")
    await made.begin(OTHER)  # the scripts are known to the server
    return made


READS = (("GET", "a"), ("HGETALL", "b"))


async def test_what_the_last_two_turns_read_comes_with_the_step_that_begins_the_next(house: House) -> None:
    sent = []
    for _ in range(3):
        assert await house.turn(*READS) == ["1", {"of": "2"}]
        sent.append(list(house.sent))

    assert sent == [[1, 1, 1], [1, 1, 1], [3]]


async def test_a_turn_goes_by_what_was_so_when_it_began_and_not_before(house: House) -> None:
    for value in ("1", "2", "3", "4"):
        await house.redis.set("a", value)
        assert await house.turn(*READS) == [value, {"of": "2"}]


async def test_what_only_the_last_turn_read_is_not_asked_ahead(house: House) -> None:
    await house.turn(("GET", "a"))
    await house.turn(("GET", "a"), ("GET", "else"))

    await house.turn(("GET", "a"), ("HGETALL", "b"))

    assert house.sent == [2, 1]


async def test_what_a_conversation_reads_says_nothing_of_another(house: House) -> None:
    for _ in range(3):
        await house.turn(*READS)

    await house.turn(*READS, key=ConversationKey("acme", "http", "third"))

    assert house.sent == [1, 1, 1]


async def test_what_a_turn_writes_it_reads(house: House) -> None:
    for number in range(4):
        told = await house.turn(("GET", "a"), ("SET", "a", f"of {number}"), ("GET", "a"))
        assert told[2] == f"of {number}"


async def test_a_transaction_and_a_script_that_may_write_end_it_too_and_news_do_not(house: House) -> None:
    for _ in range(3):
        await house.turn(("GET", "a"), ("GET", "c"), ("HGETALL", "b"))
    lease, batch = await house.begin()
    with house.foresight.turn(KEY, batch.ahead):
        assert await house.redis.execute_command("PUBLISH", "somewhere", "news") == 0
        assert await house.redis.get("a") == "1"
        assert house.sent == [4, 1]
        async with house.redis.pipeline(transaction=True) as pipe:
            pipe.set("c", "written")
            await pipe.execute()
        assert await house.redis.get("c") == "written"
    await house.mailbox.next(lease, batch)

    _, batch = await house.begin()
    with house.foresight.turn(KEY, batch.ahead):
        await house.redis.eval("return redis.call('HSET', KEYS[1], 'of', '3')", 1, "b")
        assert await house.redis.execute_command("HGETALL", "b") == {"of": "3"}


async def test_a_script_that_only_reads_is_asked_ahead(house: House) -> None:
    script = house.redis.register_script(TAIL_PAGE)
    keys, args = ["{x}log", "{x}meta", "{x}amended"], ["+", "5"]
    for _ in range(3):
        lease, batch = await house.begin()
        with house.foresight.turn(KEY, batch.ahead):
            assert await script(keys=keys, args=args) == []
        sent = list(house.sent)
        await house.mailbox.next(lease, batch)

    assert sent == [2]


async def test_who_changes_what_it_was_told_changes_it_for_nobody_else(house: House) -> None:
    for _ in range(3):
        await house.turn(*READS)
    _, batch = await house.begin()
    with house.foresight.turn(KEY, batch.ahead):
        told: dict[str, str] = await house.redis.execute_command("HGETALL", "b")
        told["of"] = "changed"
        assert await house.redis.execute_command("HGETALL", "b") == {"of": "2"}


async def test_what_a_pipeline_reads_comes_with_it_too(house: House) -> None:
    for _ in range(3):
        lease, batch = await house.begin()
        with house.foresight.turn(KEY, batch.ahead):
            async with house.redis.pipeline(transaction=False) as pipe:
                pipe.get("a")
                pipe.hgetall("b")
                assert await pipe.execute() == ["1", {"of": "2"}]
        sent = list(house.sent)
        await house.mailbox.next(lease, batch)

    assert sent == [3]


async def test_of_a_pipeline_that_is_not_foreseen_as_a_whole_everything_is_asked(house: House) -> None:
    for _ in range(3):
        await house.turn(*READS)
    _, batch = await house.begin()
    with house.foresight.turn(KEY, batch.ahead):
        async with house.redis.pipeline(transaction=False) as pipe:
            pipe.hgetall("b")
            pipe.get("else")
            pipe.set("a", "written")
            assert await pipe.execute() == [{"of": "2"}, None, True]
        assert await house.redis.get("a") == "written"


async def test_the_step_that_ends_a_turn_reads_for_the_next_where_something_waits(house: House) -> None:
    for _ in range(3):
        await house.turn(*READS)
    with house.mailbox.taken_here(Full()):
        lease, batch = await house.begin()
        await house.say(KEY)
        house.sent.clear()
        following = await house.mailbox.next(lease, batch)
        assert following is not None
        with house.foresight.turn(KEY, following.ahead):
            assert await house.redis.get("a") == "1"
        assert house.sent == [3]

        house.sent.clear()
        assert await house.mailbox.next(lease, following) is None
        assert house.sent == [1]


async def test_what_could_not_be_read_ahead_is_asked_for_again(house: House) -> None:
    await house.redis.set("d", "text")
    for _ in range(2):
        await house.turn(("GET", "d"))
    await house.redis.delete("d")
    await house.redis.hset("d", "no", "text")

    _, batch = await house.begin()
    await house.redis.delete("d")
    await house.redis.set("d", "again")
    with house.foresight.turn(KEY, batch.ahead):
        assert await house.redis.get("d") == "again"


async def test_what_was_read_long_ago_is_asked_for_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await house.turn(*READS)
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.0)

    assert await house.turn(*READS) == ["1", {"of": "2"}]
    assert house.sent == [3, 1, 1]


async def test_outside_of_the_turn_the_store_is_asked(house: House) -> None:
    for _ in range(3):
        await house.turn(*READS)
    gone_on = asyncio.Event()

    async def later() -> str:
        await gone_on.wait()
        return str(await house.redis.get("a"))

    _, batch = await house.begin()
    with house.foresight.turn(KEY, batch.ahead):
        left_behind = asyncio.create_task(later())
        await asyncio.sleep(0)
    await house.redis.set("a", "now")
    gone_on.set()

    assert await left_behind == "now"
    assert await house.redis.get("a") == "now"


async def test_a_script_that_the_server_has_forgotten_begins_its_turn_all_the_same(house: House) -> None:
    for _ in range(3):
        await house.turn(*READS)
    await house.redis.script_flush()

    assert await house.turn(*READS) == ["1", {"of": "2"}]


async def test_of_so_many_conversations_the_one_that_was_silent_for_longest_is_forgotten(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_AT_MOST", 1)
    for _ in range(2):
        await house.turn(*READS)
    await house.turn(*READS, key=ConversationKey("acme", "http", "third"))

    await house.turn(*READS)

    assert house.sent == [1, 1, 1]
