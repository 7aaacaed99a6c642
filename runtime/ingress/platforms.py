"""Opens the platforms whose token is set, and asks them about their bots. To add one: docs/connectors.md.

A connector's module is imported only when its token is set: some SDKs take seconds to import. Asking a platform about
its bot needs no SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import SecretStr

from config.settings import Settings
from connectors import discord, slack, telegram
from connectors.connector import Connector, Examination

EXAMINE_SECONDS = 20.0
"""Time limit of one call that asks a platform about its bot."""


@dataclass(frozen=True, slots=True)
class Platform:
    """How a platform is opened, and asked about its bot, with the bot's token from the settings.

    ``place_of`` returns the place, as operators route it, that has the workspace of a given id for its own, if any.
    ``reply_hint`` tells the model how replies read there.
    """

    name: str
    open: Callable[[Settings, SecretStr], Connector]
    examine: Callable[[Settings, SecretStr], Awaitable[Examination]]
    place_of: Callable[[str], str | None]
    reply_hint: str

    def token(self, settings: Settings) -> SecretStr | None:
        token: SecretStr | None = getattr(settings, f"{self.name}_bot_token")
        return token


def _open_telegram(settings: Settings, token: SecretStr) -> Connector:
    from connectors.telegram.connector import TelegramConnector

    return TelegramConnector(
        token,
        settings.telegram_api_base,
        webhook_secret=settings.telegram_webhook_secret,
        public_url=settings.http_public_url,
        sends_per_second=settings.telegram_sends_per_second,
        poll_seconds=settings.telegram_poll_seconds,
    )


def _open_discord(settings: Settings, token: SecretStr) -> Connector:
    from connectors.discord.connector import DiscordConnector

    return DiscordConnector(
        token,
        settings.discord_api_base,
        settings.discord_gateway_url,
    )


def _open_slack(settings: Settings, token: SecretStr) -> Connector:
    from connectors.slack.connector import SlackConnector

    return SlackConnector(
        token,
        settings.slack_api_base,
        app_token=settings.slack_app_token,
        signing_secret=settings.slack_signing_secret,
    )


def _examine_telegram(settings: Settings, token: SecretStr) -> Awaitable[Examination]:
    return telegram.examine(
        token,
        settings.telegram_api_base,
        EXAMINE_SECONDS,
        by_webhook=settings.telegram_webhook_secret is not None,
        public_url=settings.http_public_url,
        hears_all=settings.answer_in_groups == "all",
    )


def _examine_discord(settings: Settings, token: SecretStr) -> Awaitable[Examination]:
    return discord.examine(token, settings.discord_api_base, EXAMINE_SECONDS)


def _examine_slack(settings: Settings, token: SecretStr) -> Awaitable[Examination]:
    return slack.examine(
        token,
        settings.slack_app_token,
        settings.slack_signing_secret,
        settings.slack_api_base,
        EXAMINE_SECONDS,
    )


PLATFORMS = (
    Platform("telegram", _open_telegram, _examine_telegram, telegram.place_of, telegram.REPLY_HINT),
    Platform("discord", _open_discord, _examine_discord, discord.place_of, discord.REPLY_HINT),
    Platform("slack", _open_slack, _examine_slack, slack.place_of, slack.REPLY_HINT),
)


def platforms_on(settings: Settings) -> list[str]:
    """Return the names of the platforms whose token is set."""
    return [platform.name for platform in PLATFORMS if platform.token(settings) is not None]


def reply_hint_of(connector: str) -> str:
    """Return what the model is told of how replies read on *connector*; empty for a connector that is no platform."""
    return next((platform.reply_hint for platform in PLATFORMS if platform.name == connector), "")


def home_place(workspace_id: str) -> str | None:
    """Return the platform's place that has *workspace_id* for its own workspace, if any."""
    found = (platform.place_of(workspace_id) for platform in PLATFORMS)
    return next((place for place in found if place is not None), None)


async def open_platforms(settings: Settings) -> list[Connector]:
    """Return a connector for each platform whose token is set. Imports run in a thread: they may take seconds."""
    tokens = [(platform, platform.token(settings)) for platform in PLATFORMS]
    return [await asyncio.to_thread(platform.open, settings, token) for platform, token in tokens if token is not None]


async def examine_platforms(settings: Settings) -> dict[str, Examination]:
    """Return what each platform whose token is set says of its bot, by name, within two calls of `EXAMINE_SECONDS`."""
    names = platforms_on(settings)
    found = await asyncio.gather(*(examine_platform(settings, name) for name in names))
    return dict(zip(names, found, strict=True))


async def examine_platform(settings: Settings, name: str) -> Examination:
    """Return what the platform *name*, whose token is set, says of its bot."""
    (platform,) = (platform for platform in PLATFORMS if platform.name == name)
    token = platform.token(settings)
    assert token is not None, f"no token of {name} is set"
    return await platform.examine(settings, token)
