"""Scores the recall of what was said in long conversations: what is found, and what of it a prompt holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from grounding.documents.conversation_set import Asked, Conversation
from grounding.documents.metrics import ndcg_at, percentile, recall_at
from grounding.documents.sparse import term_set

MEMORY_TOKENS = 1000
"""What of earlier turns a prompt may hold where recall@1000tok is measured."""
STANDS = 0.6
"""A message stands in a prompt with so much of its content words."""
ADVERSARIAL = "adversarial"
"""Questions of this category are asked about the wrong speaker, on purpose; they are scored apart."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What came of one question. ``ranked`` are the messages found, the best first, however little they bear on it;
    ``told`` is what the prompt says of earlier turns, in ``tokens`` tokens, of ``turns`` turns."""

    asked: Asked
    ranked: tuple[str, ...]
    told: str
    tokens: int
    turns: int
    latency_ms: float
    elsewhere_turns: int
    elsewhere_tokens: int
    """The same for this question put to another conversation, which says nothing about it."""


@dataclass(frozen=True, slots=True)
class MemoryScores:
    """Means over questions; shares from 0 to 1."""

    questions: int
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    recall_at_1000_tokens: float


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """All figures of a set. ``scores`` leaves `ADVERSARIAL` questions out, ``with_adversarial`` does not."""

    conversations: int
    messages: int
    scores: MemoryScores
    with_adversarial: MemoryScores
    categories: Mapping[str, MemoryScores]
    turns: float
    """Turns in a prompt."""
    tokens: float
    elsewhere_turns: float
    elsewhere_tokens: float
    p50_ms: float
    p95_ms: float


def stands_in(text: str, told: frozenset[str]) -> bool:
    """Whether at least `STANDS` of the different content words of *text* are among *told*; never without any."""
    words = term_set(text)
    return bool(words) and len(words & told) >= STANDS * len(words)


def score_memory(conversations: Sequence[Conversation], answers: Sequence[Recalled]) -> MemoryResult:
    """The figures for *answers* to the questions about *conversations*. Raises `ValueError` where there is none."""
    if not answers:
        raise ValueError("there must be a question")
    texts = {one.id: one.text for conversation in conversations for one in conversation.said}
    figures = [(one.asked.category, _figures(one, texts)) for one in answers]
    everything = [row for _, row in figures]
    fair = [row for category, row in figures if category != ADVERSARIAL]
    return MemoryResult(
        conversations=len(conversations),
        messages=len(texts),
        scores=_means(fair or everything),
        with_adversarial=_means(everything),
        categories={
            name: _means([row for category, row in figures if category == name])
            for name in sorted({category for category, _ in figures})
        },
        turns=fmean(one.turns for one in answers),
        tokens=fmean(one.tokens for one in answers),
        elsewhere_turns=fmean(one.elsewhere_turns for one in answers),
        elsewhere_tokens=fmean(one.elsewhere_tokens for one in answers),
        p50_ms=percentile([one.latency_ms for one in answers], 0.5),
        p95_ms=percentile([one.latency_ms for one in answers], 0.95),
    )


def _figures(one: Recalled, texts: Mapping[str, str]) -> tuple[float, ...]:
    evidence, told = one.asked.evidence, term_set(one.told)
    standing = sum(stands_in(texts.get(name, ""), told) for name in evidence)
    return (
        recall_at(one.ranked, evidence, 5),
        recall_at(one.ranked, evidence, 10),
        ndcg_at(one.ranked, evidence, 10),
        standing / len(evidence),
    )


def _means(rows: Sequence[tuple[float, ...]]) -> MemoryScores:
    return MemoryScores(len(rows), *(fmean(column) for column in zip(*rows, strict=True)))
