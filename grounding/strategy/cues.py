"""Texts folded for comparison, the kinds of cues, and how cues are matched: as whole words, without case and accents.

Pure. The cue sets themselves are in `grounding.strategy.languages`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

LONGEST_CONSIDERED_CHARACTERS = 20_000
"""The rest of a longer text has no cues."""
_LETTERS = r"(?:[^\W_]+[\u0300-\u036f]*)+"  # an accent may be a character of its own
_WORD = re.compile(rf"{_LETTERS}(?:['’\-]{_LETTERS})*")
_ELIDED = re.compile(r"(?:l|d|qu|c|j|n|s|t|m|jusqu|lorsqu|puisqu)['’](?=\w)", re.IGNORECASE)
"""French words that lose their vowel before another word are words of their own."""
_Phrases = Mapping[str, tuple[tuple[str, ...], ...]]


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A text as cues see it: its words without case and accents, and where each of them stands.

    Whoever asks several things of one message folds it once, and passes it on.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: Text) -> FoldedText:
        """Fold *text*; one that is folded is returned as it is."""
        if isinstance(text, FoldedText):
            return text
        text = text[:LONGEST_CONSIDERED_CHARACTERS]
        spans = [match.span() for match in _WORD.finditer(text)]
        if "'" in text or "’" in text:
            spans = [part for start, end in spans for part in _without_elisions(text, start, end)]
        # Only in ASCII lower case surely has as many characters.
        if text.isascii():
            lower = text.lower()
            words = [lower[start:end] for start, end in spans]
        else:
            words = [fold(text[start:end]) for start, end in spans]
        return cls(text, tuple(words), tuple(spans))


Text = str | FoldedText


def _without_elisions(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while elided := _ELIDED.match(text, start, end):
        yield start, elided.end() - 1
        start = elided.end()
    yield start, end


def words_of(text: Text) -> tuple[str, ...]:
    """Return the words of *text*, without case and accents."""
    return FoldedText.of(text).words


def fold(word: str) -> str:
    """Return *word* without case and accents, which people leave out."""
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFKD", word.casefold().replace("’", "'"))
    return "".join(letter for letter in plain if not unicodedata.combining(letter))


def matches(words: tuple[str, ...], phrases: tuple[str, ...]) -> Iterable[tuple[int, int]]:
    """Return start and length, in words, of each occurrence of one of *phrases*."""
    by_first_word = _by_first_word(phrases)
    return () if by_first_word.keys().isdisjoint(words) else _occurrences(words, by_first_word)


def phrase_at(words: tuple[str, ...], at: int, phrases: tuple[str, ...]) -> int:
    """Return the length, in words, of the longest of *phrases* that begins at the word *at*; 0 if none does."""
    longest_first = _by_first_word(phrases).get(words[at], ()) if at < len(words) else ()
    return next((len(phrase) for phrase in longest_first if words[at : at + len(phrase)] == phrase), 0)


@lru_cache(1024)
def phrase_set(phrases: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    """Return the words of each of *phrases*."""
    return frozenset(phrase for group in _by_first_word(phrases).values() for phrase in group)


@lru_cache(1024)
def word_set(words: tuple[str, ...]) -> frozenset[str]:
    """Return *words*, and the parts of those that consist of several words."""
    return frozenset(words) | frozenset(part for word in words for part in words_of(word))


def _occurrences(words: tuple[str, ...], by_first_word: _Phrases) -> Iterator[tuple[int, int]]:
    for start, word in enumerate(words):
        for phrase in by_first_word.get(word, ()):
            if words[start : start + len(phrase)] == phrase:
                yield start, len(phrase)


@lru_cache(1024)
def _by_first_word(phrases: tuple[str, ...]) -> _Phrases:
    grouped: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases:
        if words := words_of(phrase):
            grouped.setdefault(words[0], []).append(words)
    return {first: tuple(sorted(group, key=len, reverse=True)) for first, group in grouped.items()}


@dataclass(frozen=True, slots=True)
class Cues:
    """Phrases per kind of need. Each is one or more words in lower case."""

    small_talk: tuple[str, ...]
    """Polite phrases. A message of nothing else needs no memory."""
    filler: tuple[str, ...]
    """Words that may stand beside small talk without making it a request."""
    asks_history: tuple[str, ...]
    """The message asks about this conversation."""
    refers_to_history: tuple[str, ...]
    """The message leans on this conversation, whatever it asks for."""
    weakly_asks_history: tuple[str, ...]
    """Asks about this conversation in a short message, or with "since", unless documents are named."""
    continues: tuple[str, ...]
    """Asks to go on, if nothing else but politeness is said."""
    follow_ups: tuple[str, ...]
    """A short message that begins with one is a follow-up: the messages before name its subject."""
    anaphora: tuple[str, ...]
    """Words that stand for something said before ("it", "those"). Not enough by themselves: see
    `grounding.strategy.leaning`."""
    openers: tuple[str, ...]
    """A message that begins with one mostly answers or continues the one before."""
    continuing: tuple[str, ...]
    """Words by which something is added to what was said ("else", "another", "instead")."""
    documents: tuple[str, ...]
    """Each is enough to want documents."""
    search: tuple[str, ...]
    """Wants documents together with an anchor."""
    anchors: tuple[str, ...]
    """Things that live in a workspace."""
    parts: tuple[str, ...]
    """Parts of documents: anchors beside a search, but not beside any question."""
    containers: tuple[str, ...]
    """Words for the place of an answer and for the request itself, which do not name its subject."""
    question_words: tuple[str, ...]
    """A message that begins with one is a question."""
    idioms: tuple[str, ...] = ()
    """In these the words mean something else ("earlier than", "file system"): no other cue is seen in them, except a
    longer one."""
    assistant: tuple[str, ...] = ()
    """Words for the assistant itself. No document tells what it likes to eat."""
    polite_requests: tuple[str, ...] = ()
    """Phrases that name the assistant only to ask politely."""
    greetings: tuple[str, ...] = ()
    """With a name behind them they are small talk: "hello Anna"."""
    courtesies: tuple[str, ...] = ()
    """"Please", before a question or a request."""
    asks_somebody: tuple[str, ...] = ()
    """"Could you", before one of `asks_to_tell`."""
    asks_to_tell: tuple[str, ...] = ()
    """"Tell me", "I wonder": polite words before a question."""
    domains: tuple[str, ...] = ()
    """Endings of sites."""
    domains_that_are_words: tuple[str, ...] = ()
    """Those of `domains` that name a site only behind two labels, or with a path ("t.me/acme")."""
    file_endings: tuple[str, ...] = ()

    def extended(self, **more: tuple[str, ...]) -> Cues:
        """Return these cues with *more* of some kinds."""
        return replace(self, **{kind: getattr(self, kind) + phrases for kind, phrases in more.items()})

    def without(self, **fewer: tuple[str, ...]) -> Cues:
        """Return these cues without *fewer* of some kinds, ignoring phrases that are not among them."""
        rest = {
            kind: tuple(phrase for phrase in getattr(self, kind) if phrase not in phrases)
            for kind, phrases in fewer.items()
        }
        return replace(self, **rest)

    def joined(self, other: Cues) -> Cues:
        """Return the cues of both."""
        more = {kind: tuple(one for one in getattr(other, kind) if one not in getattr(self, kind)) for kind in KINDS}
        return self.extended(**more)


KINDS = tuple(field.name for field in fields(Cues))
"""The names of all kinds."""


def phrases(text: str) -> tuple[str, ...]:
    """Return the phrases of *text*, separated by commas and line ends."""
    return tuple(phrase.strip() for phrase in text.replace("\n", ",").split(",") if phrase.strip())


def has_cue(words: tuple[str, ...], phrases: tuple[str, ...], cues: Cues, but: tuple[str, ...] = ()) -> bool:
    """Say whether one of *phrases* is in *words*, and not inside a longer idiom or a longer phrase of *but*."""
    found = list(matches(words, phrases))
    if not found:
        return False
    masks = [*matches(words, cues.idioms), *matches(words, but)]
    return any(
        not any(mask <= start and start + length <= mask + longer and longer > length for mask, longer in masks)
        for start, length in found
    )
