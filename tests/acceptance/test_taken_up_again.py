"""A turn that another worker takes up, because the first was cut off, does what people wished of it before."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Scope, StoreUnavailable
from runtime.delivery import Outbox
from runtime.turns.batch import Batch, Lease
from tests.contract.discord_harness import discord_connector
from tests.emulators.bot import Bot, bot_on
from tests.emulators.discord import DiscordEmulator, Person
from tests.emulators.openai import Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWERED = "turn.answered"


@dataclass
class Chat:
    """Lena writes to the bot on Discord."""

    bot: Bot
    discord: DiscordEmulator
    lena: Person = field(default_factory=Person)

    async def hears(self, text: str) -> str:
        """What the bot says next, when Lena says *text*."""
        before = len(self.discord.shown(self.lena))
        await self.discord.say(text, by=self.lena)
        await self.discord.until(lambda discord: len(discord.shown(self.lena)) > before)
        return self.discord.shown(self.lena)[-1].text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Chat]:
    """One bot, where each conversation has a workspace of its own."""
    async with (
        DiscordEmulator() as discord,
        bot_on(discord_connector(discord), workspace_per_place=True) as bot,
    ):
        await discord.until(lambda discord: discord.identifies == 1)
        yield Chat(bot, discord)


_numbers = itertools.count(601)


@pytest_asyncio.fixture(loop_scope="module")
async def chat(shared: Chat) -> AsyncIterator[Chat]:
    """The shared bot, with a Lena and a workspace of the test's own."""
    lena = Person(id=next(_numbers), name="Lena")
    yield Chat(replace(shared.bot.from_now(), workspace=f"discord-dm-{lena.id}"), shared.discord, lena)
    shared.bot.model.forget_orders()
    await shared.bot.settle()


def cut_off(bot: Bot) -> None:
    """As if the worker ended: it hands back what it has in hand, and is given it again."""
    for task in bot.runtime.worker._serving:
        task.cancel()


async def asked(chat: Chat, times: int) -> None:
    await chat.discord.until(lambda _: len(chat.bot.replies_asked) == times)


class Stuck:
    """No reply can be stored until the worker that wants to is cut off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put = Outbox.put
        self.reached = asyncio.Event()

        async def stuck(*given: Any) -> Any:
            if not self.reached.is_set():
                self.reached.set()
                await asyncio.Event().wait()
            return await put(*given)

        monkeypatch.setattr(Outbox, "put", stuck)

    async def then_cut_off(self, bot: Bot) -> None:
        async with asyncio.timeout(10):
            await self.reached.wait()
        cut_off(bot)


async def test_a_message_that_is_deleted_after_its_turn_was_taken_up_again_is_not_answered(chat: Chat) -> None:
    """Nothing of an answer has been seen."""
    chat.bot.model.will("hang", "hang")
    said = await chat.discord.say("my number is 4711, where do I pay?", by=chat.lena)
    await asked(chat, 1)
    cut_off(chat.bot)
    await asked(chat, 2)
    await chat.discord.delete(said)
    await chat.discord.until(lambda _: bool(chat.bot.told(ANSWERED)))
    chat.bot.model.will("Ahoy!")

    assert await chat.hears("are you there?") == "Ahoy!"
    assert [one.text for one in chat.discord.shown(chat.lena)] == ["Ahoy!"]


async def test_an_answer_of_which_people_have_seen_something_is_finished_by_whoever_takes_it_up(chat: Chat) -> None:
    """Though its message is deleted then."""
    chat.bot.model.chunk_delay_seconds = 0.05
    chat.bot.model.will("Boats float because they push water away. " * 20)
    said = await chat.discord.say("why do boats float?", by=chat.lena)
    await chat.discord.until(lambda discord: bool(discord.shown(chat.lena)))
    chat.bot.model.will("hang")
    cut_off(chat.bot)
    await asked(chat, 2)
    await chat.discord.delete(said)
    await chat.discord.until(lambda _: bool(chat.bot.told("message.deleted")))
    await asyncio.sleep(0.3)
    assert chat.bot.told(ANSWERED) == []


@pytest.mark.parametrize("how", ["stopped", "deleted"])
async def test_an_answer_that_was_stopped_before_its_first_word_stays_silent_when_another_worker_ends_it(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stuck = Stuck(monkeypatch)
    chat.bot.model.will("hang")
    said = await chat.discord.say("tell me everything about boats", by=chat.lena)
    await asked(chat, 1)
    if how == "stopped":
        await chat.bot.runtime.stops.stop(in_hand(chat.bot))
    else:
        await chat.discord.delete(said)
    await stuck.then_cut_off(chat.bot)
    await chat.discord.until(lambda _: bool(chat.bot.told("reply.delivered")))

    assert chat.discord.shown(chat.lena) == []
    assert len(chat.bot.replies_asked) == 1


async def test_a_stopped_answer_does_not_stay_unfinished_when_another_worker_ends_it(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words are lost with the first worker, so that people read only that it was stopped."""
    stuck = Stuck(monkeypatch)
    chat.bot.model.chunk_delay_seconds = 0.05
    chat.bot.model.will("Boats float because they push water away. " * 20)
    said = await chat.discord.say("why do boats float?", by=chat.lena)
    await chat.discord.until(lambda discord: bool(discord.shown(chat.lena)))
    await chat.bot.runtime.stops.stop(in_hand(chat.bot))
    await chat.discord.delete(said)
    await stuck.then_cut_off(chat.bot)
    await chat.discord.until(lambda _: bool(chat.bot.told("reply.delivered")))

    assert [one.text for one in chat.discord.shown(chat.lena)] == ["_Stopped._"]
    assert len(chat.bot.replies_asked) == 1


async def test_a_call_that_broke_off_is_counted_once_though_the_store_is_away_as_the_turn_ends(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply says that there is no answer; what was reserved is accounted for, and forgotten."""
    step = chat.bot.runtime.mailbox.take
    was_away = False

    async def away(lease: Lease, *, over: Batch | None = None, again: bool = False) -> Batch | None:
        nonlocal was_away
        if over is not None and not was_away:
            was_away = True
            raise StoreUnavailable("Redis: gone")
        return await step(lease, over=over, again=again)

    monkeypatch.setattr(chat.bot.runtime.mailbox, "take", away)
    broken = [Reply(text="It is as blue as the sea on a day in June. " * 3, trouble="break_off")]
    chat.bot.model.will(*broken * 9)
    assert "4711" not in await chat.hears("what is it like?")
    await chat.bot.settle()

    assert was_away
    (used,) = await chat.bot.runtime.usage.totals(Scope(chat.bot.workspace))
    summaries = len(chat.bot.model.requests) - chat.bot.first_request - len(chat.bot.replies_asked)
    assert (used.calls, used.replies, used.estimated) == (1 + summaries, 0, 1)


def in_hand(bot: Bot) -> ConversationKey:
    (offer,) = bot.runtime.worker._serving.values()
    return offer.key
