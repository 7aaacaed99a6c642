"""The durable inbox: order, one turn at a time, nothing lost and nothing doubled."""

import asyncio

import pytest
from redis.asyncio import Redis

from connectors.message import Attachment, Author, ConversationKey, InboundMessage, Quote, Role
from runtime.mailbox import MAX_BATCH, Batch, Envelope, Mailbox

KEY = ConversationKey("acme", "telegram", "-10001/7")


def envelope(number: int, text: str = "hello") -> Envelope:
    message = InboundMessage(
        "telegram",
        "-10001/7",
        f"m{number}",
        Author("u:1", "Lena"),
        text,
        quote=Quote("Bo", "what?"),
        attachments=(Attachment("document", "a.md"),),
        caller_role=Role.MEMBER,
    )
    return Envelope(message, Role.MEMBER, 1000.0 + number)


@pytest.fixture
def mailbox(redis: Redis) -> Mailbox:
    return Mailbox(redis)


async def take(mailbox: Mailbox) -> Batch:
    batch = await mailbox.take(KEY)
    assert batch is not None
    return batch


async def test_what_is_stored_comes_back_as_it_was(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1, "日本 👩‍👩‍👧‍👦 \n x"))

    assert (await take(mailbox)).envelopes == (envelope(1, "日本 👩‍👩‍👧‍👦 \n x"),)


async def test_all_that_waits_is_one_turn_in_order(mailbox: Mailbox) -> None:
    for number in range(3):
        await mailbox.store(KEY, envelope(number))

    batch = await take(mailbox)

    assert [one.message.message_id for one in batch.envelopes] == ["m0", "m1", "m2"]
    assert batch.attempt == 1


async def test_an_interrupted_turn_is_taken_up_again_under_its_id(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    first = await take(mailbox)
    await mailbox.store(KEY, envelope(2))

    again = await take(mailbox)

    assert (again.turn_id, again.envelopes, again.attempt) == (first.turn_id, first.envelopes, 2)


async def test_a_turn_that_is_done_leaves_what_came_meanwhile(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    batch = await take(mailbox)
    await mailbox.store(KEY, envelope(2))

    assert await mailbox.done(batch)
    assert not await mailbox.done(batch)

    assert [one.message.message_id for one in (await take(mailbox)).envelopes] == ["m2"]


async def test_a_conversation_stays_ready_while_something_waits(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    batch = await take(mailbox)
    await mailbox.store(KEY, envelope(2))
    await mailbox.done(batch)

    assert await mailbox.ready() == [KEY]


async def test_an_empty_mailbox_gives_nothing_and_is_not_ready(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    assert await mailbox.ready() == [KEY]

    await mailbox.done(await take(mailbox))

    assert await mailbox.take(KEY) is None
    assert await mailbox.ready() == []


async def test_the_same_message_again_is_known_with_the_turn_that_answered_it(mailbox: Mailbox) -> None:
    assert (await mailbox.store(KEY, envelope(1))).new
    assert await mailbox.known(KEY, "m1") == ""
    batch = await take(mailbox)
    await mailbox.done(batch)

    again = await mailbox.store(KEY, envelope(1))

    assert (again.new, again.turn_id) == (False, batch.turn_id)
    assert await mailbox.known(KEY, "m1") == batch.turn_id
    assert await mailbox.take(KEY) is None
    assert await mailbox.known(KEY, "m2") is None


async def test_an_answered_message_is_forgotten_after_a_while(mailbox: Mailbox, redis: Redis) -> None:
    await mailbox.store(KEY, envelope(1))
    await mailbox.done(await take(mailbox))

    assert [await redis.ttl(name) > 0 async for name in redis.scan_iter("ar:mailbox:*:seen:*")] == [True]


async def test_a_message_whose_turn_is_not_over_points_to_the_turn_at_hand(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    assert await mailbox.turn_of(KEY, "m1") == ""
    batch = await take(mailbox)
    await mailbox.store(KEY, envelope(2))

    assert await mailbox.turn_of(KEY, "m1") == batch.turn_id
    await mailbox.done(batch)
    assert await mailbox.turn_of(KEY, "m1") == batch.turn_id
    assert await mailbox.turn_of(KEY, "m2") == ""


async def test_of_many_deliveries_at_once_one_is_stored(mailbox: Mailbox) -> None:
    stored = await asyncio.gather(*(mailbox.store(KEY, envelope(1)) for _ in range(30)))

    assert sum(one.new for one in stored) == 1


async def test_a_flood_is_taken_in_batches(mailbox: Mailbox) -> None:
    for number in range(MAX_BATCH + 5):
        await mailbox.store(KEY, envelope(number))

    first = await take(mailbox)
    await mailbox.done(first)
    second = await take(mailbox)

    assert (len(first.envelopes), len(second.envelopes)) == (MAX_BATCH, 5)


async def test_a_batch_can_be_extended_by_what_arrived(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    batch = await take(mailbox)
    await mailbox.store(KEY, envelope(2))

    extended = await mailbox.extend(batch)
    await mailbox.done(extended)

    assert [one.message.message_id for one in extended.envelopes] == ["m1", "m2"]
    assert await mailbox.take(KEY) is None


async def test_conversations_do_not_meet(mailbox: Mailbox) -> None:
    other = ConversationKey("acme", "telegram", "10001/7")
    await mailbox.store(KEY, envelope(1))

    assert await mailbox.take(other) is None
    assert (await mailbox.store(other, envelope(1))).new
