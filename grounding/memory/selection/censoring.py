"""Censors in force, and what sets them off. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

from grounding.memory.records.record import Record, State, Type
from grounding.run_context import Censor

FOREIGN = ("retrieved", "others")
"""Origins whose words bind nobody: a document, or somebody who does not ask, could otherwise stop all replies."""
CONSIDERED_CHARACTERS = 1_000_000
"""More than any model says at once."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Scripts that put no space between words, or hang endings on them: each letter is a word."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_EMPHASIS = re.compile(r"(?<=\w)(?:\*+|~~|`+)(?=\w)")
"""Marks of Markdown that part a word without anybody seeing it: ``pass**word**``."""
_LINK = re.compile(r"\[([^\[\]]*)\]\([^()\s]*\)")
"""A link of Markdown, of which people see the words alone."""
_VOICED = "\u3099\u309a"
"""They make another letter of a Japanese one, and no accent."""
_Words = tuple[str, ...]


def in_force(records: Iterable[Record]) -> tuple[Censor, ...]:
    """The censors among *records*, in their order."""
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


def set_off(censors: Sequence[Censor], text: str) -> tuple[Censor, ...]:
    """Those of *censors* of whose triggers one stands in *text*, as whole words without case and accents, whatever
    joins them or what is invisible parts them. The cost is that of the text and of the triggers, not of both times."""
    if not censors or not text:
        return ()
    text = text[:CONSIDERED_CHARACTERS]
    plain = _EMPHASIS.sub("", _LINK.sub(r"\1", text))
    readings = [_Reading(one) for one in dict.fromkeys((text, plain))]
    return tuple(one for one in censors if any(said.has(words) for words in _phrases(one.trigger) for said in readings))


class _Reading:
    """The words of a text, and where each stands."""

    def __init__(self, text: str) -> None:
        self._words = _words(text)
        self._places: dict[str, list[int]] = defaultdict(list)
        for place, word in enumerate(self._words):
            self._places[word].append(place)

    def has(self, phrase: _Words) -> bool:
        """Whether the words of *phrase* stand there one after the other."""
        rarest = min(range(len(phrase)), key=lambda at: len(self._places.get(phrase[at], ())))
        starts = (place - rarest for place in self._places.get(phrase[rarest], ()))
        return any(start >= 0 and self._words[start : start + len(phrase)] == phrase for start in starts)


@lru_cache(maxsize=4096)
def _phrases(trigger: str) -> tuple[_Words, ...]:
    return tuple(words for part in trigger.split("|") if (words := _words(part)))


def _words(text: str) -> _Words:
    """The words of *text*, without case, accents and what nobody sees; what is joined by a hyphen, an apostrophe or a
    line is several."""
    if text.isascii():
        return tuple(_WORD.findall(text.lower()))
    apart = unicodedata.normalize("NFKD", _INVISIBLE.sub("", text).casefold())
    bare = "".join(letter for letter in apart if letter in _VOICED or not unicodedata.combining(letter))
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", bare).casefold()))
