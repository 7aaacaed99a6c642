"""When a silence on Discord is checked, and against which messages it is measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connectors.discord.session import MAX_CHANNELS, NewestMessages, Silence

FIRST, LONGEST = 60.0, 300.0


def test_a_silence_is_checked_after_some_time() -> None:
    silence = Silence(FIRST, LONGEST, now=0.0)
    assert silence.seconds_until_check(0.0) == FIRST
    assert silence.seconds_until_check(59.0) == 1.0
    assert silence.seconds_until_check(60.0) == 0.0


def test_a_quiet_place_is_checked_less_and_less_often() -> None:
    """Up to the longest wait, and as often as before once something happens."""
    silence = Silence(FIRST, LONGEST, now=0.0)
    waits = []
    for _ in range(4):
        silence.note_check(100.0)
        waits.append(silence.seconds_until_check(100.0))
    assert waits == [120.0, 240.0, LONGEST, LONGEST]
    silence.end(200.0)
    assert silence.seconds_until_check(200.0) == FIRST


def test_a_new_session_is_not_measured_against_the_last() -> None:
    newest = NewestMessages()
    newest.note(1, 10)
    newest.clear()
    assert newest.newest_in(1) == 0
    assert newest.newest_channels([(2, 7)], 3) == [(2, 7)]


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 10_000)), min_size=1), st.integers(1, 5))
def test_the_channels_with_the_newest_messages_are_looked_at(messages: list[tuple[int, int]], count: int) -> None:
    """Bounded, newest first, and never with an older message than the last one delivered there."""
    newest = NewestMessages()
    for channel_id, message_id in messages:
        newest.note(channel_id, message_id)
    found = newest.newest_channels([], count)
    assert len(found) <= count
    assert [message_id for _, message_id in found] == sorted((message_id for _, message_id in found), reverse=True)
    recent = dict.fromkeys(channel_id for channel_id, _ in reversed(messages))
    assert {channel_id for channel_id, _ in found} <= set(list(recent)[:MAX_CHANNELS])
    assert all(newest.newest_in(channel_id) == message_id for channel_id, message_id in found)
