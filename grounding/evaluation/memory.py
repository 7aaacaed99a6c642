"""``eval memory``: how well what was said in long conversations is recalled, and how much of it a prompt holds.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from grounding.evaluation.datasets import Conversation, ConversationQuestion
from grounding.evaluation.metrics import Interval, bootstrap_intervals, ndcg_at, percentile, recall_at
from grounding.retrieval import term_set

MEMORY_TOKENS = 1000
"""The tokens that standing rules and earlier turns may take in a prompt for recall@1000tok."""
STANDS = 0.6
"""A message stands in a prompt if this share of its content words does."""
ADVERSARIAL = "adversarial"
"""Questions of this category are about the wrong speaker, on purpose; they are scored apart."""


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The answer to one question.

    ``ranked`` are the ids of the messages found, best first, however little they bear on it. ``told`` is the prompt's
    text of standing rules and earlier turns: ``turns`` turns, and ``tokens`` tokens of both. The ``elsewhere`` figures
    are those for the same question put to another conversation, which says nothing about it.
    """

    asked: ConversationQuestion
    ranked: tuple[str, ...]
    told: str
    tokens: int
    turns: int
    latency_ms: float
    elsewhere_turns: int
    elsewhere_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryScores:
    """Means over questions; shares from 0 to 1."""

    questions: int
    recall_at_5: float
    recall_at_10: float
    ndcg_at_10: float
    recall_at_1000_tokens: float


FIGURES = tuple(field.name for field in fields(MemoryScores))[1:]
"""The names of the scores."""


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """All figures of a set; turns and tokens are means per prompt. ``scores`` leaves `ADVERSARIAL` questions out,
    ``with_adversarial`` does not. ``intervals`` are the 95 % intervals of ``scores``, over the questions, by the names
    of the figures."""

    conversations: int
    messages: int
    scores: MemoryScores
    intervals: Mapping[str, Interval]
    with_adversarial: MemoryScores
    categories: Mapping[str, MemoryScores]
    turns: float
    tokens: float
    elsewhere_turns: float
    elsewhere_tokens: float
    p50_ms: float
    p95_ms: float


def stands_in(text: str, told: frozenset[str]) -> bool:
    """Return whether at least `STANDS` of the different content words of *text* are among *told*; False without any."""
    words = term_set(text)
    return bool(words) and len(words & told) >= STANDS * len(words)


def score_memory(conversations: Sequence[Conversation], answers: Sequence[MemoryAnswer]) -> MemoryResult:
    """Return the figures for *answers* to the questions about *conversations*. Raises `ValueError` if there are
    none."""
    if not answers:
        raise ValueError("there must be a question")
    texts = {message.id: message.text for conversation in conversations for message in conversation.said}
    figures = [(answer.asked.category, _figures(answer, texts)) for answer in answers]
    everything = [row for _, row in figures]
    fair = [row for category, row in figures if category != ADVERSARIAL] or everything
    return MemoryResult(
        conversations=len(conversations),
        messages=len(texts),
        scores=_means(fair),
        intervals=dict(zip(FIGURES, bootstrap_intervals(fair, _column_means), strict=True)),
        with_adversarial=_means(everything),
        categories={
            name: _means([row for category, row in figures if category == name])
            for name in sorted({category for category, _ in figures})
        },
        turns=fmean(answer.turns for answer in answers),
        tokens=fmean(answer.tokens for answer in answers),
        elsewhere_turns=fmean(answer.elsewhere_turns for answer in answers),
        elsewhere_tokens=fmean(answer.elsewhere_tokens for answer in answers),
        p50_ms=percentile([answer.latency_ms for answer in answers], 0.5),
        p95_ms=percentile([answer.latency_ms for answer in answers], 0.95),
    )


def _figures(answer: MemoryAnswer, texts: Mapping[str, str]) -> tuple[float, ...]:
    evidence, told = answer.asked.evidence, term_set(answer.told)
    standing = sum(stands_in(texts.get(name, ""), told) for name in evidence)
    return (
        recall_at(answer.ranked, evidence, 5),
        recall_at(answer.ranked, evidence, 10),
        ndcg_at(answer.ranked, evidence, 10),
        standing / len(evidence),
    )


def _means(rows: Sequence[tuple[float, ...]]) -> MemoryScores:
    return MemoryScores(len(rows), *_column_means(rows))


def _column_means(rows: Sequence[tuple[float, ...]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]
