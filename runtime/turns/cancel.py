"""Stops running answers, in any process, or restarts them because people said more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from connectors.message import ConversationKey, StoreUnavailable
from runtime.coordination import Hub, News
from runtime.delivery import notify_unanswered
from runtime.turns.batch import Batch, BatchGrown
from runtime.turns.mailbox import Mailbox

STOP = "stop"
MORE = "more"
DROP = "drop"
"""The hub's topics."""
_END_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(slots=True)
class TurnSignals:
    """The wishes of people about a running answer. ``changed`` is set with each of them."""

    stop: bool = False
    more: bool = False
    """A message came that may join the question."""
    dropped: bool = False
    """The question was deleted: if nothing of the answer was shown, none is wanted."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


async def notify_interrupted(hub: Hub, turn_id: str) -> None:
    """Announce a waiting message that may join the question of a turn. If the news is lost, the next turn answers
    it."""
    await hub.tell(MORE, {"turn": turn_id})


async def notify_deleted(hub: Hub, turn_id: str) -> None:
    """Announce that the message of a turn was deleted. If the news is lost, the turn sees it a little later."""
    await hub.tell(DROP, {"turn": turn_id})


class Cancellations:
    """The signals of the turns that run in this process; *mailbox* stores those of all turns."""

    def __init__(self, hub: Hub, mailbox: Mailbox) -> None:
        self._hub = hub
        self._mailbox = mailbox
        self._writing: dict[str, TurnSignals] = {}
        hub.hear(STOP, lambda news: self._receive(news, "stop"))
        hub.hear(MORE, lambda news: self._receive(news, "more"))
        hub.hear(DROP, lambda news: self._receive(news, "dropped"))

    async def stop(self, key: ConversationKey, *, all_else: bool = False) -> bool:
        """Stop the running answer in *key*; return False if there is none. With *all_else* the waiting messages are
        dropped, too, and those who wait for their answers are told.

        Raises `connectors.message.StoreUnavailable`.
        """
        turn_id, dropped = await self._mailbox.stop(key, all_else=all_else)
        await notify_unanswered(self._hub, key, dropped, gone=True)
        if turn_id:
            await self._hub.tell(STOP, {"turn": turn_id})
        return bool(turn_id)

    async def end_turn(self, key: ConversationKey, *, all_else: bool = False) -> None:
        """Stop the answer in *key* and wait until its turn is recorded: else it would be recorded after a deletion.

        Waits at most `_END_SECONDS`, because a turn waits for a platform that takes no replies now.
        """
        turn_id = await self._mailbox.current_turn(key)
        await self.stop(key, all_else=all_else)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while turn_id and await self._mailbox.current_turn(key) == turn_id:  # noqa: ASYNC110 - in any process
                    await asyncio.sleep(_POLL_SECONDS)

    @contextmanager
    def listen(self, turn_id: str) -> Iterator[TurnSignals]:
        """Receive the signals of the turn while inside."""
        signals = self._writing[turn_id] = TurnSignals()
        try:
            yield signals
        finally:
            if self._writing.get(turn_id) is signals:
                del self._writing[turn_id]

    async def refresh(self, batch: Batch, signals: TurnSignals) -> None:
        """Read the stored signals of the turn, because news of them may be lost. Do nothing while the store is away."""
        with suppress(StoreUnavailable):
            await self.read(batch, signals)

    async def read(self, batch: Batch, signals: TurnSignals) -> None:
        """Read the stored signals of the turn. Raises `connectors.message.StoreUnavailable`."""
        stopped, dropped = await self._mailbox.is_stopped(batch)
        signals.stop, signals.dropped = signals.stop or stopped, signals.dropped or dropped

    async def grow_batch(self, batch: Batch, signals: TurnSignals) -> None:
        """Add the messages that came meanwhile to the question. Do nothing if there are none, or no more fit.

        Raises `runtime.turns.batch.BatchGrown` with the larger question, which is stored as the turn's, and
        `connectors.message.Superseded` and `connectors.message.StoreUnavailable`.
        """
        signals.more = False
        grown = await self._mailbox.extend(batch)
        if len(grown.envelopes) > len(batch.envelopes):
            raise BatchGrown(replace(grown, resumed=True))

    def _receive(self, news: News, wish: Literal["stop", "more", "dropped"]) -> None:
        signals = self._writing.get(news["turn"])
        if signals is not None:
            setattr(signals, wish, True)
            signals.changed.set()
