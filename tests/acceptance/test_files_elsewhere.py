"""People send files to the bot on Slack and on Discord: fetched with what each platform asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from config.settings import Settings
from connectors.message import Scope
from tests.contract.discord_harness import discord_connector
from tests.contract.slack_harness import slack_connector
from tests.emulators import discord as on_discord
from tests.emulators import documents as made
from tests.emulators import slack as on_slack
from tests.emulators.bot import Bot, running_bot
from tests.emulators.discord_nouns import File
from tests.emulators.openai import FakeOpenAI

PRICES = made.docx(made.paragraph("Winter tyres cost 40 euros."))
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


def shown_to_the_model(bot: Bot) -> str:
    return bot.sent["user"]


async def test_on_slack_a_file_is_read_and_kept_by_an_admin(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    lena = on_slack.Person("U501", "Lena")
    settings = model_settings(access_policy="open", default_workspace="acme", access_admins=("slack:U501",))
    async with (
        on_slack.SlackEmulator() as slack,
        running_bot(settings, openai_server, [slack_connector(slack)]) as bot,
    ):
        slack.upload("prices.docx", PRICES, media_type=WORD, text="What do they cost?", by=lena)
        await slack.until(lambda slack: len(slack.shown(lena)) == 1)
        assert "Content of prices.docx:\n> Winter tyres cost 40 euros." in shown_to_the_model(bot)

        slack.upload("prices.docx", PRICES, media_type=WORD, text="!docs add tyres/", by=lena)
        await slack.until(lambda slack: len(slack.shown(lena)) == 2)
        assert "is stored as" in slack.shown(lena)[-1].text
        kept = await asyncio.to_thread(bot.runtime.knowledge.library.get, Scope("acme"), "tyres/prices.md")
        assert kept.text == "Winter tyres cost 40 euros.\n"


async def test_on_discord_a_file_is_read_and_kept_by_an_admin(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    lena = on_discord.Person(id=501, name="Lena")
    settings = model_settings(access_policy="open", default_workspace="acme", access_admins=("discord:501",))
    async with (
        on_discord.DiscordEmulator() as discord,
        running_bot(settings, openai_server, [discord_connector(discord)]) as bot,
    ):
        await discord.until(lambda discord: discord.identifies == 1)
        sent = (File("prices.docx", PRICES, WORD),)
        await discord.say("What do they cost?", by=lena, files=sent)
        await discord.until(lambda discord: len(discord.shown(lena)) == 1)
        assert "Content of prices.docx:\n> Winter tyres cost 40 euros." in shown_to_the_model(bot)

        await discord.say("!docs add tyres/", by=lena, files=sent)
        await discord.until(lambda discord: len(discord.shown(lena)) == 2)
        assert "is stored as" in discord.shown(lena)[-1].text
        kept = await asyncio.to_thread(bot.runtime.knowledge.library.get, Scope("acme"), "tyres/prices.md")
        assert kept.text == "Winter tyres cost 40 euros.\n"
