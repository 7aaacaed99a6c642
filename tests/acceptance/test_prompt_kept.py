"""What the model is asked is kept while it writes: it holds up no request, and whoever goes on with the turn asks the
same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from config.settings import Settings
from connectors.message import Scope
from runtime.manifests import Manifest
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI

ACME = Scope("acme")


async def _kept_meanwhile(bot: Bot) -> Manifest:
    """The manifest of a turn whose model says nothing."""
    await bot.runtime.model.warm()
    bot.model.will("hang")
    saying = asyncio.create_task(bot.say("what is it like?"))
    try:
        async with asyncio.timeout(20):
            while not (kept := await bot.runtime.manifests.newest(ACME, 1)):
                await asyncio.sleep(0.01)
        assert len(bot.model.requests) == 1
        assert not saying.done()
    finally:
        saying.cancel()
        await asyncio.wait({saying})
    return kept[0]


async def test_a_prompt_is_kept_while_the_model_writes(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(llm_max_attempts=1), openai_server) as bot:
        kept = await _kept_meanwhile(bot)

    assert kept.context.query.text == "what is it like?"


async def test_it_is_kept_where_no_model_could_be_asked(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(llm_api_base="http://127.0.0.1:9/v1", llm_max_attempts=1)
    async with running_bot(settings, openai_server) as bot:
        await bot.say("what is it like?")
        kept = await bot.runtime.manifests.newest(ACME, 1)

    assert [one.context.query.text for one in kept] == ["what is it like?"]
