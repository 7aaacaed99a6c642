"""Drop records that repeat what the prompt already says. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from grounding.documents.duplicates import NEAR_DUPLICATE, NEGATIONS
from grounding.memory.selection.scoring import Scored

LEAST_WORDS = 3
"""Shorter records occur in every text; they must match a line as a whole."""
_WORD = re.compile(r"\w+")


class Shown:
    """The lines of the prompt as sets of words."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._lines = [words for text in texts for line in text.splitlines() if (words := _words(line))]

    def says(self, text: str) -> bool:
        """Say whether one line says *text*.

        The line contains nearly all its words, all its numbers and negations, and no further negation.
        """
        words = _words(text)
        return bool(words) and any(_is_said(words, line) for line in self._lines)

    def add(self, text: str) -> None:
        """Add *text* as one line."""
        self._lines.append(_words(text))


def without_repeated(ranked: Sequence[Scored], shown: Iterable[str]) -> list[Scored]:
    """Return *ranked* without the records that *shown* or a better record repeats."""
    said, kept = Shown(shown), list[Scored]()
    better = Shown()
    for one in ranked:
        if said.says(one.record.text) or better.says(one.record.text):
            continue
        better.add(one.record.text)
        kept.append(one)
    return kept


def _is_said(words: frozenset[str], line: frozenset[str]) -> bool:
    if len(line) < NEAR_DUPLICATE * len(words):
        return False  # cheap check first: a short line cannot say a long record
    shared = len(words & line)
    whole = len(words) if len(words) >= LEAST_WORDS else len(words | line)
    if shared < NEAR_DUPLICATE * whole:
        return False
    missing, more = words - line, line - words
    return not any(word in NEGATIONS or any(map(str.isdigit, word)) for word in missing) and not (more & NEGATIONS)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold().replace("n't", " not").replace("n’t", " not")))
