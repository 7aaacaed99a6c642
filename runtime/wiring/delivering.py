"""What brings answers to the platforms, and shows there that one is on its way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from config.settings import Settings
from runtime.deliverer import Deliverer
from runtime.delivery import Delivery
from runtime.embedded.child import beside
from runtime.locating import Locator
from runtime.rate_limiter import RateLimiters
from runtime.shows import Shows
from runtime.wiring.entrance import Entrance
from runtime.wiring.kept import Kept


@dataclass(frozen=True)
class Delivering:
    """The parts between the outbox and the platforms."""

    shows: Shows
    deliverer: Deliverer
    locator: Locator

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Replies are delivered, growing ones shown and files located, as long as the block lasts."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.shows.running())
            await stack.enter_async_context(beside(self.deliverer.run(), "deliverer"))
            await stack.enter_async_context(beside(self.locator.run(), "locator"))
            yield


def wire_delivering(settings: Settings, kept: Kept, entrance: Entrance) -> Delivering:
    """All of it shares one rate limiter per connector, so that a platform's limits hold for previews and replies."""
    connectors, states, rate_limiters = entrance.connectors, kept.outbox.states, RateLimiters()
    shows = Shows(
        connectors,
        states,
        rate_limiters,
        kept.hub,
        streams=settings.stream_replies,
        acknowledgement=settings.acknowledgement_reaction,
    )
    delivery = Delivery(states, connectors, rate_limiters, settings.delivery_ambiguous)
    alone = settings.redis_url is None
    deliverer = Deliverer(settings, kept.outbox, connectors, delivery, shows, kept.hub, alone=alone)
    return Delivering(shows, deliverer, Locator(connectors, kept.hub))
