"""One table of what each error of Slack and its SDK means for a send and for the connection.

Slack answers a refused call with a word (docs.slack.dev, "Errors" of each method).
"""

from __future__ import annotations

from typing import Any

import aiohttp
from slack_sdk import errors as slack

from connectors.connector import SendFailed
from connectors.sdk_errors import LATER, REFUSED, UNKNOWN, Meaning, find_meaning
from connectors.slack.check import BASE_VARIABLE, TOKEN_VARIABLE


class Closed(ConnectionError):
    """The connector was closed; nothing was sent."""


_BAD_TOKEN = Meaning(
    retryable=False,
    needs_person=f"Slack does not accept the bot token. Set {TOKEN_VARIABLE} to the app's Bot User OAuth Token, which "
    f"begins with xoxb- (and leave {BASE_VARIABLE} unset unless you use a proxy).",
)

WORDS: dict[str, Meaning] = {
    "account_inactive": _BAD_TOKEN,
    "invalid_auth": _BAD_TOKEN,
    "not_allowed_token_type": _BAD_TOKEN,
    "not_authed": _BAD_TOKEN,
    "token_expired": _BAD_TOKEN,
    "token_revoked": _BAD_TOKEN,
    # Not carried out now, but it may be later.
    "ratelimited": LATER,
    "rate_limited": LATER,
    "request_timeout": LATER,  # "the POST data was either missing or truncated"
    "service_unavailable": LATER,
    "team_added_to_org": LATER,
    "accesslimited": LATER,
    # "It's possible some aspect of the operation succeeded before the error was raised."
    "fatal_error": UNKNOWN,
    "internal_error": UNKNOWN,
}
"""The words that do not mean "refused". All other words do, also those that Slack will add."""

MEANINGS: dict[type[Exception], Meaning] = {
    # An answer of Slack's without a word; see `meaning`.
    slack.SlackApiError: UNKNOWN,
    # Raised inside the SDK, before anything is sent.
    slack.SlackClientError: REFUSED,
    slack.BotUserAccessError: REFUSED,
    slack.SlackRequestError: REFUSED,
    slack.SlackObjectFormationError: REFUSED,
    slack.SlackClientConfigurationError: REFUSED,
    slack.SlackTokenRotationError: REFUSED,
    slack.SlackClientNotConnectedError: LATER,
    # There was no connection, so nothing was sent.
    Closed: LATER,
    aiohttp.ClientConnectorError: LATER,
    aiohttp.ConnectionTimeoutError: LATER,
    aiohttp.InvalidURL: REFUSED,
    # No answer, or one that says nothing about whether the request was carried out.
    aiohttp.ClientError: UNKNOWN,
    TimeoutError: UNKNOWN,
    OSError: UNKNOWN,
    AttributeError: UNKNOWN,  # slack_sdk 3.47 raises it for an answer that is a text or a list
    ValueError: UNKNOWN,
}

SLACK_ERRORS = (slack.SlackClientError, aiohttp.ClientError, TimeoutError, OSError, AttributeError, ValueError)
"""All errors that a call through slack_sdk may raise."""


def meaning(error: Exception) -> Meaning:
    """Return the table's entry for *error*, or for the nearest of its base classes. Raises `KeyError`."""
    if isinstance(error, slack.SlackApiError):
        if status(error) == 429:
            return LATER
        if error_word := word(error):
            return WORDS.get(error_word, REFUSED)
        if 400 <= status(error) < 500:
            return REFUSED
        # A page from a proxy on the way, which may have passed the request on.
    return find_meaning(error, MEANINGS)


def word(error: BaseException | None) -> str:
    """Return Slack's word for *error*, or an empty text."""
    data = getattr(getattr(error, "response", None), "data", None)
    return str(data.get("error") or "") if isinstance(data, dict) else ""


def status(error: BaseException) -> int:
    """Return the HTTP status of the answer that *error* is about; 0 if there was none."""
    answer: Any = getattr(error, "response", None)
    return int(getattr(answer, "status_code", None) or getattr(answer, "status", None) or 0)


def retry_after_seconds(error: Exception) -> float | None:
    """Return the wait that Slack asked for with a 429; None if it asked for none."""
    if not isinstance(error, slack.SlackApiError) or meaning(error) is not LATER:
        return None
    headers: Any = getattr(error.response, "headers", None) or {}
    retry_after = {str(name).lower(): str(value) for name, value in headers.items()}.get("retry-after", "")
    return float(retry_after) if retry_after.isdecimal() else None


def send_failed(error: Exception, why: str) -> SendFailed:
    """Convert *error*; *why* is its text without secrets."""
    return meaning(error).send_failed(f"Slack did not take the message: {why}", retry_after_seconds(error))
