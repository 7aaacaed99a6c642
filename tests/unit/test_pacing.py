"""The pace of writing into one place."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from connectors.message import ConversationKey
from runtime.pacing import Pace

KEY = ConversationKey("acme", "telegram", "1")


class Clock:
    """An event loop's clock that is set by hand."""

    now = 0.0

    def time(self) -> float:
        return self.now


@given(st.lists(st.floats(0, 3), min_size=1, max_size=30), st.sampled_from([0.5, 1.0, 4.0]), st.integers(1, 4))
def test_no_window_holds_more_than_the_rate_and_a_burst(gaps: list[float], rate: float, burst: int) -> None:
    """Whenever people ask, in any window of t seconds at most burst + t × rate writes happen."""
    clock, pace, written = Clock(), Pace(), []
    loop = asyncio.get_running_loop
    asyncio.get_running_loop = lambda: clock  # type: ignore[assignment,return-value]
    try:
        for gap in gaps:
            clock.now += gap
            clock.now += pace.delay_seconds(KEY, rate, burst)
            pace.count(KEY, rate)
            written.append(clock.now)
    finally:
        asyncio.get_running_loop = loop
    for first in range(len(written)):
        for last in range(first, len(written)):
            assert last - first + 1 <= burst + (written[last] - written[first]) * rate + 1e-6


async def test_places_do_not_wait_for_each_other_and_a_rate_of_zero_is_none() -> None:
    """Another place is free at once; the same place is not."""
    pace = Pace()
    await pace.wait(KEY, 0.1)
    assert pace.delay_seconds(ConversationKey("acme", "telegram", "2"), 0.1) == 0.0
    assert pace.delay_seconds(KEY, 0.1) > 9.0
    assert pace.delay_seconds(KEY, 0.0) == 0.0
