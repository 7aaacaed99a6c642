"""A bot that people can talk to."""

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from config.settings import Settings
from tests.emulators.bot import Bot, bot_on, running_bot
from tests.emulators.openai import FakeOpenAI


@pytest_asyncio.fixture
async def bot(model_settings: Callable[..., Settings], openai_server: FakeOpenAI) -> AsyncIterator[Bot]:
    async with running_bot(model_settings(access_policy="open"), openai_server) as running:
        yield running


@pytest.fixture(scope="module")
def bot_settings() -> dict[str, Any]:
    """What the module's bot has set otherwise; a module that wants something defines its own."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_bot(bot_settings: dict[str, Any]) -> AsyncIterator[Bot]:
    """One bot for all tests of a module; each test talks to its `own_bot`."""
    async with bot_on(**bot_settings) as running:
        yield running


_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module")
async def own_bot(module_bot: Bot) -> AsyncIterator[Bot]:
    """The bot of the module in a workspace of this test's own. For modules whose tests run on the module's loop."""
    yield await module_bot.in_workspace(f"crew-{next(_numbers)}")
    module_bot.model.forget_orders()
