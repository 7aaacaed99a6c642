"""What ``eval retrieval`` prints for people."""

from __future__ import annotations

from grounding.documents.metrics import Difference, Scores
from runtime.cli.evaluation.result import TITLES, Comparison, Result
from runtime.cli.output import count, line, note, table

HEADERS = ("arm", "recall@5", "recall@10", "nDCG@10", "MRR", "@1000tok", "p50", "p95")
"""Short, so that the table fits into 80 columns."""
COMPARED = ("recall_at_5", "recall_at_10", "ndcg_at_10", "recall_at_1000_tokens")


def print_result(result: Result) -> None:
    """The table, and what one must know to read it."""
    evaluation, questions, scores = result.evaluation, result.questions, result.scores
    asked = count(len(questions.questions), "question")
    line(f"{result.name}: {count(len(questions.known), 'document')}, {count(evaluation.chunks, 'passage')}, {asked}")
    table(HEADERS, [[arm, *_cells(one)] for arm, one in scores.items()], right=HEADERS[1:])
    line("@1000tok: recall within 1,000 tokens of whole documents; p50, p95: milliseconds.")
    if any(one.recall_at_1000_tokens != one.recall_at_1000_tokens_of_passages for one in scores.values()):
        told = ", ".join(f"{arm} {one.recall_at_1000_tokens_of_passages:.3f}" for arm, one in scores.items())
        line("Within 1,000 tokens of passages, which is what a prompt pays for:")
        line(told)
    for (what, why), times in evaluation.lost.items():
        note(f"{what} failed for {count(times, 'question')} ({why}): there the fused order stands")
    if questions.absent:
        missing = count(len(questions.absent), "expected document")
        note(f"the corpus lacks {missing}, which nothing can find, e.g. {min(questions.absent)}")


def print_comparison(comparison: Comparison) -> None:
    """The change of each arm, with what it means."""
    line(f"Change since {comparison.name}, over {count(comparison.questions, 'question')}:")
    headers = ["arm", *(TITLES[field] for field in COMPARED)]
    rows = [[arm, *(_change(changes[field]) for field in COMPARED)] for arm, changes in comparison.arms.items()]
    table(headers, rows, right=headers[1:])
    line("noise: within the 95 % interval of a paired t-test over the questions.")


def _cells(scores: Scores) -> list[str]:
    shares = (
        scores.recall_at_5,
        scores.recall_at_10,
        scores.ndcg_at_10,
        scores.mrr,
        scores.recall_at_1000_tokens,
    )
    return [*(f"{share:.3f}" for share in shares), _milliseconds(scores.p50_ms), _milliseconds(scores.p95_ms)]


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _change(difference: Difference) -> str:
    if not difference.mean:
        return "same"
    return f"{difference.mean:+.3f} {difference.verdict.removeprefix('within ')}"
