"""Codes in a text: part numbers, error codes, tickets, names of variables. Pure.

A code says nothing by its meaning, so that no cosine finds it; but whoever writes one means exactly that. What begins
with a digit is mostly a time, an amount or an ordinal ("10am", "500mb", "2nd", "24-hour"), and a word with a small
number mostly a word of its own ("covid-19", "windows 11", "base64"): these count as none.
"""

from __future__ import annotations

import re

from grounding.recent import Recent

LEAST_DIGITS = 2
"""With one it is mostly a word of its own ("mp3", "B2B", "S3")."""
LEAST_DIGITS_FIRST = 3
"""Of what begins with a digit and goes on with a letter or two: "4711-A"."""
_JOINED = re.compile(r"(?<![\w.-])[^\W_]+(?:[-_.#][^\W_]+)*(?![\w-])")
_JOINT = re.compile(r"[-_.#]")
_WORD_AND_NUMBER = re.compile(r"[^\W\d_]{3,}[-.]?\d{1,2}")
_TICKET = re.compile(r"[A-Z]{3,4}-\d{1,2}")
"""In capitals, so that it is no word: "INC-12"."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOST_CHARACTERS = 64
_found: Recent[frozenset[str]] = Recent(512)


def codes(text: str) -> frozenset[str]:
    """The codes of *text* in lower case: words, joined by ``-``, ``_``, ``.`` or ``#``, that begin with a letter and
    have two digits, or an underscore; and such that begin with three digits and end in a letter or two. Those of the
    last texts are remembered: a question is compared with each passage, and a passage with each question."""
    return _found.of(text, _codes)


def _codes(text: str) -> frozenset[str]:
    if not any(character.isdigit() or character == "_" for character in text):
        return frozenset()
    found = (match[0] for match in _JOINED.finditer(text))
    return frozenset(one.casefold() for one in found if len(one) <= _MOST_CHARACTERS and _is_code(one))


def _is_code(word: str) -> bool:
    digits = sum(character.isdigit() for character in word)
    if word[0].isdigit():
        return digits >= LEAST_DIGITS_FIRST and _is_numbered(word)
    if "_" in word:
        return True
    if digits < LEAST_DIGITS:
        return False
    return _WORD_AND_NUMBER.fullmatch(word) is None or _TICKET.fullmatch(word) is not None


def _is_numbered(word: str) -> bool:
    """Whether *word*, which begins with a digit, is a number with letters: not "1990s", "500-mb" or a day."""
    first, *rest = _JOINT.split(word)
    letters = "".join(character for character in "".join(rest) if not character.isdigit())
    if not first.isdigit() or not 1 <= len(letters) <= 2 or _DAY.match(word):
        return False
    return letters.isupper() or (len(letters) == 1 and len(first) > LEAST_DIGITS_FIRST)
