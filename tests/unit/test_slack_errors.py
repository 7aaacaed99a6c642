"""Every error of slack_sdk has a meaning."""

from __future__ import annotations

import inspect
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from slack_sdk import errors as slack
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.sdk_errors import LATER, REFUSED, UNKNOWN, Meaning
from connectors.slack.errors import MEANINGS, SLACK_ERRORS, WORDS, Closed, meaning, send_failed

_KEY = ConnectionKey("h", 1, False, True, None, None, None)


def _answer(status: int, data: Any, **headers: str) -> SlackApiError:
    response = AsyncSlackResponse(
        client=AsyncWebClient(),
        http_verb="POST",
        api_url="https://slack.com/api/chat.postMessage",
        req_args={},
        data=data,
        headers=headers,
        status_code=status,
    )
    return SlackApiError("failed", response)  # type: ignore[no-untyped-call]


def test_the_table_has_every_error_class_of_the_sdk() -> None:
    """A new error class in slack_sdk fails here, not in a conversation."""
    defined = {kind for _, kind in inspect.getmembers(slack, inspect.isclass) if issubclass(kind, Exception)}
    assert len(defined) > 6
    assert defined <= MEANINGS.keys()


def test_every_error_of_aiohttp_has_a_meaning() -> None:
    """By itself or by its base class."""
    errors = [kind for _, kind in inspect.getmembers(aiohttp, inspect.isclass) if issubclass(kind, aiohttp.ClientError)]
    assert len(errors) > 15
    assert all(any(base in MEANINGS for base in kind.__mro__) for kind in errors)
    assert all(issubclass(kind, SLACK_ERRORS) for kind in MEANINGS)
    with pytest.raises(KeyError):
        meaning(RuntimeError())


BAD_TOKEN = WORDS["invalid_auth"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_answer(200, {"ok": False, "error": "channel_not_found"}), REFUSED),
        (_answer(200, {"ok": False, "error": "a word of next year"}), REFUSED),
        (_answer(200, {"ok": False, "error": "token_revoked"}), BAD_TOKEN),
        (_answer(200, {"ok": False, "error": "fatal_error"}), UNKNOWN),
        (_answer(200, {"ok": False, "error": "ratelimited"}), LATER),
        (_answer(429, {"ok": False, "error": "ratelimited"}), LATER),
        (_answer(429, {}), LATER),
        (_answer(500, {}), UNKNOWN),
        (_answer(502, {}), UNKNOWN),
        (_answer(200, {}), UNKNOWN),
        (_answer(404, {}), REFUSED),
        (aiohttp.ClientConnectorError(_KEY, OSError(111, "refused")), LATER),
        (aiohttp.ConnectionTimeoutError(), LATER),
        (Closed(), LATER),
        (aiohttp.ServerDisconnectedError(), UNKNOWN),
        (aiohttp.ClientOSError(104, "reset"), UNKNOWN),
        (aiohttp.ClientPayloadError(), UNKNOWN),
        (TimeoutError(), UNKNOWN),
        (AttributeError("'str' object has no attribute 'get'"), UNKNOWN),
        (slack.SlackRequestError(), REFUSED),
    ],
)
def test_a_send_is_ambiguous_only_if_it_may_have_been_carried_out(error: Exception, expected: Meaning) -> None:
    """Where Slack refused, or no connection came about, nothing was; where an answer is missing, nobody knows."""
    assert meaning(error) == expected


def test_the_wait_that_slack_asks_for_is_passed_on() -> None:
    """429 carries its seconds, whatever the case of the header."""
    failed = send_failed(_answer(429, {"ok": False, "error": "ratelimited"}, **{"Retry-After": "7"}), "slow down")
    assert (failed.retryable, failed.ambiguous, failed.retry_after_seconds) == (True, False, 7.0)
    assert send_failed(_answer(429, {}, **{"retry-after": "soon"}), "slow down").retry_after_seconds is None
    assert send_failed(TimeoutError(), "no answer").retry_after_seconds is None
