"""Read due dates as people and models write them: ISO, or words in English, German, Spanish or French.

- ``2026-11-27``, ``2026-11-27 15:00``, ``2026-11-27T15:00:00+01:00``
- ``today``, ``tomorrow``, ``the day after tomorrow``
- ``Friday``, ``this Friday``, ``on Friday``: the next one after today. ``next Friday``: the one of the next calendar
  week, which begins on Monday
- ``in two weeks``, ``in 3 days``, ``in a month``, ``next week`` (its Monday), ``next month`` (its first day), ``end of
  the week`` (Sunday), ``end of the month``
- ``27 November``, ``November 27th, 2026``: without a year the next one, today included
- each of these with a time: ``tomorrow at 3pm``, ``Friday 15:00``; and ``in two hours``, ``in 30 minutes``

Pure: the result depends only on the words and the moment. Ambiguous words (``03/04/2026``, ``soon``) are refused.
"""

from __future__ import annotations

import calendar
import re
import unicodedata
from datetime import UTC, date, datetime, time, timedelta

MAX_CHARACTERS = 80
_HOW = (
    "write a day like 2026-11-27, a time like 2026-11-27T15:00, or words: today, tomorrow, Friday, next Friday, "
    "in two weeks, 27 November, each with 'at 15:00' if there is a time"
)
_WEEKDAYS = (
    "monday mon montag lunes lundi",
    "tuesday tue tues dienstag martes mardi",
    "wednesday wed mittwoch miercoles mercredi",
    "thursday thu thur thurs donnerstag jueves jeudi",
    "friday fri freitag viernes vendredi",
    "saturday sat samstag sonnabend sabado samedi",
    "sunday sun sonntag domingo dimanche",
)
_MONTHS = (
    "january jan januar janner enero janvier",
    "february feb februar febrero fevrier",
    "march mar marz maerz marzo mars",
    "april apr abril avril",
    "may mai mayo",
    "june jun juni junio juin",
    "july jul juli julio juillet",
    "august aug agosto aout",
    "september sep sept septiembre septembre",
    "october oct oktober okt octubre octobre",
    "november nov noviembre novembre",
    "december dec dezember dez diciembre decembre",
)
_NUMBERS = {
    word: number
    for number, words in enumerate(
        (
            "a an one ein eine einem einer un une uno una",
            "two zwei dos deux",
            "three drei tres trois",
            "four vier cuatro quatre",
            "five funf fuenf cinco cinq",
            "six sechs seis",
            "seven sieben siete sept",
            "eight acht ocho huit",
            "nine neun nueve neuf",
            "ten zehn diez dix",
        ),
        start=1,
    )
    for word in words.split()
}
_UNITS = {
    "minute": "minute minutes min mins minuten minuto minutos",
    "hour": "hour hours hrs stunde stunden hora horas heure heures",
    "day": "day days tag tage tagen dia dias jour jours",
    "week": "week weeks woche wochen semana semanas semaine semaines",
    "month": "month months monat monate monaten mes meses mois",
    "year": "year years jahr jahre jahren ano anos an ans annee annees",
}
_UNIT = {word: unit for unit, words in _UNITS.items() for word in words.split()}
_DAY = {word: number for number, words in enumerate(_WEEKDAYS) for word in words.split()}
_MONTH = {word: number for number, words in enumerate(_MONTHS, start=1) for word in words.split()}
_DAYS_FROM_NOW = {
    **dict.fromkeys(("today", "tonight", "heute", "hoy", "aujourd'hui"), 0),
    **dict.fromkeys(("tomorrow", "morgen", "manana", "demain"), 1),
    **dict.fromkeys(("day after tomorrow", "ubermorgen", "uebermorgen", "pasado manana", "apres-demain"), 2),
}
_LEADING = re.compile(
    r"^(?:(?:due|by|on|until|till|before|the|bis|hasta|am|zum|den|der|el|para|le|pour|this|diesen|este|ce)\s+)+"
)
_NEXT = re.compile(
    r"^(?:next|nachste[nrs]?|naechste[nrs]?|proxim[oa])\s+(?P<a>\w+)$"
    r"|^(?P<b>\w+)\s+(?:prochaine?|que viene|proxim[oa])$"
)
_IN = re.compile(r"^(?:in|en|dans|dentro de)\s+(?P<count>\d{1,4}|[a-z]+)\s+(?P<unit>[a-z]+)$")
_END = re.compile(
    r"^end of (?:the |this )?(?P<a>week|month|year)$|^ende (?:der |des )?(?P<b>woche|monats?|jahres|jahr)$"
)
_DATE = re.compile(
    r"^(?P<day>\d{1,2})(?:st|nd|rd|th|\.|er)?\s*(?:of\s+|de\s+)?(?P<month>[a-z]+)\.?,?(?:\s+(?:de\s+)?(?P<year>\d{4}))?$"
    r"|^(?P<month2>[a-z]+)\.?\s+(?P<day2>\d{1,2})(?:st|nd|rd|th)?,?(?:\s+(?P<year2>\d{4}))?$"
)
_TIME = re.compile(
    r"(?:^|[\s,]+)(?:(?:at|um|a las|a)\s+)?(?:"
    r"(?P<hour>\d{1,2})[:h](?P<minute>\d{2})\s*(?P<half>[ap]\.?m\.?)?(?:\s*uhr)?"
    r"|(?P<hour2>\d{1,2})\s*(?P<half2>[ap]\.?m\.?)|(?P<hour3>\d{1,2})\s*(?:uhr|h)|(?P<noon>noon|midday|midnight))$"
)
_ISO = re.compile(r"^(\d{4}-\d{2}-\d{2})(?:[t ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)\s*(z|[+-]\d{2}:?\d{2})?)?$")


_OVERDUE = re.compile(r"\b(?:overdue|past due|uberfallig\w*|ueberfaellig\w*|en retard|atrasad[oa]s?|vencid[oa]s?)\b")
_ASKS_DUE = re.compile(
    r"\b(?:what|what's|whats|which|anything|something)\b.*\bdue\b(?! to\b)|\bwas\b.*\b(?:fallig|faellig)\b"
    r"|\bque\b.*\bvencen?\b|\b(?:qu'est-ce|quoi|quel\w*)\b.*\becheances?\b"
)
_THIS = re.compile(r"^(?:this|diese[nmrs]?|est[ea]|ce|cette)\s+(?P<unit>\w+)$")
_COMING = re.compile(
    r"^(?:(?:next|nachsten|naechsten|proxim[oa]s)\s+(?P<a>\w+)|(?P<b>\w+)\s+(?:prochaine?s|proxim[oa]s))\s+(?P<unit>\w+)$"
    r"|^(?P<c>\w+)\s+(?P<unit2>\w+)\s+prochaine?s$"
)
_IN_MONTH = re.compile(r"^(?:in|im|en|for|fur|pour|para)\s+(?P<month>[a-z]+)(?:\s+(?:de\s+)?(?P<year>\d{4}))?$")
_UNTIL = re.compile(r"^(?:by|until|till|before|bis|hasta)\s+")
_NAMES_DAY = re.compile(r"^(?:on|by|until|till|next)\s")
_MEANT_WORDS = 100
"""How many words at the beginning of a message are searched for a day."""
_SPAN_WORDS = 6
_ABBREVIATED = 3
"""Weekday names of at most this length have other meanings too ("mon", "sun"). In a message they need an "on" before
them."""


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
        return _iso(text, at) or _relative(text, at) or _spoken(text, at)
    except (OverflowError, ValueError) as error:
        if isinstance(error, NoSuchDay):
            raise
        raise NoSuchDay(f"there is no such day or time: {_HOW}") from None


def days_meant(text: str, at: datetime) -> tuple[str, str] | None:
    """Return the first and the last day (``2026-12-01``, in UTC) that a message names or asks about.

    Returns None if it names no day. A question about overdue items has an empty first day; a question about due items
    that names no day has both empty.
    """
    today = at.astimezone(UTC).date()
    words = [word.strip("?!.,;:()\"'¿¡«»") for word in text.split(maxsplit=_MEANT_WORDS)[:_MEANT_WORDS]]
    words = [plain for word in words if (plain := _plain(word))]
    said = " ".join(words)
    if _OVERDUE.search(said):
        return "", (today - timedelta(days=1)).isoformat()
    for length in range(_SPAN_WORDS, 0, -1):
        for start in range(len(words) - length + 1):
            try:
                span = _span(" ".join(words[start : start + length]), today)
            except (OverflowError, ValueError):
                continue
            if span is not None:
                return span[0].isoformat(), span[1].isoformat()
    return ("", "") if _ASKS_DUE.search(said) else None


def _span(text: str, today: date) -> tuple[date, date] | None:
    """Return the first and the last day that exactly these words mean."""
    if match := _THIS.match(text):
        return _whole(_UNIT.get(match["unit"], ""), today)
    if match := _COMING.match(text):
        unit = _UNIT.get(match["unit"] or match["unit2"], "")
        last = _later(today, _count(match["a"] or match["b"] or match["c"]), unit)
        return (today, last) if last else None
    if (match := _IN_MONTH.match(text)) and match["month"] in _MONTH:
        month = _MONTH[match["month"]]
        year = int(match["year"]) if match["year"] else today.year + (month < today.month)
        return _whole("month", date(year, month, 1))
    if match := _NEXT.match(_LEADING.sub("", text)):
        first = _next(match["a"] or match["b"], today)
        unit = _UNIT.get(match["a"] or match["b"], "")
        return (_whole(unit, first) or (first, first)) if first else None
    if _ISO.match(text):
        day = date.fromisoformat(text[:10])
        return day, day
    last_word = text.split()[-1]
    if last_word in _DAY and len(last_word) <= _ABBREVIATED and not _NAMES_DAY.match(text):
        return None
    found = _day(text, today)
    if found is None:
        return None
    is_until = _UNTIL.match(text) or _END.match(_LEADING.sub("", text))
    return min(today, found) if is_until else found, found


def _whole(unit: str, day: date) -> tuple[date, date] | None:
    """Return the first and the last day of the week, month or year of *day*."""
    if unit == "week":
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=6)
    if unit not in ("month", "year"):
        return None
    return day.replace(month=1 if unit == "year" else day.month, day=1), _end_of(unit[0], day)


def _iso(text: str, at: datetime) -> str:
    match = _ISO.match(text)
    if match is None:
        return ""
    day, clock, zone = match.groups()
    if clock is None:
        return date.fromisoformat(day).isoformat()
    moment = datetime.fromisoformat(f"{day}T{clock}{(zone or '').upper()}")
    return _utc(moment if moment.tzinfo else moment.replace(tzinfo=at.tzinfo))


def _relative(text: str, at: datetime) -> str:
    """Read ``in two hours``, counted from *at*."""
    match = _IN.match(text)
    unit = _UNIT.get(match["unit"]) if match else None
    if match is None or unit not in ("minute", "hour"):
        return ""
    count = _count(match["count"])
    return _utc(at + (timedelta(hours=count) if unit == "hour" else timedelta(minutes=count)))


def _spoken(text: str, at: datetime) -> str:
    clock: time | None = None
    if timed := _TIME.search(text):
        clock = _clock(timed)
        text = text[: timed.start()].strip(" ,") or "today"
    day = _day(text, at.date())
    if day is None:
        raise NoSuchDay(f"which day is meant is not clear: {_HOW}")
    return _utc(datetime.combine(day, clock, at.tzinfo)) if clock else day.isoformat()


def _clock(match: re.Match[str]) -> time:
    if match["noon"]:
        return time(0 if match["noon"] == "midnight" else 12)
    hour = int(match["hour"] or match["hour2"] or match["hour3"])
    half = (match["half"] or match["half2"] or "")[:1]
    if half and not 1 <= hour <= 12:
        raise NoSuchDay(f"there is no such time: {_HOW}")
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return time(hour, int(match["minute"] or 0))


def _day(text: str, today: date) -> date | None:
    text = _LEADING.sub("", text)
    if text in _DAYS_FROM_NOW:
        return today + timedelta(days=_DAYS_FROM_NOW[text])
    if text in _DAY:
        return today + timedelta(days=(_DAY[text] - today.weekday() - 1) % 7 + 1)
    if match := _NEXT.match(text):
        return _next(match["a"] or match["b"], today)
    if match := _IN.match(text):
        return _later(today, _count(match["count"]), _UNIT.get(match["unit"], ""))
    if match := _END.match(text):
        return _end_of((match["a"] or match["b"])[0], today)
    if match := _DATE.match(text):
        return _dated(
            match["day"] or match["day2"], match["month"] or match["month2"], match["year"] or match["year2"], today
        )
    return None


def _next(word: str, today: date) -> date | None:
    monday = today + timedelta(days=7 - today.weekday())
    if word in _DAY:
        return monday + timedelta(days=_DAY[word])
    unit = _UNIT.get(word)
    if unit == "week":
        return monday
    if unit == "month":
        return _later(today.replace(day=1), 1, "month")
    return today.replace(year=today.year + 1, month=1, day=1) if unit == "year" else None


def _later(day: date, count: int, unit: str) -> date | None:
    if unit in ("day", "week"):
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    if unit not in ("month", "year"):
        return None
    months = day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1)
    year, month = divmod(months, 12)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def _end_of(unit: str, today: date) -> date:
    if unit == "w":
        return today + timedelta(days=6 - today.weekday())
    month = 12 if unit in "yj" else today.month
    return date(today.year, month, calendar.monthrange(today.year, month)[1])


def _dated(day: str, month: str, year: str | None, today: date) -> date | None:
    if month not in _MONTH:
        return None
    if year:
        return date(int(year), _MONTH[month], int(day))
    for year_ in range(today.year, today.year + 9):  # the next 29th of February can be up to eight years away
        try:
            found = date(year_, _MONTH[month], int(day))
        except ValueError:
            continue
        if found >= today:
            return found
    raise NoSuchDay(f"there is no such day: {_HOW}")


def _count(word: str) -> int:
    if word.isdecimal():
        return int(word)
    if word not in _NUMBERS:
        raise NoSuchDay(f"which day is meant is not clear: {_HOW}")
    return _NUMBERS[word]


def _plain(words: str) -> str:
    """Return *words* in lower case, without accents, with one blank between words."""
    bare = unicodedata.normalize("NFKD", words.replace("ß", "ss"))
    bare = "".join(one for one in bare if not unicodedata.combining(one)).casefold().replace("’", "'")
    return " ".join(bare.split()).strip(" .!,;")


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
