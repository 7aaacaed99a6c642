"""A bot that people can talk to."""

from collections.abc import AsyncIterator, Callable

import pytest_asyncio

from config.settings import Settings
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI


@pytest_asyncio.fixture
async def bot(model_settings: Callable[..., Settings], openai_server: FakeOpenAI) -> AsyncIterator[Bot]:
    async with running_bot(model_settings(access_policy="open"), openai_server) as running:
        yield running
