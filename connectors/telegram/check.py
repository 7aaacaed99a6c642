"""Ask Telegram whether the bot can work: its token, its webhook, and its privacy in groups. Needs no SDK."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from connectors.connector import Examination, NoAnswer, PlatformAnswer, Problem, ask_platform, unreachable_platform

PATH = "/telegram/webhook"
RECENT_ERROR_SECONDS = 900
"""An older failure of a delivery says nothing about now: Telegram tries again after minutes at most."""

BASE_VARIABLE = "AGENT_RUNTIME_TELEGRAM_API_BASE"
TOKEN_VARIABLE = "AGENT_RUNTIME_TELEGRAM_BOT_TOKEN"  # noqa: S105 - the variable's name
PUBLIC_URL_VARIABLE = "AGENT_RUNTIME_HTTP_PUBLIC_URL"


async def examine(
    token: SecretStr,
    api_base: str,
    seconds: float,
    *,
    by_webhook: bool = False,
    public_url: str | None = None,
    hears_all: bool = False,
) -> Examination:
    """Ask by ``getMe`` and ``getWebhookInfo``, each within *seconds*.

    *hears_all*: the bot should answer everything in groups. Telegram shows it everything only without privacy mode.
    """
    try:
        me = await _call("getMe", token, api_base, seconds)
        if problem := _refusal(me):
            return Examination(problems=(problem,))
        webhook = await _call("getWebhookInfo", token, api_base, seconds)
    except NoAnswer as error:
        return unreachable_platform(error, BASE_VARIABLE)
    bot, info = _result(me), _result(webhook)
    problems = _webhook_problems(info, f"{public_url.rstrip('/')}{PATH}" if public_url else "", time.time(), by_webhook)
    if hears_all and not bot.get("can_read_all_group_messages"):
        problems.append(
            Problem(
                "the bot should answer everything in groups, but Telegram only shows it messages that mention it",
                "turn its privacy mode off (@BotFather, /setprivacy), then add it to its groups again",
            )
        )
    return Examination(f"@{bot.get('username') or bot.get('id')}", tuple(problems))


async def _call(method: str, token: SecretStr, api_base: str, seconds: float) -> PlatformAnswer:
    url = f"{api_base.rstrip('/')}/bot{quote(token.get_secret_value(), safe=':')}/{method}"
    return await ask_platform(url, shown_as=api_base, seconds=seconds)


def _result(answer: PlatformAnswer) -> dict[str, Any]:
    result = answer.body.get("result")
    return result if isinstance(result, dict) else {}


def _refusal(answer: PlatformAnswer) -> Problem | None:
    if answer.status in (401, 404):
        return Problem("Telegram does not know this token", f"set {TOKEN_VARIABLE} to the one that @BotFather shows")
    if not answer.body.get("ok"):
        return Problem(f"Telegram answers with HTTP {answer.status}", f"try again later; see {BASE_VARIABLE}, too")
    return None


def _webhook_problems(info: dict[str, Any], ours: str, now: float, by_webhook: bool) -> list[Problem]:
    shown = str(info.get("url") or "")
    if not by_webhook:
        if not shown:
            return []
        advice = "`agent-runtime serve` removes it; if another program needs it, use a separate bot for that program"
        return [Problem(f"a webhook is set ({_host(shown)}), so Telegram sends nothing by long polling", advice)]
    if not shown:
        advice = (
            f"`agent-runtime serve` sets it; {PUBLIC_URL_VARIABLE} must be the address at which Telegram reaches it"
        )
        return [Problem("no webhook is set", advice)]
    if ours and not is_same_address(shown, ours):
        advice = "`agent-runtime serve` sets it again; if it does not stay, another program uses this bot"
        return [Problem(f"the webhook leads elsewhere ({_host(shown)})", advice)]
    failed_at = info.get("last_error_date")
    waiting = info.get("pending_update_count") or 0
    if waiting and isinstance(failed_at, int) and now - failed_at <= RECENT_ERROR_SECONDS:
        why = str(info.get("last_error_message") or "no reason given")
        advice = f"check that {PUBLIC_URL_VARIABLE} leads here from the internet"
        return [Problem(f"Telegram could not deliver {waiting} updates ({why})", advice)]
    return []


def is_same_address(shown: str, registered: str) -> bool:
    """Return whether two URLs are the same. Telegram writes hosts in small letters and ASCII, as httpx does."""
    try:
        return httpx.URL(shown) == httpx.URL(registered)
    except httpx.InvalidURL:
        return shown == registered


def _host(url: str) -> str:
    try:
        return httpx.URL(url).host or "an address that cannot be read"
    except httpx.InvalidURL:
        return "an address that cannot be read"


def place_of(workspace_id: str) -> str | None:
    """Return the route of the chat that has *workspace_id* as its own workspace, or None if none has."""
    match = re.fullmatch(r"telegram-(-?\d+)", workspace_id)
    return f"telegram:{match[1]}" if match else None
