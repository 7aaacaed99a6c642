"""A workspace is deleted while people talk in it, on Telegram (the real SDK against an emulated Bot API) and HTTP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from connectors.message import Scope
from grounding.retrieval import IndexUnavailable
from runtime.ingress import remove_workspace
from tests.contract.telegram_harness import telegram_connector
from tests.emulators.bot import Bot, bot_on
from tests.emulators.telegram import Person, TelegramEmulator

pytestmark = pytest.mark.asyncio(loop_scope="module")
LONG = "Boats float because they push water away. " * 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[tuple[Bot, TelegramEmulator]]:
    """A bot for whom every place is a workspace."""
    async with (
        TelegramEmulator() as telegram,
        bot_on(telegram_connector(telegram), workspace_per_place=True) as bot,
    ):
        yield bot, telegram


def within(bot: Bot, workspace: str) -> Bot:
    """*bot*, of which only is told what happens in *workspace* from now on."""
    return replace(bot.from_now(), workspace=workspace)


async def test_an_answer_that_grows_there_gets_its_last_form_and_nothing_of_it_comes_back(
    shared: tuple[Bot, TelegramEmulator],
) -> None:
    """What waits behind it is not answered; who writes again talks in a workspace that is new."""
    (bot, telegram), lena = shared, Person(id=501, name="Lena")
    bot = within(bot, "telegram-501")
    bot.model.chunk_delay_seconds = 0.1
    bot.model.will(LONG)
    await telegram.say("why do boats float?", by=lena)
    await telegram.until(lambda emulator: any("Boats float" in one.text for one in emulator.shown(lena)))
    await telegram.say("and ships?", by=lena)
    await telegram.until(lambda _: len(bot.told("message.accepted")) == 2)

    await remove_workspace(bot.runtime, Scope("telegram-501"))
    await bot.settle()
    shown = [one.text for one in telegram.shown(lena)]
    keys = [key async for key in bot.runtime.store.client.scan_iter(match="ar:*telegram-501*")]
    (delivered,) = bot.told("reply.delivered")

    bot.model.chunk_delay_seconds = 0.0
    bot.model.will("Hello!")
    await telegram.say("anybody there?", by=lena)
    await telegram.until(lambda emulator: any("Hello!" in one.text for one in emulator.shown(lena)))
    assert delivered["kind"] == "reply"
    (last,) = shown
    assert last.endswith(" …")
    assert LONG.startswith(last.removesuffix(" …"))
    assert keys == []
    assert not bot.told("workspace.answers_left")


async def test_where_the_index_is_away_nothing_is_deleted_and_what_people_wait_for_is_answered(
    shared: tuple[Bot, TelegramEmulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(scope: Scope) -> None:
        raise IndexUnavailable("Qdrant: away")

    (bot, telegram), lena = shared, Person(id=502, name="Lena")
    bot = within(bot, "telegram-502")
    bot.model.chunk_delay_seconds = 0.02
    bot.model.will(LONG)
    bot.model.will("They do, too.")
    await telegram.say("why do boats float?", by=lena)
    await telegram.until(lambda emulator: any("Boats float" in one.text for one in emulator.shown(lena)))
    await telegram.say("and ships?", by=lena)
    await telegram.until(lambda _: len(bot.told("message.accepted")) == 2)

    monkeypatch.setattr(bot.runtime.knowledge, "forget_workspace", away)
    with pytest.raises(IndexUnavailable):
        await remove_workspace(bot.runtime, Scope("telegram-502"))
    await telegram.until(lambda emulator: any("They do" in one.text for one in emulator.shown(lena)))
    first, second = (one.text for one in telegram.shown(lena))
    assert (first, second) == (LONG.strip(), "They do, too.")


async def test_who_waits_over_http_for_an_answer_that_does_not_come_hears_that_the_workspace_is_gone(
    shared: tuple[Bot, TelegramEmulator],
) -> None:
    bot = within(shared[0], "boats")
    await bot.runtime.workspaces.create("boats")
    bot.model.will("hang")
    async with asyncio.timeout(60), asyncio.TaskGroup() as callers:
        first = callers.create_task(bot.post("why do boats float?"))
        while not bot.replies_asked:
            await asyncio.sleep(0.01)
        second = callers.create_task(bot.post("and ships?"))
        while len(bot.told("message.accepted")) < 2:
            await asyncio.sleep(0.01)
        await remove_workspace(bot.runtime, Scope("boats"))
    assert first.result().status_code == 200
    assert (second.result().status_code, second.result().json()["error"]["code"]) == (404, "unknown_workspace")
