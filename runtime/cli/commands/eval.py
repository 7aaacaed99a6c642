"""``agent-runtime eval``: figures for retrieval, the strategy and the memory on a test set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import click

from grounding.evaluation import (
    Evaluation,
    Figures,
    Interval,
    MemoryResult,
    MemoryScores,
    QuestionSet,
    Scores,
    Share,
    StrategyScores,
    bootstrap_intervals,
    figures,
    load,
    load_conversations,
    load_messages,
    score,
    score_memory,
)
from grounding.strategy import ENGLISH, Cues, InvalidCues, cues_of
from runtime.cli.evaluation import evaluation_folder, run_memory, run_retrieval, run_strategy
from runtime.cli.invocation import Invocation, data_command, run, silence_events
from runtime.cli.output import count, emit, line, note, table


@click.group()
def command() -> None:
    """Measure parts of the pipeline on a test set."""


# ---- Retrieval ----

HEADERS = ("arm", "recall@5", "recall@10", "nDCG@10", "MRR", "@1000tok", "p50", "p95")
"""Short, so that the table fits into 80 columns."""


@command.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@data_command
def retrieval(invocation: Invocation, path: Path) -> None:
    """Measure retrieval on the set at PATH, with the current settings, in an index of its own.

    PATH is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv), or a folder with questions.jsonl
    ({"question", "expected"}, one a line) and Markdown under docs/.
    """
    settings = invocation.settings()
    silence_events(settings)
    with evaluation_folder() as (folder, status):
        questions = load(path)
        evaluation = run(run_retrieval(settings, questions, folder, status))
    scores = {arm: score(list(rankings.values())) for arm, rankings in evaluation.arms.items()}
    in_prompt, first = evaluation.in_prompt()
    result = {
        "documents": len(questions.documents),
        "passages": evaluation.chunks,
        "questions": len(questions.questions),
        "absent": len(questions.absent),
        "main": evaluation.main,
        "arms": {arm: asdict(of_arm) for arm, of_arm in scores.items()},
        "intervals": _intervals(evaluation),
        "in_prompt": in_prompt,
        "first_of_ranking": first,
        "lost": [{"block": block, "why": why, "questions": times} for (block, why), times in evaluation.lost.items()],
    }
    emit(invocation, result, lambda _: _show_retrieval(path.resolve().name, questions, evaluation, scores))


def _show_retrieval(name: str, questions: QuestionSet, evaluation: Evaluation, scores: dict[str, Scores]) -> None:
    documents, asked = count(len(questions.documents), "document"), count(len(questions.questions), "question")
    line(f"{name}: {documents}, {count(evaluation.chunks, 'passage')}, {asked}")
    table(HEADERS, [[arm, *_score_cells(of_arm)] for arm, of_arm in scores.items()], right=HEADERS[1:])
    line("@1000tok: recall within 1,000 tokens of whole documents; p50, p95: milliseconds.")
    if any(of_arm.recall_at_1000_tokens != of_arm.recall_at_1000_tokens_of_passages for of_arm in scores.values()):
        line("Within 1,000 tokens of passages, which is what a prompt pays for:")
        line(", ".join(f"{arm} {of_arm.recall_at_1000_tokens_of_passages:.3f}" for arm, of_arm in scores.items()))
    intervals = _intervals(evaluation)
    shown = {"recall@5": "recall_at_5", "recall@10": "recall_at_10", "nDCG@10": "ndcg_at_10"}
    line(f"95 % intervals by bootstrap over the questions ({evaluation.main}):")
    line(", ".join(f"{name} {_ends(intervals[figure])}" for name, figure in shown.items()))
    in_prompt, first = evaluation.in_prompt()
    line(f"In the prompt, as the strategy decides: {in_prompt:.3f} ({_ends(intervals['in_prompt'])}) of the expected")
    line(f"documents; among the first {evaluation.room.top_k} of the ranking: {first:.3f}.")
    for (block, why), times in evaluation.lost.items():
        note(f"{block} failed for {count(times, 'question')} ({why}): there the fused order stands")
    if questions.absent:
        missing = count(len(questions.absent), "expected document")
        note(f"the corpus lacks {missing}, which nothing can find, e.g. {min(questions.absent)}")


def _intervals(evaluation: Evaluation) -> dict[str, Interval]:
    """Return the 95 % intervals of the main arm, over the questions, and that of the gold in the prompt."""
    rankings = evaluation.arms[evaluation.main]
    sample = [(figures(one), evaluation.share_in_prompt(name)) for name, one in rankings.items()]
    names = (*Figures._fields, "in_prompt")
    found = bootstrap_intervals(
        sample, lambda drawn: [fmean(column) for column in zip(*((*row, share) for row, share in drawn), strict=True)]
    )
    return dict(zip(names, found, strict=True))


def _score_cells(scores: Scores) -> list[str]:
    shares = (
        scores.recall_at_5,
        scores.recall_at_10,
        scores.ndcg_at_10,
        scores.mrr,
        scores.recall_at_1000_tokens,
    )
    times = (scores.p50_ms, scores.p95_ms)
    return [*(f"{share:.3f}" for share in shares), *("–" if time is None else f"{time:.1f}" for time in times)]


def _ends(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"


# ---- Strategy ----


@command.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--documents",
    type=click.Path(path_type=Path, exists=True),
    help="The workspace's documents: a folder of Markdown, or a corpus.jsonl. Without them cues alone decide.",
)
@click.option(
    "--cues", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Use the cues in this CUES.toml."
)
@click.option("--wrong", is_flag=True, help="List the messages where the decision differs from the label.")
@data_command
def strategy(invocation: Invocation, path: Path, documents: Path | None, cues: Path | None, wrong: bool) -> None:
    """Measure the strategy on the messages at PATH.

    PATH holds JSON lines ({"text", "strategy"?, "reason"?, "needs_history"?, "needs_documents"?, "history"?}), or is a
    folder with queries.jsonl, labels in its metadata. Missing labels are not measured.
    """
    settings = invocation.settings()
    silence_events(settings)
    with evaluation_folder() as (folder, status):
        messages = load_messages(path)
        scores = run(run_strategy(settings, messages, documents, _read_cues(cues), folder, status))

    def show(_: object) -> None:
        _show_strategy(scores)
        if wrong:
            _show_wrong(scores)

    emit(invocation, asdict(scores) | ({} if wrong else {"wrong": len(scores.wrong)}), show)


def _read_cues(file: Path | None) -> Cues:
    if file is None:
        return ENGLISH
    try:
        return cues_of((file.read_text(encoding="utf-8-sig"),))
    except (InvalidCues, OSError, UnicodeDecodeError) as error:
        raise InvalidCues(f"{file}: {error}") from error


def _show_strategy(scores: StrategyScores) -> None:
    line(count(scores.messages, "message"))
    if scores.accuracy is not None and scores.macro_f1 is not None:
        ends = _ends(scores.intervals["macro_f1"])
        line(f"strategy: accuracy {scores.accuracy:.3f}, macro-F1 {scores.macro_f1:.3f} ({ends})")
        headers = ["label", "messages", "precision", "recall", "F1", "as none", "as tail", "as qmd"]
        rows = [
            [label, share.count, *_share_cells(share), *scores.confusion[label].values()]
            for label, share in scores.labels.items()
        ]
        table(headers, rows, right=headers[1:])
    if scores.reason_accuracy is not None:
        line(f"reason: accuracy {scores.reason_accuracy:.3f}")
    for name, share in (("needs history", scores.needs_history), ("needs documents", scores.needs_documents)):
        if share is not None:
            precision, recall, f1 = _share_cells(share)
            line(f"{name}: precision {precision}, recall {recall}, F1 {f1} ({share.count} do)")
    for area, name, others in (
        (scores.needless_auc, "needless_auc", "messages that need no document"),
        (scores.unanswered_auc, "unanswered_auc", "questions that no document answers"),
    ):
        if area is not None:
            line(f"relevance: AUC {area:.3f} ({_ends(scores.intervals[name])}) against {others}")
    line(f"decisions that differ from the label: {len(scores.wrong)}")


def _show_wrong(scores: StrategyScores) -> None:
    for decision in scores.wrong:
        expected = ", ".join(f"{name} {value}" for name, value in decision.expected.items())
        actual = ", ".join(str(value) for value in decision.got.values())
        line(f"{' '.join(decision.text.split())!r}: expected {expected}; got {actual}")


def _share_cells(share: Share) -> list[str]:
    return [f"{share.precision:.3f}", f"{share.recall:.3f}", f"{share.f1:.3f}"]


# ---- Memory ----

MEMORY_HEADERS = ("category", "questions", "recall@5", "recall@10", "nDCG@10", "@1000tok")


@command.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@data_command
def memory(invocation: Invocation, folder: Path) -> None:
    """Measure what is recalled of the long conversations in FOLDER, with the current settings.

    Read are corpus.jsonl (messages as they were said: _id, text, metadata with workspace, date, speaker),
    queries.jsonl (_id, text, metadata with workspace, category) and qrels/test.tsv (which messages are evidence).
    A workspace is one conversation. No model is called, and the data is deleted at the end.
    """
    settings = invocation.settings()
    silence_events(settings)
    with evaluation_folder() as (data_dir, status):
        conversations = load_conversations(folder)
        result = score_memory(conversations, run(run_memory(settings, conversations, data_dir, status)))
    emit(invocation, asdict(result), lambda _: _show_memory(result))


def _show_memory(result: MemoryResult) -> None:
    line(f"{count(result.conversations, 'conversation')}, {count(result.messages, 'message')}")
    rows = [("all", result.with_adversarial), *result.categories.items()]
    if result.scores != result.with_adversarial:
        rows.insert(0, ("not adversarial", result.scores))
    table(MEMORY_HEADERS, [[name, *_memory_cells(scores)] for name, scores in rows], right=MEMORY_HEADERS[1:])
    intervals = zip(MEMORY_HEADERS[2:], result.intervals.values(), strict=True)
    line(f"95 % intervals by bootstrap over the questions ({rows[0][0]}):")
    line(", ".join(f"{figure} {low:.3f} to {high:.3f}" for figure, (low, high) in intervals))
    line("@1000tok: evidence with 60 % of its content words in a prompt that may hold 1,000 tokens of standing rules")
    line("and earlier turns.")
    line(f"A prompt recalls {result.turns:.1f} turns in {result.tokens:.0f} tokens; asked in another conversation,")
    line(f"{result.elsewhere_turns:.1f} in {result.elsewhere_tokens:.0f}.")
    line(f"Grounding took {result.p50_ms:.1f} ms (p50), {result.p95_ms:.1f} ms (p95).")


def _memory_cells(scores: MemoryScores) -> list[str]:
    shares = (scores.recall_at_5, scores.recall_at_10, scores.ndcg_at_10, scores.recall_at_1000_tokens)
    return [str(scores.questions), *(f"{share:.3f}" for share in shares)]
