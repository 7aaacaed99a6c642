"""When something is due, from words: the same words at the same moment are the same day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.memory.records import days_meant
from grounding.memory.records.dates import NoSuchDay, due

SUNDAY = datetime(2026, 11, 22, 10, 30, tzinfo=UTC)
FRIDAY = datetime(2026, 11, 27, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "day"),
    [
        ("2026-11-27", "2026-11-27"),
        ("2026-11-27T15:00", "2026-11-27T15:00:00Z"),
        ("2026-11-27 15:00:30+01:00", "2026-11-27T14:00:30Z"),
        ("today", "2026-11-22"),
        ("Tomorrow.", "2026-11-23"),
        ("the day after tomorrow", "2026-11-24"),
        ("Friday", "2026-11-27"),
        ("by Friday", "2026-11-27"),
        ("this friday", "2026-11-27"),
        ("next Friday", "2026-11-27"),
        ("next Monday", "2026-11-23"),
        ("Sunday", "2026-11-29"),
        ("in two weeks", "2026-12-06"),
        ("in 3 days", "2026-11-25"),
        ("in a month", "2026-12-22"),
        ("next week", "2026-11-23"),
        ("next month", "2026-12-01"),
        ("end of the week", "2026-11-22"),
        ("end of month", "2026-11-30"),
        ("27 November", "2026-11-27"),
        ("November 21st", "2027-11-21"),
        ("Nov 27, 2026", "2026-11-27"),
        ("29 February", "2028-02-29"),
        ("tomorrow at 3pm", "2026-11-23T15:00:00Z"),
        ("Friday 15:00", "2026-11-27T15:00:00Z"),
        ("12:15 am", "2026-11-22T00:15:00Z"),
        ("Friday at noon", "2026-11-27T12:00:00Z"),
        ("in two hours", "2026-11-22T12:30:00Z"),
        ("in 30 minutes", "2026-11-22T11:00:00Z"),
        ("this week", "2026-11-22"),
        ("the next two weeks", "2026-12-06"),
    ],
)
def test_iso_and_words_are_days(words: str, day: str) -> None:
    assert due(words, SUNDAY) == day


def test_said_on_the_same_weekday_it_is_the_next_one_and_next_is_of_the_next_calendar_week() -> None:
    assert due("Friday", FRIDAY) == "2026-12-04"
    assert due("next Friday", FRIDAY) == "2026-12-04"
    assert due("next Friday", FRIDAY - timedelta(days=3)) == "2026-12-04"
    assert due("Friday", FRIDAY - timedelta(days=3)) == "2026-11-27"
    assert due("in a month", datetime(2026, 1, 31, tzinfo=UTC)) == "2026-02-28"


def test_times_are_those_of_the_callers_zone_and_kept_in_utc() -> None:
    at = SUNDAY.astimezone(timezone(timedelta(hours=-8)))
    assert due("tomorrow at 20:00", at) == "2026-11-24T04:00:00Z"
    assert due("tomorrow", at) == "2026-11-23"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "soon",
        "03/04/2026",
        "31 February 2026",
        "2026-13-01",
        "in many weeks",
        "Friday at 25:00",
        "13pm",
        "when it rains",
        "in 9999 years",
        "x" * 200,
    ],
)
def test_what_is_no_one_day_is_refused_with_what_to_write(words: str) -> None:
    with pytest.raises(NoSuchDay, match="write a day like 2026-11-27"):
        due(words, SUNDAY)


@given(st.dates(date(1990, 1, 1), date(2090, 1, 1)), st.sampled_from(["Monday", "Sunday", "Wed", "thurs"]))
def test_a_weekday_lies_in_the_seven_days_to_come(today: date, words: str) -> None:
    day = date.fromisoformat(due(words, datetime(today.year, today.month, today.day, 23, tzinfo=UTC)))
    assert 1 <= (day - today).days <= 7


@given(st.text(max_size=100))
def test_whatever_is_written_is_a_day_or_is_refused(words: str) -> None:
    try:
        found = due(words, SUNDAY)
    except NoSuchDay:
        return
    assert datetime.fromisoformat(found).year >= 1


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("What is on 10 December?", "2026-12-10", "2026-12-10"),
        ("what's on Thursday?", "2026-11-26", "2026-11-26"),
        ("What is on thu?", "2026-11-26", "2026-11-26"),
        ("Is there anything tomorrow, please?", "2026-11-23", "2026-11-23"),
        ("And the day after tomorrow?", "2026-11-24", "2026-11-24"),
        ("Anything on 2026-12-10?", "2026-12-10", "2026-12-10"),
        ("What is due next month?", "2026-12-01", "2026-12-31"),
        ("What is due this week?", "2026-11-16", "2026-11-22"),
        ("What is due next week?", "2026-11-23", "2026-11-29"),
        ("What is due this year?", "2026-01-01", "2026-12-31"),
        ("What must be ready by Friday?", "2026-11-22", "2026-11-27"),
        ("What is left until the end of the month?", "2026-11-22", "2026-11-30"),
        ("What happens in the next two weeks?", "2026-11-22", "2026-12-06"),
        ("What is due in December?", "2026-12-01", "2026-12-31"),
        ("What is due in March?", "2027-03-01", "2027-03-31"),
        ("What's overdue?", "", "2026-11-21"),
        ("What is due?", "", ""),
    ],
)
def test_a_message_names_days(text: str, first: str, last: str) -> None:
    assert days_meant(text, SUNDAY) == (first, last)


@pytest.mark.parametrize(
    "text",
    [
        "How high is the mast?",
        "How does port 8080 work now?",
        "The sun sat on the sea",
        "It failed due to rain",
        "We may march on",
        "What is on 31 February?",
        "in 9999 years",
        "",
    ],
)
def test_other_messages_name_no_day(text: str) -> None:
    assert days_meant(text, SUNDAY) is None


@given(st.text(max_size=300))
def test_any_text_can_be_read_for_days(text: str) -> None:
    days_meant(text, FRIDAY)
