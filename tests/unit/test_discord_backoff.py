"""How long Discord is left alone before it is asked again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connectors.discord.login import Backoff

CHANCES = st.floats(0, 1)


@given(st.integers(1, 10_000), CHANCES, CHANCES)
def test_waits_grow_to_a_bound_and_differ_by_chance(failures: int, one: float, other: float) -> None:
    """Never less than half of the longest of their step, never more than the bound."""
    backoff = Backoff(1.0, 30.0)
    step = backoff.seconds(failures, 1.0)
    assert 0.5 <= step / 2 <= backoff.seconds(failures, one) <= step <= 30.0
    assert backoff.seconds(failures + 1, one) >= backoff.seconds(failures, one)
    assert (backoff.seconds(failures, one) < backoff.seconds(failures, other)) <= (one < other)


def test_the_first_waits_double() -> None:
    assert [Backoff(1.0, 30.0).seconds(failures, 1.0) for failures in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
