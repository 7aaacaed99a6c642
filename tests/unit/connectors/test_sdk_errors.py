"""Every error of discord.py, slack_sdk and aiogram has a meaning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import aiohttp
import discord
import pytest
from aiogram import exceptions
from aiogram.exceptions import AiogramError, TelegramNetworkError, TelegramRetryAfter
from aiogram.methods import GetMe
from aiohttp import (
    ClientConnectorError,
    ClientOSError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
    WSServerHandshakeError,
)
from aiohttp.client_reqrep import ConnectionKey
from discord import errors
from slack_sdk import errors as slack
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from connectors.discord import errors as on_discord
from connectors.discord.check import TOKEN_VARIABLE
from connectors.sdk_errors import LATER, REFUSED, UNKNOWN, Meaning
from connectors.slack import errors as on_slack
from connectors.telegram import errors as on_telegram


class _Response:
    """What discord.py's errors keep of a response."""

    reason = "reason"

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.headers = headers or {}


def http_error(status: int, headers: dict[str, str] | None = None, kind: type[Any] = discord.HTTPException) -> Any:
    return kind(_Response(status, headers), {"message": "no", "code": 0})


class _Socket:
    def __init__(self, code: int) -> None:
        self.close_code = code


def closed(code: int) -> discord.ConnectionClosed:
    socket: Any = _Socket(code)
    return discord.ConnectionClosed(socket, shard_id=None, code=code)


def test_the_table_has_every_error_class_of_discord_py() -> None:
    """A new error class in discord.py fails here, not in a conversation."""
    defined = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }
    assert len(defined) > 12
    assert defined <= on_discord.MEANINGS.keys()


def test_a_subclass_of_discords_means_what_its_base_means() -> None:
    """Errors that a plug-in derives are understood, others are not ours to understand."""

    class Derived(discord.Forbidden):
        pass

    assert on_discord.meaning(http_error(403, kind=Derived)) == on_discord.MEANINGS[discord.Forbidden]
    with pytest.raises(KeyError):
        on_discord.meaning(RuntimeError())


def test_a_429_without_a_via_header_is_no_ban() -> None:
    """discord.py raises it like any refusal; the wait that it names is kept."""
    error = http_error(429, {"Retry-After": "3.5"})
    failed = on_discord.send_failed(error, "slow down")
    assert failed.retryable
    assert not failed.ambiguous
    assert failed.retry_after_seconds == 3.5
    assert on_discord.retry_after_seconds(http_error(429)) is None
    assert on_discord.retry_after_seconds(http_error(429, {"Retry-After": "soon"})) is None


def test_a_wait_that_discord_py_refuses_is_passed_on() -> None:
    assert on_discord.retry_after_seconds(discord.RateLimited(42.0)) == 42.0
    assert on_discord.meaning(discord.RateLimited(42.0)).retryable


_NO_GATEWAY: Callable[[], Exception] = discord.GatewayNotFound
_DISCORD_KEY = ConnectionKey("host", 443, True, True, None, None, None)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        ClientOSError(),
        ServerDisconnectedError(),
        http_error(503, kind=discord.DiscordServerError),
        discord.InvalidData("html"),
    ],
    ids=repr,
)
def test_without_an_answer_the_outcome_is_unknown(error: Exception) -> None:
    assert on_discord.meaning(error) == Meaning(retryable=True, ambiguous=True)


@pytest.mark.parametrize(
    "error",
    [ClientConnectorError(_DISCORD_KEY, OSError("refused")), ConnectionTimeoutError(), _NO_GATEWAY()],
    ids=repr,
)
def test_without_a_connection_nothing_was_sent(error: Exception) -> None:
    assert on_discord.meaning(error) == Meaning(retryable=True)


@pytest.mark.parametrize("error", [discord.LoginFailure("no"), http_error(401), closed(4004)], ids=repr)
def test_a_bad_token_names_its_variable(error: Exception) -> None:
    assert TOKEN_VARIABLE in on_discord.meaning(error).needs_person


@pytest.mark.parametrize("error", [discord.PrivilegedIntentsRequired(None), closed(4014)], ids=repr)
def test_a_missing_intent_names_the_switch(error: Exception) -> None:
    assert "Message Content Intent" in on_discord.meaning(error).needs_person


@pytest.mark.parametrize("code", [4010, 4011, 4012, 4013])
def test_a_close_that_forbids_coming_back_asks_for_a_person(code: int) -> None:
    assert on_discord.meaning(closed(code)).needs_person


def test_other_closes_and_refused_handshakes_pass() -> None:
    assert not on_discord.meaning(closed(4000)).needs_person
    request: Any = None
    assert on_discord.meaning(WSServerHandshakeError(request, (), status=502)).retryable


_SLACK_KEY = ConnectionKey("h", 1, False, True, None, None, None)


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
    assert defined <= on_slack.MEANINGS.keys()


def test_every_error_of_aiohttp_has_a_meaning() -> None:
    """By itself or by its base class."""
    errors = [kind for _, kind in inspect.getmembers(aiohttp, inspect.isclass) if issubclass(kind, aiohttp.ClientError)]
    assert len(errors) > 15
    assert all(any(base in on_slack.MEANINGS for base in kind.__mro__) for kind in errors)
    assert all(issubclass(kind, on_slack.SLACK_ERRORS) for kind in on_slack.MEANINGS)
    with pytest.raises(KeyError):
        on_slack.meaning(RuntimeError())


BAD_TOKEN = on_slack.WORDS["invalid_auth"]


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
        (aiohttp.ClientConnectorError(_SLACK_KEY, OSError(111, "refused")), LATER),
        (aiohttp.ConnectionTimeoutError(), LATER),
        (on_slack.Closed(), LATER),
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
    assert on_slack.meaning(error) == expected


def test_the_wait_that_slack_asks_for_is_passed_on() -> None:
    """429 carries its seconds, whatever the case of the header."""
    failed = on_slack.send_failed(
        _answer(429, {"ok": False, "error": "ratelimited"}, **{"Retry-After": "7"}), "slow down"
    )
    assert (failed.retryable, failed.ambiguous, failed.retry_after_seconds) == (True, False, 7.0)
    assert on_slack.send_failed(_answer(429, {}, **{"retry-after": "soon"}), "slow down").retry_after_seconds is None
    assert on_slack.send_failed(TimeoutError(), "no answer").retry_after_seconds is None


def _all_errors() -> set[type[Exception]]:
    def below(kind: type[Exception]) -> set[type[Exception]]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    defined = {kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)}
    return {kind for kind in below(AiogramError) | defined if kind.__module__ == exceptions.__name__}


def test_the_table_has_every_error_class_of_aiogram() -> None:
    """A new error class in aiogram fails here, not in a conversation."""
    assert len(_all_errors()) > 15
    assert _all_errors() <= on_telegram.MEANINGS.keys()


def test_a_subclass_of_telegrams_means_what_its_base_means() -> None:
    """Errors that a plug-in derives are understood, others are not ours to understand."""

    class Derived(exceptions.TelegramForbiddenError):
        pass

    assert on_telegram.meaning(Derived(GetMe(), "no")) == on_telegram.MEANINGS[exceptions.TelegramForbiddenError]
    with pytest.raises(KeyError):
        on_telegram.meaning(RuntimeError())


def _network_error(cause: Exception) -> TelegramNetworkError:
    error = TelegramNetworkError(GetMe(), "broken")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (
            ClientConnectorError(ConnectionKey("h", 1, False, True, None, None, None), OSError(111, "refused")),
            Meaning(retryable=True),
        ),
        (ServerDisconnectedError(), Meaning(retryable=True, ambiguous=True)),
        (ClientOSError(104, "reset"), Meaning(retryable=True, ambiguous=True)),
        (TimeoutError(), Meaning(retryable=True, ambiguous=True)),
    ],
)
def test_a_send_is_ambiguous_only_if_it_may_have_left(cause: Exception, expected: Meaning) -> None:
    """Where no connection came about nothing was sent; where one broke nobody knows."""
    assert on_telegram.meaning(_network_error(cause)) == expected


def test_the_wait_that_telegram_asks_for_is_passed_on() -> None:
    """429 carries its seconds."""
    failed = on_telegram.send_failed(TelegramRetryAfter(GetMe(), "slow down", 7), "slow down")
    assert (failed.retryable, failed.ambiguous, failed.retry_after_seconds) == (True, False, 7.0)
