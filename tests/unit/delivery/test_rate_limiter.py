"""Calls within a platform's rates, by a clock that stands still unless somebody sleeps."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.connector import Capabilities, SendFailed
from connectors.message import ConversationKey
from runtime.delivery import RateLimiters
from runtime.delivery.rate_limiter import (
    CALM_SECONDS,
    CHAT_BURST,
    MINUTE_SECONDS,
    Bucket,
    Extra,
    Limits,
    RateLimiter,
    Window,
)
from tests.emulators.board import Board
from tests.emulators.clock import Clock

CHAT = ConversationKey("acme", "board", "42")
OTHER_CHAT = ConversationKey("acme", "board", "43")
GROUP = ConversationKey("acme", "board", "-7")
TOPIC = ConversationKey("acme", "board", "-7/3")
MOST = 20
PREVIEWS = [one for one in Extra if one is not Extra.SIGN]


class Platform(Board):
    """A platform with the limits of Telegram."""

    capabilities = Capabilities(
        max_part_units=80, sends_per_second=1.0, edits_per_second=0.5, sends_per_second_overall=30.0
    )

    def paced_as(self, key: ConversationKey) -> str:
        return key.external_id.partition("/")[0]

    def max_per_minute(self, place: str) -> int:
        return MOST if place.startswith("-") else 0


class NoRates(Board):
    capabilities = Capabilities(max_part_units=80)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> RateLimiter:
    return RateLimiter(Platform(), clock.time, clock.sleep)


def pause(seconds: float, *, everywhere: bool = False) -> SendFailed:
    return SendFailed("slow down", retryable=True, retry_after_seconds=seconds, everywhere=everywhere)


async def waits(limiter: RateLimiter, clock: Clock, key: ConversationKey) -> float:
    """How long the next final part waits."""
    before = clock.now
    await limiter.wait_for_turn(key)
    return clock.now - before


async def test_a_hundred_replies_in_a_private_chat_wait_for_nothing(limiter: RateLimiter, clock: Clock) -> None:
    """Answers take a tenth of a second: faster than the documented rate for the whole of ten seconds."""
    for _ in range(100):
        await limiter.wait_for_turn(CHAT)
        clock.now += 0.1

    assert clock.slept == []


async def test_a_pause_that_the_platform_asks_for_is_kept_to_the_second_and_the_rate_after_it(
    limiter: RateLimiter, clock: Clock
) -> None:
    for _ in range(100):
        await limiter.wait_for_turn(CHAT)
    limiter.hold(CHAT, pause(7.0))

    assert await waits(limiter, clock, CHAT) == pytest.approx(7.0)
    for _ in range(int(CALM_SECONDS)):
        assert await waits(limiter, clock, CHAT) == pytest.approx(1.0)
    assert [await waits(limiter, clock, CHAT) for _ in range(10)] == [0.0] * 10


async def test_after_the_burst_the_documented_rate_holds(limiter: RateLimiter, clock: Clock) -> None:
    for _ in range(CHAT_BURST):
        assert await waits(limiter, clock, CHAT) == 0.0

    assert [await waits(limiter, clock, CHAT) for _ in range(3)] == pytest.approx([1.0] * 3)
    assert await waits(limiter, clock, OTHER_CHAT) == 0.0


async def test_a_group_takes_twenty_at_once_and_then_waits_for_the_minute(limiter: RateLimiter, clock: Clock) -> None:
    """Its topics share that."""
    for key in [GROUP, TOPIC] * (MOST // 2):
        assert await waits(limiter, clock, key) == 0.0

    assert await waits(limiter, clock, TOPIC) == pytest.approx(MINUTE_SECONDS)


async def test_a_pause_for_one_chat_holds_up_no_other(limiter: RateLimiter, clock: Clock) -> None:
    limiter.hold(CHAT, pause(60.0))

    assert await waits(limiter, clock, OTHER_CHAT) == 0.0
    assert all(limiter.take_extra(CHAT, extra) for extra in Extra)
    assert await waits(limiter, clock, CHAT) == pytest.approx(60.0)


async def test_a_pause_for_all_chats_holds_everywhere(limiter: RateLimiter, clock: Clock) -> None:
    limiter.hold(CHAT, pause(5.0, everywhere=True))

    assert await waits(limiter, clock, OTHER_CHAT) == pytest.approx(5.0)
    assert await waits(limiter, clock, CHAT) == pytest.approx(1 / 30)


async def test_where_no_rate_is_known_only_the_platforms_pauses_are_kept(clock: Clock) -> None:
    limiter = RateLimiter(NoRates(), clock.time, clock.sleep)
    assert [await waits(limiter, clock, CHAT) for _ in range(1000)] == [0.0] * 1000

    limiter.hold(CHAT, pause(3.0))
    assert await waits(limiter, clock, CHAT) == pytest.approx(3.0)
    assert [await waits(limiter, clock, CHAT) for _ in range(1000)] == [0.0] * 1000


async def test_who_comes_first_goes_first(limiter: RateLimiter, clock: Clock) -> None:
    for _ in range(CHAT_BURST):
        await limiter.wait_for_turn(CHAT)
    gone: list[int] = []

    async def go(number: int) -> None:
        await limiter.wait_for_turn(CHAT)
        gone.append(number)

    await asyncio.gather(*(go(number) for number in range(5)))
    assert gone == list(range(5))


async def test_who_gives_up_waiting_keeps_nobody_else_waiting(limiter: RateLimiter, clock: Clock) -> None:
    limiter.hold(CHAT, pause(60.0))
    stopped = asyncio.Event()

    async def never(_: float) -> None:
        stopped.set()
        await asyncio.Event().wait()

    clock.sleeping = never
    waiting = asyncio.create_task(limiter.wait_for_turn(CHAT))
    await stopped.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    clock.sleeping, clock.now = None, 60.0

    assert await waits(limiter, clock, CHAT) == 0.0


@given(st.lists(st.tuples(st.floats(0, 2), st.sampled_from(PREVIEWS)), max_size=120))
def test_previews_never_keep_a_final_part_waiting(calls: list[tuple[float, Extra]]) -> None:
    """In a chat none costs a final part anything; in a group they leave half of the minute."""
    limits, now = Limits(Platform.capabilities, Platform().max_per_minute), 0.0
    for seconds, extra in calls:
        now += seconds
        limits.take_extra("42", extra, now)
        limits.take_extra("-7", extra, now)

    assert [limits.take_final("-7", now) for _ in range(MOST // 2)] == [0.0] * (MOST // 2)
    assert [limits.take_final("42", now) for _ in range(30)] == [0.0] * 30


def test_previews_keep_their_own_pace_and_go_where_little_is_left() -> None:
    limits = Limits(Platform.capabilities, Platform().max_per_minute)
    assert limits.take_extra("42", Extra.MESSAGE, 0.0) == 0.0
    assert limits.take_extra("42", Extra.EDIT, 0.5) == pytest.approx(1.5)
    assert limits.take_extra("42", Extra.EDIT, 2.0) == 0.0

    for _ in range(60):
        assert limits.take_final("42", 4.0) == 0.0
    assert limits.take_extra("42", Extra.EDIT, 4.0) > 0
    assert limits.take_extra("42", Extra.SIGN, 4.0) > 0


def test_a_long_reply_grows_in_a_group_until_its_end() -> None:
    limits = Limits(Platform.capabilities, Platform().max_per_minute)
    shown = [second for second in range(300) if limits.take_extra("-7", Extra.EDIT, float(second)) == 0.0]

    assert max(later - earlier for earlier, later in pairwise(shown)) <= MINUTE_SECONDS / 8
    assert len(shown) >= 300 / MINUTE_SECONDS * MOST / 2 * 0.8


def test_what_a_platform_limits_in_all_chats_together_previews_leave_to_last_forms() -> None:
    """As Slack does with edits and with its own streaming."""
    rates = Capabilities(max_part_units=80, edits_per_second=1.0, edits_per_second_overall=0.5)
    limits = Limits(rates)
    assert limits.take_extra("one", Extra.EDIT, 0.0) == 0.0
    assert limits.take_extra("two", Extra.EDIT, 1.0) == pytest.approx(1.0)
    assert limits.take_extra("two", Extra.ADDITION, 1.0) == 0.0
    limits.count_edit(2.0)
    assert limits.take_extra("two", Extra.EDIT, 2.5) == pytest.approx(1.5)


@given(st.floats(0.1, 50), st.integers(1, 100), st.lists(st.floats(0, 3), max_size=200))
def test_a_bucket_allows_a_burst_and_then_its_rate(rate: float, burst: int, pauses: list[float]) -> None:
    bucket, now = Bucket(rate, burst), 0.0
    made: list[float] = []
    for seconds in pauses:
        now = max(now + seconds, bucket.free_at())
        bucket.count(now)
        made.append(now)
        since = [one for one in made if one >= made[0]]
        assert len(since) <= burst + (now - made[0]) * rate + 1e-6


@given(st.lists(st.floats(0, 10), max_size=100))
def test_no_minute_has_more_than_a_place_takes(pauses: list[float]) -> None:
    window, now = Window(MOST), 0.0
    made: list[float] = []
    for seconds in pauses:
        now = max(now + seconds, window.free_at())
        window.count(now)
        made.append(now)
    assert all(sum(start <= one < start + MINUTE_SECONDS for one in made) <= MOST for start in made)


def test_what_is_known_of_quiet_chats_is_forgotten_and_nothing_else() -> None:
    limits = Limits(Platform.capabilities)
    limits.hold("held", 10_000.0)
    for number in range(9000):
        assert limits.take_final(str(number), number / 10) == 0.0

    assert len(limits._chats) < 6000
    assert limits.take_final("held", 1000.0) == 9000.0


async def test_a_connector_has_one_rate_limiter() -> None:
    limiters, platform = RateLimiters(), Platform()
    assert limiters.of(platform) is limiters.of(platform)
