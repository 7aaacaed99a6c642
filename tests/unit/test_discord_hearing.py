"""When a silence on Discord is asked about, and against what it is measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connectors.discord.session import MAX_CHANNELS, Hearing

LEAST, MOST = 60.0, 300.0


def hearing() -> Hearing:
    return Hearing(LEAST, MOST, now=0.0)


def test_a_silence_is_asked_about_after_some_time() -> None:
    silent = hearing()
    assert silent.seconds_until_doubt(0.0) == LEAST
    assert silent.seconds_until_doubt(59.0) == 1.0
    assert silent.seconds_until_doubt(60.0) == 0.0


def test_where_silence_is_usual_it_is_asked_about_later() -> None:
    """After three times the usual gap, but never later than the bound; and sooner again once it is busy."""
    slow = hearing()
    slow.heard(40.0)
    assert slow.seconds_until_doubt(40.0) == 120.0
    slow.heard(1000.0)
    assert slow.seconds_until_doubt(1000.0) == MOST
    now = 1000.0
    for _ in range(60):
        now += 1.0
        slow.heard(now)
    assert slow.seconds_until_doubt(now) == LEAST


def test_what_was_asked_is_not_asked_again_at_once() -> None:
    silent = hearing()
    silent.asked(60.0)
    assert silent.seconds_until_doubt(60.0) == LEAST


def test_sessions_that_stay_silent_get_more_and_more_time() -> None:
    """So that a mistake of ours costs a few sessions a day, not one a minute."""
    silent = hearing()
    for _ in range(20):
        silent.found_deaf()
    assert silent.seconds_until_doubt(0.0) == LEAST * 32
    silent.heard(1.0)
    assert silent.seconds_until_doubt(1.0) == LEAST


def test_a_new_session_is_not_measured_against_the_last() -> None:
    told = hearing()
    told.heard_message(1, 10)
    told.session_began(5.0)
    assert told.newest_in(1) == 0
    assert told.newest([(2, 7)], 3) == [(2, 7)]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 10_000)), min_size=1), st.integers(1, 5))
def test_the_channels_with_the_newest_messages_are_looked_at(told: list[tuple[int, int]], count: int) -> None:
    """Bounded, newest first, and never with an older message than was heard there last."""
    listening = hearing()
    for channel_id, message_id in told:
        listening.heard_message(channel_id, message_id)
    found = listening.newest([], count)
    assert len(found) <= count
    assert [one for _, one in found] == sorted((one for _, one in found), reverse=True)
    recent = dict.fromkeys(channel_id for channel_id, _ in reversed(told))
    assert {channel_id for channel_id, _ in found} <= set(list(recent)[:MAX_CHANNELS])
    assert all(listening.newest_in(channel_id) == message_id for channel_id, message_id in found)
