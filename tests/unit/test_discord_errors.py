"""Every error of discord.py has a meaning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import discord
import pytest
from aiohttp import (
    ClientConnectorError,
    ClientOSError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
    WSServerHandshakeError,
)
from aiohttp.client_reqrep import ConnectionKey
from discord import errors

from connectors.discord.check import TOKEN_VARIABLE
from connectors.discord.errors import MEANINGS, meaning, retry_after_seconds, send_failed
from connectors.sdk_errors import Meaning


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
    assert defined <= MEANINGS.keys()


def test_a_subclass_means_what_its_base_means() -> None:
    """Errors that a plug-in derives are understood, others are not ours to understand."""

    class Derived(discord.Forbidden):
        pass

    assert meaning(http_error(403, kind=Derived)) == MEANINGS[discord.Forbidden]
    with pytest.raises(KeyError):
        meaning(RuntimeError())


def test_a_429_without_a_via_header_is_no_ban() -> None:
    """discord.py raises it like any refusal; the wait that it names is kept."""
    error = http_error(429, {"Retry-After": "3.5"})
    failed = send_failed(error, "slow down")
    assert failed.retryable
    assert not failed.ambiguous
    assert failed.retry_after_seconds == 3.5
    assert retry_after_seconds(http_error(429)) is None
    assert retry_after_seconds(http_error(429, {"Retry-After": "soon"})) is None


def test_a_wait_that_discord_py_refuses_is_passed_on() -> None:
    assert retry_after_seconds(discord.RateLimited(42.0)) == 42.0
    assert meaning(discord.RateLimited(42.0)).retryable


_NO_GATEWAY: Callable[[], Exception] = discord.GatewayNotFound
_KEY = ConnectionKey("host", 443, True, True, None, None, None)


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
    assert meaning(error) == Meaning(retryable=True, ambiguous=True)


@pytest.mark.parametrize(
    "error",
    [ClientConnectorError(_KEY, OSError("refused")), ConnectionTimeoutError(), _NO_GATEWAY()],
    ids=repr,
)
def test_without_a_connection_nothing_was_sent(error: Exception) -> None:
    assert meaning(error) == Meaning(retryable=True)


@pytest.mark.parametrize("error", [discord.LoginFailure("no"), http_error(401), closed(4004)], ids=repr)
def test_a_bad_token_names_its_variable(error: Exception) -> None:
    assert TOKEN_VARIABLE in meaning(error).needs_person


@pytest.mark.parametrize("error", [discord.PrivilegedIntentsRequired(None), closed(4014)], ids=repr)
def test_a_missing_intent_names_the_switch(error: Exception) -> None:
    assert "Message Content Intent" in meaning(error).needs_person


@pytest.mark.parametrize("code", [4010, 4011, 4012, 4013])
def test_a_close_that_forbids_coming_back_asks_for_a_person(code: int) -> None:
    assert meaning(closed(code)).needs_person


def test_other_closes_and_refused_handshakes_pass() -> None:
    assert not meaning(closed(4000)).needs_person
    request: Any = None
    assert meaning(WSServerHandshakeError(request, (), status=502)).retryable
