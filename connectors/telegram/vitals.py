"""How the connection fares, and how long to wait before the next attempt."""

from __future__ import annotations

from connectors import vitals


class Vitals(vitals.Vitals):
    """`connectors.vitals.Vitals` with the failures since the last success, as far as the next wait goes by them.

    After each failure the waits grow from ``first_backoff_seconds`` to ``longest_backoff_seconds``.
    """

    def __init__(self, first_backoff_seconds: float, longest_backoff_seconds: float) -> None:
        super().__init__()
        self._backoff = vitals.Backoff(first_backoff_seconds, longest_backoff_seconds)

    @property
    def failures(self) -> int:
        return self._backoff.failures

    @failures.setter
    def failures(self, failures: int) -> None:
        self._backoff.failures = failures

    def start(self) -> None:
        super().start()
        self.failures = 0

    def next_wait_seconds(self, asked_seconds: float | None = None) -> float:
        """How long to wait now: what was asked for, else exponentially more, with jitter."""
        return self._backoff.next_seconds(asked_seconds)
