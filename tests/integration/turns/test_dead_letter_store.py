"""Where turns that failed for good are kept, and how their messages come back into a mailbox."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from connectors.message import Author, ConversationKey, Fence, InboundMessage, OutboundMessage, Role, Scope, new_turn_id
from runtime.coordination import Hub
from runtime.delivery import Outbox
from runtime.stores import NewerFormat, pack
from runtime.turns import Batch, DeadLetters, Envelope, Lane, Mailbox, MailboxFull, UnknownLetter
from runtime.turns.mailbox import MAX_WAITING
from runtime.turns.worker import WORK

KEY = ConversationKey("acme", "http", "default")


class Yard:
    """Letters, the mailboxes behind them, and the partitions that workers were told of."""

    def __init__(self, redis: Redis, kept: int = 1000) -> None:
        self.hub = Hub(redis, shared=False)
        self.mailboxes = {lane: Mailbox(redis, lane) for lane in Lane}
        self.letters = DeadLetters(redis, self.mailboxes, self.hub, kept=kept)
        self.rung: list[tuple[str, int]] = []
        self.hub.hear(WORK, lambda news: self.rung.append((news["lane"], news["partition"])))

    async def waiting(self, lane: Lane = Lane.TURNS) -> Batch | None:
        """What a worker of *lane* is given of `KEY` now; a second time what follows it."""
        await self.mailboxes[lane].prepare()
        for offer in await self.mailboxes[lane].offers([KEY.partition], 10):
            lease = await self.mailboxes[lane].claim(offer)
            assert lease is not None
            return await self.mailboxes[lane].take(lease)
        return None


def envelope(message_id: str, text: str = "hello", address: str = "http") -> Envelope:
    message = InboundMessage("http", "default", message_id, Author("lena", "Lena"), text, direct=True)
    return Envelope(message, Role.MEMBER, 1.0, origin="a-process-that-is-gone", address=address)


def given_up(*envelopes: Envelope, turn_id: str = "", key: ConversationKey = KEY) -> Batch:
    return Batch(key, turn_id or new_turn_id(), 3, envelopes, Fence("none", "none"))


async def test_messages_come_back_whole_in_their_order_and_under_a_new_turn(redis: Redis) -> None:
    """Workers are told, and the letter is gone."""
    yard = Yard(redis)
    batch = given_up(envelope("m1"), envelope("m2"))
    await yard.letters.add(batch, "interrupted")
    letter = await yard.letters.retry(KEY.scope, batch.turn_id)
    assert (letter.why, letter.attempts, letter.envelopes) == ("interrupted", 3, batch.envelopes)
    assert yard.rung == [("", KEY.partition)]
    again = await yard.waiting()
    assert again is not None
    assert again.envelopes == batch.envelopes
    assert again.turn_id != batch.turn_id
    assert (again.attempt, again.resumed) == (1, False)
    assert await yard.letters.all(KEY.scope) == []


async def test_what_comes_back_waits_behind_what_was_said_since(redis: Redis) -> None:
    """The order of a conversation is the order in which it is answered."""
    yard = Yard(redis)
    batch = given_up(envelope("m1"))
    await yard.letters.add(batch, "interrupted")
    await yard.mailboxes[Lane.TURNS].store(KEY, envelope("m2"))
    await yard.letters.retry(KEY.scope, batch.turn_id)
    waiting = await yard.waiting()
    assert waiting is not None
    assert [one.message.message_id for one in waiting.envelopes] == ["m2", "m1"]


async def test_a_command_comes_back_as_a_command(redis: Redis) -> None:
    """What failed in the lane of commands is not said to the model."""
    yard = Yard(redis)
    batch = given_up(envelope("m1", "/usage"))
    await yard.letters.add(batch, "TypeError", Lane.COMMANDS)
    await yard.letters.retry(KEY.scope, batch.turn_id)
    assert await yard.waiting(Lane.TURNS) is None
    waiting = await yard.waiting(Lane.COMMANDS)
    assert waiting is not None
    assert waiting.envelopes == batch.envelopes


async def test_a_letter_that_comes_again_after_its_retry_answers_nothing_twice(redis: Redis) -> None:
    """A worker that ended between keeping the letter and letting its turn go keeps it once more."""
    yard = Yard(redis)
    batch = given_up(envelope("m1"))
    for _ in range(2):
        await yard.letters.add(batch, "interrupted")
        await yard.letters.retry(KEY.scope, batch.turn_id)
    assert yard.rung == [("", KEY.partition)]
    waiting = await yard.waiting()
    assert waiting is not None
    assert len(waiting.envelopes) == 1


async def test_a_full_mailbox_takes_nothing_back_and_the_letter_stays(redis: Redis) -> None:
    """A turn of more messages than may wait fits into an empty one all the same."""
    yard = Yard(redis)
    batch = given_up(*(envelope(f"m{number}") for number in range(MAX_WAITING + 1)))
    await yard.letters.add(batch, "interrupted")
    await yard.mailboxes[Lane.TURNS].store(KEY, envelope("since"))
    with pytest.raises(MailboxFull):
        await yard.letters.retry(KEY.scope, batch.turn_id)
    assert [letter.turn_id for letter in await yard.letters.all(KEY.scope)] == [batch.turn_id]
    assert yard.rung == []
    since = await yard.waiting()
    assert since is not None
    await yard.mailboxes[Lane.TURNS].done(since)
    await yard.letters.retry(KEY.scope, batch.turn_id)
    assert yard.rung


async def test_a_reply_to_a_process_that_is_gone_is_kept_for_who_asks_again_and_goes_by_itself(redis: Redis) -> None:
    """What was to be read there has an end; the answer itself is found by the turn."""
    yard = Yard(redis)
    outbox = Outbox(redis, yard.hub)
    batch = given_up(envelope("m1", address="http@a-process-that-is-gone"))
    await yard.letters.add(batch, "interrupted")
    await yard.letters.retry(KEY.scope, batch.turn_id)
    again = await yard.waiting()
    assert again is not None
    reply = OutboundMessage(KEY, again.turn_id, "Here it is.", answers=("m1",))
    await outbox.put(reply, [one.address for one in again.envelopes], again.fence)
    assert await outbox.load(KEY, again.turn_id) == reply
    streams = [name async for name in redis.scan_iter(match="ar:outbox:*a-process-that-is-gone")]
    assert len(streams) == 1
    assert 0 < await redis.ttl(streams[0]) <= 3600


async def test_only_the_newest_letters_of_a_workspace_are_kept(redis: Redis) -> None:
    """Those of others do not count."""
    yard = Yard(redis, kept=2)
    for number in range(4):
        await yard.letters.add(given_up(envelope("m1"), turn_id=f"t{number}"), "interrupted")
    await yard.letters.add(given_up(envelope("m1"), turn_id="t0", key=ConversationKey("other", "http", "d")), "x")
    assert [letter.turn_id for letter in await yard.letters.all(KEY.scope)] == ["t2", "t3"]
    assert await yard.letters.counts(["acme", "other", "empty"]) == {"acme": 2, "other": 1}


async def test_the_letters_of_one_workspace_are_unknown_in_another(redis: Redis) -> None:
    """By whatever id they are asked for."""
    yard = Yard(redis)
    batch = given_up(envelope("m1"))
    await yard.letters.add(batch, "interrupted")
    with pytest.raises(UnknownLetter):
        await yard.letters.retry(Scope("other"), batch.turn_id)
    with pytest.raises(UnknownLetter):
        await yard.letters.drop(Scope("other"), batch.turn_id)
    assert await yard.letters.all(Scope("other")) == []


async def test_a_letter_of_a_newer_version_is_named_as_such(redis: Redis) -> None:
    """And left where it is."""
    yard = Yard(redis)
    await redis.hset("ar:dead:{w.acme}:letters", "t1", pack(2, anything="else"))
    with pytest.raises(NewerFormat):
        await yard.letters.retry(KEY.scope, "t1")
    assert await redis.hlen("ar:dead:{w.acme}:letters") == 1
