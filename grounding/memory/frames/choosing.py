"""Choose the frame of a message by its cues. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grounding.cues.english import ENGLISH
from grounding.cues.kinds import Cues
from grounding.cues.matching import matches, word_set
from grounding.cues.words import words_of
from grounding.memory.frames.frame import CONVERSATION, QUESTION, Frame, Frames
from grounding.memory.frames.shipped import SHIPPED

FrameReason = Literal["cue", "question", "goes_on", "nothing_asked"]
FEW_WORDS = 4
"""A message of at most this many words besides politeness continues the one before, unless a cue says otherwise."""
LONGEST_CONSIDERED_CHARACTERS = 20_000
_SENTENCE_END = re.compile(r"[.!\n]+")
_QUESTION_MARK = re.compile(r"[?？؟]")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The frame of a message, the reason, and the cue found. ``acts``: the message says to go ahead with a decision."""

    frame: Frame
    reason: FrameReason
    cue: str = ""
    acts: bool = False


def choose(text: str, frames: Frames = SHIPPED, earlier: Sequence[str] = (), cues: Cues = ENGLISH) -> Chosen:
    """Choose the frame for *text*, the user's own words. *earlier* are the messages just before, oldest first.

    The frame with the most distinct cues wins, then the higher rank, then the first name. Without a cue a question gets
    the question frame; a few words ("and the other one?") continue in the frame of the message before; all else is
    conversation. Small talk has no cues and changes nothing. Deterministic.
    """
    text = unicodedata.normalize("NFKC", text[:LONGEST_CONSIDERED_CHARACTERS])
    words = words_of(text)
    acts = any(True for _ in matches(words, frames.acting))
    seen = _best_by_cues(words, frames)
    if seen is not None:
        return Chosen(seen[0], "cue", seen[1], acts)
    if earlier and len(_without_small_talk(words, cues)) <= FEW_WORDS and words:
        before = _best_by_cues(words_of(earlier[-1][:LONGEST_CONSIDERED_CHARACTERS]), frames)
        if before is not None:
            return Chosen(before[0], "goes_on", before[1], acts)
    if _asks(text, cues):
        return Chosen(frames[QUESTION], "question", acts=acts)
    return Chosen(frames[CONVERSATION], "nothing_asked", acts=acts)


def _best_by_cues(words: tuple[str, ...], frames: Frames) -> tuple[Frame, str] | None:
    """Return the frame with the most distinct cues in *words*, and its longest cue."""
    best: tuple[int, int, str] | None = None
    found: dict[str, str] = {}
    for frame in frames.by_name.values():
        phrases = {words[start : start + length] for start, length in matches(words, frame.cues)}
        if not phrases:
            continue
        longest: tuple[str, ...] = max(phrases, key=lambda phrase: (len(phrase), phrase))
        found[frame.name] = " ".join(longest)
        rank = (-len(phrases), -frame.rank, frame.name)
        best = rank if best is None else min(best, rank)
    return None if best is None else (frames[best[2]], found[best[2]])


def _without_small_talk(words: tuple[str, ...], cues: Cues) -> tuple[str, ...]:
    """Return *words* without politeness and filler."""
    covered = {at + place for at, length in matches(words, cues.small_talk) for place in range(length)}
    return tuple(word for at, word in enumerate(words) if at not in covered and word not in word_set(cues.filler))


def _asks(text: str, cues: Cues) -> bool:
    """Say whether *text* is a question, by its mark or by the first word of a sentence, ignoring politeness."""
    if _QUESTION_MARK.search(text):
        return True
    said = (_without_small_talk(words_of(sentence), cues) for sentence in _SENTENCE_END.split(text))
    return any(any(start == 0 for start, _ in matches(words, cues.question_words)) for words in said if words)
