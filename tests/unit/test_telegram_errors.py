"""Every error of aiogram has a meaning."""

from __future__ import annotations

import inspect

import pytest
from aiogram import exceptions
from aiogram.exceptions import AiogramError, TelegramNetworkError, TelegramRetryAfter
from aiogram.methods import GetMe
from aiohttp import ClientConnectorError, ClientOSError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey

from connectors.sdk_errors import Meaning
from connectors.telegram.errors import MEANINGS, meaning, send_failed


def _all_errors() -> set[type[Exception]]:
    def below(kind: type[Exception]) -> set[type[Exception]]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    defined = {kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)}
    return {kind for kind in below(AiogramError) | defined if kind.__module__ == exceptions.__name__}


def test_the_table_has_every_error_class_of_aiogram() -> None:
    """A new error class in aiogram fails here, not in a conversation."""
    assert len(_all_errors()) > 15
    assert _all_errors() <= MEANINGS.keys()


def test_a_subclass_means_what_its_base_means() -> None:
    """Errors that a plug-in derives are understood, others are not ours to understand."""

    class Derived(exceptions.TelegramForbiddenError):
        pass

    assert meaning(Derived(GetMe(), "no")) == MEANINGS[exceptions.TelegramForbiddenError]
    with pytest.raises(KeyError):
        meaning(RuntimeError())


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
    assert meaning(_network_error(cause)) == expected


def test_the_wait_that_telegram_asks_for_is_passed_on() -> None:
    """429 carries its seconds."""
    failed = send_failed(TelegramRetryAfter(GetMe(), "slow down", 7), "slow down")
    assert (failed.retryable, failed.ambiguous, failed.retry_after_seconds) == (True, False, 7.0)
