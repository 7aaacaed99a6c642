"""What people are told of messages that were not taken, whatever becomes of the process that did not take them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, InboundMessage, StoreUnavailable
from runtime import refusals
from runtime.not_taken import NotTaken, Refused
from runtime.refusals import MOST_NAMED, Refusals

KEY = ConversationKey("acme", "telegram", "-100")
MESSAGE = InboundMessage("telegram", "-100", "m1", Author("7", "Ann"), "what does it cost?")
WHY = "You are writing faster than I can answer."


class Said:
    """What was said because of which message, once for an id as the outbox does; it fails as often as it is to."""

    def __init__(self, redis: Redis) -> None:
        self.texts: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.fails = 0
        self._stored: set[str] = set()
        self._redis = redis

    def process(self, name: str = "one", *, alone: bool = True) -> Refusals:
        """What tells in a process of that name."""
        return Refusals(NotTaken(self._redis, name), self.outbox, alone=alone)

    async def outbox(self, key: ConversationKey, text: str, last: Refused, turn_id: str) -> None:
        self.ids.append(turn_id)
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("Redis: away")
        if turn_id not in self._stored:
            self._stored.add(turn_id)
            self.texts.append((last.message_id, text))


@pytest.fixture
def said(redis: Redis) -> Said:
    return Said(redis)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 0.0)


def message(number: int, author: str = "7") -> InboundMessage:
    return replace(MESSAGE, message_id=f"m{number}", text=f"question {number}", author=Author(author))


async def told(said: Said, told: Refusals, count: int) -> None:
    """Run until so much was said."""
    async with asyncio.timeout(60):
        running = asyncio.create_task(told.run())
        while len(said.texts) < count:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait({running})


async def test_the_first_is_told_at_once_with_why_and_how_it_begins(said: Said) -> None:
    await said.process().tell(KEY, MESSAGE, WHY, 12, first=True)
    assert said.texts == [
        ("m1", f"{WHY} I could not accept this message. Please send it again in 12 s:\n\n> `what does it cost?`")
    ]


async def test_those_that_follow_are_told_once_together_with_how_many(said: Said) -> None:
    """Each person apart, and a message that the platform brings twice is one."""
    some = said.process()
    for number in (2, 3, 3, 4):
        await some.tell(KEY, message(number), WHY, 0, first=False)
    await some.tell(KEY, message(5, "8"), WHY, 0, first=False)
    await told(said, some, 2)

    together = (
        "I could not accept these 3 messages either. Please send them again:\n\n"
        "> `question 2`\n>\n> `question 3`\n>\n> `question 4`"
    )
    alone = "I could not accept this message either. Please send it again:\n\n> `question 5`"
    assert said.texts == [("m4", together), ("m5", alone)]


async def test_of_very_many_some_are_named(said: Said) -> None:
    some = said.process()
    for number in range(MOST_NAMED + 7):
        await some.tell(KEY, message(number), WHY, 0, first=False)
    await told(said, some, 1)
    [(_, text)] = said.texts
    assert text.startswith(f"I could not accept these {MOST_NAMED + 7} messages either.")
    assert text.endswith("> and 7 more")
    assert text.count("question") == MOST_NAMED


async def test_what_one_script_of_the_store_cannot_unpack_is_told_too(said: Said, redis: Redis) -> None:
    """Thousands of messages that are told at once."""
    kept = NotTaken(redis, "one")
    many = [Refused(f"m{number}", "hi") for number in range(9000)]
    await asyncio.gather(*(kept.keep(KEY, one, "t1", "", 0) for one in many))
    running = asyncio.create_task(said.process("two").run())
    async with asyncio.timeout(60):
        while await kept.left(0, 0) and not running.done():
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert len(said.texts) == 1
    assert await kept.left(0, 0) == []


async def test_who_goes_on_writing_is_told_all_the_same(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 3600.0)
    monkeypatch.setattr(refusals, "LONGEST_SECONDS", 0.0)
    some = said.process()
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    await told(said, some, 1)


async def test_what_is_left_is_told_at_the_end_and_an_outage_ends_nothing(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be told even then the next process tells."""
    monkeypatch.setattr(refusals, "QUIET_SECONDS", 3600.0)
    said.fails = 1
    some = said.process()
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    await some.tell(KEY, message(2, "8"), WHY, 0, first=False)
    running = asyncio.create_task(some.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert [one for one, _ in said.texts] == ["m2"]
    await told(said, said.process("two"), 2)
    assert [one for one, _ in said.texts] == ["m2", "m1"]


@pytest.mark.parametrize("first", [True, False])
async def test_what_could_not_be_told_is_told_when_the_store_is_back(said: Said, first: bool) -> None:
    """Under the same id: it may have been stored although nobody was told so."""
    said.fails = 1
    some = said.process()
    await some.tell(KEY, MESSAGE, WHY, 0, first=first)
    await told(said, some, 1)

    assert [one for one, _ in said.texts] == ["m1"]
    assert said.ids[0]
    assert len(said.ids) > 1
    assert len(set(said.ids)) == 1


async def test_what_was_not_taken_while_others_could_not_be_told_is_told_after_them(said: Said) -> None:
    """Not with them: what they were told with may have been stored, and is shown as it was."""
    said.fails = 1
    some = said.process()
    await some.tell(KEY, MESSAGE, WHY, 0, first=False)
    running = asyncio.create_task(some.run())
    async with asyncio.timeout(60):
        while not said.ids:
            await asyncio.sleep(0)
    await some.tell(KEY, message(2), WHY, 0, first=False)
    running.cancel()
    await asyncio.wait({running})

    assert [one for one, _ in said.texts] == ["m1", "m2"]
    assert len(set(said.ids)) == 2


@pytest.mark.parametrize("first", [True, False])
async def test_what_a_process_that_was_killed_had_not_told_the_next_one_tells_once(
    said: Said, redis: Redis, first: bool
) -> None:
    said.fails = 1 if first else 0
    killed = said.process()
    await killed.tell(KEY, MESSAGE, WHY, 30, first=first)
    await killed.tell(KEY, message(2), WHY, 30, first=False)
    assert said.texts == []

    running = asyncio.create_task(said.process("two").run())
    async with asyncio.timeout(60):
        while await NotTaken(redis).left(0, 0):
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running})
    if first:
        assert {one for one, _ in said.texts} == {"m1", "m2"}
        [text] = [text for one, text in said.texts if one == "m1"]
        assert text.startswith(f"{WHY} I could not accept this message. Please send it again in ")
    else:
        [(_, text)] = said.texts
        assert text.startswith("I could not accept these 2 messages either. Please send them again in ")
        assert text.index("what does it cost?") < text.index("question 2")


async def test_one_that_dies_when_people_were_told_has_nobody_tell_them_again(said: Said, redis: Redis) -> None:
    """Between telling them and keeping that they are told: the outbox knows the id."""
    kept = NotTaken(redis, "one")
    refused = Refused("m1", "what does it cost?")
    assert await kept.keep(KEY, refused, "told before", WHY, 5)
    await said.outbox(KEY, "told", refused, "told before")
    running = asyncio.create_task(said.process("two").run())
    async with asyncio.timeout(60):
        while await redis.keys("ar:missed:*:untold:*"):
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running})
    assert said.texts == [("m1", "told")]
    assert set(said.ids[1:]) == {"told before"}
    assert await redis.keys("ar:missed:*:places") == []


async def test_a_message_that_comes_again_after_the_process_was_killed_is_told_of_once(said: Said) -> None:
    await said.process().tell(KEY, MESSAGE, WHY, 30, first=False)
    second = said.process("two")
    await second.tell(KEY, MESSAGE, WHY, 30, first=True)
    await told(said, second, 1)
    assert [one for one, _ in said.texts] == ["m1"]


async def test_of_several_processes_each_leaves_to_the_others_what_they_may_still_tell(
    said: Said, redis: Redis
) -> None:
    await said.process().tell(KEY, MESSAGE, WHY, 30, first=False)
    assert await NotTaken(redis, "two").left(60, 60) == []
    assert await NotTaken(redis, "one").left(60, 0) == []
    [left] = await NotTaken(redis, "two").left(60, 0)
    assert [one.message_id for one in left.refused] == ["m1"]


async def test_what_another_process_has_not_told_for_long_is_told_for_it(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "LOOK_SECONDS", 0.0)
    await said.process().tell(KEY, MESSAGE, WHY, 30, first=False)
    await told(said, said.process("two", alone=False), 1)


async def test_who_stood_still_tells_a_new_message_apart_from_what_others_have_told_meanwhile(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = said.process()
    await still.tell(KEY, MESSAGE, WHY, 30, first=False)
    await told(said, said.process("two"), 1)
    monkeypatch.setattr(refusals, "LONGEST_SECONDS", 0.0)
    await still.tell(KEY, message(2), WHY, 30, first=False)
    await told(said, still, 2)
    assert [one for one, _ in said.texts] == ["m1", "m2"]
