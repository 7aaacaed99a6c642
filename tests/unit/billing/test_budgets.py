"""What a budget bounds, when it starts anew, and what people are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import hypothesis.strategies as st
import pytest
from hypothesis import given

from runtime.billing import TERMS, BudgetExceeded, BudgetState, BudgetTerm
from runtime.billing.budgets import Cost, Period, period_end, period_name
from runtime.commands.turns import left

MOMENTS = st.integers(1_577_836_800, 4_102_444_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
PERIODS: st.SearchStrategy[Period] = st.sampled_from(["day", "month"])


@given(now=MOMENTS, period=PERIODS)
def test_a_period_ends_where_the_next_begins(now: datetime, period: Period) -> None:
    end = period_end(period, now)

    assert now < end
    assert period_name(period, end) != period_name(period, now)
    assert period_name(period, end - timedelta(microseconds=1)) == period_name(period, now)


def test_days_are_those_of_utc_wherever_the_clock_is() -> None:
    evening = datetime(2026, 11, 30, 20, tzinfo=timezone(timedelta(hours=-5)))

    assert (period_name("day", evening), period_name("month", evening)) == ("2026-12-01", "2026-12")


@given(st.floats(min_value=0, max_value=1_000_000))
def test_money_is_exact_to_a_billionth_of_a_dollar(usd: float) -> None:
    term = BudgetTerm("workspace", "usd", "day")

    assert abs(term.amount(term.units(usd)) - usd) <= 1e-9
    assert Cost(usd=usd).units("usd") == term.units(usd)


@pytest.mark.parametrize(
    ("term", "first", "told"),
    [
        (
            BudgetTerm("workspace", "tokens", "day"),
            True,
            "Too little is left of the budget of this workspace for today, so I cannot answer now. It is renewed "
            "at 00:00 UTC. An admin can raise it.",
        ),
        (
            BudgetTerm("user", "usd", "month"),
            True,
            "Too little is left of your budget here for this month, so I cannot answer now. It is renewed on "
            "1 December, 00:00 UTC. An admin can raise it.",
        ),
        (BudgetTerm("user", "tokens", "day"), False, "Too little is left of your budget here for today."),
    ],
)
def test_a_person_is_told_whose_budget_it_is_and_when_it_starts_anew(term: BudgetTerm, first: bool, told: str) -> None:
    until = period_end(term.period, datetime(2026, 11, 22, 9, 30, tzinfo=UTC))

    assert BudgetExceeded(term, 5, first=first, until=until).user_text == told


def test_what_is_left_is_told_for_what_is_bounded_only_and_is_never_less_than_nothing() -> None:
    tokens, usd = BudgetTerm("workspace", "tokens", "day"), BudgetTerm("workspace", "usd", "month")
    state = BudgetState(
        limits=dict.fromkeys(TERMS) | {tokens: 1_000_000, usd: usd.units(5)},
        spent=dict.fromkeys(TERMS, 0) | {tokens: 1_000_001, usd: usd.units(3.9)},
        set_here={},
    )

    assert left(state, "workspace").splitlines()[2:] == [
        "- $1.10 of $5.00 this month",
        "- 0 tokens of 1,000,000 tokens today",
    ]
    assert left(state, "user") == ""
