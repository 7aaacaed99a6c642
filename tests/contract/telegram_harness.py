"""Telegram in the connectors' suite: the real SDK against the emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from pydantic import SecretStr
from starlette.applications import Starlette

from connectors.telegram.connector import TelegramConnector
from tests.contract.connector_suite import Fault, Place
from tests.emulators import telegram as emulated
from tests.emulators.telegram import Person, Room, TelegramEmulator

LENA = Person(id=501, name="Lena")
TEAM = Room(id=-100200)


PUBLIC_URL = "https://bot.example"
SECRET = "a-secret_of-the-tests"


def telegram_connector(emulator: TelegramEmulator | None = None, **options: Any) -> TelegramConnector:
    """A connector to *emulator* (to nowhere without one) that loses no time waiting."""
    quick: dict[str, Any] = {
        "reply_max_parts": 100,
        "timeout_seconds": 10.0,
        "poll_seconds": 5,
        "first_backoff_seconds": 0.01,
        "longest_backoff_seconds": 0.02,
    }
    return TelegramConnector(
        SecretStr(emulator.token if emulator else "1:none"),
        emulator.base_url if emulator else "http://127.0.0.1:1",
        **(quick | options),
    )


def telegram_connector_by_webhook(emulator: TelegramEmulator, **options: Any) -> TelegramConnector:
    """A connector to which *emulator* posts what happens, as if it stood at `PUBLIC_URL`."""
    chosen: dict[str, Any] = {"webhook_secret": SecretStr(SECRET), "public_url": PUBLIC_URL, "check_seconds": 0.05}
    connector = telegram_connector(emulator, **(chosen | options))
    transport = httpx.ASGITransport(Starlette(routes=list(connector.routes())))

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
        async with httpx.AsyncClient(transport=transport) as client:
            return (await client.post(url, content=body, headers=dict(headers))).status_code

    emulator.webhook.post = post
    return connector


class TelegramHarness:
    places: tuple[Place, ...] = ("direct", "group")

    def __init__(self, emulator: TelegramEmulator, connector: TelegramConnector) -> None:
        self.emulator = emulator
        self.connector = connector

    async def say(self, place: Place, text: str) -> None:
        if place == "direct":
            await self.emulator.say(text, by=LENA)
        else:
            await self.emulator.say(f"@{self.emulator.me.username} {text}", to=TEAM, by=LENA)

    async def acknowledged(self) -> int:
        return max(0, self.emulator.confirmed - emulated.FIRST_UPDATE) + len(self.emulator.webhook.taken)

    async def shown(self, place: Place) -> list[str]:
        return [message.text for message in self.emulator.shown(LENA if place == "direct" else TEAM)]

    async def files(self, place: Place) -> list[tuple[str, bytes]]:
        shown = self.emulator.shown(LENA if place == "direct" else TEAM)
        return [(message.file_name, message.content) for message in shown if message.file_name]

    async def send_file(self, place: Place, name: str, content: bytes) -> None:
        named = {"file_name": name, "mime_type": "text/plain"}
        document = self.emulator.keep(content, f"documents/{name}") | named
        to = None if place == "direct" else TEAM
        caption = f"@{self.emulator.me.username} read this"
        marked = emulated.entities_of(caption)
        await self.emulator.say("", to=to, by=LENA, document=document, caption=caption, caption_entities=marked)

    async def give(self, place: Place, command: str) -> None:
        at = "" if place == "direct" else f"@{self.emulator.me.username}"
        word, _, rest = command.partition(" ")
        await self.emulator.say(f"/{word}{at} {rest}".rstrip(), to=None if place == "direct" else TEAM, by=LENA)

    async def offered(self) -> list[str]:
        return [command["command"] for command in self.emulator.commands]

    async def buttons(self, place: Place) -> list[list[str]]:
        return [list(message.buttons) for message in self.emulator.shown(LENA if place == "direct" else TEAM)]

    async def press(self, place: Place, label: str) -> None:
        shown = self.emulator.shown(LENA if place == "direct" else TEAM)
        await self.emulator.press(shown[-1], label, by=LENA)

    async def fail_next_send(self, fault: Fault) -> None:
        faults = {
            "rate_limited": emulated.rate_limited(3),
            "forbidden": emulated.BLOCKED,
            "lost_answer": emulated.LOST_ANSWER,
            "server_error": emulated.SERVER_ERROR,
        }
        self.emulator.fail_next("sendMessage", faults[fault])


@asynccontextmanager
async def telegram_harness() -> AsyncIterator[TelegramHarness]:
    async with TelegramEmulator() as emulator:
        connector = telegram_connector(emulator)
        try:
            yield TelegramHarness(emulator, connector)
        finally:
            await connector.close()


@asynccontextmanager
async def telegram_by_webhook_harness() -> AsyncIterator[TelegramHarness]:
    async with TelegramEmulator() as emulator:
        connector = telegram_connector_by_webhook(emulator)
        try:
            yield TelegramHarness(emulator, connector)
        finally:
            await connector.close()
