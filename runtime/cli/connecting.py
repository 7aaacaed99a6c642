"""The part of the guided setup that connects platforms: what to do there, the tokens, and whether they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from config.load import ENVIRONMENT_PREFIX, ConfigurationError, validate
from connectors.examination import Examined
from runtime.cli.invocation import run
from runtime.cli.output import line, note, status_line
from runtime.platforms import examine_platform

Changes = dict[str, Any]

BASES = ("TELEGRAM_API_BASE", "SLACK_API_BASE", "DISCORD_API_BASE", "HTTP_PUBLIC_URL")
"""Settings of the environment by which platforms are asked here, too."""
_SOCKET_MODE, _HTTP = 1, 2


@dataclass(frozen=True)
class Guide:
    """How a platform is connected. ``setting`` says whether it is; ``secrets`` are its settings and their options."""

    name: str
    title: str
    setting: str
    secrets: tuple[str, ...]
    steps: tuple[str, ...]
    ask: Callable[[], Changes]
    afterwards: str


def ask_secret(prompt: str) -> str:
    """What was typed, unseen."""
    secret: str = click.prompt(prompt, hide_input=True)
    return secret.strip()


def connect_platforms(values: Mapping[str, Any], given: Mapping[str, str], *, yes: bool) -> Changes:
    """The settings of the platforms that are to be connected: of those whose secrets are *given* by setting, and,
    unless *yes*, of those that the person wants.

    Raises `click.ClickException` where given secrets do not work.
    """
    changes: Changes = {}
    for guide in GUIDES:
        secrets = {name: given[name] for name in guide.secrets if name in given}
        if secrets:
            changes |= _connect_given(guide, values, secrets)
        elif not yes:
            changes |= _connect_asked(guide, values)
    if changes:
        line("Send the bot a direct message: it answers with a code.")
        line("`agent-runtime access approve CODE --role admin` makes you its admin. It then tells you who else asks.")
    return changes


def _connect_given(guide: Guide, values: Mapping[str, Any], secrets: Changes) -> Changes:
    if guide.setting not in secrets and guide.setting not in values:
        raise click.UsageError(f"{guide.title} also needs the bot's token: give --{guide.name}-token-env")
    if "slack_signing_secret" in secrets:  # with an app-level token Socket Mode would go on
        secrets = {"slack_app_token": None, **secrets}
    examined = _examine(guide, values, secrets)
    _tell(guide, examined)
    if examined.problems:
        raise click.ClickException(f"{guide.title} is not connected; nothing was written")
    line(guide.afterwards)
    return secrets


def _connect_asked(guide: Guide, values: Mapping[str, Any]) -> Changes:
    another = f"A {guide.title} bot is connected. Connect another one instead?"
    question = another if guide.setting in values else f"Connect a {guide.title} bot?"
    shown = default = False
    while click.confirm(question, default=default):
        if not shown:
            for step in guide.steps:
                line(f"  {step}")
            shown = True
        secrets = guide.ask()
        try:
            examined = _examine(guide, values, secrets)
        except ConfigurationError as error:
            for problem in error.problems:
                note(f"→ {problem}")
        else:
            _tell(guide, examined)
            works = not examined.problems
            if works or (examined.who and click.confirm("Keep it anyway? You can correct it later", default=True)):
                line(guide.afterwards)
                return secrets
        question, default = "Try again?", True
    return {}


def _examine(guide: Guide, values: Mapping[str, Any], secrets: Changes) -> Examined:
    """What the platform says, at the address that the environment or the file names. Raises `ConfigurationError`."""
    set_here = {name.lower(): os.environ.get(ENVIRONMENT_PREFIX + name) for name in BASES}
    addresses = {name: value for name, value in set_here.items() if value}
    # None takes a setting away, as in the file.
    wanted = {name: value for name, value in {**values, **addresses, **secrets}.items() if value is not None}
    with status_line(f"asking {guide.title} …"):
        return run(examine_platform(validate(wanted), guide.name))


def _tell(guide: Guide, examined: Examined) -> None:
    if examined.who:
        line(f"{guide.title}: the bot is {examined.who}.")
    for problem in examined.problems:
        note(f"✗ {problem.detail}")
        note(f"→ {problem.advice}")
    if examined.invitation:
        line(f"Add the bot to a server with this link: {examined.invitation}")


def _ask_telegram() -> Changes:
    return {"telegram_bot_token": ask_secret("Token from @BotFather (not shown)")}


def _ask_slack() -> Changes:
    token = ask_secret("Bot User OAuth Token, xoxb-… (not shown)")
    line("How does Slack send events?")
    line(f"  {_SOCKET_MODE}  by Socket Mode: this machine need not be reachable from the internet")
    line(f"  {_HTTP}  over HTTP: Slack posts them to /slack/events and /slack/commands on this machine")
    if click.prompt("Number", type=click.IntRange(_SOCKET_MODE, _HTTP), default=_SOCKET_MODE) == _SOCKET_MODE:
        app_token = ask_secret("App-level token with the scope connections:write, xapp-… (not shown)")
        return {"slack_bot_token": token, "slack_app_token": app_token}
    secret = ask_secret("Signing secret, under Basic Information (not shown)")
    return {"slack_bot_token": token, "slack_app_token": None, "slack_signing_secret": secret}


def _ask_discord() -> Changes:
    return {"discord_bot_token": ask_secret("Bot token (not shown)")}


GUIDES = (
    Guide(
        "telegram",
        "Telegram",
        "telegram_bot_token",
        ("telegram_bot_token",),
        ("In Telegram, send /newbot to @BotFather and answer its questions. It shows the bot's token.",),
        _ask_telegram,
        "Write to the bot, or add it to a group and mention it there.",
    ),
    Guide(
        "slack",
        "Slack",
        "slack_bot_token",
        ("slack_bot_token", "slack_app_token", "slack_signing_secret"),
        (
            "At api.slack.com/apps: Create New App, From a manifest, and paste deploy/slack-manifest.yaml.",
            "Under Install App, install the app. The page then shows the Bot User OAuth Token.",
            "Under Basic Information, App-Level Tokens: generate one with the scope connections:write. For events",
            "over HTTP, use the signing secret instead, and change the lines marked HTTP in the manifest.",
        ),
        _ask_slack,
        "Write to the bot, or invite it to a channel and mention it there.",
    ),
    Guide(
        "discord",
        "Discord",
        "discord_bot_token",
        ("discord_bot_token",),
        (
            "At discord.com/developers/applications: New Application. Under Bot, Reset Token shows the token.",
            "On the same page, switch the Message Content Intent on.",
        ),
        _ask_discord,
        "Add the bot to your server with that link, then mention it there.",
    ),
)
