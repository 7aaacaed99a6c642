"""Codes in a text: part numbers, error codes, tickets, names of variables. Pure.

A code says nothing by its meaning, so that no cosine finds it; but whoever writes one means exactly that. What begins
with a digit is mostly a time, an amount or an ordinal ("10am", "500mb", "2nd"), and counts as none.
"""

from __future__ import annotations

import re

LEAST_DIGITS = 2
"""With one it is mostly a word of its own ("mp3", "B2B", "S3")."""
_JOINED = re.compile(r"(?<![\w.-])[^\W\d_][^\W_]*(?:[-_.][^\W_]+)*(?![\w-])")
_MOST_CHARACTERS = 64


def codes(text: str) -> frozenset[str]:
    """The codes of *text* in lower case: words, joined by ``-``, ``_`` or ``.``, that begin with a letter and have two
    digits, or an underscore."""
    if not any(character.isdigit() or character == "_" for character in text):
        return frozenset()
    found = (match[0].casefold() for match in _JOINED.finditer(text))
    return frozenset(one for one in found if len(one) <= _MOST_CHARACTERS and _is_code(one))


def _is_code(word: str) -> bool:
    return "_" in word or sum(character.isdigit() for character in word) >= LEAST_DIGITS
