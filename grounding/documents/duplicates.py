"""Passages that say nothing new. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from grounding.documents.index import Hit, Passage
from grounding.recent import Recent

NEAR_DUPLICATE = 0.85
"""Jaccard similarity of two passages' words from which the lower one says nothing new."""

_WORD = re.compile(r"\w+")
_NEGATING = """
    no not never none nobody nothing nor without cannot
    nicht kein keine keinen nie ohne pas jamais sans ni non sin nunca"""
NEGATIONS = frozenset(_NEGATING.split())

_recent: Recent[frozenset[str]] = Recent(256)
"""The words of each passage are compared with those of every other one. Some 10 kB for each text of 150 words."""


def drop_near_duplicates(hits: Sequence[Hit]) -> list[Hit]:
    """*hits* without those that say what a better one says already, in whichever document."""
    kept: list[Hit] = []
    for hit in hits:
        if not says_nothing_new(hit.passage, (other.passage for other in kept)):
            kept.append(hit)
    return kept


def says_nothing_new(passage: Passage, others: Iterable[Passage]) -> bool:
    """Whether one of *others* has nearly the same words.

    Two that differ in a figure or in a negation do not say the same, however alike they are: a policy and its
    former version, of which the model should see both.
    """
    words = _recent.of(passage.text, _words)
    return any(_is_near(words, _recent.of(other.text, _words)) for other in others)


def _is_near(left: frozenset[str], right: frozenset[str]) -> bool:
    fewer, more = sorted((len(left), len(right)))
    if fewer < NEAR_DUPLICATE * more:  # whatever they share: mostly that is all there is to see
        return False
    shared = len(left & right)
    if shared < NEAR_DUPLICATE * (fewer + more - shared):
        return False
    return not any(word in NEGATIONS or any(map(str.isdigit, word)) for word in left ^ right)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold().replace("n't", " not").replace("n’t", " not")))
