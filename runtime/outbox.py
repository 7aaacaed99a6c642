"""Where everything that leaves is stored first, and handed to the process that has the way to its people.

What is stored, and under which keys, is in `runtime.part_states`.

An address is a connector's name, where any process that runs the connector can deliver, or ``<connector>@<process>``,
where the people are connected to one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from connectors.connector import Connector
from connectors.message import PARTITIONS, Button, ConversationKey, Fence, OutboundMessage, StoreUnavailable
from runtime.hub import EVERYBODY, Hub
from runtime.identifiers import new_turn_id
from runtime.part_states import PartStates, stream_of
from runtime.parts import Entered
from runtime.work_streams import Given, WorkStreams

if TYPE_CHECKING:
    from redis.asyncio import Redis

REPLY = "reply"
"""The hub's topic for replies that wait to be delivered."""


class DeliversHere(Protocol):
    """Who delivers at some addresses in this very process."""

    def delivers_at(self, address: str) -> bool:
        """Whether *address* is one of them."""

    def room(self, address: str) -> int:
        """How many entries of what waits at an address that any process may deliver at it would take now."""

    def take(self, given: Sequence[Given], known: OutboundMessage | None = None) -> None:
        """Deliver what was given, of which *known*, if given, need not be read again."""

    def look(self, partition: int, address: str) -> None:
        """Something waits at an address, and may have been given already without anybody having been told."""

    def missed(self) -> None:
        """The same, wherever it may be."""


class Outbox:
    """Everything that leaves. Raises `connectors.message.StoreUnavailable` throughout."""

    def __init__(self, redis: Redis, hub: Hub) -> None:
        self.states = PartStates(redis)
        self.streams = WorkStreams(redis, self.states.name)
        self._hub = hub
        self._here: DeliversHere | None = None

    @contextmanager
    def delivered_here(self, by: DeliversHere) -> Iterator[None]:
        """While inside, what is stored for an address of *by* is given to it by the same step."""
        self._here = by
        try:
            yield
        finally:
            self._here = None

    async def put(self, message: OutboundMessage, addresses: Iterable[str], fence: Fence | None = None) -> bool:
        """Store *message* for delivery at *addresses*, once for its turn; False if it was stored before.

        Stored before, but not delivered yet, it is announced again.

        Raises `connectors.message.Superseded` where *fence* does not hold any more.
        """
        new, stored = False, False
        for address in dict.fromkeys(addresses):
            entered = await self._put(message, address, fence)
            stored = stored or entered.stored
            new = new or bool(entered.addresses)
            await self._announce(message, entered, stored=stored)
            for left in entered.waiting:  # who stored it may have ended before anybody was told
                await self._remind(message.key.partition, left)
        return new

    async def _put(self, message: OutboundMessage, address: str, fence: Fence | None) -> Entered:
        here = self._here if self._here and self._here.delivers_at(address) else None
        take = here.room(address) if here and "@" not in address else 0
        try:
            return await self.states.put(message, address, fence, take=take)
        except (StoreUnavailable, asyncio.CancelledError):  # it may be stored all the same
            if here is not None:
                here.missed()
            raise

    async def _announce(self, message: OutboundMessage, entered: Entered, *, stored: bool) -> None:
        """Have what was entered delivered: here, where that can be, or by whoever hears of it."""
        here, given, elsewhere = self._here, list(entered.given), []
        fields = {"key": message.key.encoded, "turn": message.turn_id}
        for address, entry_id in entered.addresses.items():
            one = Given(stream_of(message.key.partition, address), entry_id, fields)
            if here is not None and "@" in address and here.delivers_at(address):
                given.append(one)
            elif one not in given:
                elsewhere.append(address)
        if given and here is not None:  # before anything is waited for: whoever stores it may end there
            here.take(given, message if stored else None)
        for address in elsewhere:
            await self._ring(message.key.partition, address)

    async def _remind(self, partition: int, address: str) -> None:
        """Have what waits at *address* looked for: whoever has it already is not disturbed."""
        if self._here is not None and self._here.delivers_at(address):
            self._here.look(partition, address)
        else:
            await self._ring(partition, address)

    async def expect(self, key: ConversationKey, message_id: str, address: str) -> None:
        """Have the answer to a message delivered at *address*, too: somebody asked for it again there.

        Holds for an answer that is stored after this returns; one that is there already can be loaded.
        """
        await self.states.expect(key, message_id, address)

    async def _ring(self, partition: int, address: str) -> None:
        _, _, process = address.partition("@")
        await self._hub.tell(REPLY, {"partition": partition, "address": address}, process or EVERYBODY)

    async def notice(
        self,
        key: ConversationKey,
        address: str,
        text: str,
        answers: tuple[str, ...] = (),
        turn_id: str = "",
        reply_to: str | None = None,
        buttons: tuple[Button, ...] = (),
    ) -> None:
        """Tell people something that is no turn. Once for one *turn_id*, if given."""
        turn_id = turn_id or new_turn_id()
        notice = OutboundMessage(key, turn_id, text, kind="notice", answers=answers, reply_to=reply_to, buttons=buttons)
        await self.put(notice, [address])

    async def load(self, key: ConversationKey, turn_id: str) -> OutboundMessage | None:
        """The stored reply of a turn, if it has come that far."""
        return await self.states.load(key, turn_id)

    async def turn_of(self, key: ConversationKey, message_id: str) -> str:
        """See `runtime.part_states.PartStates.turn_of`."""
        return await self.states.turn_of(key, message_id)

    async def arrived(self, streams: Sequence[str]) -> list[tuple[Given, OutboundMessage | None]]:
        """Every entry of *streams*, which are for this process alone, with its reply if that is still stored."""
        return [one for some in self.streams.together(streams) for one in await self.states.arrived(some)]

    async def forget(self, key: ConversationKey, turn_ids: Sequence[str] | None = None) -> None:
        """Drop the stored replies of turns, or, without any named, all that was ever said in *key*."""
        await (self.states.forget(key) if turn_ids is None else self.states.forget_turns(key, turn_ids))


def address_of(connector: Connector, process: str) -> str:
    """Where what is said through *connector* is delivered, for people whose messages came to *process*."""
    return f"{connector.name}@{process}" if connector.capabilities.local else connector.name


def addresses_of(connectors: Mapping[str, Connector], process: str) -> list[str]:
    """The addresses at which *process* delivers."""
    return [address_of(connector, process) for connector in connectors.values()]


def streams_of(addresses: Sequence[str]) -> list[str]:
    """The streams of all partitions for *addresses*."""
    return [stream_of(partition, address) for address in addresses for partition in range(PARTITIONS)]
