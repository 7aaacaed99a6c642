"""A session as an engine meets it: its prompts begin with the same bytes, and what changes is told behind them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt import UNKNOWN
from grounding.prompt.layers import TAIL_FOOT
from tests.emulators.bot import Bot, running_bot
from tests.emulators.openai import FakeOpenAI

ASKED = (
    "what does the harbour plan cost?",
    "is the harbour plan blue?",
    "how are captains paged at night?",
    "which plan is the larger one?",
)


async def replayed(bot: Bot, turn_id: str) -> bool:
    manifest = await bot.runtime.manifests.get(Scope("acme"), turn_id)
    rebuilt = await bot.runtime.prompting.rebuild(manifest.context)
    return rebuilt.prompt.sha256 == manifest.prompt_sha256


async def test_prompts_of_a_session_begin_with_the_one_before_and_changes_are_told_behind_them(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    settings = model_settings(access_policy="open", llm_grounding_layout="prefix_stable")
    async with running_bot(settings, openai_server) as bot:
        await check_a_session(bot)
        await check_its_end(bot)


async def check_a_session(bot: Bot) -> None:
    prompts, turns = [], []
    for text in ASKED:
        answer = await bot.say(text)
        await bot.settle()  # a summary may have been made meanwhile
        turns.append(answer["turn_id"])
        prompts.append(bot.sent["system"] + bot.sent["user"])
        assert bot.told("turn.answered")[-1]["prefix_broken_by"] == bot.grounding["prefix_broken_by"]

    for before, after in list(pairwise(prompts))[1:]:
        assert TAIL_FOOT in before
        assert after.startswith(before.partition("\n" + TAIL_FOOT)[0])
    assert bot.grounding["prefix_broken_by"] in ("frame", "records", "retrieved", "now")
    assert bot.grounding["prefix_tokens_kept"] > 0

    await bot.say("/context add Prefers short answers")
    await bot.say(ASKED[0])
    assert "In the global context: 0-- Prefers short answers" in bot.sent["user"]
    assert (bot.sent["system"] + bot.sent["user"]).startswith(prompts[-1].partition("\n" + TAIL_FOOT)[0])
    for turn_id in turns:
        assert await replayed(bot, turn_id)


async def check_its_end(bot: Bot) -> None:
    digest = bot.grounding["prefix_digest"]
    await bot.say("/new")
    answer = await bot.say(ASKED[1])

    assert "0-- Prefers short answers" in bot.sent["system"]
    assert "In the global context" not in bot.sent["user"]
    assert bot.grounding["prefix_broken_by"] == ""
    assert bot.grounding["prefix_digest"] != digest
    manifest = await bot.runtime.manifests.get(Scope("acme"), answer["turn_id"])
    assert manifest.prefix == UNKNOWN
    assert manifest.context.session is not None
    assert (manifest.context.session.id, manifest.context.session.turns) == (answer["turn_id"], 0)
