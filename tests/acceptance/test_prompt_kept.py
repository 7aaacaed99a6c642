"""What the model is asked is saved before it is asked, so that whoever goes on with the turn asks the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from config.settings import Settings
from connectors.message import Scope
from tests.emulators.bot import running_bot
from tests.emulators.openai import FakeOpenAI

ACME = Scope("acme")


async def test_a_prompt_is_saved_before_the_model_is_asked(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(llm_max_attempts=1), openai_server) as bot:
        await bot.runtime.model.warm()
        bot.model.will("hang")
        saying = asyncio.create_task(bot.say("what is it like?"))
        async with asyncio.timeout(20):
            while not bot.model.requests:
                await asyncio.sleep(0.001)
        [saved] = await bot.runtime.manifests.newest(ACME, 1)
        saying.cancel()
        await asyncio.wait({saying})

    assert saved.context.query.text == "what is it like?"


async def test_it_is_saved_if_no_model_could_be_asked(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(llm_api_base="http://127.0.0.1:9/v1", llm_max_attempts=1)
    async with running_bot(settings, openai_server) as bot:
        await bot.say("what is it like?")
        saved = await bot.runtime.manifests.newest(ACME, 1)

    assert [one.context.query.text for one in saved] == ["what is it like?"]
