"""The terminal chat, and a person who types without waiting for answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from connectors.console import ConsoleConnector
from tests.contract.connector_suite import Place
from tests.emulators.terminal import FakeTerminal


def console_connector(terminal: FakeTerminal | None = None) -> ConsoleConnector:
    # Impatient: the suite speaks several times before anything is answered.
    return ConsoleConnector(terminal or FakeTerminal(), wait_seconds=0.05, author_name="Ann")


class ConsoleHarness:
    places: tuple[Place, ...] = ("direct",)

    def __init__(self) -> None:
        self.terminal = FakeTerminal()
        self.connector = console_connector(self.terminal)

    async def say(self, place: Place, text: str) -> None:
        assert place == "direct"
        self.terminal.type(text)

    async def acknowledged(self) -> int:
        # The next line is asked for when the one before is in safe hands.
        return max(0, self.terminal.reads - 1)

    async def shown(self, place: Place) -> list[str]:
        return self.terminal.answers


@asynccontextmanager
async def console_harness() -> AsyncIterator[ConsoleHarness]:
    yield ConsoleHarness()
