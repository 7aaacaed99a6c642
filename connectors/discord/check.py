"""Ask Discord whether the bot can work: its token, and whether it may read messages. Needs no SDK."""

from __future__ import annotations

import re

from pydantic import SecretStr

from connectors.connector import Examination, NoAnswer, PlatformAnswer, Problem, ask_platform, unreachable_platform

BASE_VARIABLE = "AGENT_RUNTIME_DISCORD_API_BASE"
TOKEN_VARIABLE = "AGENT_RUNTIME_DISCORD_BOT_TOKEN"  # noqa: S105 - the variable's name

_MESSAGE_CONTENT = 1 << 18
_MESSAGE_CONTENT_LIMITED = 1 << 19
"""Reference, "Application Flags": the Message Content Intent of a verified app, and of one that need not be."""

_PERMISSIONS = {
    "ADD_REACTIONS": 1 << 6,
    "VIEW_CHANNEL": 1 << 10,
    "SEND_MESSAGES": 1 << 11,
    "ATTACH_FILES": 1 << 15,
    "READ_MESSAGE_HISTORY": 1 << 16,
    "SEND_MESSAGES_IN_THREADS": 1 << 38,
}
"""Reference, "Bitwise Permission Flags"."""


async def examine(token: SecretStr, api_base: str, seconds: float) -> Examination:
    """Ask by ``/users/@me`` and ``/applications/@me``, each within *seconds*."""
    try:
        me = await _call("/users/@me", token, api_base, seconds)
        if problem := _refusal(me):
            return Examination(problems=(problem,))
        application = await _call("/applications/@me", token, api_base, seconds)
    except NoAnswer as error:
        return unreachable_platform(error, BASE_VARIABLE)
    name = f"@{me.body.get('username') or me.body.get('id')}"
    if problem := _refusal(application):
        return Examination(name, (problem,))
    flags = application.body.get("flags")
    problems: tuple[Problem, ...] = ()
    if not isinstance(flags, int) or not flags & (_MESSAGE_CONTENT | _MESSAGE_CONTENT_LIMITED):
        problems = (
            Problem(
                "Discord does not let the bot read messages: the Message Content Intent is off",
                "at discord.com/developers/applications, under Bot, switch the Message Content Intent on",
            ),
        )
    return Examination(name, problems, invitation(str(application.body.get("id") or "")))


def invitation(application_id: str) -> str:
    """Return the link by which the manager of a server invites the bot, with its permissions; empty without an id."""
    if not application_id:
        return ""
    return (
        f"https://discord.com/oauth2/authorize?client_id={application_id}"
        f"&scope=bot+applications.commands&permissions={sum(_PERMISSIONS.values())}"
    )


async def _call(path: str, token: SecretStr, api_base: str, seconds: float) -> PlatformAnswer:
    # Reference, "User Agent": without one of this form requests may be blocked.
    headers = {"Authorization": f"Bot {token.get_secret_value()}", "User-Agent": "DiscordBot (agent-runtime, 1)"}
    return await ask_platform(f"{api_base.rstrip('/')}{path}", shown_as=api_base, seconds=seconds, headers=headers)


def _refusal(answer: PlatformAnswer) -> Problem | None:
    if answer.status == 401:
        return Problem(
            "Discord does not accept the bot token",
            "at discord.com/developers/applications, under Bot, reset the token and set "
            f"{TOKEN_VARIABLE} to what is shown there",
        )
    if answer.status == 429:
        return Problem("Discord cannot say now (it limits requests)", "try again in a minute")
    if answer.status >= 400:
        return Problem(f"Discord answers with HTTP {answer.status}", f"try again later; see {BASE_VARIABLE}, too")
    return None


def place_of(workspace_id: str) -> str | None:
    """Return the route of the server or person that has *workspace_id* as its own workspace, or None if none has."""
    match = re.fullmatch(r"discord-((?:dm-)?\d+)", workspace_id)
    return f"discord:{match[1]}" if match else None
