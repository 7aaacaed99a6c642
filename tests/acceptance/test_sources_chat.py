"""Replies end with the documents they used, on the platforms as people see them there."""

from collections.abc import Callable
from typing import Any

from config.settings import Settings
from connectors.message import ConversationKey
from tests.contract.discord_harness import discord_connector
from tests.contract.slack_harness import slack_connector
from tests.contract.telegram_harness import telegram_connector
from tests.emulators import discord, slack, telegram
from tests.emulators.bot import running_bot
from tests.emulators.discord import DiscordEmulator
from tests.emulators.openai import FakeOpenAI
from tests.emulators.slack import SlackEmulator
from tests.emulators.telegram import TelegramEmulator

ASKED = "What do the docs say about parcels?"
SAID = "Within thirty days [parcels.md › Parcels]."


def settings_of(model_settings: Callable[..., Settings], **more: Any) -> Settings:
    settings = model_settings(access_policy="open", default_workspace="acme", **more)
    docs = settings.data_dir / "workspaces" / "acme" / "docs"
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "parcels.md").write_text("# Parcels\n\nParcels are brought within thirty days.\n", encoding="utf-8")
    return settings


async def test_telegram_shows_them_as_a_quotation_and_the_conversation_does_not_hold_them(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Not after a restart of the talk either, nor where somebody replies to the message that shows them."""
    lena = telegram.Person(id=501, name="Lena")
    async with (
        TelegramEmulator() as emulator,
        running_bot(settings_of(model_settings), openai_server, [telegram_connector(emulator)]) as bot,
    ):

        async def hears(text: str, **more: Any) -> telegram.Shown:
            before = len(bot.told("reply.delivered"))
            await emulator.say(text, by=lena, **more)
            await emulator.until(lambda _: len(bot.told("reply.delivered")) > before)
            return emulator.shown(lena)[-1]

        bot.model.will(SAID)
        shown = await hears(ASKED)
        assert shown.text == f"{SAID}\n\nSources: parcels.md › Parcels"
        assert [one.kind for one in shown.entities] == ["expandable_blockquote", "code"]

        bot.model.will("You are welcome.")
        assert (await hears("thank you", reply_to=shown.message_id)).text == "You are welcome."
        assert "In reply to Helper:\n> Within thirty days" in bot.sent["user"]
        assert "Sources:" not in bot.sent["user"]
        key = ConversationKey("acme", "telegram", "501")
        said = await bot.runtime.transcript.tail(key, 10)
        assert SAID in [entry.text for entry in said]
        assert not [entry for entry in said if "Sources:" in entry.text]


async def test_slack_shows_them_in_a_context_block(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    lena = slack.Person("U501", "Lena")
    async with (
        SlackEmulator() as emulator,
        running_bot(settings_of(model_settings), openai_server, [slack_connector(emulator)]) as bot,
    ):
        bot.model.will(SAID)
        emulator.say(ASKED, by=lena)
        await emulator.until(lambda one: any(shown.context for shown in one.shown(lena)))
        shown = emulator.shown(lena)[-1]
        assert (shown.text, shown.context) == (SAID, "Sources: parcels.md › Parcels")


async def test_discord_shows_them_as_subtext_and_a_place_may_do_without(
    model_settings: Callable[..., Settings], openai_server: FakeOpenAI
) -> None:
    """Chosen in the chat; a greeting, for which nothing is looked up, has none."""
    lena = discord.Person(id=501, name="Lena")
    settings = settings_of(model_settings, access_admins=("discord:501",))
    async with (
        DiscordEmulator() as emulator,
        running_bot(settings, openai_server, [discord_connector(emulator)]) as bot,
    ):

        async def hears(text: str) -> str:
            before = len(bot.told("reply.delivered"))
            await emulator.say(text, by=lena)
            await emulator.until(lambda _: len(bot.told("reply.delivered")) > before)
            return emulator.shown(lena)[-1].text

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
