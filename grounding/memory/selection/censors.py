"""The censors in force, and a matcher for their triggers. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from grounding.memory.records import Record, State, Type
from grounding.prompt_input import Censor

FOREIGN = ("retrieved", "others")
"""Origins whose words bind nobody. Otherwise a document, or a bystander, could stop all replies."""
CONSIDERED_CHARACTERS = 1_000_000
"""More than any model says at once."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Scripts that put no space between words, or attach endings to them: each letter counts as a word."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_EMPHASIS = re.compile(r"(?<=\w)(?:\*+|~~|`+)(?=\w)")
"""Markdown marks that split a word invisibly: ``pass**word**``."""
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()\s]*\)")
"""A Markdown link, of which people see only the text."""
_VOICED = "\u3099\u309a"
"""Marks that turn a Japanese letter into another one; they are not accents."""
_Words = tuple[str, ...]


def in_force(records: Iterable[Record]) -> tuple[Censor, ...]:
    """Return the censors among *records*, in their order."""
    return tuple(
        Censor(
            id=one.id,
            severity="block" if one.state is State.ESCALATED else one.severity,
            text=one.text,
            trigger=one.trigger,
            reason=one.reason,
        )
        for one in records
        if one.type is Type.CENSOR and not one.is_hidden and one.provenance.origin not in FOREIGN
    )


def triggered_censors(censors: Sequence[Censor], text: str) -> tuple[Censor, ...]:
    """Return those of *censors* that have a trigger in *text*.

    Triggers match as whole words without case and accents; joining marks and invisible characters do not matter. The
    cost is the sum of the sizes of text and triggers, not their product.
    """
    if not censors or not text:
        return ()
    text = text[:CONSIDERED_CHARACTERS]
    plain = _EMPHASIS.sub("", _LINK.sub(r"\1", text))
    readings = [_Reading(one) for one in dict.fromkeys((text, plain))]
    return tuple(one for one in censors if any(said.has(words) for words in _phrases(one.trigger) for said in readings))


class _Reading:
    """The words of a text with the positions of each."""

    def __init__(self, text: str) -> None:
        self._words = _words(text)
        self._positions: dict[str, list[int]] = defaultdict(list)
        for place, word in enumerate(self._words):
            self._positions[word].append(place)

    def has(self, phrase: _Words) -> bool:
        """Say whether the words of *phrase* occur one after the other."""
        rarest = min(range(len(phrase)), key=lambda at: len(self._positions.get(phrase[at], ())))
        starts = (place - rarest for place in self._positions.get(phrase[rarest], ()))
        return any(start >= 0 and self._words[start : start + len(phrase)] == phrase for start in starts)


@lru_cache(maxsize=4096)
def _phrases(trigger: str) -> tuple[_Words, ...]:
    return tuple(words for part in trigger.split("|") if (words := _words(part)))


def _words(text: str) -> _Words:
    """Return the words of *text* without case, accents and invisible characters.

    Hyphens, apostrophes and underscores separate words.
    """
    if text.isascii():
        return tuple(_WORD.findall(text.lower()))
    apart = unicodedata.normalize("NFKD", _INVISIBLE.sub("", text).casefold())
    bare = "".join(letter for letter in apart if letter in _VOICED or not unicodedata.combining(letter))
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", bare).casefold()))
