"""Files and sources on the platforms, as people send and see them there: one bot on Slack, Telegram and Discord."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from connectors.message import ConversationKey, Scope
from tests.contract.discord_harness import discord_connector
from tests.contract.slack_harness import slack_connector
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import discord as on_discord
from tests.emulators import documents as made
from tests.emulators import slack as on_slack
from tests.emulators import telegram as on_telegram
from tests.emulators.bot import Bot, bot_on
from tests.emulators.discord_nouns import File

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRICES = made.docx(made.paragraph("Winter tyres cost 40 euros."))
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ASKED = "What do the docs say about parcels?"
SAID = "Within thirty days [parcels.md › Parcels]."


@dataclass
class Platforms:
    """One bot, and where people talk to it."""

    bot: Bot
    slack: on_slack.SlackEmulator
    telegram: on_telegram.TelegramEmulator
    discord: on_discord.DiscordEmulator


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platforms() -> AsyncIterator[Platforms]:
    async with (
        on_slack.SlackEmulator() as slack,
        on_telegram.TelegramEmulator() as telegram,
        on_discord.DiscordEmulator() as discord,
        bot_on(
            slack_connector(slack),
            telegram_connector(telegram),
            discord_connector(discord),
            access_admins=("slack:U501", "discord:501"),
            show_sources=True,
        ) as bot,
    ):
        await bot.write_documents("acme", {"parcels.md": "# Parcels\n\nParcels are brought within thirty days.\n"})
        await discord.until(lambda discord: discord.identifies == 1)
        yield Platforms(bot, slack, telegram, discord)


async def check_kept(bot: Bot, path: str) -> None:
    """The file that was sent is a document."""
    kept = await asyncio.to_thread(bot.runtime.knowledge.library.get, Scope("acme"), path)
    assert kept.text == "Winter tyres cost 40 euros.\n"


async def test_on_slack_a_file_is_read_and_kept_by_an_admin_and_sources_stand_in_a_context_block(
    platforms: Platforms,
) -> None:
    bot, slack, lena = platforms.bot, platforms.slack, on_slack.Person("U501", "Lena")
    slack.upload("prices.docx", PRICES, media_type=WORD, text="What do they cost?", by=lena)
    await slack.until(lambda slack: len(slack.shown(lena)) == 1)
    assert "Content of prices.docx:\n> Winter tyres cost 40 euros." in bot.sent["user"]
    slack.upload("prices.docx", PRICES, media_type=WORD, text="!docs add slack/", by=lena)
    await slack.until(lambda slack: len(slack.shown(lena)) == 2)
    assert "is stored as" in slack.shown(lena)[-1].text
    await check_kept(bot, "slack/prices.md")

    bot.model.will(SAID)
    slack.say(ASKED, by=lena)
    await slack.until(lambda one: len(one.shown(lena)) == 3 and one.shown(lena)[-1].context != "")
    shown = slack.shown(lena)[-1]
    assert (shown.text, shown.context) == (SAID, "Sources: parcels.md › Parcels")


async def test_on_discord_a_file_is_read_and_kept_and_sources_are_subtext_which_a_place_may_do_without(
    platforms: Platforms,
) -> None:
    """Chosen in the chat; a greeting, for which nothing is looked up, has none."""
    bot, discord, lena = platforms.bot, platforms.discord, on_discord.Person(id=501, name="Lena")

    async def hears(text: str, **more: Any) -> str:
        before = len(discord.shown(lena))
        await discord.say(text, by=lena, **more)
        await discord.until(lambda discord: len(discord.shown(lena)) > before)
        await bot.settle()
        return discord.shown(lena)[-1].text

    sent = (File("prices.docx", PRICES, WORD),)
    await hears("What do they cost?", files=sent)
    assert "Content of prices.docx:\n> Winter tyres cost 40 euros." in bot.sent["user"]
    assert "is stored as" in await hears("!docs add discord/", files=sent)
    await check_kept(bot, "discord/prices.md")

    bot.model.will(SAID)
    assert await hears(ASKED) == f"{SAID}\n-# Sources: `parcels.md › Parcels`"
    assert "end with the documents" in await hears("!sources")
    assert "do not name the documents" in await hears("!sources off")
    bot.model.will(SAID)
    assert await hears(ASKED) == SAID
    assert "`/sources on`" in await hears("!sources perhaps")
    assert "end with the documents" in await hears("!sources default")
    bot.model.will("Hello!")
    assert await hears("hello") == "Hello!"


async def test_on_telegram_sources_are_a_quotation_and_the_conversation_does_not_hold_them(
    platforms: Platforms,
) -> None:
    """Nor is it told of them where somebody replies to the message that shows them."""
    bot, telegram, lena = platforms.bot, platforms.telegram, on_telegram.Person(id=501, name="Lena")

    async def hears(text: str, **more: Any) -> on_telegram.Shown:
        before = len(telegram.shown(lena))
        await telegram.say(text, by=lena, **more)
        await telegram.until(lambda telegram: len(telegram.shown(lena)) > before)
        await bot.settle()
        return telegram.shown(lena)[-1]

    bot.model.will(SAID)
    shown = await hears(ASKED)
    assert shown.text == f"{SAID}\n\nSources: parcels.md › Parcels"
    assert [one.kind for one in shown.entities] == ["expandable_blockquote", "code"]

    bot.model.will("You are welcome.")
    assert (await hears("thank you", reply_to=shown.message_id)).text == "You are welcome."
    assert "In reply to Helper:\n> Within thirty days" in bot.sent["user"]
    assert "Sources:" not in bot.sent["user"]
    said = await bot.runtime.transcript.tail(ConversationKey("acme", "telegram", "501"), 10)
    assert SAID in [entry.text for entry in said]
    assert not [entry for entry in said if "Sources:" in entry.text]
