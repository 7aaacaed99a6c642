"""``eval strategy``: how well the strategy decides a set of labelled messages.

Two kinds of sets are read. One is JSON lines of ``{"text", "strategy"?, "reason"?, "needs_history"?,
"needs_documents"?, "history"?: [{"role", "text"}], "languages"?}``; a label that a line does not have is not scored.
The other is a folder with ``queries.jsonl``, whose ``metadata`` has ``label``, ``needs_history``, ``needs_documents``,
``history`` and ``gold_in_pool``: a question whose answer is not among the documents (false) does not count for the need
of documents. A set with labels for that need also measures how well the relevance of documents parts those messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from connectors.message import ConversationKey
from grounding.evaluation.datasets import BadQuestionSet, history_of, metadata_of, records, string_of
from grounding.evaluation.metrics import Interval, area_under_curve, bootstrap_intervals
from grounding.pipeline import Decision, StrategyChooser
from grounding.prompt_input import TailEntry
from grounding.strategy import LANGUAGES, Choice, Cues, Reason, Strategy, joined_cues, tail_of

LABELS = ("strategy", "reason", "needs_history", "needs_documents")
"""The labels of a message."""
REASONS: tuple[str, ...] = get_args(Reason)


@dataclass(frozen=True, slots=True)
class Message:
    """A message and the right decisions about it; None if the set does not say. ``counts_documents`` is False if it
    does not count for the need of documents."""

    text: str
    strategy: str | None = None
    reason: str | None = None
    needs_history: bool | None = None
    needs_documents: bool | None = None
    counts_documents: bool = True
    history: tuple[TailEntry, ...] = ()
    languages: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str | bool | None, ...]:
        """The values of `LABELS`."""
        return self.strategy, self.reason, self.needs_history, self.needs_documents


@dataclass(frozen=True, slots=True)
class Share:
    """Precision and recall (0 to 1) of one label or need, their harmonic mean, and how many messages have it."""

    precision: float
    recall: float
    f1: float
    count: int


@dataclass(frozen=True, slots=True)
class Wrong:
    """A message that was decided differently than the set says."""

    text: str
    expected: dict[str, Any]
    got: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StrategyScores:
    """``accuracy``, ``macro_f1`` (over the labels that the set has), ``labels`` and ``confusion`` (expected, then
    decided) are those of the strategy; None or empty if the set has no such label.

    ``needless_auc`` and ``unanswered_auc`` are areas under the ROC curve of the best passage's relevance: of questions
    that documents answer, against messages that need none, and against questions that no document answers. They are
    None if the set has no such messages, or if no documents were searched. ``intervals`` are 95 % intervals, over the
    messages, by the names of the figures.
    """

    messages: int
    accuracy: float | None
    macro_f1: float | None
    reason_accuracy: float | None
    labels: dict[str, Share]
    confusion: dict[str, dict[str, int]]
    needs_documents: Share | None
    needs_documents_scored: int
    needs_history: Share | None
    wrong: tuple[Wrong, ...]
    needless_auc: float | None = None
    unanswered_auc: float | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)


def load_messages(path: Path) -> tuple[Message, ...]:
    """Read the set at *path*. Raises `BadQuestionSet`."""
    file = path / "queries.jsonl" if path.is_dir() else path
    messages = tuple(_message(place, record) for place, record in records(file, "text"))
    if not messages:
        raise BadQuestionSet(f"{file} holds no message")
    if not any(label is not None for message in messages for label in message.labels):
        raise BadQuestionSet(f"{file} says nothing to score: give its lines {', '.join(LABELS)}, or some of these")
    return messages


def _message(place: str, record: dict[str, Any]) -> Message:
    labels = {**metadata_of(place, record), **record}
    strategy = labels.get("strategy", labels.get("label"))
    if strategy not in (None, *Strategy):
        raise BadQuestionSet(f"{place}: the strategy is none, tail or qmd, not {strategy!r}")
    needs = [labels.get(need) for need in ("needs_history", "needs_documents")]
    if any(need not in (None, True, False) for need in needs):
        raise BadQuestionSet(f"{place}: needs_history and needs_documents are true or false")
    if (reason := labels.get("reason")) not in (None, *REASONS):
        raise BadQuestionSet(f"{place}: the reason is one of {', '.join(REASONS)}, not {reason!r}")
    languages = labels.get("languages") or []
    if not isinstance(languages, list):
        raise BadQuestionSet(f'{place}: languages is a list, such as ["german"]')
    if unknown := [one for one in languages if not isinstance(one, str) or one not in LANGUAGES]:
        raise BadQuestionSet(f"{place}: no cues ship for {unknown[0]!r}: use {', '.join(LANGUAGES)}")
    counts = not (needs[1] and labels.get("gold_in_pool") is False)
    history = tail_of(history_of(place, labels.get("history")))
    text = string_of(place, record, "text")
    return Message(text, strategy, reason, needs[0], needs[1], counts, history, tuple(languages))


async def evaluate_strategy(
    messages: Sequence[Message],
    deciding: StrategyChooser,
    cues: Cues,
    key: ConversationKey,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StrategyScores:
    """Decide each of *messages* in *key*'s workspace, with *cues* and the message's own languages, and score."""
    decided: list[Decision] = []
    for number, message in enumerate(messages, start=1):
        spoken_here = cues.joined(joined_cues(message.languages)) if message.languages else cues
        decided.append(await deciding.choose(key, message.text, spoken_here, history=message.history))
        progress(number, len(messages))
    return score_strategy(messages, decided)


def score_strategy(messages: Sequence[Message], decided: Sequence[Decision]) -> StrategyScores:
    """Return the figures for *decided*, one decision for each of *messages*. Pure."""
    both = [(message, decision.choice) for message, decision in zip(messages, decided, strict=True)]
    named = [(one.strategy, choice.strategy.value) for one, choice in both if one.strategy is not None]
    labels = _labels(named)
    reasons = [one.reason == choice.reason for one, choice in both if one.reason is not None]
    documents = [
        (one.needs_documents, choice.wants_documents)
        for one, choice in both
        if one.needs_documents is not None and one.counts_documents
    ]
    history = [(one.needs_history, choice.wants_history) for one, choice in both if one.needs_history is not None]
    pairs = Counter(named)
    judged = [_Judged.of(*one) for one in zip(messages, decided, strict=True)]
    areas = {name: area for name in ("needless", "unanswered") if (area := _area(judged, name)) is not None}
    intervals: dict[str, Interval] = {}
    if named:
        intervals["macro_f1"] = bootstrap_intervals(named, lambda drawn: [_macro_f1(_labels(drawn))])[0]
    for name, area in areas.items():
        (intervals[f"{name}_auc"],) = bootstrap_intervals(judged, partial(_areas, name, area))
    return StrategyScores(
        messages=len(both),
        accuracy=_mean([expected == got for expected, got in named]),
        macro_f1=_macro_f1(labels) if labels else None,
        reason_accuracy=_mean(reasons),
        labels=labels,
        confusion={label: {got.value: pairs[label, got.value] for got in Strategy} for label in labels},
        needs_documents=_needed(documents),
        needs_documents_scored=len(documents),
        needs_history=_needed(history),
        wrong=tuple(wrong for one, choice in both if (wrong := _wrong(one, choice)) is not None),
        needless_auc=areas.get("needless"),
        unanswered_auc=areas.get("unanswered"),
        intervals=intervals,
    )


def _labels(named: Sequence[tuple[str | None, str]]) -> dict[str, Share]:
    return {
        label: _share([expected == label for expected, _ in named], [got == label for _, got in named])
        for label in sorted({expected for expected, _ in named if expected is not None})
    }


def _macro_f1(labels: Mapping[str, Share]) -> float:
    return sum(share.f1 for share in labels.values()) / len(labels)


class _Judged(NamedTuple):
    """The relevance of the best passage for a message, and its kind: ``answered``, ``needless``, ``unanswered``."""

    kind: str
    relevance: float

    @classmethod
    def of(cls, message: Message, decision: Decision) -> _Judged:
        """Return the relevance that decided about *message*; its kind is empty if there is none."""
        if decision.found is None or message.needs_documents is None:
            return cls("", 0.0)
        kind = "needless" if not message.needs_documents else "answered" if message.counts_documents else "unanswered"
        return cls(kind, decision.found.relevance)


def _areas(against: str, otherwise: float, drawn: Sequence[_Judged]) -> list[float]:
    area = _area(drawn, against)
    return [otherwise if area is None else area]


def _area(judged: Sequence[_Judged], against: str) -> float | None:
    answered = [one.relevance for one in judged if one.kind == "answered"]
    others = [one.relevance for one in judged if one.kind == against]
    return area_under_curve(answered, others) if answered and others else None


def _needed(pairs: Sequence[tuple[bool | None, bool]]) -> Share | None:
    return _share([bool(expected) for expected, _ in pairs], [got for _, got in pairs]) if pairs else None


def _share(expected: Sequence[bool], got: Sequence[bool]) -> Share:
    hits = sum(one and other for one, other in zip(expected, got, strict=True))
    precision = hits / sum(got) if any(got) else 0.0
    recall = hits / sum(expected) if any(expected) else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return Share(precision, recall, f1, sum(expected))


def _mean(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None


def _wrong(message: Message, choice: Choice) -> Wrong | None:
    decisions = {
        "strategy": (message.strategy, choice.strategy.value),
        "reason": (message.reason, choice.reason),
        "needs_history": (message.needs_history, choice.wants_history),
        "needs_documents": (message.needs_documents if message.counts_documents else None, choice.wants_documents),
    }
    differs = {name: pair for name, pair in decisions.items() if pair[0] is not None and pair[0] != pair[1]}
    if not differs:
        return None
    expected = {name: pair[0] for name, pair in differs.items()}
    return Wrong(message.text, expected, {name: pair[1] for name, pair in decisions.items()})
