"""Asks Discord whether the bot can work: its token, and whether it may read what people write."""

from __future__ import annotations

import re
from typing import Any

from pydantic import SecretStr

from connectors.connector import Answer, CannotAsk, Examined, Problem, ask, unreachable

_BASE = "AGENT_RUNTIME_DISCORD_API_BASE"
_TOKEN = "AGENT_RUNTIME_DISCORD_BOT_TOKEN"  # noqa: S105 - the variable's name
MESSAGE_CONTENT = 1 << 18
MESSAGE_CONTENT_LIMITED = 1 << 19
"""Reference, "Application Flags": the intent of an app that is verified, and of one that need not be."""

_PERMISSIONS = {
    "ADD_REACTIONS": 1 << 6,
    "VIEW_CHANNEL": 1 << 10,
    "SEND_MESSAGES": 1 << 11,
    "ATTACH_FILES": 1 << 15,
    "READ_MESSAGE_HISTORY": 1 << 16,
    "SEND_MESSAGES_IN_THREADS": 1 << 38,
}
"""Reference, "Bitwise Permission Flags"."""


async def examine(token: SecretStr, api_base: str, seconds: float) -> Examined:
    """Two calls of *seconds* each: ``/users/@me`` and ``/applications/@me``."""
    try:
        me = await _call("/users/@me", token, api_base, seconds)
        if problem := _refusal(me):
            return Examined(problems=(problem,))
        application = await _call("/applications/@me", token, api_base, seconds)
    except CannotAsk as error:
        return unreachable(error, _BASE)
    if problem := _refusal(application):
        return Examined(_who(me.body), (problem,))
    problems = () if _reads_messages(application.body) else (_no_intent(),)
    return Examined(_who(me.body), problems, invitation(str(application.body.get("id") or "")))


def invitation(application_id: str) -> str:
    """The link by which somebody who manages a server brings the bot there, with what it needs; empty without an id."""
    if not application_id:
        return ""
    wanted = sum(_PERMISSIONS.values())
    return (
        f"https://discord.com/oauth2/authorize?client_id={application_id}"
        f"&scope=bot+applications.commands&permissions={wanted}"
    )


async def _call(path: str, token: SecretStr, api_base: str, seconds: float) -> Answer:
    # Reference, "User Agent": without one of this form requests may be blocked.
    headers = {"Authorization": f"Bot {token.get_secret_value()}", "User-Agent": "DiscordBot (agent-runtime, 1)"}
    return await ask(f"{api_base.rstrip('/')}{path}", shown_as=api_base, seconds=seconds, headers=headers)


def _refusal(answer: Answer) -> Problem | None:
    if answer.status == 401:
        return Problem(
            "Discord does not accept the bot token",
            "at discord.com/developers/applications, under Bot, reset the token and set "
            f"{_TOKEN} to what is shown there",
        )
    if answer.status == 429:
        return Problem("Discord cannot say now (it limits requests)", "try again in a minute")
    if answer.status >= 400:
        return Problem(f"Discord answers with HTTP {answer.status}", f"try again later; see {_BASE}, too")
    return None


def _who(me: dict[str, Any]) -> str:
    return f"@{me.get('username') or me.get('id')}"


def _reads_messages(application: dict[str, Any]) -> bool:
    flags = application.get("flags")
    return isinstance(flags, int) and bool(flags & (MESSAGE_CONTENT | MESSAGE_CONTENT_LIMITED))


def _no_intent() -> Problem:
    return Problem(
        "Discord does not let the bot read messages: the Message Content Intent is off",
        "at discord.com/developers/applications, under Bot, switch the Message Content Intent on",
    )


def place_of(workspace_id: str) -> str | None:
    """The place, as operators route it, whose own workspace *workspace_id* is; None where it is no such workspace."""
    found = re.fullmatch(r"discord-((?:dm-)?\d+)", workspace_id)
    return f"discord:{found[1]}" if found else None
