"""One table of what each error of Slack and its SDK means for a send and for the connection.

Slack answers a refused call with a word (docs.slack.dev, "Errors" of each method).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
from slack_sdk import errors as slack

from connectors.connector import SendFailed


class Closed(ConnectionError):
    """The connector was closed; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Has ``retryable`` and ``ambiguous`` as in `connectors.connector.SendFailed`. With ``bad_token`` nothing will work
    until a person sets another token."""

    retryable: bool
    ambiguous: bool = False
    bad_token: bool = False


_REFUSED = Meaning(retryable=False)
_LATER = Meaning(retryable=True)
_UNKNOWN = Meaning(retryable=True, ambiguous=True)
_BAD_TOKEN = Meaning(retryable=False, bad_token=True)

WORDS: dict[str, Meaning] = {
    "account_inactive": _BAD_TOKEN,
    "invalid_auth": _BAD_TOKEN,
    "not_allowed_token_type": _BAD_TOKEN,
    "not_authed": _BAD_TOKEN,
    "token_expired": _BAD_TOKEN,
    "token_revoked": _BAD_TOKEN,
    # Not carried out now, but it may be later.
    "ratelimited": _LATER,
    "rate_limited": _LATER,
    "request_timeout": _LATER,  # "the POST data was either missing or truncated"
    "service_unavailable": _LATER,
    "team_added_to_org": _LATER,
    "accesslimited": _LATER,
    # "It's possible some aspect of the operation succeeded before the error was raised."
    "fatal_error": _UNKNOWN,
    "internal_error": _UNKNOWN,
}
"""The words that do not mean "refused". All other words do, also those that Slack will add."""

MEANINGS: dict[type[Exception], Meaning] = {
    # An answer of Slack's without a word; see `meaning`.
    slack.SlackApiError: _UNKNOWN,
    # Raised inside the SDK, before anything is sent.
    slack.SlackClientError: _REFUSED,
    slack.BotUserAccessError: _REFUSED,
    slack.SlackRequestError: _REFUSED,
    slack.SlackObjectFormationError: _REFUSED,
    slack.SlackClientConfigurationError: _REFUSED,
    slack.SlackTokenRotationError: _REFUSED,
    slack.SlackClientNotConnectedError: _LATER,
    # There was no connection, so nothing was sent.
    Closed: _LATER,
    aiohttp.ClientConnectorError: _LATER,
    aiohttp.ConnectionTimeoutError: _LATER,
    aiohttp.InvalidURL: _REFUSED,
    # No answer, or one that says nothing about whether the request was carried out.
    aiohttp.ClientError: _UNKNOWN,
    TimeoutError: _UNKNOWN,
    OSError: _UNKNOWN,
    AttributeError: _UNKNOWN,  # slack_sdk 3.47 raises it for an answer that is a text or a list
    ValueError: _UNKNOWN,
}

SLACK_ERRORS = (slack.SlackClientError, aiohttp.ClientError, TimeoutError, OSError, AttributeError, ValueError)
"""All errors that a call through slack_sdk may raise."""


def meaning(error: Exception) -> Meaning:
    """Return the table's entry for *error*, or for the nearest of its base classes. Raises `KeyError`."""
    if isinstance(error, slack.SlackApiError):
        if status(error) == 429:
            return _LATER
        if error_word := word(error):
            return WORDS.get(error_word, _REFUSED)
        if 400 <= status(error) < 500:
            return _REFUSED
        # A page from a proxy on the way, which may have passed the request on.
    for known in type(error).__mro__:
        if known in MEANINGS:
            return MEANINGS[known]
    raise KeyError(type(error))


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
    if not isinstance(error, slack.SlackApiError) or meaning(error) is not _LATER:
        return None
    headers: Any = getattr(error.response, "headers", None) or {}
    retry_after = {str(name).lower(): str(value) for name, value in headers.items()}.get("retry-after", "")
    return float(retry_after) if retry_after.isdecimal() else None


def send_failed(error: Exception, why: str) -> SendFailed:
    """Convert *error*; *why* is its text without secrets."""
    error_meaning = meaning(error)
    return SendFailed(
        f"Slack did not take the message: {why}",
        retryable=error_meaning.retryable,
        ambiguous=error_meaning.ambiguous,
        retry_after_seconds=retry_after_seconds(error),
    )
