"""Everything in Redis is gone at once, as after FLUSHALL or a fail-over to an empty server, in the middle of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from config.settings import Settings
from connectors.message import ConversationKey
from grounding.transcript import EntryRole
from tests.emulators.bot import QUICK, running_bot
from tests.emulators.openai import FakeOpenAI
from tests.emulators.paper import Paper, say, until_over, written

PLACES = ("here", "there", "elsewhere")


@pytest.mark.parametrize("scripts_too", [False, True])
async def test_turns_in_hand_end_and_the_next_message_is_answered(
    scripts_too: bool,
    model_settings: Callable[..., Settings],
    openai_server: FakeOpenAI,
) -> None:
    """Those whose message was being answered hear nothing, for nobody knows of it any more; they can say it again."""
    paper = Paper()
    settings = model_settings(access_policy="open", default_workspace="acme", turn_lease_seconds=1)
    async with running_bot(settings, openai_server, [paper], timings=QUICK) as bot, asyncio.timeout(60):
        openai_server.will(*["hang"] * len(PLACES))
        for place in PLACES:
            await say(bot, written(place))
        while len(bot.replies_asked) < len(PLACES):
            await asyncio.sleep(0.01)
        client = bot.runtime.store.client
        await client.flushall()
        if scripts_too:
            await client.script_flush()

        await say(bot, written("new"))
        while not paper.texts("new"):
            await asyncio.sleep(0.01)
        while bot.runtime.worker._held.tasks:  # the lease is lost, which ends them
            await asyncio.sleep(0.01)
        for place in PLACES:
            await say(bot, written(place))  # the platform, or the person, brings it again
        await until_over(bot)

        for place in ("new", *PLACES):
            entries = await bot.runtime.transcript.newest(ConversationKey("acme", "paper", place), 10)
            assert [entry.role for entry in entries] == [EntryRole.INBOUND, EntryRole.OUTBOUND]
            assert paper.texts(place) == [entries[-1].text]
