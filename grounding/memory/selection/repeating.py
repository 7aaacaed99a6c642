"""Records that say what is in the prompt already. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from grounding.documents.duplicates import NEAR_DUPLICATE, NEGATIONS
from grounding.memory.selection.scoring import Scored

LEAST_WORDS = 3
"""Shorter records are found in everything; they are compared as a whole."""
_WORD = re.compile(r"\w+")


class Shown:
    """Lines that the prompt shows, as words."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._lines = [words for text in texts for line in text.splitlines() if (words := _words(line))]

    def says(self, text: str) -> bool:
        """Whether one line says *text*: nearly all its words stand there, all its figures and negations, and the line
        negates nothing besides."""
        words = _words(text)
        return bool(words) and any(_is_said(words, line) for line in self._lines)

    def add(self, text: str) -> None:
        """*text* is shown, too, on one line."""
        self._lines.append(_words(text))


def without_repeated(ranked: Sequence[Scored], shown: Iterable[str]) -> list[Scored]:
    """*ranked* without what *shown* or a better one says."""
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
        return False  # the short line of a tail is no long record: sparing to compare them
    shared = len(words & line)
    whole = len(words) if len(words) >= LEAST_WORDS else len(words | line)
    if shared < NEAR_DUPLICATE * whole:
        return False
    missing, more = words - line, line - words
    return not any(word in NEGATIONS or any(map(str.isdigit, word)) for word in missing) and not (more & NEGATIONS)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold().replace("n't", " not").replace("n’t", " not")))
