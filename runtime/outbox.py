"""Where everything that leaves is stored first, and handed to the process that has the way to its people.

What is stored, and under which keys, is in `runtime.part_states`.

An address is a connector's name, where any process that runs the connector can deliver, or ``<connector>@<process>``,
where the people are connected to one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from connectors.connector import Connector
from connectors.message import PARTITIONS, ConversationKey, Fence, OutboundMessage
from runtime.hub import EVERYBODY, Hub
from runtime.identifiers import new_turn_id
from runtime.part_states import PartStates, stream_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

REPLY = "reply"
"""The hub's topic for replies that wait to be delivered."""


class Outbox:
    """Everything that leaves. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, hub: Hub) -> None:
        self.states = PartStates(redis)
        self._hub = hub

    async def put(self, message: OutboundMessage, addresses: Iterable[str], fence: Fence | None = None) -> bool:
        """Store *message* for delivery at *addresses*, once for its turn; False if it was stored before.

        Raises `connectors.message.Superseded` where *fence* does not hold any more.
        """
        new = False
        for address in dict.fromkeys(addresses):
            for entered in await self.states.put(message, address, fence):
                new = True
                await self._ring(message.key.partition, entered)
        return new

    async def expect(self, key: ConversationKey, message_id: str, address: str) -> None:
        """Have the answer to a message delivered at *address*, too: somebody asked for it again there.

        Holds for an answer that is stored after this returns; one that is there already can be loaded.
        """
        await self.states.expect(key, message_id, address)

    async def _ring(self, partition: int, address: str) -> None:
        _, _, process = address.partition("@")
        await self._hub.tell(REPLY, {"partition": partition, "address": address}, process or EVERYBODY)

    async def notice(
        self, key: ConversationKey, address: str, text: str, answers: tuple[str, ...] = (), turn_id: str = ""
    ) -> None:
        """Tell people something that is no turn. Once for one *turn_id*, if given."""
        await self.put(OutboundMessage(key, turn_id or new_turn_id(), text, kind="notice", answers=answers), [address])

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far."""
        return await self.states.load(key, turn_id)

    async def forget(self, key: ConversationKey, turn_id: str = "") -> None:
        """Drop the stored reply of a turn, or, without one, all that was ever said in *key*."""
        await (self.states.forget_turn(key, turn_id) if turn_id else self.states.forget(key))


def address_of(connector: Connector, process: str) -> str:
    """Where what is said through *connector* is delivered, for people whose messages came to *process*."""
    return f"{connector.name}@{process}" if connector.capabilities.local else connector.name


def addresses_of(connectors: Mapping[str, Connector], process: str) -> list[str]:
    """The addresses at which *process* delivers."""
    return [address_of(connector, process) for connector in connectors.values()]


def streams_of(addresses: Sequence[str]) -> list[str]:
    """The streams of all partitions for *addresses*."""
    return [stream_of(partition, address) for address in addresses for partition in range(PARTITIONS)]
