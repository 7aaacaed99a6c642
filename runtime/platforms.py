"""The platforms that are on, by the settings. A new platform is one line in `_PLATFORMS`.

Each platform package is imported only when its token is set: some cost seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from config.settings import Settings
from connectors.connector import Connector


def _telegram(settings: Settings) -> Connector | None:
    if settings.telegram_bot_token is None:
        return None
    from connectors.telegram.connector import TelegramConnector

    return TelegramConnector(
        settings.telegram_bot_token,
        settings.telegram_api_base,
        webhook_secret=settings.telegram_webhook_secret,
        public_url=settings.http_public_url,
        reply_max_parts=settings.reply_max_parts,
        timeout_seconds=settings.telegram_timeout_seconds,
        poll_seconds=settings.telegram_poll_seconds,
    )


def _discord(settings: Settings) -> Connector | None:
    if settings.discord_bot_token is None:
        return None
    from connectors.discord.connector import DiscordConnector

    return DiscordConnector(
        settings.discord_bot_token,
        settings.discord_api_base,
        settings.discord_gateway_url,
        timeout_seconds=settings.discord_timeout_seconds,
        reply_max_parts=settings.reply_max_parts,
    )


def _slack(settings: Settings) -> Connector | None:
    if settings.slack_bot_token is None:
        return None
    from connectors.slack.connector import SlackConnector

    return SlackConnector(
        settings.slack_bot_token,
        settings.slack_api_base,
        app_token=settings.slack_app_token,
        signing_secret=settings.slack_signing_secret,
        timeout_seconds=settings.slack_timeout_seconds,
        reply_max_parts=settings.reply_max_parts,
    )


_PLATFORMS: tuple[Callable[[Settings], Connector | None], ...] = (_telegram, _discord, _slack)


async def open_platforms(settings: Settings) -> list[Connector]:
    """A connector for each platform whose token is set. Imports in a thread: it takes up to seconds."""
    made = [await asyncio.to_thread(make, settings) for make in _PLATFORMS]
    return [connector for connector in made if connector is not None]
