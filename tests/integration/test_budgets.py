"""Budgets on a real Redis: what is held, what is settled, and what ends by itself."""

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
from runtime.budget_terms import TERMS, UNLIMITED, BudgetExceeded, Cost, State, Term
from runtime.budgets import Budgets
from runtime.stored import NewerFormat
from runtime.usage import Usage

ACME = Scope("acme")
LENA, BO = "telegram:501", "telegram:502"
TOKENS_A_DAY = Term("workspace", "tokens", "day")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
HELD_SECONDS = 100.0


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
        return Budgets(redis, bounded, HELD_SECONDS, clock)

    return make


async def test_what_is_held_counts_as_spent_until_it_is_settled(budgets: Callable[..., Budgets]) -> None:
    house = budgets(workspace_tokens_per_day=100)

    await house.reserve(ACME, "t1", Cost(60))
    with pytest.raises(BudgetExceeded):
        await house.reserve(ACME, "t2", Cost(60))
    await house.settle(ACME, "t1", Cost(30))
    await house.reserve(ACME, "t2", Cost(60))

    state = await house.state(ACME)
    assert (state.spent[TOKENS_A_DAY], state.held[TOKENS_A_DAY], state.left(TOKENS_A_DAY)) == (30, 60, 10)


async def test_a_call_is_settled_once_however_often_it_is_said(budgets: Callable[..., Budgets]) -> None:
    house = budgets(workspace_tokens_per_day=100)

    assert await house.settle(ACME, "t1", Cost(30), LENA)
    assert not await house.settle(ACME, "t1", Cost(30), LENA)

    assert (await house.state(ACME, LENA)).spent == {term: 30 if term.what == "tokens" else 0 for term in TERMS}


async def test_two_calls_for_the_same_are_both_settled_each_once_by_its_name(
    budgets: Callable[..., Budgets], redis: Redis
) -> None:
    """A worker that stood still has asked as well as who took up its turn. One whose name nobody knows is taken
    for one of them."""
    house, usage = budgets(workspace_tokens_per_day=1000), Usage(redis)
    for call, tokens in (("one", 30), ("other", 40), ("one", 30), ("other", 40), ("", 50)):
        await house.settle(ACME, "t1", Cost(tokens), by=call)
        await usage.record(ACME, "t1", "reply", "fake", Tokens(prompt=tokens), call=call)
    for call in ("", "one"):
        await house.settle(ACME, "t2", Cost(100), by=call)
        await usage.record(ACME, "t2", "reply", "fake", Tokens(prompt=100), call=call)

    assert (await house.state(ACME)).spent[TOKENS_A_DAY] == 170
    (used,) = await usage.totals(ACME)
    assert (used.calls, used.replies, used.prompt) == (3, 2, 170)


async def test_a_call_that_is_made_again_replaces_its_own_reservation(budgets: Callable[..., Budgets]) -> None:
    house = budgets(workspace_tokens_per_day=100)

    await house.reserve(ACME, "t1", Cost(60))
    await house.reserve(ACME, "t1", Cost(70))

    assert (await house.state(ACME)).held[TOKENS_A_DAY] == 70


async def test_nothing_is_held_for_a_call_that_was_settled(budgets: Callable[..., Budgets]) -> None:
    """A worker that stood still asks for it after another has answered."""
    house = budgets(workspace_tokens_per_day=100)

    await house.settle(ACME, "t1", Cost(30))
    await house.reserve(ACME, "t1", Cost(60))

    assert (await house.state(ACME)).held[TOKENS_A_DAY] == 0


async def test_a_reservation_that_nobody_settles_ends_and_a_late_settlement_still_counts(
    budgets: Callable[..., Budgets], clock: Clock
) -> None:
    house = budgets(workspace_tokens_per_day=100)
    await house.reserve(ACME, "t1", Cost(100))
    clock.now += HELD_SECONDS

    await house.reserve(ACME, "t2", Cost(100))
    await house.settle(ACME, "t1", Cost(90))

    state = await house.state(ACME)
    assert (state.spent[TOKENS_A_DAY], state.held[TOKENS_A_DAY]) == (90, 100)


async def test_people_have_budgets_of_their_own(budgets: Callable[..., Budgets]) -> None:
    house = budgets(user_usd_per_day=1)

    await house.reserve(ACME, "t1", Cost(10, 0.9), LENA)
    with pytest.raises(BudgetExceeded) as refused:
        await house.reserve(ACME, "t2", Cost(10, 0.2), LENA)
    await house.reserve(ACME, "t2", Cost(10, 0.2), BO)
    await house.reserve(ACME, "t3", Cost(10, 5.0))
    await house.reserve(Scope("other"), "t2", Cost(10, 0.2), LENA)

    assert refused.value.term == Term("user", "usd", "day")
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
    assert state.left(Term("workspace", "usd", "month")) is None
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


async def test_without_any_limit_nothing_is_held_but_all_is_counted(
    budgets: Callable[..., Budgets], redis: Redis
) -> None:
    house = budgets()

    await house.reserve(ACME, "t1", Cost(10, 0.1), LENA)
    assert [key async for key in redis.scan_iter(match="*held*")] == []
    await house.settle(ACME, "t1", Cost(7, 0.1), LENA)

    assert (await house.state(ACME, LENA)).spent[Term("user", "usd", "month")] == 100_000_000


async def test_many_calls_at_once_never_hold_more_than_there_is(budgets: Callable[..., Budgets]) -> None:
    house = budgets(workspace_tokens_per_day=100)

    made = await asyncio.gather(
        *(house.reserve(ACME, f"t{number}", Cost(9)) for number in range(50)), return_exceptions=True
    )

    assert made.count(None) == 11
    assert (await house.state(ACME)).held[TOKENS_A_DAY] == 99


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
USERS = st.sampled_from([LENA, BO, ""])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), CALLS, COSTS, USERS),
        st.tuples(st.just("settle"), CALLS, COSTS, USERS),
        st.tuples(st.just("release"), CALLS, COSTS, USERS),
        st.tuples(st.just("wait"), st.just(""), st.just(Cost()), st.just("")),
    ),
    min_size=10,
    max_size=30,
)


@hypothesis_settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, tokens=st.integers(0, 200), cents=st.integers(0, 200), of_user=st.integers(0, 150))
async def test_in_any_order_of_steps_no_limit_is_passed_by_more_than_what_calls_cost_beyond_their_estimates(
    redis: Redis,
    settings: Callable[..., Settings],
    steps: list[tuple[str, str, Cost, str]],
    tokens: int,
    cents: int,
    of_user: int,
) -> None:
    await redis.flushall()
    clock = Clock()
    house = Budgets(
        redis,
        settings(
            budget_workspace_tokens_per_day=tokens,
            budget_workspace_usd_per_month=cents / 100,
            budget_user_tokens_per_month=of_user,
        ),
        HELD_SECONDS,
        clock,
    )
    held: dict[str, tuple[Cost, str]] = {}
    settled: dict[str, tuple[Cost, str]] = {}
    beyond = dict.fromkeys(TERMS, 0)

    for step, call, cost, user in steps:
        if step == "reserve":
            try:
                await house.reserve(ACME, call, cost, user)
                if call not in settled:
                    held[call] = cost, user
            except BudgetExceeded:
                held.pop(call, None)
        elif step == "settle":
            estimate, by = held.pop(call, (Cost(), ""))
            if await house.settle(ACME, call, cost, user):
                assert call not in settled
                settled[call] = cost, user
                for term in TERMS:
                    # What was held for nobody, or somebody else, was no estimate of what this person spends.
                    foreseen = estimate if term.whose == "workspace" or by == user else Cost()
                    beyond[term] += max(0, cost.units(term.what) - foreseen.units(term.what))
        elif step == "release":
            await house.release(ACME, call)
            held.pop(call, None)
        else:
            clock.now += HELD_SECONDS
            held.clear()
        for person in (LENA, BO):
            state = await house.state(ACME, person)
            for term in TERMS:
                assert state.spent[term] == _sum(settled, term, person)
                assert state.held[term] == _sum(held, term, person)
                _assert_within(state, term, beyond[term])


def _sum(calls: dict[str, tuple[Cost, str]], term: Term, person: str) -> int:
    return sum(cost.units(term.what) for cost, by in calls.values() if term.whose == "workspace" or by == person)


def _assert_within(state: State, term: Term, beyond: int) -> None:
    limit = state.limits[term]
    if limit is not None:
        assert state.spent[term] + state.held[term] <= limit + beyond
