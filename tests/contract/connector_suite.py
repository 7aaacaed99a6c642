"""What every connector must do, whatever its platform.

A platform takes part with a *harness*: an asynchronous context manager that builds the connector against
an emulator of its platform (or a stand-in for it) and lets the suite speak and look as people there do.
It is entered in the tables at the top of ``test_connectors.py``: in ``HARNESSES``, in ``REFUSING`` if the platform can
refuse or lose a message, in ``UNCONNECTED`` and ``SOURCES``; and in those of ``test_abilities.py``.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Literal, Protocol

from connectors.connector import ConnectionState, Connector
from connectors.message import (
    Accepted,
    ConversationKey,
    InboundMessage,
    OutboundMessage,
    StoreUnavailable,
)

Place = Literal["direct", "group"]
Fault = Literal["rate_limited", "forbidden", "lost_answer", "server_error"]

PATIENCE_SECONDS = 20.0
"""Bound of every wait here: reached only when something that must happen does not."""


class Harness(Protocol):
    """A connector, and the hands and eyes of the people on its platform."""

    @property
    def connector(self) -> Connector: ...

    @property
    def places(self) -> tuple[Place, ...]:
        """Where people of this platform can speak to the bot. Speaking in a group addresses the bot."""

    async def say(self, place: Place, text: str) -> None:
        """A person says *text*. Returns when the platform has it, whether or not the connector was told."""

    async def acknowledged(self) -> int:
        """How many of the said messages the platform will not deliver again because the connector took them."""

    async def shown(self, place: Place) -> list[str]:
        """What people see there from the bot, oldest first."""


class RefusingHarness(Harness, Protocol):
    """A harness whose platform can be told to refuse or lose the connector's next send."""

    async def fail_next_send(self, fault: Fault) -> None: ...


HarnessFactory = Callable[[], AbstractAsyncContextManager[Harness]]
RefusingHarnessFactory = Callable[[], AbstractAsyncContextManager[RefusingHarness]]


class FakeGateway:
    """Stands in for the runtime: accepts and remembers, or has no store."""

    def __init__(self) -> None:
        self.accepted: list[InboundMessage] = []
        self.refusals = 0
        self.store_available = True
        self._changed = asyncio.Condition()

    async def accept(self, message: InboundMessage) -> Accepted:
        async with self._changed:
            try:
                if not self.store_available:
                    self.refusals += 1
                    raise StoreUnavailable("the store is away")
                self.accepted.append(message)
                return Accepted("stored", key=conversation(message))
            finally:
                self._changed.notify_all()

    async def until(self, condition: Callable[[FakeGateway], bool]) -> None:
        """Waits until *condition* holds. Raises `TimeoutError` when it does not come to hold."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: condition(self))


def conversation(message: InboundMessage) -> ConversationKey:
    """The conversation of *message*, in a workspace of the suite's choice."""
    return ConversationKey(message.workspace_id or "acme", message.connector, message.external_id)


def reply_to(message: InboundMessage, text: str) -> OutboundMessage:
    """An answer to *message*, as the runtime makes it."""
    return OutboundMessage(
        key=conversation(message), turn_id=f"turn-{message.message_id}", text=text, answers=(message.message_id,)
    )


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until *condition* holds. Raises `TimeoutError` when it does not come to hold."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def send_all(connector: Connector, message: OutboundMessage) -> list[str]:
    """Sends every part of *message* in order; the receipts' message ids."""
    return [(await connector.send(message, part)).message_id for part in connector.render(message)]


@asynccontextmanager
async def running(connector: Connector, gateway: FakeGateway) -> AsyncIterator[None]:
    """*connector* receives for *gateway* while inside; it is stopped and closed after."""
    task = asyncio.create_task(connector.run(gateway.accept))
    try:
        await eventually(lambda: task.done() or connector.health.state is ConnectionState.CONNECTED)
        if task.done():
            await task  # what it raised says why it never connected
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(PATIENCE_SECONDS):
            await connector.close()


def measured(text: str, units: str) -> int:
    """The size of *text* in a platform's own units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2 if units == "utf16" else len(text)


def visible(text: str) -> str:
    """*text* without what no reader sees: white space, controls, format characters."""
    return "".join(character for character in text if unicodedata.category(character)[0] not in "CZ")
