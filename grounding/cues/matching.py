"""Where phrases stand in a text, as whole words. Pure; what is made of a set of phrases is remembered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from grounding.cues.words import words_of

_Phrases = Mapping[str, tuple[tuple[str, ...], ...]]


def matches(words: tuple[str, ...], phrases: tuple[str, ...]) -> Iterable[tuple[int, int]]:
    """Start and length, in words, of each place where one of *phrases* stands."""
    by_first_word = _by_first_word(phrases)
    return () if by_first_word.keys().isdisjoint(words) else _places(words, by_first_word)


def _places(words: tuple[str, ...], by_first_word: _Phrases) -> Iterator[tuple[int, int]]:
    for start, word in enumerate(words):
        for phrase in by_first_word.get(word, ()):
            if words[start : start + len(phrase)] == phrase:
                yield start, len(phrase)


@lru_cache(maxsize=1024)
def _by_first_word(phrases: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:
    grouped: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases:
        parts = words_of(phrase)
        if parts:
            grouped.setdefault(parts[0], []).append(parts)
    return {first: tuple(sorted(group, key=len, reverse=True)) for first, group in grouped.items()}


@lru_cache(maxsize=256)
def phrase_set(phrases: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """The words of each of *phrases*."""
    return frozenset(phrase for group in _by_first_word(phrases).values() for phrase in group)


@lru_cache(maxsize=1024)
def word_set(words: tuple[str, ...]) -> frozenset[str]:
    """*words*, and the parts of those that are several."""
    return frozenset(words) | frozenset(part for word in words for part in words_of(word))
