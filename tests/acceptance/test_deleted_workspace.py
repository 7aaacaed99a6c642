"""A workspace is deleted while people talk in it, on Telegram (the real SDK against an emulated Bot API) and HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from config.settings import Settings
from connectors.message import Scope
from grounding.retrieval import IndexUnavailable
from runtime.ingress import remove_workspace
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.telegram import Person, TelegramEmulator

LENA = Person(id=501, name="Lena")
LONG = "Boats float because they push water away. " * 40


@asynccontextmanager
async def chatting(settings: Settings, server: FakeOpenAI) -> AsyncIterator[tuple[Bot, TelegramEmulator]]:
    async with (
        TelegramEmulator() as telegram,
        running_bot(settings, server, [telegram_connector(telegram)]) as bot,
    ):
        yield bot, telegram


async def test_an_answer_that_grows_there_gets_its_last_form_and_nothing_of_it_comes_back(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """What waits behind it is not answered; who writes again talks in a workspace that is new."""
    settings = model_settings(access_policy="open", workspace_per_place=True)
    async with chatting(settings, openai_server) as (bot, telegram):
        bot.model.chunk_delay_seconds = 0.1
        bot.model.will(LONG)
        await telegram.say("why do boats float?", by=LENA)
        await telegram.until(lambda emulator: any("Boats float" in one.text for one in emulator.shown(LENA)))
        await telegram.say("and ships?", by=LENA)
        await telegram.until(lambda _: len(bot.told("message.accepted")) == 2)

        await remove_workspace(bot.runtime, Scope("telegram-501"))
        await bot.settle()
        shown = [one.text for one in telegram.shown(LENA)]
        keys = [key async for key in bot.runtime.store.client.scan_iter(match="ar:*telegram-501*")]
        (delivered,) = bot.told("reply.delivered")

        bot.model.chunk_delay_seconds = 0.0
        bot.model.will("Hello!")
        await telegram.say("anybody there?", by=LENA)
        await telegram.until(lambda emulator: any("Hello!" in one.text for one in emulator.shown(LENA)))
    assert delivered["kind"] == "reply"
    (last,) = shown
    assert last.endswith(" …")
    assert LONG.startswith(last.removesuffix(" …"))
    assert keys == []
    assert not bot.told("workspace.answers_left")


async def test_where_the_index_is_away_nothing_is_deleted_and_what_people_wait_for_is_answered(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(scope: Scope) -> None:
        raise IndexUnavailable("Qdrant: away")

    async with chatting(model_settings(access_policy="open", workspace_per_place=True), openai_server) as (
        bot,
        telegram,
    ):
        bot.model.chunk_delay_seconds = 0.02
        bot.model.will(LONG)
        bot.model.will("They do, too.")
        await telegram.say("why do boats float?", by=LENA)
        await telegram.until(lambda emulator: any("Boats float" in one.text for one in emulator.shown(LENA)))
        await telegram.say("and ships?", by=LENA)
        await telegram.until(lambda _: len(bot.told("message.accepted")) == 2)

        monkeypatch.setattr(bot.runtime.knowledge, "forget_workspace", away)
        with pytest.raises(IndexUnavailable):
            await remove_workspace(bot.runtime, Scope("telegram-501"))
        await telegram.until(lambda emulator: any("They do" in one.text for one in emulator.shown(LENA)))
        first, second = (one.text for one in telegram.shown(LENA))
    assert (first, second) == (LONG.strip(), "They do, too.")


async def test_who_waits_over_http_for_an_answer_that_does_not_come_hears_that_the_workspace_is_gone(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    async with running_bot(model_settings(), openai_server) as bot:
        await bot.runtime.workspaces.create("boats")
        bot.model.will("hang")
        async with asyncio.timeout(60), asyncio.TaskGroup() as callers:
            first = callers.create_task(bot.post("why do boats float?", workspace="boats"))
            while not bot.model.requests:
                await asyncio.sleep(0.01)
            second = callers.create_task(bot.post("and ships?", workspace="boats"))
            while len(bot.told("message.accepted")) < 2:
                await asyncio.sleep(0.01)
            await remove_workspace(bot.runtime, Scope("boats"))
    assert first.result().status_code == 200
    assert (second.result().status_code, second.result().json()["error"]["code"]) == (404, "unknown_workspace")
