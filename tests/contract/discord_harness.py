"""Discord in the connectors' suite: the real SDK against the emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import SecretStr

from connectors.discord.connector import DiscordConnector
from tests.contract.connector_suite import Fault, Place, eventually
from tests.emulators import discord as emulated
from tests.emulators.discord import DiscordEmulator, Person, Room

LENA = Person(id=501, name="Lena")
TEAM = Room(channel_id=910, name="general")


def discord_connector(emulator: DiscordEmulator | None = None, **more: Any) -> DiscordConnector:
    """A connector to *emulator* (to nowhere without one) that loses no time waiting."""
    options: dict[str, Any] = {
        "reply_max_parts": 100,
        "timeout_seconds": 10.0,
        "session_wait_seconds": 0.0,
        "first_backoff_seconds": 0.01,
        "longest_backoff_seconds": 0.02,
    }
    return DiscordConnector(
        SecretStr(emulator.token if emulator else "none"),
        emulator.base_url if emulator else "http://127.0.0.1:1",
        emulator.gateway_url if emulator else "ws://127.0.0.1:1",
        **{**options, **more},
    )


class DiscordHarness:
    places: tuple[Place, ...] = ("direct", "group")

    def __init__(self, emulator: DiscordEmulator) -> None:
        self.emulator = emulator
        self.connector = discord_connector(emulator)

    async def say(self, place: Place, text: str) -> None:
        if place == "direct":
            await self.emulator.say(text, by=LENA)
        else:
            await self.emulator.say(f"{self.emulator.at_bot} {text}", to=TEAM, by=LENA)

    async def acknowledged(self) -> int:
        return 0  # Discord has no acknowledgement, and sends nothing twice

    async def shown(self, place: Place) -> list[str]:
        return [message.text for message in self.emulator.shown(LENA if place == "direct" else TEAM)]

    async def buttons(self, place: Place) -> list[list[str]]:
        return [list(message.buttons) for message in self.emulator.shown(LENA if place == "direct" else TEAM)]

    async def press(self, place: Place, label: str) -> None:
        pressed = await self.emulator.press(
            self.emulator.shown(LENA if place == "direct" else TEAM)[-1], label, by=LENA
        )
        await eventually(lambda: pressed.is_answered)

    async def fail_next_send(self, fault: Fault) -> None:
        faults = {
            "rate_limited": emulated.rate_limited(3),
            "forbidden": emulated.FORBIDDEN,
            "lost_answer": emulated.LOST_ANSWER,
            "server_error": emulated.SERVER_ERROR,
        }
        self.emulator.fail_next("send", faults[fault])


@asynccontextmanager
async def discord_harness() -> AsyncIterator[DiscordHarness]:
    async with DiscordEmulator() as emulator:
        harness = DiscordHarness(emulator)
        try:
            yield harness
        finally:
            await harness.connector.close()
