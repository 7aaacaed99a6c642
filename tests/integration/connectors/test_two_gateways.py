"""Two processes serve one platform behind a balancer that gives everything to both: it is heard once, and answered once
and in order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from config.settings import Settings
from connectors.connector import Connector
from connectors.message import ConversationKey
from grounding.transcript import EntryRole
from tests.contract.slack_harness import slack_connector_over_http
from tests.contract.telegram_harness import telegram_connector_by_webhook
from tests.emulators import slack as slack_emulator
from tests.emulators import telegram as telegram_emulator
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator

QUESTIONS = [f"question {number}" for number in range(5)]
ANSWERS = [f"answer to question {number}" for number in range(5)]


def answer(body: dict[str, Any]) -> str:
    """Says which question it answers."""
    user = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    return ", ".join(f"answer to {one}" for one in re.findall(r"^question \d", str(user), re.MULTILINE))


@pytest.fixture
def shared(
    redis: Redis, redis_socket: Path, data_dir: Path, model_settings: Callable[..., Settings]
) -> Callable[[str], Settings]:
    """Settings of a process of that name, which uses the same Redis as the others."""

    def make(name: str) -> Settings:
        return model_settings(
            data_dir=data_dir / name,
            redis_url=f"unix://{redis_socket}",
            access_policy="open",
            default_workspace="acme",
            queue_mode="followup",
        )

    return make


@asynccontextmanager
async def both(
    shared: Callable[[str], Settings], model: FakeOpenAI, one: Connector, other: Connector
) -> AsyncIterator[Bot]:
    """Two processes that run; the first of them."""
    model.answer = answer
    async with (
        running_bot(shared("one"), model, [one], {}) as first,
        running_bot(shared("other"), model, [other], {}),
        asyncio.timeout(60),
    ):
        yield first


async def said_and_answered(bot: Bot, connector: str) -> tuple[list[str], list[str]]:
    """What was said by people and by the bot in the only conversation on *connector*."""
    keys = await bot.runtime.mailbox.last_seen(connector)
    (key,) = keys
    assert isinstance(key, ConversationKey)
    entries = await bot.runtime.transcript.newest(key, 100)
    return (
        [one.text for one in entries if one.role is EntryRole.INBOUND],
        [one.text for one in entries if one.role is EntryRole.OUTBOUND],
    )


async def test_slack_over_http(shared: Callable[[str], Settings], openai_server: FakeOpenAI) -> None:
    lena = slack_emulator.Person("U501", "Lena")
    async with SlackEmulator() as slack:
        one = slack_connector_over_http(slack)
        to_one = slack.post
        other = slack_connector_over_http(slack)
        to_other = slack.post
        assert to_one is not None
        assert to_other is not None

        async def post(body: bytes, headers: Mapping[str, str]) -> int:
            return max(await asyncio.gather(to_one(body, headers), to_other(body, headers)))

        slack.post = post
        async with both(shared, openai_server, one, other) as bot:
            for question in QUESTIONS:
                slack.say(question, by=lena)
            await slack.until(lambda _: len(slack.shown(lena)) >= len(QUESTIONS))
            await bot.settle()
            said, answered = await said_and_answered(bot, "slack")

        assert said == QUESTIONS
        assert answered == ANSWERS
        assert [shown.text for shown in slack.shown(lena)] == ANSWERS


async def test_telegram_by_webhook(shared: Callable[[str], Settings], openai_server: FakeOpenAI) -> None:
    lena = telegram_emulator.Person(id=501, name="Lena")
    async with TelegramEmulator() as telegram:
        one = telegram_connector_by_webhook(telegram)
        to_one = telegram.webhook.post
        other = telegram_connector_by_webhook(telegram)
        to_other = telegram.webhook.post
        assert to_one is not None
        assert to_other is not None

        async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
            return max(await asyncio.gather(to_one(url, body, headers), to_other(url, body, headers)))

        telegram.webhook.post = post
        async with both(shared, openai_server, one, other) as bot:
            for question in QUESTIONS:
                await telegram.say(question, by=lena)
            await telegram.until(lambda _: len(telegram.said(lena)) >= len(QUESTIONS))
            await bot.settle()
            said, answered = await said_and_answered(bot, "telegram")

        assert said == QUESTIONS
        assert answered == ANSWERS
        assert [shown.text for shown in telegram.shown(lena)] == ANSWERS
