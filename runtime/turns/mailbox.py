"""The durable inbox: one mailbox per conversation and lane, emptied in order by one worker at a time.

Keys (owner ``mailbox``, in the conversation's partition): ``inbox`` the waiting messages, ``current`` the turn that
was made of the first of them and the token of the worker that holds the conversation, ``seen`` one per message identity
with the turn that answered it, ``put-back`` one per turn that was given up and is tried again, ``work`` a stream of the
conversations that have something waiting, handed to workers by its consumer group, ``last`` each conversation's newest
message. What belongs to the lane of commands has ``commands-`` before its word.

A conversation stands in ``work`` once, from its first waiting message until its mailbox is empty. A worker that was
given it claims it with a token of its own and renews its hold; one that stays silent for the lease loses it to another,
whose token makes every write of the first void (`connectors.message.Fence`). A message leaves the inbox only when its
turn is done, so a turn that was interrupted is taken up again under the same turn id. ``current`` counts how often a
turn failed and how often its process ended over it, apart from each other.
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
    Superseded,
    encode_id,
    new_turn_id,
    partition_tag,
    redis_key,
)
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
        self._store = redis.register_script(scripts.STORE)
        self._put_back = redis.register_script(scripts.PUT_BACK)
        self._claim = redis.register_script(scripts.CLAIM)
        self._begin = redis.register_script(scripts.BEGIN)
        self._renew = redis.register_script(scripts.RENEW)
        self._release = redis.register_script(scripts.RELEASE)
        self._take = redis.register_script(scripts.TAKE)
        self._extend = redis.register_script(scripts.EXTEND)
        self._done = redis.register_script(scripts.DONE)
        self._next = redis.register_script(scripts.NEXT)
        self._stop = redis.register_script(scripts.STOP)
        self._drop = redis.register_script(scripts.DROP)
        self._amend = redis.register_script(scripts.AMEND)

    # What gateways do

    async def store(self, key: ConversationKey, envelope: Envelope) -> PutResult:
        """Put *envelope* into its mailbox as one atomic step, unless its identity was seen before.

        Raises `MailboxFull`.
        """
        new, turn_id, current_turn, held = await self._store(
            keys=[
                self._seen(key, envelope.message.message_id),
                self._key(key, "inbox"),
                self._work(key.tag),
                self._last(key.tag),
                self._key(key, "current"),
            ],
            args=[_SEEN_SECONDS, pack_envelope(envelope), key.encoded, envelope.message.message_id, MAX_WAITING],
        )
        if new == _FULL:
            raise MailboxFull(f"{MAX_WAITING} messages wait in {key.context_id}", first=bool(turn_id))
        return PutResult(bool(new), turn_id, current_turn, bool(held))

    async def put_back(self, key: ConversationKey, turn_id: str, envelopes: Sequence[Envelope]) -> bool:
        """Have the messages of a turn that was given up answered after all, behind what waits, by a new turn or more.

        False if those of *turn_id* were put back before: nothing is answered twice. Raises `MailboxFull`.
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
                *(pack_envelope(replace(envelope, model=None)) for envelope in envelopes),
            ],
        )
        if put == _FULL:
            raise MailboxFull(f"{MAX_WAITING} messages wait in {key.context_id}; try again when they are answered")
        return bool(put)

    async def refuse(self, key: ConversationKey, message_id: str) -> None:
        """Note the identity of a message that was not stored as seen, so that it is a duplicate if it comes again."""
        await self._redis.set(self._seen(key, message_id), "", nx=True, ex=_SEEN_SECONDS)

    async def known(self, key: ConversationKey, message_id: str) -> str | None:
        """None for a message identity not seen before, else the turn that answered it ("" while none has)."""
        seen: Any = await self._redis.get(self._seen(key, message_id))
        return None if seen is None else str(seen)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """The turn that answered a message that was seen before; while it is not over, the turn at hand in
        the conversation, which may be the one or an earlier one; "" if there is none."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(self._seen(key, message_id))
            pipe.hget(self._key(key, "current"), "turn")
            answered, current_turn = await pipe.execute()
        return str(answered or current_turn or "")

    async def amend(self, key: ConversationKey, message_id: str, envelope: Envelope | None) -> AmendResult:
        """Put *envelope* in the place of a message that still waits, or take that out if it is None."""
        found: Any = await self._amend(
            keys=[self._key(key, "current"), self._key(key, "inbox"), self._seen(key, message_id)],
            args=[message_id, pack_envelope(envelope) if envelope else ""],
        )
        return AmendResult(found)

    async def stop(self, key: ConversationKey, *, all_else: bool = False) -> tuple[str, tuple[str, ...]]:
        """Have the turn that is being answered in *key* end where it is (`is_stopped`); empty if none is. With
        *all_else* what waits behind it is dropped: those messages' ids."""
        turn_id, dropped = await self._stop(keys=[self._key(key, one) for one in ("current", "inbox")[: 1 + all_else]])
        return str(turn_id), tuple(unpack_envelope(text).message.message_id for text in dropped)

    async def drop(self, key: ConversationKey, message_id: str) -> str:
        """Say that the message is gone that is answered in *key*; the turn, empty if it is not that one alone."""
        return str(await self._drop(keys=[self._key(key, "current"), self._key(key, "inbox")], args=[message_id]))

    async def last_seen(self, connector: str) -> dict[ConversationKey, str]:
        """The newest message that was stored of each conversation of *connector*."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(PARTITIONS):
                pipe.hgetall(self._last(partition_tag(partition)))
            found = await pipe.execute()
        newest = {ConversationKey.decode(encoded): message for one in found for encoded, message in one.items()}
        return {key: message for key, message in newest.items() if key.connector == connector}

    async def forget_workspace(self, workspace_id: str) -> None:
        """Drop the newest messages of a workspace's conversations, which `last_seen` would tell of."""
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
        """Make what workers need to be given work."""
        await self._streams.prepare(self._all_work)

    async def offers(self, partitions: Collection[int], each: int) -> list[WorkItem]:
        """Conversations of *partitions* that nobody was given yet, at most *each* of every one."""
        names = [self._work(partition_tag(partition)) for partition in partitions]
        return [_offer(given) for given in await self._streams.read_new(names, each)]

    async def abandoned(self, silent_seconds: float, most: int, *, spares: bool = False) -> list[WorkItem]:
        """Conversations whose worker has not renewed its hold for *silent_seconds*: now given to this one, at most so
        many. *spares*: none of the living, see `WorkStreams.reclaim`."""
        found = await self._streams.reclaim(self._all_work, silent_seconds, most, spares=spares)
        return [_offer(given) for given in found]

    async def pass_on(self, offers: Sequence[WorkItem]) -> None:
        """Let others have the conversations of *offers*, none of them claimed: behind what else waits."""
        await self._streams.requeue(StreamEntry(self._work(offer.key.tag), offer.entry, {}) for offer in offers)

    async def claim(self, offer: WorkItem) -> Lease | None:
        """Hold the conversation of *offer*; every earlier hold of it is void. None if nothing waits in it."""
        fence = Fence(self._key(offer.key, "current"), uuid.uuid4().hex)
        held = await self._claim(keys=[fence.name, self._work(offer.key.tag)], args=[offer.entry, fence.token, GROUP])
        return Lease(offer.key, offer.entry, fence) if held else None

    async def begin(self, offer: WorkItem) -> tuple[Lease, Batch | None] | None:
        """`claim` and `take` in one step."""
        fence = Fence(self._key(offer.key, "current"), uuid.uuid4().hex)
        taken: Any = await self._begin(
            keys=[fence.name, self._work(offer.key.tag), self._key(offer.key, "inbox")],
            args=[offer.entry, fence.token, GROUP, new_turn_id(), self._most],
        )
        if taken == 0:
            return None
        lease = Lease(offer.key, offer.entry, fence)
        return lease, None if taken == 1 else _batch(lease, taken)

    async def renew(self, lease: Lease) -> bool:
        """Say that *lease* is still held; False where it is not any more."""
        return bool(
            await self._renew(
                keys=[lease.fence.name, self._work(lease.key.tag)],
                args=[lease.fence.token, GROUP, self._streams.consumer, lease.entry],
            )
        )

    async def release(self, lease: Lease) -> bool:
        """Let the conversation go; whether something waits in it, so that it is offered again.

        Raises `connectors.message.Superseded`.
        """
        waiting = await self._release(
            keys=[lease.fence.name, self._key(lease.key, "inbox"), self._work(lease.key.tag)],
            args=[lease.fence.token, GROUP, lease.entry, lease.key.encoded],
        )
        _check(waiting)
        return bool(waiting)

    async def take(self, lease: Lease, *, again: bool = False) -> Batch | None:
        """The turn to be answered now: the one that was interrupted, else one of all that waits.

        Taken again under the same *lease*, it has failed once more; if its last holder has ended without handing it
        back, it has crashed once more. With *again* neither is counted: it was only the store that was away. Raises
        `connectors.message.Superseded`.
        """
        taken: Any = await self._take(
            keys=[lease.fence.name, self._key(lease.key, "inbox")],
            args=[new_turn_id(), self._most, lease.fence.token, 0 if again else 1],
        )
        _check(taken)
        return _batch(lease, taken) if taken else None

    async def extend(self, batch: Batch) -> Batch:
        """*batch* with what came since it was taken and belongs to it. Raises `connectors.message.Superseded`."""
        texts: Any = await self._extend(
            keys=[batch.fence.name, self._key(batch.key, "inbox")], args=[batch.turn_id, MAX_BATCH, batch.fence.token]
        )
        _check(texts)
        envelopes = tuple(unpack_envelope(text) for text in texts)
        return replace(batch, envelopes=envelopes) if envelopes else batch

    async def done(self, batch: Batch) -> bool:
        """Let go of the messages of *batch*: its turn is over. False if it was before.

        Raises `connectors.message.Superseded`.
        """
        seen = [self._seen(batch.key, envelope.message.message_id) for envelope in batch.envelopes]
        ended = await self._done(
            keys=[batch.fence.name, self._key(batch.key, "inbox"), *seen], args=[batch.turn_id, batch.fence.token]
        )
        _check(ended)
        return bool(ended)

    async def next(self, lease: Lease, over: Batch) -> Batch | None:
        """`done` with the batch that is *over*, and `take` the next one; if there is none, the conversation is let
        go. One step. Raises `connectors.message.Superseded`.
        """
        seen = [self._seen(over.key, envelope.message.message_id) for envelope in over.envelopes]
        taken: Any = await self._next(
            keys=[lease.fence.name, self._key(lease.key, "inbox"), self._work(lease.key.tag), *seen],
            args=[
                *(over.turn_id, lease.fence.token, new_turn_id(), self._most),
                *(GROUP, lease.entry, lease.key.encoded),
            ],
        )
        _check(taken)
        return _batch(lease, taken) if taken else None

    async def current_turn(self, key: ConversationKey) -> str:
        """The turn that is being answered in *key*; empty if none is."""
        turn_id: Any = await self._redis.hget(self._key(key, "current"), "turn")
        return str(turn_id or "")

    async def ready(self) -> list[ConversationKey]:
        """The conversations that have something waiting, or being answered."""
        return [_offer(given).key for given in await self._streams.all(self._all_work)]

    async def is_stopped(self, batch: Batch) -> tuple[bool, bool]:
        """Whether the turn of *batch* is to end where it is, and whether the message that it answers is gone."""
        stopped, dropped = await self._redis.hmget(batch.fence.name, ["stop", "dropped"])
        return stopped == batch.turn_id, dropped == batch.turn_id

    @property
    def _all_work(self) -> list[str]:
        return [self._work(partition_tag(partition)) for partition in range(PARTITIONS)]

    @property
    def _most(self) -> int:
        """Messages that are answered together; every command by itself."""
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


def _offer(given: StreamEntry) -> WorkItem:
    return WorkItem(ConversationKey.decode(given.fields["key"]), given.id)


def _batch(lease: Lease, taken: Any) -> Batch:
    turn_id, attempt, resumed, texts, crashes = taken
    envelopes = tuple(unpack_envelope(text) for text in texts)
    return Batch(lease.key, turn_id, int(attempt), envelopes, lease.fence, bool(resumed), int(crashes))
