"""How text becomes the words that cues are compared with. Pure."""

from __future__ import annotations

import re
import unicodedata

from grounding.recent import Recent

WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
_ELIDED = re.compile(r"(?:l|d|qu|c|j|n|s|t|m|jusqu|lorsqu|puisqu)'(?=\w)")
"""French words that lose their vowel before another one are words of their own."""


_REMEMBERED = 256
_LONGEST_REMEMBERED_CHARACTERS = 2000
_known: Recent[tuple[str, ...]] = Recent(_REMEMBERED)
"""A turn asks five times for the words of its message."""


def words_of(text: str) -> tuple[str, ...]:
    """The words of *text*, without case and accents."""
    return _known.of(text, _words_of) if len(text) <= _LONGEST_REMEMBERED_CHARACTERS else _words_of(text)


def _words_of(text: str) -> tuple[str, ...]:
    found = [fold(word) for word in WORD.findall(unicodedata.normalize("NFKC", text))]
    if any("'" in word and _ELIDED.match(word) for word in found):
        return tuple(part for word in found for part in _ELIDED.sub(lambda match: match[0][:-1] + " ", word).split())
    return tuple(found)


def fold(word: str) -> str:
    """*word* without case and accents, which people leave out."""
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFKD", word.casefold().replace("’", "'"))
    return "".join(letter for letter in plain if not unicodedata.combining(letter))
