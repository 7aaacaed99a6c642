"""Telegram in the connectors' suite: the real SDK against the emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from connectors.telegram.connector import TelegramConnector
from tests.contract.connector_suite import Fault, Place, RefusingHarness
from tests.emulators import telegram as emulated
from tests.emulators.telegram import Person, Room, TelegramEmulator

LENA = Person(id=501, name="Lena")
TEAM = Room(id=-100200)


def telegram_connector(emulator: TelegramEmulator | None = None) -> TelegramConnector:
    """A connector to *emulator* (to nowhere without one) that loses no time waiting."""
    return TelegramConnector(
        SecretStr(emulator.token if emulator else "1:none"),
        emulator.base_url if emulator else "http://127.0.0.1:1",
        reply_max_parts=100,
        timeout_seconds=10.0,
        poll_seconds=5,
        first_backoff_seconds=0.01,
        longest_backoff_seconds=0.02,
    )


class TelegramHarness:
    places: tuple[Place, ...] = ("direct", "group")

    def __init__(self, emulator: TelegramEmulator) -> None:
        self.emulator = emulator
        self.connector = telegram_connector(emulator)

    async def say(self, place: Place, text: str) -> None:
        if place == "direct":
            await self.emulator.say(text, by=LENA)
        else:
            await self.emulator.say(f"@{self.emulator.me.username} {text}", to=TEAM, by=LENA)

    async def acknowledged(self) -> int:
        return max(0, self.emulator.confirmed - emulated.FIRST_UPDATE)

    async def shown(self, place: Place) -> list[str]:
        return [message.text for message in self.emulator.shown(LENA if place == "direct" else TEAM)]

    async def fail_next_send(self, fault: Fault) -> None:
        faults = {
            "rate_limited": emulated.rate_limited(3),
            "forbidden": emulated.BLOCKED,
            "lost_answer": emulated.LOST_ANSWER,
            "server_error": emulated.SERVER_ERROR,
        }
        self.emulator.fail_next("sendMessage", faults[fault])


@asynccontextmanager
async def telegram_harness() -> AsyncIterator[RefusingHarness]:
    async with TelegramEmulator() as emulator:
        harness = TelegramHarness(emulator)
        try:
            yield harness
        finally:
            await harness.connector.close()
