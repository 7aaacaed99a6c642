"""The result of ``eval retrieval``: means, figures of each question, and how it compares with an earlier one. Pure but
for `read_earlier`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from connectors.message import AgentRuntimeError
from grounding.documents.evaluate import Evaluation
from grounding.documents.metrics import Difference, Figures, Scores, figures, paired, score
from grounding.documents.question_set import QuestionSet

TITLES = {
    "recall_at_5": "recall@5",
    "recall_at_10": "recall@10",
    "ndcg_at_10": "nDCG@10",
    "mrr": "MRR",
    "recall_at_1000_tokens": "recall@1000tok",
    "recall_at_1000_tokens_of_passages": "…of passages",
}
"""How each of `Figures` is called where people read it."""
DIGITS = 6

ByArm = Mapping[str, Mapping[str, Figures]]
"""By arm, then by question."""


class NoEarlierResult(AgentRuntimeError):
    """What should be compared with is no result of `eval retrieval --json`."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run over one set."""

    name: str
    questions: QuestionSet
    evaluation: Evaluation
    figures: ByArm
    scores: Mapping[str, Scores]

    @classmethod
    def of(cls, name: str, questions: QuestionSet, evaluation: Evaluation) -> Result:
        """The figures of *evaluation* over the set that is called *name*."""
        by_arm = {
            arm: {question: figures(ranking) for question, ranking in rankings.items()}
            for arm, rankings in evaluation.arms.items()
        }
        scores = {arm: score(list(rankings.values())) for arm, rankings in evaluation.arms.items()}
        return cls(name, questions, evaluation, by_arm, scores)

    def as_json(self) -> dict[str, Any]:
        """One object, with which a later run can be compared."""
        evaluation = self.evaluation
        lost = [{"block": what, "why": why, "questions": times} for (what, why), times in evaluation.lost.items()]
        return {
            "documents": len(self.questions.known),
            "passages": evaluation.chunks,
            "questions": len(self.questions.questions),
            "absent": len(self.questions.absent),
            "main": evaluation.main,
            "arms": {arm: asdict(one) for arm, one in self.scores.items()},
            "lost": lost,
            "per_question": {
                "fields": list(Figures._fields),
                "arms": {
                    arm: {question: list(_rounded(found)) for question, found in one.items()}
                    for arm, one in self.figures.items()
                },
            },
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How each figure of each arm that both have differs from the earlier result *name*."""

    name: str
    questions: int
    arms: Mapping[str, Mapping[str, Difference]]

    def as_json(self) -> dict[str, Any]:
        return {
            "with": self.name,
            "questions": self.questions,
            "arms": {
                arm: {
                    field: {
                        "change": round(one.mean, DIGITS),
                        "margin": round(one.margin, DIGITS),
                        "verdict": one.verdict,
                    }
                    for field, one in changes.items()
                }
                for arm, changes in self.arms.items()
            },
        }


def read_earlier(file: Path) -> dict[str, dict[str, Figures]]:
    """The figures that an earlier run printed with ``--json`` to *file*. Raises `NoEarlierResult`."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))["per_question"]
        at = [stored["fields"].index(field) if field in stored["fields"] else None for field in Figures._fields]
        return {
            arm: {
                question: Figures(*(0.0 if place is None else float(values[place]) for place in at))
                for question, values in by_question.items()
            }
            for arm, by_question in stored["arms"].items()
        }
    except OSError as error:
        raise NoEarlierResult(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise NoEarlierResult(
            f"{file} is no earlier result: write one with `agent-runtime eval retrieval PATH --json > {file.name}`"
        ) from error


def compare(new: ByArm, old: ByArm, name: str) -> Comparison:
    """*new* against *old*, called *name*, over the questions that both have. Raises `NoEarlierResult` where there are
    not at least two, or no arm in common."""
    arms = [arm for arm in new if arm in old]
    shared = set.intersection(*(new[arm].keys() & old[arm].keys() for arm in arms)) if arms else set()
    check_shared(len(shared), name)
    # What was stored was rounded; without rounding the new the same would differ.
    rounded = {arm: {question: _rounded(found) for question, found in new[arm].items()} for arm in arms}
    return Comparison(name, len(shared), {arm: differences(rounded[arm], old[arm]) for arm in arms})


def _rounded(found: Figures) -> Figures:
    return Figures(*(round(value, DIGITS) for value in found))


def check_shared(questions: int, name: str) -> None:
    """Raises `NoEarlierResult` where too few *questions* are also in the earlier result *name*."""
    if not questions:
        raise NoEarlierResult(f"{name} and this run have no question in common: it is of another set")
    if questions == 1:
        raise NoEarlierResult(f"{name} and this run have one question in common: a comparison needs two or more")


def differences(new: Mapping[str, Figures], old: Mapping[str, Figures]) -> dict[str, Difference]:
    """For each of `Figures` the paired difference of two arms."""
    return {
        field: paired(
            {question: found[at] for question, found in new.items()},
            {question: found[at] for question, found in old.items()},
        )
        for at, field in enumerate(Figures._fields)
    }
