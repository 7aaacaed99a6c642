"""The durable inbox: order, one turn at a time, nothing lost and nothing doubled."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from connectors.message import Attachment, Author, ConversationKey, InboundKind, InboundMessage, Quote, Role, Superseded
from runtime.coordination import GROUP
from runtime.turns import AmendResult, Batch, Envelope, Mailbox, MailboxFull
from runtime.turns.batch import Lease
from runtime.turns.mailbox import MAX_BATCH, MAX_WAITING
from runtime.workspaces import QueueMode

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


async def hold(mailbox: Mailbox) -> Lease:
    """The conversation, as a worker that is given it (or that comes after a dead one) holds it."""
    await mailbox.prepare()
    offers = await mailbox.offers([KEY.partition], 10) or await mailbox.abandoned(0.0, 100)
    (offer,) = [offer for offer in offers if offer.key == KEY]
    lease = await mailbox.claim(offer)
    assert lease is not None
    return lease


async def take(mailbox: Mailbox) -> Batch:
    batch = await mailbox.take(await hold(mailbox))
    assert batch is not None
    return batch


async def nothing_is_left(mailbox: Mailbox) -> bool:
    """Whether the conversation's mailbox is empty; lets go of it."""
    return await mailbox.take(await hold(mailbox)) is None


async def test_what_is_stored_comes_back_as_it_was(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1, "日本 👩‍👩‍👧‍👦 \n x"))

    assert (await take(mailbox)).envelopes == (envelope(1, "日本 👩‍👩‍👧‍👦 \n x"),)


async def test_an_interrupted_turn_is_taken_up_again_under_its_id(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    first = await take(mailbox)
    await mailbox.store(KEY, envelope(2))

    again = await take(mailbox)

    assert (again.turn_id, again.envelopes, again.resumed) == (first.turn_id, first.envelopes, True)


async def test_failures_and_crashes_of_a_turn_are_counted_apart(mailbox: Mailbox) -> None:
    """What is taken again under the same hold failed; what another left in its hands crashed; what was handed back, or
    not told of by the store, is neither."""
    await mailbox.store(KEY, envelope(1))
    counted: list[tuple[int, int]] = []
    for hands_back in (False, True, False, False):
        lease = await hold(mailbox)
        for again in (False, True, False):
            batch = await mailbox.take(lease, again=again)
            assert batch is not None
            counted.append((batch.attempt, batch.crashes))
        if hands_back:
            assert await mailbox.release(lease)
    await mailbox.store(KEY, envelope(2))
    assert batch is not None
    assert await mailbox.done(batch)
    fresh = await mailbox.take(lease)

    assert fresh is not None
    assert (fresh.attempt, fresh.crashes) == (1, 0)
    assert counted == [(1, 0), (1, 0), (2, 0), (2, 1), (2, 1), (3, 1), (3, 1), (3, 1), (4, 1), (4, 2), (4, 2), (5, 2)]


async def test_what_comes_during_a_turn_is_left_for_the_next_one(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    batch = await take(mailbox)
    await mailbox.store(KEY, envelope(2))
    assert await mailbox.done(batch)
    assert not await mailbox.done(batch)

    assert await mailbox.ready() == [KEY]
    assert [one.message.message_id for one in (await take(mailbox)).envelopes] == ["m2"]


async def test_the_same_message_again_is_known_with_the_turn_that_answered_it(mailbox: Mailbox) -> None:
    assert (await mailbox.store(KEY, envelope(1))).new
    assert await mailbox.known(KEY, "m1") == ""
    batch = await take(mailbox)
    await mailbox.done(batch)

    again = await mailbox.store(KEY, envelope(1))

    assert (again.new, again.turn_id) == (False, batch.turn_id)
    assert await mailbox.known(KEY, "m1") == batch.turn_id
    assert await nothing_is_left(mailbox)
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
    assert await nothing_is_left(mailbox)


async def test_conversations_do_not_meet(mailbox: Mailbox) -> None:
    other = ConversationKey("acme", "telegram", "10001/7")
    await mailbox.store(KEY, envelope(1))

    await mailbox.prepare()
    assert await mailbox.offers([other.partition], 10) == [] or other.partition == KEY.partition
    assert (await mailbox.store(other, envelope(1))).new


async def test_a_conversation_is_given_to_one_worker_and_stands_once(redis: Redis, mailbox: Mailbox) -> None:
    """However many messages wait, and however many workers ask."""
    other = Mailbox(redis)
    await mailbox.prepare()
    for number in range(3):
        await mailbox.store(KEY, envelope(number))

    given = await asyncio.gather(*(one.offers([KEY.partition], 10) for one in (mailbox, other, mailbox)))

    assert sum(len(offers) for offers in given) == 1
    assert await other.offers([KEY.partition], 10) == []


async def silent_for(redis: Redis, mailbox: Mailbox, leases: Sequence[Lease], seconds: int) -> None:
    """As if nobody had renewed *leases*, all of one partition, for so long."""
    stream = mailbox._work(leases[0].key.tag)
    entries: list[Any] = [lease.entry for lease in leases]
    await redis.xclaim(stream, GROUP, mailbox._streams.consumer, 0, entries, idle=seconds * 1000, justid=True)


async def test_a_hold_that_is_renewed_is_not_given_away_and_a_silent_one_is(redis: Redis, mailbox: Mailbox) -> None:
    """Renewing counts as being alive."""
    await mailbox.store(KEY, envelope(1))
    lease = await hold(mailbox)
    other = Mailbox(redis)
    await silent_for(redis, mailbox, [lease], 7200)
    assert await mailbox.renew(lease)
    assert await other.abandoned(3600, 10) == []
    await silent_for(redis, mailbox, [lease], 7200)
    assert [offer.key for offer in await other.abandoned(3600, 10)] == [KEY]


async def asked(redis: Redis, *, seconds_ago: float, spared_until: float = 0.0) -> None:
    """As if somebody had asked for what was abandoned so long ago."""
    at = round((time.time() - seconds_ago) * 1000)
    await redis.hset(f"{Mailbox(redis)._all_work[0]}:asked", mapping={"at": at, "spared": round(spared_until * 1000)})


async def test_after_an_outage_of_the_store_nothing_is_taken_from_the_living_before_they_could_renew(
    redis: Redis, mailbox: Mailbox
) -> None:
    """Nobody could meanwhile. One that has just started knows of it by when others asked last; and the dead are spared
    for a while only."""
    living, dead = KEY, ConversationKey("acme", "telegram", "of the dead")
    await mailbox.store(living, envelope(1))
    lease = await hold(mailbox)
    await mailbox.store(dead, envelope(1))
    (offer,) = await mailbox.offers([dead.partition], 10)
    lost = await mailbox.claim(offer)
    assert lost is not None
    await silent_for(redis, mailbox, [lease], 7200)
    await silent_for(redis, mailbox, [lost], 7200)
    await asked(redis, seconds_ago=1300)

    assert await Mailbox(redis).abandoned(3600, 10, spares=True) == []
    assert await Mailbox(redis).abandoned(3600, 10, spares=True) == []  # it was asked just now, but they are spared
    assert await mailbox.renew(lease)
    await asked(redis, seconds_ago=1000, spared_until=time.time() - 1)

    assert [offer.key for offer in await Mailbox(redis).abandoned(3600, 10, spares=True)] == [dead]


async def test_who_is_dead_while_the_store_serves_is_spared_by_nobody(redis: Redis, mailbox: Mailbox) -> None:
    """Others have asked all the time."""
    await mailbox.store(KEY, envelope(1))
    lease = await hold(mailbox)
    await silent_for(redis, mailbox, [lease], 7200)
    await asked(redis, seconds_ago=2)
    assert [offer.key for offer in await Mailbox(redis).abandoned(3600, 10, spares=True)] == [KEY]


async def test_a_clock_of_the_store_that_was_set_back_spares_the_dead_for_a_while_only(
    redis: Redis, mailbox: Mailbox
) -> None:
    """As after a fail-over to a machine whose clock is behind."""
    await mailbox.store(KEY, envelope(1))
    lease = await hold(mailbox)
    await silent_for(redis, mailbox, [lease], 7200)
    await asked(redis, seconds_ago=-5000, spared_until=time.time() + 6800)
    assert await Mailbox(redis).abandoned(3600, 10, spares=True) == []
    spared = float(str(await redis.hget(f"{mailbox._all_work[0]}:asked", "spared")))
    assert spared / 1000 < time.time() + 1801


async def test_no_more_is_reclaimed_than_asked_for_and_what_is_renewed_hides_nothing(redis: Redis) -> None:
    """However many that are renewed stand in the same partition before it."""
    names = (ConversationKey("acme", "telegram", str(number)) for number in itertools.count())
    keys = list(itertools.islice((key for key in names if key.partition == KEY.partition), 33))
    mailbox, other = Mailbox(redis), Mailbox(redis)
    for key in keys:
        await mailbox.store(key, envelope(1))
    claimed = [await mailbox.claim(offer) for offer in await mailbox.offers([KEY.partition], len(keys))]
    leases = [lease for lease in claimed if lease is not None]
    assert len(leases) == len(keys)
    await silent_for(redis, mailbox, leases, 7200)
    for lease in leases[:-3]:
        assert await mailbox.renew(lease)

    assert [offer.key for offer in await other.abandoned(3600, 2)] == keys[-3:-1]
    assert [offer.key for offer in await other.abandoned(3600, 2)] == keys[-1:]


async def test_who_lost_a_conversation_can_do_nothing_more_to_it(redis: Redis, mailbox: Mailbox) -> None:
    """The second worker has the same turn, which crashed once; the first one's every step is refused."""
    await mailbox.store(KEY, envelope(1))
    lost = await hold(mailbox)
    first = await mailbox.take(lost)
    assert first is not None
    second = await take(Mailbox(redis))

    assert (second.turn_id, second.attempt, second.crashes) == (first.turn_id, 1, 1)
    assert not await mailbox.renew(lost)
    for refused in (mailbox.take(lost), mailbox.extend(first), mailbox.done(first), mailbox.release(lost)):
        with pytest.raises(Superseded):
            await refused
    assert await mailbox.done(second)


async def test_what_comes_while_a_worker_lets_go_is_offered_again(mailbox: Mailbox) -> None:
    """No message waits unseen after the last look, nor after a lease that is handed back."""
    await mailbox.store(KEY, envelope(1))
    lease = await hold(mailbox)
    batch = await mailbox.take(lease)
    assert batch is not None
    assert await mailbox.take(lease, over=batch) is None
    await mailbox.store(KEY, envelope(2))

    lease = await hold(mailbox)
    assert await mailbox.release(lease)
    assert [one.message.message_id for one in (await take(mailbox)).envelopes] == ["m2"]


async def test_a_full_mailbox_takes_no_more_and_loses_nothing(mailbox: Mailbox) -> None:
    """A repeat of what is stored is still known; what is refused may be said again later."""
    for number in range(MAX_WAITING):
        await mailbox.store(KEY, envelope(number))
    with pytest.raises(MailboxFull):
        await mailbox.store(KEY, envelope(MAX_WAITING))

    assert not (await mailbox.store(KEY, envelope(0))).new
    assert await mailbox.known(KEY, f"m{MAX_WAITING}") is None


async def test_a_waiting_message_that_is_taken_back_leaves_an_empty_mailbox(mailbox: Mailbox) -> None:
    """The worker that is given the conversation finds nothing and lets go."""
    await mailbox.store(KEY, envelope(1))
    assert await mailbox.amend(KEY, "m1", None) is AmendResult.AMENDED
    assert await nothing_is_left(mailbox)
    assert await mailbox.ready() == []


async def test_a_conversation_is_let_go_after_its_last_turn(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    lease = await hold(mailbox)
    first = await mailbox.take(lease)
    assert first is not None
    await mailbox.store(KEY, envelope(2))

    assert await mailbox.done(first)
    second = await mailbox.take(lease)
    assert second is not None
    assert [one.message.message_id for one in second.envelopes] == ["m2"]
    assert (second.attempt, second.resumed) == (1, False)
    assert await mailbox.take(lease, over=second) is None

    assert [await mailbox.known(KEY, name) for name in ("m1", "m2")] == [first.turn_id, second.turn_id]
    with pytest.raises(Superseded):
        await mailbox.take(lease)
    assert await mailbox.ready() == []
    await mailbox.store(KEY, envelope(3))
    assert [offer.key for offer in await mailbox.offers([KEY.partition], 10)] == [KEY]


async def test_what_was_let_go_while_it_was_offered_is_not_claimed(mailbox: Mailbox) -> None:
    await mailbox.store(KEY, envelope(1))
    await mailbox.prepare()
    (offer,) = await mailbox.offers([KEY.partition], 10)
    lease = await mailbox.claim(offer)
    assert lease is not None
    batch = await mailbox.take(lease)
    assert batch is not None
    assert await mailbox.done(batch)
    assert not await mailbox.release(lease)

    assert await mailbox.claim(offer) is None


async def test_a_command_of_the_platforms_own_is_not_the_newest_message(mailbox: Mailbox) -> None:
    """No history has it, so nobody could read what was said after it."""
    await mailbox.store(KEY, envelope(1))
    command = envelope(2)
    await mailbox.store(KEY, replace(command, message=replace(command.message, kind=InboundKind.COMMAND)))
    assert await mailbox.last_seen("telegram") == {KEY: "m1"}


async def test_of_a_workspace_that_is_deleted_no_place_is_remembered(mailbox: Mailbox) -> None:
    other = replace(KEY, workspace_id="acme-2")
    for key in (KEY, other):
        await mailbox.store(key, envelope(1))
    await mailbox.forget_workspace("acme")
    assert await mailbox.last_seen("telegram") == {other: "m1"}


def queued(number: int, queue: QueueMode, *, unfinished: bool = False, by: str = "u1", text: str = "") -> Envelope:
    """A message of a place with that queue mode."""
    message = InboundMessage(
        KEY.connector, KEY.external_id, f"m{number}", Author(by), text or str(number), looks_unfinished=unfinished
    )
    return Envelope(message, Role.MEMBER, time.time(), queue=queue)


def ids(batch: Batch | None) -> list[str]:
    return [one.message.message_id for one in batch.envelopes] if batch else []


async def test_what_waits_is_one_turn_and_with_followup_one_each(mailbox: Mailbox) -> None:
    for number, mode in enumerate(("collect", "interrupt", "followup", "followup", "collect", "collect")):
        await mailbox.store(KEY, queued(number, mode))  # type: ignore[arg-type]
    lease = await hold(mailbox)

    turns = []
    while (batch := await mailbox.take(lease)) is not None:
        turns.append(ids(batch))
        await mailbox.done(batch)

    assert turns == [["m0", "m1"], ["m2"], ["m3"], ["m4", "m5"]]


async def test_a_message_of_its_own_has_its_rest_with_it_and_nobody_elses(mailbox: Mailbox) -> None:
    """An album or a text that was cut stays together."""
    for one in (
        queued(1, "followup", unfinished=True),
        queued(2, "followup", unfinished=True),
        queued(3, "followup"),
        queued(4, "followup", unfinished=True),
        queued(5, "followup", by="u2"),
        replace(queued(6, "followup", unfinished=True), accepted_at=time.time() + 100),
        replace(queued(7, "followup"), accepted_at=time.time() + 200),
    ):
        await mailbox.store(KEY, one)
    lease = await hold(mailbox)

    turns = []
    while (batch := await mailbox.take(lease)) is not None:
        turns.append(ids(batch))
        await mailbox.done(batch)

    assert turns == [["m1", "m2", "m3"], ["m4"], ["m5"], ["m6"], ["m7"]]


async def test_nobody_can_write_what_passes_for_a_mode(mailbox: Mailbox) -> None:
    for number, text in enumerate(('"queue":"followup"', '{"queue":"followup"}', '\\"queue":"followup"')):
        await mailbox.store(KEY, queued(number, "collect", text=text))

    assert len((await take(mailbox)).envelopes) == 3


async def test_storing_says_which_turn_is_at_hand_and_whether_a_worker_holds_the_conversation(mailbox: Mailbox) -> None:
    """Workers are told of what nobody holds; also a second time, as the first news may be lost."""

    async def store(number: int) -> tuple[str, bool]:
        result = await mailbox.store(KEY, queued(number, "interrupt"))
        return result.current_turn, result.held

    assert [await store(1), await store(2)] == [("", False)] * 2
    lease = await hold(mailbox)
    assert await store(3) == ("", True)
    batch = await mailbox.take(lease)
    assert batch is not None
    assert await store(4) == (batch.turn_id, True)
    await mailbox.done(batch)
    assert await store(5) == ("", True)
    assert await mailbox.release(lease)
    assert await store(6) == ("", False)
