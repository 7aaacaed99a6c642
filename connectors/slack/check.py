"""Asks Slack whether the bot can work: its token, its scopes, and how events reach it. Loads no SDK."""

from __future__ import annotations

import re

from pydantic import SecretStr

from connectors.connector import Examination, NoAnswer, PlatformAnswer, Problem, ask_platform, unreachable_platform

SCOPES = frozenset(
    {
        "app_mentions:read",
        "channels:history",
        "channels:read",
        "chat:write",
        "commands",
        "files:read",
        "files:write",
        "groups:history",
        "im:history",
        "mpim:history",
        "reactions:read",
        "reactions:write",
        "users:read",
    }
)
"""The scopes that the bot's token needs, as in deploy/slack-manifest.yaml."""

BASE_VARIABLE = "AGENT_RUNTIME_SLACK_API_BASE"
TOKEN_VARIABLE = "AGENT_RUNTIME_SLACK_BOT_TOKEN"  # noqa: S105 - the variable's name
APP_TOKEN_VARIABLE = "AGENT_RUNTIME_SLACK_APP_TOKEN"  # noqa: S105
SECRET_VARIABLE = "AGENT_RUNTIME_SLACK_SIGNING_SECRET"  # noqa: S105
_PASSING_ERRORS = frozenset({"ratelimited", "rate_limited", "service_unavailable", "internal_error", "fatal_error"})


async def examine(
    token: SecretStr, app_token: SecretStr | None, signing_secret: SecretStr | None, api_base: str, seconds: float
) -> Examination:
    """Examine the bot by at most two calls of *seconds* each: ``auth.test``, and ``apps.connections.open`` in Socket
    Mode."""
    try:
        answer = await _call("auth.test", token, api_base, seconds)
        problems = [*_token_problems(answer), *_scope_problems(answer)]
        if app_token is not None:
            problems += _socket_problems(await _call("apps.connections.open", app_token, api_base, seconds))
        elif signing_secret is None or not signing_secret.get_secret_value().strip():
            problems.append(
                Problem(
                    "Slack has no way to reach the bot",
                    f"set {APP_TOKEN_VARIABLE} (Socket Mode), or {SECRET_VARIABLE} (events over HTTP at /slack/events)",
                )
            )
    except NoAnswer as error:
        return unreachable_platform(error, BASE_VARIABLE)
    return Examination(_who(answer), tuple(problems))


async def _call(method: str, token: SecretStr, api_base: str, seconds: float) -> PlatformAnswer:
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    url = f"{api_base.rstrip('/')}/{method}"
    return await ask_platform(url, shown_as=api_base, seconds=seconds, method="POST", headers=headers)


def _who(answer: PlatformAnswer) -> str:
    body = answer.body
    if not body.get("ok"):
        return ""
    return f"@{body.get('user') or body.get('user_id')} in {body.get('team') or body.get('team_id')}"


def _word(answer: PlatformAnswer) -> str:
    """Return Slack's word for why it refused; empty if it did not."""
    return "" if answer.body.get("ok") else str(answer.body.get("error") or f"HTTP {answer.status}")


def _token_problems(answer: PlatformAnswer) -> list[Problem]:
    word = _word(answer)
    if not word:
        return []
    if word in _PASSING_ERRORS:
        return [Problem(f"Slack cannot say now ({word})", "try again in a minute")]
    return [
        Problem(
            f"Slack does not accept the bot token ({word})",
            "at api.slack.com/apps, under Install App, install the app (again) and set "
            f"{TOKEN_VARIABLE} to its Bot User OAuth Token",
        )
    ]


def _scope_problems(answer: PlatformAnswer) -> list[Problem]:
    granted = answer.headers.get("x-oauth-scopes")
    if granted is None or not answer.body.get("ok"):
        return []
    missing = sorted(SCOPES - {scope.strip() for scope in granted.split(",")})
    if not missing:
        return []
    return [
        Problem(
            f"the bot token lacks the {'scope' if len(missing) == 1 else 'scopes'} {', '.join(missing)}",
            "add what is missing at api.slack.com/apps under OAuth & Permissions (deploy/slack-manifest.yaml lists all "
            "scopes), then install the app again",
        )
    ]


def _socket_problems(answer: PlatformAnswer) -> list[Problem]:
    word = _word(answer)
    if not word:
        return []
    if word in _PASSING_ERRORS:
        return [Problem(f"Slack cannot say now whether Socket Mode works ({word})", "try again in a minute")]
    return [
        Problem(
            f"Slack does not open Socket Mode with the app token ({word})",
            f"at api.slack.com/apps: turn Socket Mode on; under Basic Information, make an app-level token with the "
            f"scope connections:write and set {APP_TOKEN_VARIABLE} to it (it begins with xapp-)",
        )
    ]


def place_of(workspace_id: str) -> str | None:
    """Return the route of the team whose own workspace has the id *workspace_id*; None for other workspaces."""
    match = re.fullmatch(r"slack-([a-z0-9]+)", workspace_id)
    return f"slack:{match[1].upper()}" if match else None
