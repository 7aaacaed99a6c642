"""What platforms say of a bot when `setup` and `doctor` ask, and what a person is told to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from config.settings import Settings
from connectors.connector import Examination
from connectors.discord.check import invitation
from connectors.slack.check import SCOPES
from runtime.ingress import examine_platforms
from tests.emulators.discord import DiscordEmulator
from tests.emulators.slack import SlackEmulator
from tests.emulators.slack import refused as slack_refused
from tests.emulators.telegram import TelegramEmulator

MakeSettings = Callable[..., Settings]


def slack_settings(slack: SlackEmulator, **more: Any) -> dict[str, Any]:
    return {
        "slack_bot_token": slack.token,
        "slack_app_token": slack.app_token,
        "slack_api_base": slack.base_url,
        **more,
    }


def discord_settings(discord: DiscordEmulator, **more: Any) -> dict[str, Any]:
    return {
        "discord_bot_token": discord.token,
        "discord_api_base": discord.base_url,
        **more,
    }


def telegram_settings(telegram: TelegramEmulator, **more: Any) -> dict[str, Any]:
    return {
        "telegram_bot_token": telegram.token,
        "telegram_api_base": telegram.base_url,
        **more,
    }


def only(found: dict[str, Examination], name: str) -> tuple[str, str]:
    """What is wrong and what is advised, where that is one thing."""
    (problem,) = found[name].problems
    return problem.detail, problem.advice


async def test_bots_that_can_work_are_named(settings: MakeSettings) -> None:
    """All platforms that are on are asked, and no other."""
    assert await examine_platforms(settings()) == {}
    async with SlackEmulator() as slack, DiscordEmulator() as discord, TelegramEmulator(username="harbour") as telegram:
        on = settings(**slack_settings(slack), **discord_settings(discord), **telegram_settings(telegram))
        found = await examine_platforms(on)
        assert slack.sockets == 0  # to be told that it may is enough
        assert telegram.delivered == []
    assert {name: one.problems for name, one in found.items()} == {"slack": (), "discord": (), "telegram": ()}
    assert found["telegram"].who == "@harbour"
    assert found["slack"].who == f"@{slack.name} in {slack.team_id}"
    assert found["discord"].who == "@helper"
    assert found["discord"].invitation == invitation("124")


async def test_a_revoked_slack_token_and_a_wrong_app_token_are_told_apart(settings: MakeSettings) -> None:
    """Each with its variable."""
    async with SlackEmulator() as slack:
        slack.revoked = True
        detail, advice = only(await examine_platforms(settings(**slack_settings(slack))), "slack")
        assert "token_revoked" in detail
        assert "AGENT_RUNTIME_SLACK_BOT_TOKEN" in advice
        slack.revoked = False
        wrong = slack_settings(slack, slack_app_token="xapp-of-another")
        detail, advice = only(await examine_platforms(settings(**wrong)), "slack")
        assert "invalid_auth" in detail
        assert "connections:write" in advice
        assert "AGENT_RUNTIME_SLACK_APP_TOKEN" in advice


async def test_scopes_that_a_slack_app_lacks_are_named(settings: MakeSettings) -> None:
    """So that nobody has to find out by a feature that does not work."""
    async with SlackEmulator() as slack:
        slack.scopes -= {"files:read", "users:read"}
        detail, advice = only(await examine_platforms(settings(**slack_settings(slack))), "slack")
    assert detail.endswith("the scopes files:read, users:read")
    assert "install the app again" in advice


async def test_a_slack_app_needs_a_way_by_which_events_come(settings: MakeSettings) -> None:
    """Socket Mode, or a signing secret; a secret cannot be tried, so that it is taken as it is."""
    async with SlackEmulator() as slack:
        without = slack_settings(slack, slack_app_token=None)
        detail, advice = only(await examine_platforms(settings(**without)), "slack")
        assert "no way" in detail
        assert "AGENT_RUNTIME_SLACK_SIGNING_SECRET" in advice
        over_http = settings(**without, slack_signing_secret=slack.signing_secret)
        assert (await examine_platforms(over_http))["slack"].problems == ()


async def test_a_slack_that_cannot_say_now_is_no_wrong_token(settings: MakeSettings) -> None:
    """People are told to wait, and not to change what is right."""
    async with SlackEmulator() as slack:
        slack.fail_next("auth.test", slack_refused("internal_error"))
        _, advice = only(await examine_platforms(settings(**slack_settings(slack))), "slack")
    assert advice == "try again in a minute"


def test_the_scopes_that_are_asked_for_are_those_of_the_manifest() -> None:
    """And of no other list."""
    path = Path(__file__).parents[3] / "deploy" / "slack-manifest.yaml"
    assert set(yaml.safe_load(path.read_text("utf-8"))["oauth_config"]["scopes"]["bot"]) == SCOPES


async def test_a_discord_bot_that_may_not_read_messages_is_told_which_switch_it_is(settings: MakeSettings) -> None:
    """Without it the gateway closes the connection."""
    async with DiscordEmulator() as discord:
        discord.allows_message_content = False
        detail, advice = only(await examine_platforms(settings(**discord_settings(discord))), "discord")
    assert "Message Content Intent is off" in detail
    assert "under Bot" in advice


async def test_a_wrong_discord_token_is_named_by_its_variable(settings: MakeSettings) -> None:
    """And is not shown."""
    async with DiscordEmulator() as discord:
        wrong = discord_settings(discord, discord_bot_token="wrong-token")
        detail, advice = only(await examine_platforms(settings(**wrong)), "discord")
    assert "AGENT_RUNTIME_DISCORD_BOT_TOKEN" in advice
    assert "wrong-token" not in detail + advice


@pytest.mark.parametrize("wrong", ["1:" + "B" * 35, "no token/../at all"])
async def test_a_wrong_telegram_token_is_named_by_its_variable(settings: MakeSettings, wrong: str) -> None:
    """And is not shown."""
    async with TelegramEmulator() as telegram:
        on = telegram_settings(telegram, telegram_bot_token=wrong)
        detail, advice = only(await examine_platforms(settings(**on)), "telegram")
    assert "does not know this token" in detail
    assert "BotFather" in advice
    assert wrong not in detail + advice


async def test_a_webhook_that_is_in_the_way_or_leads_elsewhere_is_told(settings: MakeSettings) -> None:
    """By its host alone: paths may hold secrets. Our own, however Telegram writes it, is none."""
    async with TelegramEmulator() as telegram:
        telegram.webhook.set({"url": "https://other.example/secret-path"})
        detail, _ = only(await examine_platforms(settings(**telegram_settings(telegram))), "telegram")
        assert "a webhook is set (other.example)" in detail
        by_webhook = telegram_settings(telegram, telegram_webhook_secret="s", http_public_url="https://Bot.Example")
        detail, _ = only(await examine_platforms(settings(**by_webhook)), "telegram")
        assert "leads elsewhere (other.example)" in detail
        telegram.webhook.set({"url": "https://Bot.Example/telegram/webhook"})
        assert (await examine_platforms(settings(**by_webhook)))["telegram"].problems == ()
        telegram.webhook.url = ""
        detail, advice = only(await examine_platforms(settings(**by_webhook)), "telegram")
        assert detail == "no webhook is set"
        assert "AGENT_RUNTIME_HTTP_PUBLIC_URL" in advice


async def test_a_telegram_bot_that_is_to_hear_everything_needs_its_privacy_mode_off(settings: MakeSettings) -> None:
    """Telegram does not show it what is not addressed to it."""
    async with TelegramEmulator() as telegram:
        on = settings(**telegram_settings(telegram, answer_in_groups="all"))
        _, advice = only(await examine_platforms(on), "telegram")
    assert "/setprivacy" in advice


async def test_a_platform_that_cannot_be_reached_is_named_with_the_variable_of_its_address(
    settings: MakeSettings,
) -> None:
    """No token is shown, though Telegram's addresses hold it."""
    async with SlackEmulator() as slack, DiscordEmulator() as discord, TelegramEmulator() as telegram:
        on = settings(**slack_settings(slack), **discord_settings(discord), **telegram_settings(telegram))
    for name, found in (await examine_platforms(on)).items():
        (problem,) = found.problems
        assert "cannot be reached" in problem.detail
        assert f"AGENT_RUNTIME_{name.upper()}_API_BASE" in problem.advice
        assert telegram.token not in problem.detail
