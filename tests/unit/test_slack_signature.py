"""Requests that come from Slack, and those that do not."""

from __future__ import annotations

import time

import pytest
from slack_sdk.signature import SignatureVerifier

from connectors.slack.http_events import is_genuine

VERIFIER = SignatureVerifier("8f742231b10e8888abcd99yyyzzz85a5")
NOW = str(int(time.time()))
BODY = b'{"type":"event_callback"}'


def sign(timestamp: str, body: bytes = BODY, verifier: SignatureVerifier = VERIFIER) -> str:
    return verifier.generate_signature(timestamp=timestamp, body=body) or ""


def test_a_signed_request_is_genuine() -> None:
    now = str(int(time.time()))
    assert is_genuine(VERIFIER, now, BODY, sign(now))


@pytest.mark.parametrize("off", [-360, 360])
def test_an_old_or_future_request_is_not(off: int) -> None:
    """Even with a right signature."""
    at = str(int(time.time()) + off)
    assert not is_genuine(VERIFIER, at, BODY, sign(at))


@pytest.mark.parametrize(
    ("timestamp", "signature"),
    [
        ("", ""),
        (NOW, ""),
        (NOW, "v0="),
        (NOW, "v1=" + "0" * 64),
        (NOW, sign(NOW, verifier=SignatureVerifier("another secret"))),
        (NOW, sign(NOW, BODY + b" ")),
        (NOW, "v0=ünsigned"),
        (NOW, "v0=\udcff"),
        ("no number", sign("no number")),
        ("-5", sign("-5")),
        ("9" * 5000, sign("9" * 5000)),
    ],
    ids=[str(number) for number in range(11)],
)
def test_an_unsigned_request_is_not_genuine(timestamp: str, signature: str) -> None:
    """Missing, malformed, for another body, or with another secret: all are refused, and none raises."""
    assert not is_genuine(VERIFIER, timestamp, BODY, signature)


def test_a_body_that_is_no_text_is_not_genuine() -> None:
    """Slack sends UTF-8 only."""
    assert not is_genuine(VERIFIER, NOW, b"\xff", sign(NOW))
