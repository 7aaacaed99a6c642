"""Decides what a message needs to be answered: nothing, this conversation, or the workspace's documents.

Needing the conversation and needing documents are two separate questions. The strategy is named after
what the message asks for; a message that needs both gets both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from grounding.cues import ENGLISH, Cues

SHORT_WORDS = 4
"""Up to this many words "what changed?" is about this conversation."""

MIN_QUESTION_WORDS = 5
"""A shorter question is too thin to search for on the strength of an anchor alone."""

_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
_URL = re.compile(r"\bhttps?://\S", re.IGNORECASE)
_DOTTED = re.compile(r"(?<![\w@.\-])(?:[\w\-]+\.)+([a-z]{2,10})(?![\w@])", re.IGNORECASE)
_GREETS_NAME = re.compile(
    r"\s*(?:hi|hello|hey|good (?:morning|afternoon|evening)|thanks|thank you|bye),? ([^\W\d_]+)\s*[!.,]*\s*",
    re.IGNORECASE,
)
_NOT_BACK = {
    (word,) for word in ("than", "version", "versions", "release", "releases", "this", "in", "models", "works")
}
_LONGEST_CONSIDERED_CHARACTERS = 20_000


class Strategy(StrEnum):
    """What retrieval a message asks for."""

    NONE = "none"
    TAIL = "tail"
    QMD = "qmd"


Reason = Literal[
    "empty",
    "small_talk",
    "chat_memory_cue",
    "workspace_retrieval_cue",
    "implicit_workspace_question",
    "no_retrieval_cue",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided, and why."""

    strategy: Strategy
    reason: Reason
    wants_history: bool = False
    """Whether earlier turns of this conversation beyond the tail should be looked for."""
    wants_documents: bool = False
    """Whether the workspace's documents should be searched."""

    @property
    def small_talk(self) -> bool:
        return self.reason == "small_talk"


def choose(text: str, cues: Cues = ENGLISH) -> Choice:
    """The strategy for *text*, the user's own words. Pure."""
    text = unicodedata.normalize("NFKC", text[:_LONGEST_CONSIDERED_CHARACTERS])
    if not text.strip():
        return Choice(Strategy.NONE, "empty")
    words = tuple(word.lower().replace("’", "'") for word in _WORD.findall(text))
    documents = _names_documents(text, words, cues)
    asks, refers = _has(words, cues.asks_history), _leans_on_history(words, cues)
    weakly_asks = _has(words, cues.weakly_asks_history) and (len(words) <= SHORT_WORDS or "since" in words)
    implied = _implies_documents(text, words, cues)
    history = asks or refers or (weakly_asks and not documents) or _only_continues(words, cues)
    if not (documents or history or implied) and _is_small_talk(text, words, cues):
        return Choice(Strategy.NONE, "small_talk")
    if asks or (history and not documents):
        return Choice(Strategy.TAIL, "chat_memory_cue", wants_history=True, wants_documents=documents)
    if documents:
        return Choice(Strategy.QMD, "workspace_retrieval_cue", wants_history=refers, wants_documents=True)
    if implied:
        return Choice(Strategy.QMD, "implicit_workspace_question", wants_documents=True)
    return Choice(Strategy.NONE, "no_retrieval_cue")


def search_text(text: str, cues: Cues = ENGLISH) -> str:
    """*text* without the words that say where to look or how to answer, for searching: "which file explains
    pricing?" is about pricing. *text* itself where nothing else would be left. Pure."""
    text = text[:_LONGEST_CONSIDERED_CHARACTERS]
    spans = [match.span() for match in _WORD.finditer(text)]
    words = tuple(text[start:end].lower().replace("’", "'") for start, end in spans)
    dropped: set[int] = set()
    for start, length in _matches(words, cues.containers):
        dropped.update(range(start, start + length))
    idle = _set(cues.question_words) | _set(cues.filler)
    if all(index in dropped or word in idle for index, word in enumerate(words)):
        return text
    pieces: list[str] = []
    at = 0
    for index in sorted(dropped):
        pieces.append(text[at : spans[index][0]])
        at = spans[index][1]
    return " ".join("".join([*pieces, text[at:]]).split())


def _names_documents(text: str, words: tuple[str, ...], cues: Cues) -> bool:
    if _URL.search(text):
        return True
    known_endings = _set(cues.domains) | _set(cues.file_endings)
    if any(match[1].lower() in known_endings for match in _DOTTED.finditer(text)):
        return True
    return _has(words, cues.documents) or (
        _has(words, cues.search) and (_has(words, cues.anchors) or _has(words, cues.parts))
    )


def _implies_documents(text: str, words: tuple[str, ...], cues: Cues) -> bool:
    if len(words) < MIN_QUESTION_WORDS:
        return False
    asks = "?" in text or words[0] in cues.question_words
    return asks and _has(words, cues.anchors)


def _leans_on_history(words: tuple[str, ...], cues: Cues) -> bool:
    """Whether a phrase refers back; "earlier than" compares, and "earlier versions" are not ours."""
    return any(
        words[start : start + length] != ("earlier",) or words[start + 1 : start + 2] not in _NOT_BACK
        for start, length in _matches(words, cues.refers_to_history)
    )


def _only_continues(words: tuple[str, ...], cues: Cues) -> bool:
    """Whether the message, politeness aside, says nothing but to go on."""
    covered = [False] * len(words)
    for start, length in _matches(words, cues.small_talk):
        covered[start : start + length] = [True] * length
    rest = tuple(word for done, word in zip(covered, words, strict=True) if not done and word not in _set(cues.filler))
    return rest in _phrase_set(cues.continues)


def _is_small_talk(text: str, words: tuple[str, ...], cues: Cues) -> bool:
    """Whether nothing but small talk (and filler beside it) is said; signs and emoji alone are."""
    if not words:
        return True
    covered = [False] * len(words)
    for start, length in _matches(words, cues.small_talk):
        covered[start : start + length] = [True] * length
    if not any(covered):
        return False
    filler = _set(cues.filler)
    if all(done or word in filler for done, word in zip(covered, words, strict=True)):
        return True
    name = _GREETS_NAME.fullmatch(text)
    return name is not None and name[1].istitle() and words[-1] not in _set(cues.question_words)


def _has(words: tuple[str, ...], phrases: tuple[str, ...]) -> bool:
    return next(_matches(words, phrases), None) is not None


def _matches(words: tuple[str, ...], phrases: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Start and length, in words, of each place where one of *phrases* stands."""
    by_first_word = _by_first_word(phrases)
    for start, word in enumerate(words):
        for phrase in by_first_word.get(word, ()):
            if words[start : start + len(phrase)] == phrase:
                yield start, len(phrase)


@lru_cache(maxsize=256)
def _by_first_word(phrases: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:
    grouped: dict[str, list[tuple[str, ...]]] = {}
    for phrase in phrases:
        parts = tuple(word.lower() for word in _WORD.findall(phrase))
        if parts:
            grouped.setdefault(parts[0], []).append(parts)
    return {first: tuple(sorted(group, key=len, reverse=True)) for first, group in grouped.items()}


@lru_cache(maxsize=256)
def _phrase_set(phrases: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(phrase for group in _by_first_word(phrases).values() for phrase in group)


@lru_cache(maxsize=256)
def _set(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(words)
