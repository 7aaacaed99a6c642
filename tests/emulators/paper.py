"""A platform that can tell nothing: what is sent twice stands there twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from connectors.connector import Accept, Capabilities, ConnectionState, Health
from connectors.message import (
    Author,
    InboundMessage,
    OutboundMessage,
    OutboundPart,
    Receipt,
    StoreUnavailable,
)
from runtime.coordination import WorkStreams
from runtime.delivery.outbox import streams_of
from tests.emulators.bot import Bot, longer_pauses


class Paper:
    """The platform; ``shown`` is the place and text of everything that was sent."""

    name = "paper"
    capabilities = Capabilities(max_part_units=10_000)
    health = Health(ConnectionState.CONNECTED)

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []

    async def run(self, accept: Accept) -> None:
        await asyncio.Event().wait()

    def render(self, message: OutboundMessage) -> Sequence[OutboundPart]:
        return [OutboundPart(0, 1, message.text, message.turn_id)]

    async def send(self, message: OutboundMessage, part: OutboundPart) -> Receipt:
        self.shown.append((message.key.external_id, part.text))
        return Receipt(str(len(self.shown)))

    async def close(self) -> None:
        return None

    def texts(self, place: str) -> list[str]:
        """What was sent to *place*."""
        return [text for one, text in self.shown if one == place]


def written(place: str, message_id: str = "m1", text: str = "tell me of the harbour fee") -> InboundMessage:
    """What somebody says in *place*."""
    return InboundMessage("paper", place, message_id, Author("7", "Ann"), text, direct=True)


async def say(bot: Bot, message: InboundMessage) -> None:
    """Somebody says something; the platform brings it again until it is acknowledged."""
    while True:
        try:
            await bot.runtime.accept(message)
        except StoreUnavailable:
            await asyncio.sleep(0.01)
        else:
            return


async def until_over(bot: Bot) -> None:
    """Wait until nobody has anything to do any more. What this asks names no place."""
    waiting = WorkStreams(bot.runtime.store.client)
    for pause in longer_pauses():
        if not await bot.runtime.mailbox.ready() and not await waiting.all(streams_of(["paper"])):
            return
        await asyncio.sleep(pause)
