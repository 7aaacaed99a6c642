"""Requests that come from Slack, and those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slack_sdk.signature import SignatureVerifier

from connectors.slack.http_events import MAX_AGE_SECONDS, Answered, is_genuine, sign

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
NOW = 1_531_420_618.0
BODY = b'{"type":"event_callback"}'


@given(st.text(max_size=100), st.integers(0, 2**40))
def test_signatures_are_those_of_slacks_own_sdk(body: str, timestamp: int) -> None:
    """The SDK's verifier is the independent authority."""
    body = body.encode("utf-8", "replace").decode()
    expected = SignatureVerifier(SECRET).generate_signature(timestamp=str(timestamp), body=body)
    assert sign(SECRET, str(timestamp), body.encode()) == expected


@pytest.mark.parametrize("off", [-MAX_AGE_SECONDS, 0, MAX_AGE_SECONDS])
def test_a_signed_request_of_these_minutes_is_genuine(off: int) -> None:
    """Clocks may differ by five minutes."""
    at = str(int(NOW) + off)
    assert is_genuine(SECRET, at, BODY, sign(SECRET, at, BODY), NOW)


@pytest.mark.parametrize("off", [-MAX_AGE_SECONDS - 1, MAX_AGE_SECONDS + 1])
def test_an_old_or_future_request_is_not(off: int) -> None:
    """Even with a right signature."""
    at = str(int(NOW) + off)
    assert not is_genuine(SECRET, at, BODY, sign(SECRET, at, BODY), NOW)


@pytest.mark.parametrize(
    ("timestamp", "signature"),
    [
        ("", ""),
        (str(int(NOW)), ""),
        (str(int(NOW)), "v0="),
        (str(int(NOW)), "v1=" + "0" * 64),
        (str(int(NOW)), sign("another secret", str(int(NOW)), BODY)),
        (str(int(NOW)), sign(SECRET, str(int(NOW)), BODY + b" ")),
        (str(int(NOW)), "v0=ünsigned"),
        ("no number", sign(SECRET, "no number", BODY)),
        ("-5", sign(SECRET, "-5", BODY)),
        ("9" * 5000, sign(SECRET, "9" * 5000, BODY)),
        ("١٥٣١٤٢٠٦١٨", sign(SECRET, "١٥٣١٤٢٠٦١٨", BODY)),
    ],
)
def test_what_is_not_signed_by_slack_is_not_genuine(timestamp: str, signature: str) -> None:
    """Missing, malformed, for another body, or with another secret: all are refused, and none raises."""
    assert not is_genuine(SECRET, timestamp, BODY, signature, NOW)


def test_answered_requests_are_remembered_while_they_would_be_fresh() -> None:
    """And forgotten after, so that memory is bounded."""
    answered = Answered()
    answered.add("v0=a", NOW)
    assert "v0=a" in answered
    answered.add("v0=b", NOW + 2 * MAX_AGE_SECONDS)
    assert "v0=a" in answered
    answered.add("v0=c", NOW + 2 * MAX_AGE_SECONDS + 1)
    assert "v0=a" not in answered
    assert "v0=b" in answered
