"""How a connection fares: what troubles it now, and how long to wait before the next attempt."""

from __future__ import annotations

import random

from connectors.connector import Health, State


class Vitals:
    """`health` from what is known: connected once or not, and each trouble until it is over."""

    def __init__(self) -> None:
        self._state = State.CONNECTING
        self._why = ""
        self._connected = False
        self._troubles: dict[str, str] = {}

    @property
    def health(self) -> Health:
        if self._state in {State.STOPPED, State.FAILED}:
            return Health(self._state, self._why)
        why = next(iter(self._troubles.values()), "")
        if not self._connected:
            return Health(State.CONNECTING, why)
        return Health(State.DEGRADED if why else State.CONNECTED, why)

    def start(self) -> None:
        """Everything begins anew."""
        self._state, self._why = State.CONNECTING, ""
        self._connected = False
        self._troubles.clear()

    def connected(self) -> None:
        self._connected = True

    def trouble(self, what: str, why: str) -> None:
        """*what* is troubled, until `well` is told of it."""
        self._troubles[what] = why

    def well(self, what: str) -> None:
        self._troubles.pop(what, None)

    def failed(self, why: str) -> None:
        self._state, self._why = State.FAILED, why

    def stopped(self) -> None:
        """A failure stays a failure."""
        if self._state is not State.FAILED:
            self._state, self._why = State.STOPPED, ""


class Backoff:
    """Waits that grow after each failure, with jitter, so that many bots do not come back in the same instant."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self.first_seconds = first_seconds
        self.longest_seconds = longest_seconds
        self.failures = 0

    def fresh(self) -> Backoff:
        """Another one like it, without failures."""
        return Backoff(self.first_seconds, self.longest_seconds)

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        """How long to wait now: what was asked for, else exponentially more, with jitter."""
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return asked_seconds or longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
