"""Slack in the connectors' suite, by Socket Mode and over HTTP: the real SDK against the emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from pydantic import SecretStr
from starlette.applications import Starlette

from connectors.slack.connector import SlackConnector
from tests.contract.connector_suite import Fault, Place
from tests.emulators import slack as emulated
from tests.emulators.slack import Channel, Person, SlackEmulator

LENA = Person("U501", "Lena")
TEAM = Channel("C200")


def slack_connector(emulator: SlackEmulator | None = None, **options: Any) -> SlackConnector:
    """A connector to *emulator* (to nowhere without one), by Socket Mode, that loses no time waiting."""
    tokens = {"app_token": SecretStr(emulator.app_token if emulator else "xapp-none")}
    return SlackConnector(
        SecretStr(emulator.token if emulator else "xoxb-none"),
        emulator.base_url if emulator else "http://127.0.0.1:1/",
        **{
            **tokens,
            "timeout_seconds": 10.0,
            "first_backoff_seconds": 0.01,
            "longest_backoff_seconds": 0.02,
            "ping_seconds": 0.5,
            "reply_max_parts": 100,
            **options,
        },
    )


def slack_connector_over_http(emulator: SlackEmulator, **options: Any) -> SlackConnector:
    """A connector to *emulator* to which it posts its events."""
    secret = SecretStr(emulator.signing_secret)
    connector = slack_connector(
        emulator, **{"app_token": None, "signing_secret": secret, "answer_within_seconds": 0.2, **options}
    )
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(Starlette(routes=list(connector.routes()))), base_url="http://bot.test"
    )

    async def post(body: bytes, headers: Mapping[str, str]) -> int:
        return (await client.post("/slack/events", content=body, headers=headers)).status_code

    emulator.post = post
    emulator.redeliver_seconds = 0.02
    return connector


class SlackHarness:
    places: tuple[Place, ...] = ("direct", "group")

    def __init__(self, emulator: SlackEmulator, connector: SlackConnector) -> None:
        self.emulator = emulator
        self.connector = connector

    async def say(self, place: Place, text: str) -> None:
        if place == "direct":
            self.emulator.say(text, by=LENA)
        else:
            self.emulator.say(f"{self.emulator.at_bot} {text}", to=TEAM, by=LENA)

    async def send_file(self, place: Place, name: str, content: bytes) -> None:
        if place == "direct":
            self.emulator.upload(name, content, text="see here", by=LENA)
        else:
            self.emulator.upload(name, content, text=f"{self.emulator.at_bot} see here", by=LENA, to=TEAM)

    async def files(self, place: Place) -> list[tuple[str, bytes]]:
        shown = self.emulator.shown(LENA if place == "direct" else TEAM)
        return [(message.file, message.raw.encode()) for message in shown if message.file is not None]

    async def acknowledged(self) -> int:
        return len(self.emulator.acknowledged)

    async def shown(self, place: Place) -> list[str]:
        shown = self.emulator.shown(LENA if place == "direct" else TEAM)
        return [message.text + (f"\n{message.context}" if message.context else "") for message in shown]

    async def buttons(self, place: Place) -> list[list[str]]:
        shown = self.emulator.shown(LENA if place == "direct" else TEAM)
        return [list(message.buttons) for message in shown]

    async def press(self, place: Place, label: str) -> None:
        shown = self.emulator.shown(LENA if place == "direct" else TEAM)
        pressed = self.emulator.press(shown[-1], label, by=LENA)
        await self.emulator.until(lambda _: pressed.acknowledged or pressed.failed)

    async def fail_next_send(self, fault: Fault) -> None:
        faults = {
            "rate_limited": emulated.rate_limited(3),
            "forbidden": emulated.refused("restricted_action"),
            "lost_answer": emulated.LOST_ANSWER,
            "server_error": emulated.SERVER_ERROR,
        }
        self.emulator.fail_next("chat.postMessage", faults[fault])


@asynccontextmanager
async def slack_harness() -> AsyncIterator[SlackHarness]:
    async with SlackEmulator() as emulator:
        harness = SlackHarness(emulator, slack_connector(emulator))
        try:
            yield harness
        finally:
            await harness.connector.close()


@asynccontextmanager
async def slack_over_http_harness() -> AsyncIterator[SlackHarness]:
    async with SlackEmulator() as emulator:
        harness = SlackHarness(emulator, slack_connector_over_http(emulator))
        try:
            yield harness
        finally:
            await harness.connector.close()
