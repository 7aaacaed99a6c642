"""Lets people change their mind about an answer that is being written, by whichever process: stop it, take the question
back, or say more."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from connectors.message import ConversationKey, StoreUnavailable
from runtime.envelopes import Batch, Merged
from runtime.hub import Hub, News
from runtime.mailbox import Mailbox
from runtime.progress import tell_none_comes

STOP = "stop"
MORE = "more"
DROP = "drop"
"""The hub's topics."""
_REMEMBERED = 1024
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class Wishes:
    """What people want of an answer that is being written; ``changed`` is set with each of them."""

    stop: bool = False
    more: bool = False
    """Something was said that is to be part of the question."""
    dropped: bool = False
    """The question was deleted: nobody misses an answer of which nothing was shown yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


async def interrupt(hub: Hub, turn_id: str) -> None:
    """Say that something waits that is to be made part of the question of a turn. If that is lost, the next turn
    answers it."""
    await hub.tell(MORE, {"turn": turn_id})


async def drop(hub: Hub, turn_id: str) -> None:
    """Say that the message was deleted that a turn answers. If that is lost, it is seen a little later."""
    await hub.tell(DROP, {"turn": turn_id})


class Stops:
    """The answers that are being written in this process, by turn; *mailbox* knows of all others.

    What is told of a turn before this process has begun with it is remembered.
    """

    def __init__(self, hub: Hub, mailbox: Mailbox) -> None:
        self._hub = hub
        self._mailbox = mailbox
        self._writing: dict[str, Wishes] = {}
        self._early: OrderedDict[str, Wishes] = OrderedDict()
        hub.hear(STOP, self._hear_stop)
        hub.hear(MORE, self._hear_more)
        hub.hear(DROP, self._hear_drop)

    async def stop(self, key: ConversationKey, *, all_else: bool = False) -> bool:
        """Have the answer in *key* end where it is; False where none is being written. With *all_else* what was said
        since is not answered, and whoever waits for that hears so.

        Raises `connectors.message.StoreUnavailable`.
        """
        turn_id, dropped = await self._mailbox.stop(key, all_else=all_else)
        await tell_none_comes(self._hub, key, dropped, gone=True)
        if turn_id:
            await self._hub.tell(STOP, {"turn": turn_id})
        return bool(turn_id)

    async def end_turn(self, key: ConversationKey, *, all_else: bool = False) -> None:
        """`stop`, and wait until the turn is recorded: what is deleted earlier would be recorded all the same.

        Bounded, because a platform that takes no replies now holds its turns up.
        """
        turn_id = await self._mailbox.at_hand(key)
        await self.stop(key, all_else=all_else)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while turn_id and await self._mailbox.at_hand(key) == turn_id:  # noqa: ASYNC110 - in any process
                    await asyncio.sleep(_LOOK_SECONDS)

    @contextmanager
    def heard(self, turn_id: str) -> Iterator[Wishes]:
        """While inside, the turn is being answered, and what people want of it is heard."""
        wishes = self._writing[turn_id] = self._early.pop(turn_id, Wishes())
        try:
            yield wishes
        finally:
            if self._writing.get(turn_id) is wishes:
                del self._writing[turn_id]

    async def look(self, batch: Batch, wishes: Wishes) -> None:
        """See whether the turn is to stop: the news of it may be lost. While the store is away nobody knows."""
        with suppress(StoreUnavailable):
            await self.learn(batch, wishes)

    async def learn(self, batch: Batch, wishes: Wishes) -> None:
        """See whether the turn is to stop. Raises `connectors.message.StoreUnavailable`."""
        stopped, dropped = await self._mailbox.is_stopped(batch)
        wishes.stop, wishes.dropped = wishes.stop or stopped, wishes.dropped or dropped

    async def merge(self, batch: Batch, wishes: Wishes) -> None:
        """Make what was said meanwhile part of the question. Nothing happens where that is none, or no more fits.

        Raises `runtime.envelopes.Merged` with the grown question (from then on it is the turn's, whoever answers it),
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`.
        """
        wishes.more = False
        grown = await self._mailbox.extend(batch)
        if len(grown.envelopes) > len(batch.envelopes):
            raise Merged(replace(grown, resumed=True))

    def _hear_stop(self, news: News) -> None:
        wishes = self._of(news["turn"])
        wishes.stop = True
        wishes.changed.set()

    def _hear_more(self, news: News) -> None:
        wishes = self._of(news["turn"])
        wishes.more = True
        wishes.changed.set()

    def _hear_drop(self, news: News) -> None:
        wishes = self._of(news["turn"])
        wishes.dropped = True
        wishes.changed.set()

    def _of(self, turn_id: str) -> Wishes:
        if turn_id in self._writing:
            return self._writing[turn_id]
        wishes = self._early.setdefault(turn_id, Wishes())
        if len(self._early) > _REMEMBERED:
            self._early.popitem(last=False)
        return wishes
