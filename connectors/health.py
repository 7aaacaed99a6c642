"""Health of a connection, and waits between attempts."""

from __future__ import annotations

import random

from connectors.connector import ConnectionState, Health


class ConnectionHealth:
    """Derives a connector's `health`: whether it has connected yet, and the troubles that are not over."""

    def __init__(self) -> None:
        self._state = ConnectionState.CONNECTING
        self._why = ""
        self._connected = False
        self._troubles: dict[str, str] = {}

    @property
    def health(self) -> Health:
        if self._state in {ConnectionState.STOPPED, ConnectionState.FAILED}:
            return Health(self._state, self._why)
        why = next(iter(self._troubles.values()), "")
        if not self._connected:
            return Health(ConnectionState.CONNECTING, why)
        return Health(ConnectionState.DEGRADED if why else ConnectionState.CONNECTED, why)

    def start(self) -> None:
        """Begin a run of the connector, without troubles."""
        self._state, self._why = ConnectionState.CONNECTING, ""
        self._connected = False
        self._troubles.clear()

    def connected(self) -> None:
        self._connected = True

    def trouble(self, what: str, why: str) -> None:
        """Note a trouble with *what*, e.g. ``store``, until `well` ends it; *why* is for people."""
        self._troubles[what] = why

    def well(self, what: str) -> None:
        self._troubles.pop(what, None)

    def failed(self, why: str) -> None:
        self._state, self._why = ConnectionState.FAILED, why

    def stopped(self) -> None:
        """Note the end of a run. A failure stays a failure."""
        if self._state is not ConnectionState.FAILED:
            self._state, self._why = ConnectionState.STOPPED, ""


class Backoff:
    """Waits that grow after each failure, with jitter, so that many bots do not return at the same moment."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self.first_seconds = first_seconds
        self.longest_seconds = longest_seconds
        self.failures = 0

    def fresh(self) -> Backoff:
        """Return another one like it, without failures."""
        return Backoff(self.first_seconds, self.longest_seconds)

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        """Return the next wait and count a failure: *asked_seconds* if given, else twice the last one, with jitter."""
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return asked_seconds or longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
