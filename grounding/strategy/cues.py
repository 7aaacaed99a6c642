"""Where phrases stand in a text, as whole words. Pure; what is made of a set of phrases is remembered."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TypeVar

from grounding.prompt_input import Recent, RecentObjects

# ---- words ----
#
# How text becomes the words that cues are compared with. Pure.


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


# ---- matching ----


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


# ---- kinds ----
#
# The words and phrases by which a message shows what it needs, by kind. Data, matched as whole words.


_COMMON_DOMAINS = (
    "com org net edu gov io dev ai app co uk de fr es it nl eu ch at be pl se no dk fi jp cn in au ca br us me "
    "info biz cloud tech tv gg ly sh so to xyz"
)
_FILE_ENDINGS = (
    "md markdown txt rst pdf doc docx odt xls xlsx ppt pptx csv tsv json yaml yml toml ini cfg conf env log "
    "html css js ts py go rs java rb php sh sql xml ipynb"
)


@dataclass(frozen=True, slots=True)
class Cues:
    """Phrases per need. Each is one or more words in lower case."""

    small_talk: tuple[str, ...]
    """What is said to be polite. A message of nothing else needs no memory."""
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
    """A short message that begins with one asks on: what was said before names what it is about."""
    documents: tuple[str, ...]
    """Each is enough to want documents."""
    search: tuple[str, ...]
    """Wants documents together with an anchor."""
    anchors: tuple[str, ...]
    """Things that live in a workspace."""
    parts: tuple[str, ...]
    """Parts of documents: anchors beside a search, but not beside any question."""
    containers: tuple[str, ...]
    """Words for where an answer stands and how it is asked for, which say nothing of what it is about."""
    question_words: tuple[str, ...]
    """A message that begins with one is a question."""
    idioms: tuple[str, ...] = ()
    """In these the words mean something else ("earlier than", "file system"): no other cue is seen in them, but for
    a longer one."""
    assistant: tuple[str, ...] = ()
    """Words for the assistant itself. No document tells what it likes to eat."""
    polite_requests: tuple[str, ...] = ()
    """Phrases that name the assistant only to ask politely."""
    domains: tuple[str, ...] = tuple(_COMMON_DOMAINS.split())
    file_endings: tuple[str, ...] = tuple(_FILE_ENDINGS.split())

    def extended(self, **more: tuple[str, ...]) -> Cues:
        """These cues with *more* of some kinds. Raises TypeError for a kind that there is not."""
        _check_kinds(more)
        return replace(self, **{kind: getattr(self, kind) + phrases for kind, phrases in more.items()})

    def without(self, **fewer: tuple[str, ...]) -> Cues:
        """These cues but for *fewer* of some kinds; what is none of them changes nothing. Raises TypeError for a kind
        that there is not."""
        _check_kinds(fewer)
        kept = {
            kind: tuple(phrase for phrase in getattr(self, kind) if phrase not in phrases)
            for kind, phrases in fewer.items()
        }
        return replace(self, **kept)

    def joined(self, other: Cues) -> Cues:
        """The cues of both."""
        more = {kind: tuple(one for one in getattr(other, kind) if one not in getattr(self, kind)) for kind in KINDS}
        return self.extended(**more)


KINDS = tuple(field.name for field in fields(Cues))
"""The names of all kinds."""


def _check_kinds(given: Mapping[str, object]) -> None:
    if unknown := set(given) - set(KINDS):
        raise TypeError(f"no such kind of cue: {', '.join(sorted(unknown))}")


def phrases(text: str) -> tuple[str, ...]:
    """The phrases of *text*, which commas and line ends part."""
    return tuple(phrase.strip() for phrase in text.replace("\n", ",").split(",") if phrase.strip())
