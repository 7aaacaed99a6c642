"""Where phrases stand in a text, as whole words. Pure; what is made of a set of phrases is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import TypeVar

from grounding.cues.words import words_of
from grounding.recent import RecentObjects

T = TypeVar("T")
REMEMBERED = 1024
"""Sets of phrases of which is remembered what was made of them."""
_Phrases = Mapping[str, tuple[tuple[str, ...], ...]]


def _once(make: Callable[[tuple[str, ...]], T]) -> Callable[[tuple[str, ...]], T]:
    """*make*, which remembers what it made of the same object: to see whether two sets of a hundred phrases are equal
    takes longer than to look for one of them in a message."""
    known: RecentObjects[tuple[str, ...], T] = RecentObjects(REMEMBERED)

    @wraps(make)
    def made(phrases: tuple[str, ...]) -> T:
        return known.of(phrases, make)

    return made


def matches(words: tuple[str, ...], phrases: tuple[str, ...]) -> Iterable[tuple[int, int]]:
    """Start and length, in words, of each place where one of *phrases* stands."""
    by_first_word = _by_first_word(phrases)
    return () if by_first_word.keys().isdisjoint(words) else _places(words, by_first_word)


def _places(words: tuple[str, ...], by_first_word: _Phrases) -> Iterator[tuple[int, int]]:
    for start, word in enumerate(words):
        for phrase in by_first_word.get(word, ()):
            if words[start : start + len(phrase)] == phrase:
                yield start, len(phrase)


@_once
def _by_first_word(phrases: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:
    grouped: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases:
        parts = words_of(phrase)
        if parts:
            grouped.setdefault(parts[0], []).append(parts)
    return {first: tuple(sorted(group, key=len, reverse=True)) for first, group in grouped.items()}


@_once
def phrase_set(phrases: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """The words of each of *phrases*."""
    return frozenset(phrase for group in _by_first_word(phrases).values() for phrase in group)


@_once
def word_set(words: tuple[str, ...]) -> frozenset[str]:
    """*words*, and the parts of those that are several."""
    return frozenset(words) | frozenset(part for word in words for part in words_of(word))
