"""Read due dates as people and models write them, and write them in words. Pure.

- ``2026-11-27``, ``2026-11-27 15:00``, ``2026-11-27T15:00:00+01:00``
- ``today``, ``tomorrow``, ``the day after tomorrow``
- ``Friday``, ``this Friday``, ``on Friday``: the next one after today. ``next Friday``: the one of the next calendar
  week, which begins on Monday
- ``in two weeks``, ``in 3 days``, ``in a month``, ``next week`` (its Monday), ``next month`` (its first day), ``end of
  the week`` (Sunday), ``end of the month``
- ``27 November``, ``November 27th, 2026``: without a year the next one, today included
- each of these with a time: ``tomorrow at 3pm``, ``Friday 15:00``; and ``in two hours``, ``in 30 minutes``

The words are English; the model that calls a tool translates others. Ambiguous words (``03/04/2026``, ``soon``) are
refused. The library dateparser accepts these and reads "now", "may", "sat" and plain numbers in a sentence as days. It
knows no first and last day of "this week" or "until the end of the month", so most of this module would remain.
"""

from __future__ import annotations

import calendar
import re
from datetime import UTC, date, datetime, time, timedelta

MAX_CHARACTERS = 80
_HOW = (
    "write a day like 2026-11-27, a time like 2026-11-27T15:00, or words: today, tomorrow, Friday, next Friday, "
    "in two weeks, 27 November, each with 'at 15:00' if there is a time"
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_WEEKDAY = {name[:length].lower(): at for at, name in enumerate(_WEEKDAYS) for length in range(3, 10)}
_MONTH = {name[:length].lower(): at for at, name in enumerate(_MONTHS, 1) for length in range(3, 10)}
"""Names may be cut to three or more letters."""
_ABBREVIATED = 4
"""Weekday names of at most this length have other meanings too ("sun"). In a message they need an "on" before them."""
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBER = {"a": 1, "an": 1, **{word: number for number, word in enumerate(_NUMBERS, 1)}}
_DAYS_FROM_NOW = {"today": 0, "tonight": 0, "tomorrow": 1, "day after tomorrow": 2}
_COUNT = r"(?P<count>\d{1,4}|[a-z]+)"
_LEADING = re.compile(r"^(?:(?:due|by|on|until|till|before|the)\s)+")
_UNTIL = re.compile(r"^(?:by|until|till|before)\s")
_NAMES_DAY = re.compile(r"^(?:on|by|until|till|next)\s")
_PERIOD = re.compile(r"(?P<which>this|next) (?P<unit>week|month|year)")
_COMING = re.compile(rf"(?:in )?(?:the )?next {_COUNT} (?P<unit>day|week|month|year)s?")
_IN = re.compile(rf"in {_COUNT} (?P<unit>day|week|month|year)s?")
_SOON = re.compile(rf"in {_COUNT} (?P<unit>minute|min|hour|hr)s?")
_END = re.compile(r"end of (?:the |this )?(?P<unit>week|month|year)")
_DAY_OF_WEEK = re.compile(r"(?P<which>this |next |)(?P<day>[a-z]+)")
_WHOLE_MONTH = re.compile(r"(?:in|for) (?P<month>[a-z]+)(?: (?P<year>\d{4}))?")
_DATES = (
    re.compile(r"(?P<day>\d{1,2})(?:st|nd|rd|th|\.)? ?(?:of )?(?P<month>[a-z]+)[.,]?(?: (?P<year>\d{4}))?"),
    re.compile(r"(?P<month>[a-z]+)\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,?(?: (?P<year>\d{4}))?"),
)
_TIME = re.compile(
    r"(?:^|[ ,]+)(?:at )?(?:(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[ap]\.?m\.?)"
    r"|(?P<hour24>\d{1,2}):(?P<minute24>\d{2})|(?P<noon>noon|midday|midnight))$"
)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}(?:[t ].+)?")
_OVERDUE = re.compile(r"\b(?:overdue|past due)\b")
_ASKS_DUE = re.compile(r"\b(?:what|what's|whats|which|anything|something)\b.*\bdue\b(?! to\b)")
_MEANT_WORDS = 100
"""How many words at the beginning of a message are searched for a day."""
_SPAN_WORDS = 6
_Span = tuple[date, date]


class NoSuchDay(ValueError):
    """The words name no day. The text says what to write instead."""


def due(words: str, at: datetime) -> str:
    """Return the day (``2026-11-27``) or the UTC time (``2026-11-27T14:00:00Z``) that *words* mean at the moment *at*.

    Times without a zone are in the zone of *at*. Raises `NoSuchDay`.
    """
    text = _plain(words)
    if not text or len(text) > MAX_CHARACTERS:
        raise NoSuchDay(f"no day is said: {_HOW}")
    try:
        found = _moment(text, at)
    except (OverflowError, ValueError):
        found = ""
    if not found:
        raise NoSuchDay(f"which day is meant is not clear, or there is no such day: {_HOW}")
    return found


def _moment(text: str, at: datetime) -> str:
    if _ISO.fullmatch(text) and len(text) > len("2026-11-27"):
        moment = datetime.fromisoformat(text.upper())
        return _utc(moment if moment.tzinfo else moment.replace(tzinfo=at.tzinfo))
    if match := _SOON.fullmatch(text):
        count = _count(match["count"])
        return _utc(at + (timedelta(hours=count) if match["unit"][0] == "h" else timedelta(minutes=count)))
    clock: time | None = None
    if timed := _TIME.search(text):
        clock = _clock(timed)
        text = text[: timed.start()] or "today"
    span = _span(text, at.date())
    if span is None:
        return ""
    day = span[1] if span[0] <= at.date() else span[0]  # "this week" ends on Sunday, "next week" begins on Monday
    return _utc(datetime.combine(day, clock, at.tzinfo)) if clock else day.isoformat()


def days_meant(text: str, at: datetime) -> tuple[str, str] | None:
    """Return the first and the last day (``2026-12-01``, in UTC) that a message names or asks about.

    Returns None if it names no day. A question about overdue items has an empty first day; a question about due items
    that names no day has both empty.
    """
    today = at.astimezone(UTC).date()
    words = [_plain(word.strip("?:()\"'“”")) for word in text.split(maxsplit=_MEANT_WORDS)[:_MEANT_WORDS]]
    words = [word for word in words if word]
    said = " ".join(words)
    if _OVERDUE.search(said):
        return "", (today - timedelta(days=1)).isoformat()
    for length in range(_SPAN_WORDS, 0, -1):
        for start in range(len(words) - length + 1):
            try:
                span = _span_in_message(" ".join(words[start : start + length]), today)
            except (OverflowError, ValueError):
                continue
            if span is not None:
                return span[0].isoformat(), span[1].isoformat()
    return ("", "") if _ASKS_DUE.search(said) else None


def _span_in_message(text: str, today: date) -> _Span | None:
    """Return what `_span` returns, from today on if *text* says "until"; None for words with other meanings too."""
    last_word = text.split()[-1]
    if last_word in _WEEKDAY and len(last_word) <= _ABBREVIATED and not _NAMES_DAY.match(text):
        return None
    span = _span(text, today)
    is_until = _UNTIL.match(text) or _END.fullmatch(_LEADING.sub("", text))
    return (min(today, span[0]), span[1]) if span and is_until else span


def in_words(day: str) -> str:
    """Return a day or time (as `Record.due`) in words, "Friday 27 November 2026"; empty for an empty one."""
    if not day:
        return ""
    when = date.fromisoformat(day[:10])
    clock = ""
    if len(day) > len("2026-11-27"):
        moment = datetime.fromisoformat(day).astimezone(UTC)
        when, clock = moment.date(), f" {moment:%H:%M} UTC"
    return f"{_WEEKDAYS[when.weekday()]} {when.day} {_MONTHS[when.month - 1]} {when.year}{clock}"


def _span(text: str, today: date) -> _Span | None:
    """Return the first and the last day that exactly these words mean; None if they mean none. Raises ValueError."""
    if match := _WHOLE_MONTH.fullmatch(text):
        month = _MONTH.get(match["month"], 0)
        year = int(match["year"]) if match["year"] else today.year + (month < today.month)
        return _whole("month", date(year, month, 1)) if month else None
    text = _LEADING.sub("", text)
    if match := _COMING.fullmatch(text):
        return today, _later(today, _count(match["count"]), match["unit"])
    if match := _PERIOD.fullmatch(text):
        first = _whole(match["unit"], today)[0]
        return _whole(match["unit"], first if match["which"] == "this" else _later(first, 1, match["unit"]))
    day = _day(text, today)
    return None if day is None else (day, day)


def _day(text: str, today: date) -> date | None:
    if _ISO.fullmatch(text):
        return date.fromisoformat(text[:10])
    if text in _DAYS_FROM_NOW:
        return today + timedelta(days=_DAYS_FROM_NOW[text])
    if (match := _DAY_OF_WEEK.fullmatch(text)) and match["day"] in _WEEKDAY:
        weekday = _WEEKDAY[match["day"]]
        if match["which"] == "next ":
            return today + timedelta(days=7 - today.weekday() + weekday)
        return today + timedelta(days=(weekday - today.weekday() - 1) % 7 + 1)
    if match := _IN.fullmatch(text):
        return _later(today, _count(match["count"]), match["unit"])
    if match := _END.fullmatch(text):
        return _whole(match["unit"], today)[1]
    dates = (match for pattern in _DATES if (match := pattern.fullmatch(text)) and match["month"] in _MONTH)
    return next((_dated(int(one["day"]), _MONTH[one["month"]], one["year"], today) for one in dates), None)


def _whole(unit: str, day: date) -> _Span:
    """Return the first and the last day of the week, month or year of *day*."""
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=6)
    first = day.replace(month=1 if unit == "year" else day.month, day=1)
    month = 12 if unit == "year" else day.month
    return first, date(day.year, month, calendar.monthrange(day.year, month)[1])


def _later(day: date, count: int, unit: str) -> date:
    if unit in ("day", "week"):
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    year, month = divmod(day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1), 12)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def _dated(day: int, month: int, year: str | None, today: date) -> date | None:
    if year:
        return date(int(year), month, day)
    for next_year in range(today.year, today.year + 9):  # the next 29th of February can be up to eight years away
        try:
            found = date(next_year, month, day)
        except ValueError:
            continue
        if found >= today:
            return found
    return None


def _clock(match: re.Match[str]) -> time:
    if match["noon"]:
        return time(0 if match["noon"] == "midnight" else 12)
    if match["hour24"]:
        return time(int(match["hour24"]), int(match["minute24"]))
    hour = int(match["hour"])
    if not 1 <= hour <= 12:
        raise ValueError("there is no such hour")
    return time(hour % 12 + (12 if match["half"][0] == "p" else 0), int(match["minute"] or 0))


def _count(word: str) -> int:
    """Return the number that *word* means. Raises ValueError."""
    return _NUMBER[word] if word in _NUMBER else int(word)


def _plain(words: str) -> str:
    """Return *words* in lower case, with one blank between words."""
    return " ".join(words.casefold().replace("’", "'").split()).strip(" .!,;")


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
