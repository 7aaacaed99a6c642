"""The durable inbox: one mailbox per conversation and lane, emptied in order by one worker at a time.

Keys (owner ``mailbox``, in the conversation's partition; those of the lane of commands have ``commands-`` before their
name):

- ``inbox``: the waiting messages.
- ``current``: the turn that answers the first of them, and the token of the worker that holds the conversation.
- ``seen``: one per message identity, with the turn that answered it.
- ``put-back``: one per turn that was given up and is tried again.
- ``work``: a stream of the conversations with waiting messages. Its consumer group hands them to workers.
- ``last``: each conversation's newest message, but no command of the platform's own, which no history has.

A conversation has one entry in ``work``, from its first waiting message until its mailbox is empty. The worker that
gets the entry claims the conversation with a token and renews its lease. If it does not renew in time, another worker
may claim it, and the new token makes every write of the first void (`connectors.message.Fence`). A message leaves the
inbox when its turn is done. So an interrupted turn is resumed under the same turn id. ``current`` counts the failures
of the turn, and apart from them the crashes of its process.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectors.message import (
    PARTITIONS,
    ConversationKey,
    Fence,
    InboundKind,
    Superseded,
    encode_id,
    new_turn_id,
    partition_tag,
    redis_key,
)
from connectors.redis_calls import RedisCall, RoundTrip, ask
from runtime.coordination import GROUP, StreamEntry, WorkStreams
from runtime.turns import mailbox_scripts as scripts
from runtime.turns.batch import (
    AmendResult,
    Batch,
    Envelope,
    Lane,
    Lease,
    MailboxFull,
    PutResult,
    WorkItem,
    pack_envelope,
    unpack_envelope,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

_OWNER = "mailbox"
_SEEN_SECONDS = 7 * 24 * 3600
"""How long a message's identity is remembered: longer than any platform delivers again."""
MAX_BATCH = 20
MAX_WAITING = 200
"""Messages that may wait in one conversation."""
_STALE = -1
_FULL = -2


class Mailbox:
    """All mailboxes of one *lane*. Raises `connectors.message.StoreUnavailable` throughout.

    *worker* is this process's name in the consumer group.
    """

    def __init__(self, redis: Redis, lane: Lane = Lane.TURNS, worker: str = "") -> None:
        self._redis = redis
        self._lane = lane
        self._streams = WorkStreams(redis, worker)
        self._all_work = [self._work(partition_tag(partition)) for partition in range(PARTITIONS)]
        self._store = redis.register_script(scripts.STORE)
        self._put_back = redis.register_script(scripts.PUT_BACK)
        self._claim = redis.register_script(scripts.CLAIM)
        self._renew = redis.register_script(scripts.RENEW)
        self._release = redis.register_script(scripts.RELEASE)
        self._extend = redis.register_script(scripts.EXTEND)
        self._stop = redis.register_script(scripts.STOP)
        self._drop = redis.register_script(scripts.DROP)
        self._amend = redis.register_script(scripts.AMEND)

    # What gateways do

    async def store(self, key: ConversationKey, envelope: Envelope) -> PutResult:
        """Put *envelope* into its mailbox as one atomic step, unless its identity was seen before.

        Raises `MailboxFull`.
        """
        message = envelope.message
        last = "" if message.kind is InboundKind.COMMAND else message.message_id
        new, turn_id, current_turn, held = await self._store(
            keys=[
                self._seen(key, message.message_id),
                self._key(key, "inbox"),
                self._work(key.tag),
                self._last(key.tag),
                self._key(key, "current"),
            ],
            args=[_SEEN_SECONDS, pack_envelope(envelope), key.encoded, last, MAX_WAITING],
        )
        if new == _FULL:
            raise MailboxFull(f"{MAX_WAITING} messages wait in {key.context_id}", first=bool(turn_id))
        return PutResult(bool(new), turn_id, current_turn, bool(held))

    async def put_back(self, key: ConversationKey, turn_id: str, envelopes: Sequence[Envelope]) -> bool:
        """Put the messages of a turn that was given up behind those that wait; new turns will answer them.

        Return False if those of *turn_id* were put back before: nothing is answered twice. Raises `MailboxFull`.
        """
        put = await self._put_back(
            keys=[
                self._key(key, "inbox"),
                self._work(key.tag),
                self._key(key, "current"),
                redis_key(_OWNER, key.tag, f"{self._lane}put-back", key.encoded, turn_id),
            ],
            args=[
                key.encoded,
                max(MAX_WAITING, len(envelopes)),
                _SEEN_SECONDS,
                *map(pack_envelope, envelopes),
            ],
        )
        if put == _FULL:
            raise MailboxFull(f"{MAX_WAITING} messages wait in {key.context_id}; try again when they are answered")
        return bool(put)

    async def refuse(self, key: ConversationKey, message_id: str) -> None:
        """Mark a message that was not stored as seen, so that it is a duplicate if it comes again."""
        await self._redis.set(self._seen(key, message_id), "", nx=True, ex=_SEEN_SECONDS)

    async def known(self, key: ConversationKey, message_id: str) -> str | None:
        """Return the turn that answered a message: "" if none has yet, None if the message was not seen before."""
        seen: Any = await self._redis.get(self._seen(key, message_id))
        return None if seen is None else str(seen)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """Return the turn that answered a message. If none has yet, return the current turn of the conversation, which
        may answer it or an earlier one; "" if there is none."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._seen(key, message_id))
            pipe.hget(self._key(key, "current"), "turn")
            answered, current_turn = await pipe.execute()
        return str(answered or current_turn or "")

    async def amend(self, key: ConversationKey, message_id: str, envelope: Envelope | None) -> AmendResult:
        """Replace a waiting message by *envelope*, or remove it if that is None."""
        found: Any = await self._amend(
            keys=[self._key(key, "current"), self._key(key, "inbox"), self._seen(key, message_id)],
            args=[message_id, pack_envelope(envelope) if envelope else ""],
        )
        return AmendResult(found)

    async def stop(self, key: ConversationKey, *, all_else: bool = False) -> tuple[str, tuple[str, ...]]:
        """Ask the current turn of *key* to end where it is (see `is_stopped`). With *all_else* drop the messages behind
        it. Return the turn, "" if there is none, and the ids of the dropped messages."""
        parts = ("current", "inbox") if all_else else ("current",)
        turn_id, dropped = await self._stop(keys=[self._key(key, part) for part in parts])
        return str(turn_id), tuple(unpack_envelope(text).message.message_id for text in dropped)

    async def drop(self, key: ConversationKey, message_id: str) -> str:
        """Note that a message was deleted while it is answered. Return the turn; "" if it does not answer that message
        alone."""
        return str(await self._drop(keys=[self._key(key, "current"), self._key(key, "inbox")], args=[message_id]))

    async def last_seen(self, connector: str) -> dict[ConversationKey, str]:
        """Return the newest stored message of each conversation of *connector*."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(PARTITIONS):
                pipe.hgetall(self._last(partition_tag(partition)))
            found = await pipe.execute()
        newest = {ConversationKey.decode(encoded): message for part in found for encoded, message in part.items()}
        return {key: message for key, message in newest.items() if key.connector == connector}

    async def forget_workspace(self, workspace_id: str) -> None:
        """Delete what `last_seen` knows of a workspace's conversations."""
        names = [self._last(partition_tag(partition)) for partition in range(PARTITIONS)]
        async with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hkeys(name)
            found = await pipe.execute()
        for name, stored in zip(names, found, strict=True):
            own = [encoded for encoded in stored if ConversationKey.decode(encoded).workspace_id == workspace_id]
            if own:
                await self._redis.hdel(name, *own)

    # What workers do

    async def prepare(self) -> None:
        """Create the streams' consumer groups, which workers need."""
        await self._streams.prepare(self._all_work)

    async def offers(self, partitions: Collection[int], each: int) -> list[WorkItem]:
        """Take conversations of *partitions* that no worker has yet, at most *each* of every partition."""
        names = [self._work(partition_tag(partition)) for partition in partitions]
        return [_offer(entry) for entry in await self._streams.read_new(names, each)]

    async def abandoned(self, silent_seconds: float, most: int, *, spares: bool = False) -> list[WorkItem]:
        """Take over at most *most* conversations whose worker has not renewed its lease for *silent_seconds*. With
        *spares* none of a living worker, see `WorkStreams.reclaim`."""
        found = await self._streams.reclaim(self._all_work, silent_seconds, most, spares=spares)
        return [_offer(entry) for entry in found]

    async def pass_on(self, offers: Sequence[WorkItem]) -> None:
        """Give *offers*, none of which is claimed, back to the end of the stream, for other workers."""
        await self._streams.requeue(StreamEntry(self._work(offer.key.tag), offer.entry, {}) for offer in offers)

    async def claim(self, offer: WorkItem) -> Lease | None:
        """Claim the conversation of *offer*: every earlier lease is void. Return None if nothing waits there."""
        fence = Fence(self._key(offer.key, "current"), uuid.uuid4().hex)
        done = await self._claim(keys=[fence.name, self._work(offer.key.tag)], args=[offer.entry, fence.token, GROUP])
        return Lease(offer.key, offer.entry, fence) if done else None

    async def renew(self, lease: Lease) -> bool:
        """Renew *lease*; return False if it is lost."""
        return bool(
            await self._renew(
                keys=[lease.fence.name, self._work(lease.key.tag)],
                args=[lease.fence.token, GROUP, self._streams.consumer, lease.entry],
            )
        )

    async def release(self, lease: Lease) -> bool:
        """End *lease*. Return whether something waits in the conversation: then it is offered again.

        Raises `connectors.message.Superseded`.
        """
        waiting = await self._release(
            keys=[lease.fence.name, self._key(lease.key, "inbox"), self._work(lease.key.tag)],
            args=[lease.fence.token, GROUP, lease.entry, lease.key.encoded],
        )
        _check(waiting)
        return bool(waiting)

    async def take(self, lease: Lease, *, over: Batch | None = None, again: bool = False) -> Batch | None:
        """Return the next turn: the interrupted one, else a new one for the messages that wait. If none do, end *lease*
        and return None. The turn of *over* ends first, see `done`.

        If the turn was taken before under the same *lease*, that counts as a failure; if its last holder ended without
        handing it back, as a crash. With *again* neither is counted: only the store was away. Raises
        `connectors.message.Superseded`.
        """
        trip = RoundTrip(self._redis)
        ended = trip.add(self._done_call(over)) if over is not None else None
        taken = trip.add(self._take_call(lease, again=again))
        await trip.send()
        if ended is not None:
            ended.result()
        return taken.result()

    def _take_call(self, lease: Lease, *, again: bool) -> RedisCall[Batch | None]:
        def batch(taken: Any) -> Batch | None:
            _check(taken)
            return _batch(lease, taken) if taken else None

        return RedisCall.script(
            scripts.TAKE,
            keys=[lease.fence.name, self._key(lease.key, "inbox"), self._work(lease.key.tag)],
            args=[new_turn_id(), self._most, lease.fence.token, 0 if again else 1, GROUP, lease.entry],
            parse=batch,
        )

    async def extend(self, batch: Batch) -> Batch:
        """Return *batch* with the messages that came since and belong to it. Raises `connectors.message.Superseded`."""
        texts: Any = await self._extend(
            keys=[batch.fence.name, self._key(batch.key, "inbox")], args=[batch.turn_id, MAX_BATCH, batch.fence.token]
        )
        _check(texts)
        envelopes = tuple(unpack_envelope(text) for text in texts)
        return replace(batch, envelopes=envelopes) if envelopes else batch

    async def done(self, batch: Batch) -> bool:
        """Delete the messages of *batch*: its turn is over. Return False if it was over before.

        Raises `connectors.message.Superseded`.
        """
        return await ask(self._redis, self._done_call(batch))

    def _done_call(self, batch: Batch) -> RedisCall[bool]:
        def is_new(ended: Any) -> bool:
            _check(ended)
            return bool(ended)

        seen = [self._seen(batch.key, envelope.message.message_id) for envelope in batch.envelopes]
        return RedisCall.script(
            scripts.DONE,
            keys=[batch.fence.name, self._key(batch.key, "inbox"), *seen],
            args=[batch.turn_id, batch.fence.token],
            parse=is_new,
        )

    async def current_turn(self, key: ConversationKey) -> str:
        """Return the turn that is being answered in *key*; "" if none is."""
        turn_id: Any = await self._redis.hget(self._key(key, "current"), "turn")
        return str(turn_id or "")

    async def ready(self) -> list[ConversationKey]:
        """Return the conversations in which messages wait or are being answered."""
        return [_offer(entry).key for entry in await self._streams.all(self._all_work)]

    async def is_stopped(self, batch: Batch) -> tuple[bool, bool]:
        """Return whether the turn of *batch* must stop, and whether the message that it answers was deleted."""
        stopped, dropped = await self._redis.hmget(batch.fence.name, ["stop", "dropped"])
        return stopped == batch.turn_id, dropped == batch.turn_id

    @property
    def _most(self) -> int:
        """The most messages that one turn answers: each command has its own turn."""
        return 1 if self._lane is Lane.COMMANDS else MAX_BATCH

    def _seen(self, key: ConversationKey, message_id: str) -> str:
        return redis_key(_OWNER, key.tag, f"{self._lane}seen", key.encoded, encode_id(message_id))

    def _key(self, key: ConversationKey, part: str) -> str:
        return redis_key(_OWNER, key.tag, f"{self._lane}{part}", key.encoded)

    def _last(self, tag: str) -> str:
        return redis_key(_OWNER, tag, f"{self._lane}last")

    def _work(self, tag: str) -> str:
        return redis_key(_OWNER, tag, f"{self._lane}work")


def _check(answer: object) -> None:
    if answer == _STALE:
        raise Superseded("another worker holds the conversation now")


def _offer(entry: StreamEntry) -> WorkItem:
    return WorkItem(ConversationKey.decode(entry.fields["key"]), entry.id)


def _batch(lease: Lease, taken: Any) -> Batch:
    turn_id, attempt, resumed, texts, crashes = taken
    envelopes = tuple(unpack_envelope(text) for text in texts)
    return Batch(lease.key, turn_id, int(attempt), envelopes, lease.fence, bool(resumed), int(crashes))
