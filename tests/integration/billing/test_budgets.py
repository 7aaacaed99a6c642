"""Budgets on a real Redis: what is reserved, what is settled, and what stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from redis.asyncio import Redis

from config.settings import Settings
from connectors.message import Scope
from connectors.message import Usage as Tokens
from connectors.redis_calls import ask
from runtime.billing import TERMS, UNLIMITED, BudgetExceeded, Budgets, BudgetTerm, UsageCounters
from runtime.billing.budgets import Cost
from runtime.stores import NewerFormat

ACME = Scope("acme")
LENA, BO = "telegram:501", "telegram:502"
TOKENS_A_DAY = BudgetTerm("workspace", "tokens", "day")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()


class Clock:
    """Says what time it is: seconds since the epoch."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budgets(redis: Redis, settings: Callable[..., Settings], clock: Clock) -> Callable[..., Budgets]:
    def make(**limits: Any) -> Budgets:
        bounded = settings(**{f"budget_{name}": limit for name, limit in limits.items()})
        return Budgets(redis, bounded, clock)

    return make


async def test_a_reservation_that_nobody_settles_stands(budgets: Callable[..., Budgets], clock: Clock) -> None:
    """Its process was killed: nobody knows what the call took."""
    house = budgets(workspace_tokens_per_day=100)

    await house.reserve(ACME, "c1", Cost(60))
    clock.now += 6 * 3600

    assert (await house.state(ACME)).spent[TOKENS_A_DAY] == 60


async def test_a_call_is_reserved_and_settled_once_however_often_it_is_said(
    budgets: Callable[..., Budgets], redis: Redis
) -> None:
    house, usage = budgets(workspace_tokens_per_day=100), UsageCounters(redis)

    for _ in range(2):
        await house.reserve(ACME, "c1", Cost(60), LENA)
    assert (await house.state(ACME)).spent[TOKENS_A_DAY] == 60
    assert [await house.settle(ACME, "c1", Cost(30), LENA) for _ in range(2)] == [True, False]
    await house.reserve(ACME, "c1", Cost(60), LENA)
    assert [await ask(redis, usage.record_call(ACME, "c1", "fake", Tokens(30), is_reply=True)) for _ in range(2)] == [
        True,
        False,
    ]

    assert (await house.state(ACME, LENA)).spent == {term: 30 if term.what == "tokens" else 0 for term in TERMS}
    (used,) = await usage.totals(ACME)
    assert (used.calls, used.replies, used.prompt) == (1, 1, 30)


async def test_a_call_of_yesterday_leaves_its_reservation_there_and_never_less_than_nothing_spent_today(
    budgets: Callable[..., Budgets], clock: Clock
) -> None:
    house = budgets(workspace_tokens_per_day=100)

    await house.reserve(ACME, "c1", Cost(60))
    clock.now += 12 * 3600
    await house.settle(ACME, "c1", Cost(50))

    state = await house.state(ACME)
    assert (state.spent[TOKENS_A_DAY], state.left(TOKENS_A_DAY)) == (0, 100)


async def test_people_have_budgets_of_their_own(budgets: Callable[..., Budgets]) -> None:
    house = budgets(user_usd_per_day=1)

    await house.reserve(ACME, "t1", Cost(10, 0.9), LENA)
    with pytest.raises(BudgetExceeded) as refused:
        await house.reserve(ACME, "t2", Cost(10, 0.2), LENA)
    await house.reserve(ACME, "t2", Cost(10, 0.2), BO)
    await house.reserve(ACME, "t3", Cost(10, 5.0))
    await house.reserve(Scope("other"), "t2", Cost(10, 0.2), LENA)

    assert refused.value.term == BudgetTerm("user", "usd", "day")
    assert refused.value.limit == 1


async def test_a_day_begins_anew_at_midnight_and_a_month_with_its_first_day(
    budgets: Callable[..., Budgets], clock: Clock
) -> None:
    house = budgets(workspace_tokens_per_day=50, workspace_tokens_per_month=80)
    await house.settle(ACME, "t1", Cost(50))
    with pytest.raises(BudgetExceeded) as refused:
        await house.reserve(ACME, "t2", Cost(10))
    assert (refused.value.term.period, refused.value.until) == ("day", datetime(2026, 12, 1, tzinfo=UTC))

    clock.now += 12 * 3600
    await house.reserve(ACME, "t2", Cost(10))
    await house.settle(ACME, "t2", Cost(50))
    clock.now += 24 * 3600
    with pytest.raises(BudgetExceeded) as refused:
        await house.reserve(ACME, "t3", Cost(50))

    assert (refused.value.term.period, refused.value.until) == ("month", datetime(2027, 1, 1, tzinfo=UTC))


async def test_a_person_is_told_in_full_once_a_day(budgets: Callable[..., Budgets], clock: Clock) -> None:
    house = budgets(workspace_tokens_per_day=0)
    told = []
    for user in (LENA, LENA, BO):
        with pytest.raises(BudgetExceeded) as refused:
            await house.reserve(ACME, "t1", Cost(1), user)
        told.append(refused.value.first)
    clock.now += 24 * 3600
    with pytest.raises(BudgetExceeded) as refused:
        await house.reserve(ACME, "t1", Cost(1), LENA)

    assert [*told, refused.value.first] == [True, False, True, True]


async def test_where_nothing_is_left_not_even_a_call_of_unknown_cost_is_made(
    budgets: Callable[..., Budgets],
) -> None:
    house = budgets(workspace_tokens_per_day=100)
    await house.check(ACME, LENA)
    await house.settle(ACME, "t1", Cost(100))

    with pytest.raises(BudgetExceeded):
        await house.check(ACME, LENA)


async def test_limits_that_were_set_for_a_workspace_go_before_the_settings(budgets: Callable[..., Budgets]) -> None:
    house = budgets(workspace_tokens_per_day=10, workspace_usd_per_month=5)

    await house.set(
        ACME, {"workspace_tokens_per_day": 1000, "workspace_usd_per_month": UNLIMITED, "user_usd_per_day": 0.5}
    )
    await house.reserve(ACME, "t1", Cost(900, 0.4), LENA)
    with pytest.raises(BudgetExceeded):
        await house.reserve(ACME, "t2", Cost(1, 0.2), LENA)
    with pytest.raises(BudgetExceeded):
        await house.reserve(Scope("other"), "t1", Cost(900))

    state = await house.state(ACME)
    assert state.set_here == {
        "workspace_tokens_per_day": 1000, "workspace_usd_per_month": UNLIMITED, "user_usd_per_day": 0.5
    }  # fmt: skip
    assert state.left(BudgetTerm("workspace", "usd", "month")) is None
    await house.set(ACME, {})
    assert (await house.state(ACME)).limits[TOKENS_A_DAY] == 10


async def test_limits_in_a_newer_format_are_named_and_not_overwritten(
    budgets: Callable[..., Budgets], redis: Redis
) -> None:
    house = budgets()
    await house.set(ACME, {"workspace_tokens_per_day": 1})
    [key] = [key async for key in redis.scan_iter(match="ar:budgets:*:limits")]
    await redis.hset(key, "v", "2")

    for attempt in (house.reserve(ACME, "t1", Cost(1)), house.state(ACME), house.set(ACME, {})):
        with pytest.raises(NewerFormat, match="format 2"):
            await attempt
    assert await redis.hget(key, "workspace_tokens_per_day") == "1"


async def test_many_calls_at_once_never_reserve_more_than_there_is(budgets: Callable[..., Budgets]) -> None:
    house = budgets(workspace_tokens_per_day=100)

    made = await asyncio.gather(
        *(house.reserve(ACME, f"t{number}", Cost(9)) for number in range(50)), return_exceptions=True
    )

    assert made.count(None) == 11
    assert (await house.state(ACME)).spent[TOKENS_A_DAY] == 99


async def test_all_keys_are_under_the_workspaces_tag(budgets: Callable[..., Budgets], redis: Redis) -> None:
    house = budgets(workspace_tokens_per_day=10, user_tokens_per_day=10)
    await house.set(ACME, {"user_usd_per_day": 1})
    await house.reserve(ACME, "t1", Cost(1), LENA)
    await house.settle(ACME, "t2", Cost(10), LENA)
    with pytest.raises(BudgetExceeded):
        await house.reserve(ACME, "t3", Cost(10), LENA)

    keys = [key async for key in redis.scan_iter()]
    assert len(keys) == 6
    assert all(key.startswith("ar:budgets:{w.acme}:") for key in keys)


CALLS = st.sampled_from(["c1", "c2", "c3", "c4"])
COSTS = st.builds(Cost, st.integers(1, 60), st.integers(1, 60).map(lambda cents: cents / 100))
STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "release"]), CALLS, COSTS), min_size=10, max_size=30
)  # fmt: skip
PAYERS = {"c1": LENA, "c2": LENA, "c3": BO, "c4": ""}


@hypothesis_settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, tokens=st.integers(0, 200), cents=st.integers(0, 200), of_user=st.integers(0, 150))
async def test_in_any_order_of_steps_no_limit_is_passed_by_more_than_what_calls_cost_beyond_their_reservations(
    redis: Redis,
    settings: Callable[..., Settings],
    steps: list[tuple[str, str, Cost]],
    tokens: int,
    cents: int,
    of_user: int,
) -> None:
    await redis.flushall()
    house = Budgets(
        redis,
        settings(
            budget_workspace_tokens_per_day=tokens,
            budget_workspace_usd_per_month=cents / 100,
            budget_user_tokens_per_month=of_user,
        ),
        Clock(),
    )
    charged: dict[str, Cost] = {}
    settled: set[str] = set()
    beyond = dict.fromkeys(TERMS, 0)

    for step, call, cost in steps:
        user = PAYERS[call]
        if step == "reserve":
            try:
                await house.reserve(ACME, call, cost, user)
                charged.setdefault(call, cost)
            except BudgetExceeded:
                assert call not in charged
        elif call not in settled:
            reserved, cost = charged.get(call, Cost()), cost if step == "settle" else Cost()
            assert await house.settle(ACME, call, cost, user)
            settled.add(call)
            charged[call] = cost
            for term in TERMS:
                beyond[term] += max(0, cost.units(term.what) - reserved.units(term.what))
        for person in (LENA, BO):
            state = await house.state(ACME, person)
            for term in TERMS:
                payers = [call for call in charged if term.whose == "workspace" or PAYERS[call] == person]
                assert state.spent[term] == sum(charged[call].units(term.what) for call in payers)
                limit = state.limits[term]
                assert limit is None or state.spent[term] <= limit + beyond[term]
