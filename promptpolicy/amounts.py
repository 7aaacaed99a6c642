"""Find amounts in a text: numbers in digits or words, with their units. English and German. Pure.

Numbers are compared by value (``two`` is 2), and units by meaning (``14-day`` equals ``14 days``, but not
``14 working days``). ``one`` does not count as a number, because it is more often a pronoun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SPELLED: Mapping[str, str] = {
    word: str(value)
    for words, value in (
        ("two twice zwei zweimal", 2), ("three thrice drei dreimal", 3), ("four vier", 4), ("five fünf", 5),
        ("six sechs", 6), ("seven sieben", 7), ("eight acht", 8), ("nine neun", 9), ("ten zehn", 10),
        ("eleven elf", 11), ("twelve dozen zwölf dutzend", 12), ("thirteen dreizehn", 13), ("fourteen vierzehn", 14),
        ("fifteen fünfzehn", 15), ("sixteen sechzehn", 16), ("seventeen siebzehn", 17), ("eighteen achtzehn", 18),
        ("nineteen neunzehn", 19), ("twenty zwanzig", 20), ("thirty dreißig", 30), ("forty vierzig", 40),
        ("fifty fünfzig", 50), ("sixty sechzig", 60), ("seventy siebzig", 70), ("eighty achtzig", 80),
        ("ninety neunzig", 90), ("hundred hundert", 100), ("thousand tausend", 1000), ("million", 1_000_000),
        ("half halb", 0.5),
    )
    for word in words.split()
}  # fmt: skip
_UNITS: Mapping[str, str] = {
    word: words.split()[0]
    for words in (
        "second seconds sec secs sekunde sekunden", "minute minutes min mins minuten", "hour hours h stunde stunden",
        "day days tag tage tagen", "workday workdays werktag werktage werktagen arbeitstag arbeitstage arbeitstagen",
        "week weeks woche wochen", "month months monat monate monaten", "quarter quarters quartal quartale",
        "year years jahr jahre jahren", "night nights nacht nächte nächten",
        "eur euro euros €", "usd dollar dollars $", "gbp pound pounds £", "chf franken", "cent cents",
        "percent % prozent", "byte bytes", "kb kilobyte kilobytes", "mb megabyte megabytes", "gb gigabyte gigabytes",
        "tb terabyte terabytes", "kib", "mib", "gib", "token tokens", "character characters chars zeichen",
        "word words wort wörter wörtern worte", "sentence sentences satz sätze sätzen",
        "line lines zeile zeilen", "paragraph paragraphs absatz absätze absätzen", "page pages seite seiten",
        "point points bullets punkt punkte punkten", "question questions frage fragen",
        "person people persons personen leute", "item items", "time times mal",
        "mm", "cm", "m metre metres meter meters", "km kilometre kilometres kilometer kilometers", "mile miles",
        "g gram grams gramm", "kg kilo kilos kilogram kilograms kilogramm", "t ton tons tonne tonnes tonnen",
        "ml", "l litre litres liter liters", "°c", "°f", "degrees grad", "v volt volts", "w watt watts", "kw", "kwh",
    )
    for word in words.split()
}  # fmt: skip
_SIGNS = "€$£"
_AMOUNT = re.compile(
    rf"(?:(?P<sign>[{_SIGNS}])\s?)?"
    rf"(?<![\w.])(?P<number>\d+(?:[.,:/-]\d+)*|(?:{'|'.join(sorted(_SPELLED, key=len, reverse=True))})(?!\w))"
    rf"(?:[\s-]?(?:(?P<kind>working|business|calendar)[\s-])?"
    rf"(?P<unit>{'|'.join(sorted(map(re.escape, _UNITS), key=len, reverse=True))})(?!\w))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with its unit. ``value`` is in digits (unchanged if the text has digits). ``unit`` is empty if there is
    none, or none that is known here."""

    value: str
    unit: str = ""


def amounts(text: str) -> dict[Amount, str]:
    """Return the amounts in *text* that are spelled out or have a unit, each with its first spelling there."""
    spellings: dict[Amount, str] = {}
    for match in _AMOUNT.finditer(text):
        amount = _read(match)
        if amount.unit or not match["number"][0].isdigit():
            spellings.setdefault(amount, match[0].strip())
    return spellings


def lost(old: str, new: str) -> Iterator[str]:
    """Yield the amounts of *old*, as spelled there, that *new* has neither in digits nor in words."""
    remaining = amounts(new)
    values = {match["number"] for match in _AMOUNT.finditer(new)} | {amount.value for amount in remaining}
    for amount, spelling in amounts(old).items():
        if amount not in remaining and (amount.unit or amount.value not in values):
            yield spelling


def is_spelled(number: str, text: str) -> bool:
    """Return whether *text* contains *number*, given in digits, as a word or with a unit."""
    return any(amount.value == number for amount in amounts(text))


def _read(match: re.Match[str]) -> Amount:
    number = match["number"].casefold()
    unit = _UNITS.get((match["unit"] or match["sign"] or "").lower(), "")
    kind = (match["kind"] or "").lower()
    if unit == "day" and kind in ("working", "business"):
        unit = "workday"
    return Amount(_SPELLED.get(match["number"].lower(), number), unit)
