"""What health says of a connection to Telegram."""

from __future__ import annotations

import pytest
from aiogram.types import WebhookInfo
from pydantic import SecretStr

from connectors.connector import ConnectionState
from connectors.health import Backoff, ConnectionHealth
from connectors.telegram.api import Api
from connectors.telegram.check import RECENT_ERROR_SECONDS, is_same_address
from connectors.telegram.webhook import check_secret, delivery_trouble

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("waiting", "failed_seconds_ago", "troubled"),
    [
        (3, 10.0, True),
        (3, RECENT_ERROR_SECONDS + 1, False),
        (0, 10.0, False),
        (3, None, False),
    ],
)
def test_deliveries_are_troubled_while_something_waits_that_failed_lately(
    waiting: int, failed_seconds_ago: float | None, troubled: bool
) -> None:
    """Telegram goes on naming an error after it is over."""
    more = {} if failed_seconds_ago is None else {"last_error_date": int(NOW - failed_seconds_ago)}
    info = WebhookInfo.model_validate(
        {
            "url": "https://bot.example/telegram/webhook",
            "has_custom_certificate": False,
            "pending_update_count": waiting,
            "last_error_message": "Connection timed out",
        }
        | more
    )
    why = delivery_trouble(info, NOW)
    assert ("Connection timed out" in why and "3 updates" in why) == troubled
    assert bool(why) == troubled


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("https://bot.example/telegram/webhook", True),
        ("https://bot.example:8443/telegram/webhook", False),
        ("https://bot.example/telegram/other", False),
        ("https://other.example/telegram/webhook", False),
        ("", False),
    ],
)
def test_an_address_is_the_same_however_it_is_written(shown: str, same: bool) -> None:
    """Hosts have no case."""
    assert is_same_address(shown, "https://Bot.EXAMPLE/telegram/webhook") == same


def test_a_host_of_another_script_is_the_same_in_ascii() -> None:
    """Telegram shows the name by which it is asked for."""
    ascii_name = "bücher".encode("idna").decode()
    assert ascii_name == "xn--bcher-kva"
    assert is_same_address(f"https://{ascii_name}.example/x", "https://bücher.example/x")


@pytest.mark.parametrize("secret", ["a", "A-z_0-9", "x" * 256])
def test_a_secret_that_telegram_takes_is_fit(secret: str) -> None:
    """1 to 256 of its characters."""
    assert check_secret(SecretStr(secret)) == ""


@pytest.mark.parametrize("secret", ["", "a b", "x" * 257, "a\n", "é"])
def test_another_is_refused_without_being_shown(secret: str) -> None:
    """The operator reads the variable's name, not its value."""
    why = check_secret(SecretStr(secret))
    assert "AGENT_RUNTIME_TELEGRAM_WEBHOOK_SECRET" in why
    assert len(secret) < 2 or secret not in why


def test_troubles_are_told_until_each_is_over() -> None:
    """Connecting at first; then degraded while anything troubles it; what failed stays failed when it stops."""
    vitals = ConnectionHealth()
    vitals.trouble("connection", "no network")
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.CONNECTING, "no network")
    vitals.connected()
    vitals.trouble("store", "no store")
    vitals.well("connection")
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.DEGRADED, "no store")
    vitals.well("store")
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.CONNECTED, "")
    vitals.failed("no token")
    vitals.stopped()
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.FAILED, "no token")
    vitals.start()
    assert (vitals.health.state, vitals.health.why) == (ConnectionState.CONNECTING, "")


def test_waits_grow_to_a_limit_and_one_that_was_asked_for_is_kept() -> None:
    """With jitter downwards by at most half."""
    backoff = Backoff(1.0, 4.0)
    waits = [backoff.next_seconds() for _ in range(5)]
    assert all(0.5 * longest <= wait <= longest for wait, longest in zip(waits, (1, 2, 4, 4, 4), strict=True))
    assert backoff.next_seconds(17.0) == 17.0


def test_an_error_is_told_in_one_line_without_the_token() -> None:
    """The token is part of every URL."""
    api = Api(SecretStr("123456:SECRET"), "https://api.telegram.org", 1.0, ConnectionHealth(), Backoff(1.0, 4.0))
    error = RuntimeError("https://api.telegram.org/bot123456:SECRET/getMe failed\nand more")
    assert api.describe(error) == "https://api.telegram.org/bot**********/getMe failed"
    assert api.describe(RuntimeError()) == "RuntimeError"
