"""Stops answers that are being written, in whichever process, or begins them anew because people said more."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from connectors.message import ConversationKey, StoreUnavailable
from runtime.coordination import Hub, News
from runtime.delivery import tell_none_comes
from runtime.turns.batch import Batch, BatchGrown
from runtime.turns.mailbox import Mailbox

STOP = "stop"
MORE = "more"
DROP = "drop"
"""The hub's topics."""
_REMEMBERED = 1024
_END_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class TurnSignals:
    """What people want of an answer that is being written; ``changed`` is set with each of them."""

    stop: bool = False
    more: bool = False
    """Something was said that is to be part of the question."""
    dropped: bool = False
    """The question was deleted: nobody misses an answer of which nothing was shown yet."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


async def notify_interrupted(hub: Hub, turn_id: str) -> None:
    """Say that something waits that is to be made part of the question of a turn. If that is lost, the next turn
    answers it."""
    await hub.tell(MORE, {"turn": turn_id})


async def notify_deleted(hub: Hub, turn_id: str) -> None:
    """Say that the message was deleted that a turn answers. If that is lost, it is seen a little later."""
    await hub.tell(DROP, {"turn": turn_id})


class Cancellations:
    """The answers that are being written in this process, by turn; *mailbox* knows of all others.

    What is told of a turn before this process has begun with it is remembered.
    """

    def __init__(self, hub: Hub, mailbox: Mailbox) -> None:
        self._hub = hub
        self._mailbox = mailbox
        self._writing: dict[str, TurnSignals] = {}
        self._early: OrderedDict[str, TurnSignals] = OrderedDict()
        hub.hear(STOP, self._receive_stop)
        hub.hear(MORE, self._receive_more)
        hub.hear(DROP, self._receive_drop)

    async def stop(self, key: ConversationKey, *, all_else: bool = False) -> bool:
        """Have the answer in *key* end where it is; False if none is being written. With *all_else* what was said
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
        turn_id = await self._mailbox.current_turn(key)
        await self.stop(key, all_else=all_else)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while turn_id and await self._mailbox.current_turn(key) == turn_id:  # noqa: ASYNC110 - in any process
                    await asyncio.sleep(_POLL_SECONDS)

    @contextmanager
    def listen(self, turn_id: str) -> Iterator[TurnSignals]:
        """Receive what people want of the turn while inside: it is being answered."""
        signals = self._writing[turn_id] = self._early.pop(turn_id, TurnSignals())
        try:
            yield signals
        finally:
            if self._writing.get(turn_id) is signals:
                del self._writing[turn_id]

    async def refresh(self, batch: Batch, signals: TurnSignals) -> None:
        """See whether the turn is to stop: the news of it may be lost. While the store is away nobody knows."""
        with suppress(StoreUnavailable):
            await self.read(batch, signals)

    async def read(self, batch: Batch, signals: TurnSignals) -> None:
        """See whether the turn is to stop. Raises `connectors.message.StoreUnavailable`."""
        stopped, dropped = await self._mailbox.is_stopped(batch)
        signals.stop, signals.dropped = signals.stop or stopped, signals.dropped or dropped

    async def grow_batch(self, batch: Batch, signals: TurnSignals) -> None:
        """Make what was said meanwhile part of the question. Nothing happens if that is none, or no more fits.

        Raises `runtime.turns.batch.BatchGrown` with the grown question (from then on it is the turn's, whoever answers
        it), `connectors.message.Superseded` and `connectors.message.StoreUnavailable`.
        """
        signals.more = False
        grown = await self._mailbox.extend(batch)
        if len(grown.envelopes) > len(batch.envelopes):
            raise BatchGrown(replace(grown, resumed=True))

    def _receive_stop(self, news: News) -> None:
        signals = self._of(news["turn"])
        signals.stop = True
        signals.changed.set()

    def _receive_more(self, news: News) -> None:
        signals = self._of(news["turn"])
        signals.more = True
        signals.changed.set()

    def _receive_drop(self, news: News) -> None:
        signals = self._of(news["turn"])
        signals.dropped = True
        signals.changed.set()

    def _of(self, turn_id: str) -> TurnSignals:
        if turn_id in self._writing:
            return self._writing[turn_id]
        signals = self._early.setdefault(turn_id, TurnSignals())
        if len(self._early) > _REMEMBERED:
            self._early.popitem(last=False)
        return signals
