"""Whether a request comes from Slack: its signature, its age, and that it was not answered before. Pure.

The signature is ``v0=`` and the hexadecimal HMAC-SHA256 of ``v0:<timestamp>:<body>`` with the signing secret
(docs.slack.dev, "Verifying requests from Slack").
"""

from __future__ import annotations

import hashlib
import hmac

MAX_AGE_SECONDS = 5 * 60
"""Older and later requests are refused, as Slack advises."""


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The signature of *body*, sent at *timestamp* (seconds since 1970, as written in the header)."""
    signed = b"v0:" + timestamp.encode("utf-8", "surrogatepass") + b":" + body
    return "v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_genuine(secret: str, timestamp: str, body: bytes, signature: str, now_seconds: float) -> bool:
    """Whether *signature* is that of *body* and at most `MAX_AGE_SECONDS` off. Takes constant time to compare."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 20):
        return False
    if abs(now_seconds - int(timestamp)) > MAX_AGE_SECONDS:
        return False
    return hmac.compare_digest(sign(secret, timestamp, body).encode(), signature.encode("utf-8", "surrogatepass"))


class Answered:
    """The signatures of requests that were answered, for as long as they would still be fresh."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def __contains__(self, signature: str) -> bool:
        return signature in self._until

    def add(self, signature: str, now_seconds: float) -> None:
        """Remember *signature*, and forget those that are too old to be accepted anyway."""
        while self._until and next(iter(self._until.values())) < now_seconds:
            del self._until[next(iter(self._until))]
        self._until[signature] = now_seconds + 2 * MAX_AGE_SECONDS
