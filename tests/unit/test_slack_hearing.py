"""When a silence is strange: by what is usual on this connection."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connectors.slack.receive import GRACE_SECONDS, Hearing, is_unheard


def event(ts: str, channel: str = "C200", **more: Any) -> dict[str, Any]:
    return {"event": {"type": "message", "channel": channel, "ts": ts, **more}}


def test_a_silence_is_strange_only_after_something_was_heard_and_for_longer_than_usual() -> None:
    """At least for as long as is set; asking begins another wait."""
    hearing = Hearing(60.0)
    assert not hearing.is_overdue(1e9)
    hearing.heard({}, 0.0)
    assert not hearing.is_overdue(60.0)
    assert hearing.is_overdue(61.0)
    hearing.asked(61.0)
    assert not hearing.is_overdue(120.0)
    assert hearing.is_overdue(122.0)


@given(st.floats(100.0, 1e4), st.integers(60, 100))
def test_where_events_are_rare_silence_is_borne_longer(gap: float, times: int) -> None:
    """Up to about five times the usual gap."""
    hearing = Hearing(60.0)
    for number in range(times):
        hearing.heard({}, number * gap)
    last = (times - 1) * gap
    assert not hearing.is_overdue(last + 4.0 * gap)
    assert hearing.is_overdue(last + 5.1 * gap)


def test_the_places_that_spoke_last_are_remembered_with_their_newest_message() -> None:
    """Only by messages: an ``app_mention`` says nothing about whether others would come, an edit is no news."""
    hearing = Hearing(60.0)
    payloads: list[dict[str, Any]] = [
        event("5.0", "C1"),
        event("3.0", "C1"),
        event("6.0", "C2", thread_ts="1.0"),
        event("7.0", "C3", thread_ts="7.0"),
        event("8.0", "C4", type="app_mention"),
        event("9.0", "C1", subtype="message_changed"),
        event("not a time", "C5"),
        {"event": []},
        {},
    ]
    for payload in payloads:
        hearing.heard(payload, 1.0)
    assert hearing.places() == [("C3", None, "7.0"), ("C2", "1.0", "6.0"), ("C1", None, "5.0")]


def test_what_may_still_be_on_its_way_was_not_missed() -> None:
    """Nor is a service note, or what an app said."""
    assert is_unheard({"ts": "100.0"}, 100.0 + GRACE_SECONDS + 1)
    assert not is_unheard({"ts": "100.0"}, 100.0 + GRACE_SECONDS - 1)
    assert not is_unheard({"ts": "100.0", "subtype": "channel_topic"}, 1e9)
    assert not is_unheard({"ts": "100.0", "bot_id": "B0BOT"}, 1e9)
