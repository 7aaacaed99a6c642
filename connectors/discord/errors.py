"""One table of what each error of discord.py means for a send and for the connection."""

from __future__ import annotations

import discord
from aiohttp import ClientConnectorError, ClientError, ConnectionTimeoutError
from discord.errors import DiscordException

from connectors.connector import SendFailed
from connectors.discord.check import BASE_VARIABLE, TOKEN_VARIABLE
from connectors.message import AgentRuntimeError
from connectors.sdk_errors import LATER, REFUSED, UNKNOWN, Meaning, find_meaning

_BAD_TOKEN = Meaning(
    retryable=False,
    needs_person=f"Discord does not accept the bot token. Set {TOKEN_VARIABLE} to the token that the Developer "
    f"Portal shows under Bot (and leave {BASE_VARIABLE} unset unless you use a proxy).",
)
_NO_INTENT = Meaning(
    retryable=False,
    needs_person="Discord does not let the bot read messages: switch on the Message Content Intent in the Developer "
    f"Portal, under Bot, for the application of {TOKEN_VARIABLE}, and start again.",
)

MEANINGS: dict[type[Exception], Meaning] = {
    # Refused: the request was read and not carried out.
    discord.HTTPException: REFUSED,
    discord.Forbidden: REFUSED,
    discord.NotFound: REFUSED,
    # Not now.
    discord.RateLimited: LATER,
    discord.GatewayNotFound: LATER,
    discord.ConnectionClosed: LATER,
    # No answer, or one that does not say whether the request was carried out.
    discord.DiscordServerError: UNKNOWN,
    ClientError: UNKNOWN,
    OSError: UNKNOWN,  # also TimeoutError
    discord.InvalidData: UNKNOWN,
    # No connection, so nothing was sent.
    ClientConnectorError: LATER,
    ConnectionTimeoutError: LATER,
    # Only a person can help.
    discord.LoginFailure: _BAD_TOKEN,
    discord.PrivilegedIntentsRequired: _NO_INTENT,
    # Raised inside discord.py, before anything is sent.
    DiscordException: REFUSED,
    discord.ClientException: REFUSED,
    discord.InteractionResponded: REFUSED,
    discord.MissingApplicationID: REFUSED,
    discord.errors.FFmpegProcessError: REFUSED,
}

DISCORD_ERRORS = (DiscordException, ClientError, OSError)
"""The errors that a call through discord.py may raise."""

_INVALID_WEBHOOK_TOKEN = 50027
"""Reference, "JSON Error Codes": its status is 401, but it is not about the bot's own token."""

# Reference, "Gateway Close Event Codes": after these a client must not connect again.
_FATAL_CLOSES = {
    4004: _BAD_TOKEN,
    4010: Meaning(
        False, needs_person="Discord refuses the gateway's shard (code 4010): please report this to Agent Runtime."
    ),
    4011: Meaning(False, needs_person="The bot is on too many servers for one connection (code 4011)."),
    4012: Meaning(False, needs_person="Discord no longer speaks this version of its gateway: upgrade Agent Runtime."),
    4013: Meaning(False, needs_person="Discord does not know an intent (code 4013): upgrade Agent Runtime."),
    4014: _NO_INTENT,
}


class DiscordUnavailable(AgentRuntimeError):
    """Discord cannot be asked at the moment."""

    retryable = True


def meaning(error: Exception) -> Meaning:
    """Return the table's entry for *error*, or for its nearest base class. Raises `KeyError`."""
    if isinstance(error, discord.ConnectionClosed) and error.code in _FATAL_CLOSES:
        return _FATAL_CLOSES[error.code]
    # discord.py has no class for these two. It takes a 429 without a ``Via`` header for a ban. But a proxy may have
    # removed the header, or the 429 may be from Discord's edge: both pass.
    if isinstance(error, discord.HTTPException) and error.status == 429:
        return LATER
    if isinstance(error, discord.HTTPException) and error.status == 401 and error.code != _INVALID_WEBHOOK_TOKEN:
        return _BAD_TOKEN
    return find_meaning(error, MEANINGS)


def retry_after_seconds(error: Exception) -> float | None:
    """Return the wait that Discord demands, if *error* is its 429."""
    if isinstance(error, discord.RateLimited):
        return error.retry_after
    if not isinstance(error, discord.HTTPException) or error.status != 429:
        return None
    try:
        return float(error.response.headers["Retry-After"])
    except (KeyError, ValueError):
        return None


def send_failed(error: Exception, why: str) -> SendFailed:
    """Return *error* as `SendFailed`. *why* is its text without secrets."""
    text = f"Discord did not take the message: {why}"
    return meaning(error).send_failed(text, retry_after_seconds(error), everywhere=_is_global(error))


def _is_global(error: Exception) -> bool:
    """Return whether a 429 is for all calls of the bot: its header says so, or it is Cloudflare's and not Discord's own
    (Reference, "Rate Limits", "Global Rate Limit" and "Invalid Request Limit")."""
    if not isinstance(error, discord.HTTPException) or error.status != 429:
        return False
    headers = error.response.headers
    return headers.get("X-RateLimit-Scope") == "global" or "X-RateLimit-Global" in headers or "Via" not in headers
