"""Whether a message leans on the conversation, so that only what was said before tells what it is about. Pure.

"What else should I watch out for?", "and in Germany?", "make it shorter". No single word decides: "it" stands in many
messages that need nothing else. The log-odds are those of a logistic regression on the figures of `features`. Weights
are in ``leaning.toml``; ``python -m bench.fit_leaning`` makes that file and says how well they part.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from grounding.prompt_input import TailEntry
from grounding.retrieval import SHORT_QUERY_CHARACTERS, question_terms, term_set
from grounding.strategy.cues import Cues, FoldedText, Text, has_cue, phrase_at
from grounding.strategy.languages import ENGLISH
from grounding.strategy.strategy import ASSISTANT, addresses_assistant, earlier_questions

LEANS_LOG_ODDS = -0.25
"""A message with so much leans. Below even odds, because both mistakes cost little and one costs more: a message that
leans without being seen loses the turns that it speaks of; one that does not gets some that it does not need."""
WEIGHTS_FILE = Path(__file__).with_name("leaning.toml")
WEIGHTS: dict[str, float] = tomllib.loads(WEIGHTS_FILE.read_text(encoding="utf-8"))
"""The weight of each figure, and ``constant``."""


def leaning(text: Text, before: Sequence[TailEntry], cues: Cues = ENGLISH) -> float:
    """Return the log-odds that *text* leans on the messages *before* it; minus infinity if there are none."""
    if not before:
        return -math.inf
    figures = features(text, before, cues)
    return WEIGHTS["constant"] + sum(WEIGHTS[name] * value for name, value in figures.items())


def leans_on(text: Text, before: Sequence[TailEntry], cues: Cues = ENGLISH) -> bool:
    """Say whether *text* leans on the messages *before* it: because it says so ("as we discussed"), or by its
    `leaning`.

    Nothing leans on a greeting, and a long message says itself what it is about.
    """
    message = FoldedText.of(text)
    if len(message.text) > SHORT_QUERY_CHARACTERS or not earlier_questions(before, cues):
        return False
    return has_cue(message.words, cues.refers_to_history, cues) or leaning(message, before, cues) >= LEANS_LOG_ODDS


def earlier_for(text: Text, before: Sequence[TailEntry], cues: Cues = ENGLISH) -> tuple[str, ...]:
    """Return what people said last *before* a message that leans on it, the oldest first, for searching; nothing for a
    message that stands for itself, because it may be about something else."""
    return earlier_questions(before, cues) if leans_on(text, before, cues) else ()


def features(text: Text, before: Sequence[TailEntry], cues: Cues = ENGLISH) -> dict[str, float]:
    """Return the figures that are weighed.

    ``anaphora``, ``opener`` and ``continuing`` are 1 if the message has such a cue; ``one_term`` and ``two_terms`` if
    it has at most one or exactly two terms of its own. ``said`` is the share of its terms that people said before,
    ``answered`` that of terms that only the assistant said, and ``new`` the logarithm of one more than the number of
    the others. ``assistant`` is 1 if it speaks of the assistant itself.
    """
    message = FoldedText.of(text)
    words, own = message.words, question_terms(message.text)
    by_people = _terms(entry.text for entry in before if entry.speaker != ASSISTANT)
    by_assistant = _terms(entry.text for entry in before if entry.speaker == ASSISTANT) - by_people
    count = max(len(own), 1)
    return {
        "anaphora": float(has_cue(words, cues.anaphora, cues)),
        "opener": float(phrase_at(words, 0, cues.openers) > 0),
        "continuing": float(has_cue(words, cues.continuing, cues)),
        "one_term": float(len(own) <= 1),
        "two_terms": float(len(own) == 2),
        "said": len(own & by_people) / count,
        "answered": len(own & by_assistant) / count,
        "new": math.log1p(len(own - by_people - by_assistant)),
        "assistant": float(addresses_assistant(message, cues)),
    }


def _terms(texts: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*map(term_set, texts))
