"""How the connection fares: what troubles it now, and how long to wait before the next attempt."""

from __future__ import annotations

import random

from connectors.connector import Health, State


class Vitals:
    """`health` from what is known: connected once or not, and each trouble until it is over.

    After each failure the waits grow from ``first_backoff_seconds`` to ``longest_backoff_seconds``.
    """

    def __init__(self, first_backoff_seconds: float, longest_backoff_seconds: float) -> None:
        self.failures = 0
        """Since the last success, as far as the next wait goes by it."""
        self._first = first_backoff_seconds
        self._longest = longest_backoff_seconds
        self._connected = False
        self._over: Health | None = None
        self._troubles: dict[str, str] = {}

    @property
    def health(self) -> Health:
        if self._over is not None:
            return self._over
        why = next(iter(self._troubles.values()), "")
        if not self._connected:
            return Health(State.CONNECTING, why)
        return Health(State.DEGRADED if why else State.CONNECTED, why)

    def start(self) -> None:
        """Everything begins anew."""
        self.failures = 0
        self._connected, self._over = False, None
        self._troubles.clear()

    def connected(self) -> None:
        self._connected = True

    def trouble(self, what: str, why: str) -> None:
        """*what* is troubled, until `well` is told of it."""
        self._troubles[what] = why

    def well(self, what: str) -> None:
        self._troubles.pop(what, None)

    def failed(self, why: str) -> None:
        """Only a person can help."""
        self._over = Health(State.FAILED, why)

    def stopped(self) -> None:
        """A failure stays a failure."""
        if self._over is None or self._over.state is not State.FAILED:
            self._over = Health(State.STOPPED)

    def next_wait_seconds(self, asked_seconds: float | None = None) -> float:
        """How long to wait now: what was asked for, else exponentially more, with jitter, so that many bots do
        not come back in the same instant."""
        longest = min(self._longest, self._first * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return asked_seconds or longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
