"""``agent-runtime eval``: figures for retrieval on a set of questions."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from config.settings import Settings
from runtime.cli.invocation import Invocation, json_option, keep_events_off_the_screen, run
from runtime.cli.output import StatusLine, count, line, print_json, status_line, table

if TYPE_CHECKING:
    from grounding.documents.embedding import Embedder
    from grounding.documents.evaluate import QuestionSet
    from grounding.documents.index import PassageIndex
    from grounding.documents.metrics import Scores


@click.group()
def command() -> None:
    """Score parts of the pipeline on a set of questions."""


@command.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@json_option
@click.pass_obj
def retrieval(invocation: Invocation, path: Path, as_json: bool) -> None:
    """Score retrieval on the set at PATH, in an index of its own.

    PATH is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv), or a file of questions
    ({"question", "expected"}, one a line) with a folder docs/ beside it.
    """
    from grounding.documents.evaluate import load

    settings = invocation.settings()
    keep_events_off_the_screen(settings)
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as folder,
    ):
        questions = load(path)
        scores = run(_score(settings, questions, Path(folder), status))
    if as_json:
        arms = {arm: asdict(figures) for arm, figures in scores.items()}
        print_json({"documents": len(questions.documents), "questions": len(questions.questions), "arms": arms})
        return
    line(f"{path}: {count(len(questions.documents), 'document')}, {count(len(questions.questions), 'question')}")
    headers = ["arm", "recall@5", "recall@10", "nDCG@10", "MRR", "p50 ms", "p95 ms"]
    table(headers, [[arm, *_figures(figures)] for arm, figures in scores.items()], right=headers[1:])


async def _score(settings: Settings, questions: QuestionSet, folder: Path, status: StatusLine) -> dict[str, Scores]:
    from grounding.documents.evaluate import evaluate
    from grounding.tokens import load_tokens

    status.show("loading the embedding model …")
    embedder = await _embedder(settings)
    tokens = await asyncio.to_thread(load_tokens)

    def open_index() -> PassageIndex:
        from grounding.documents.qdrant_embedded import EmbeddedIndex

        seconds = settings.qdrant_timeout_seconds
        return EmbeddedIndex(folder, embedder.name, embedder.dimensions, timeout_seconds=seconds)

    def show(done: int, total: int) -> None:
        status.show(f"indexing {done}/{total} documents …")

    return await evaluate(questions, embedder, tokens.count, open_index, progress=show)


async def _embedder(settings: Settings) -> Embedder:
    from grounding.documents.embedding import WordLlamaEmbedder
    from runtime.embedder import open_embedder

    return await open_embedder(settings) if settings.embedding_model else WordLlamaEmbedder()


def _figures(scores: Scores) -> list[str]:
    shares = (scores.recall_at_5, scores.recall_at_10, scores.ndcg_at_10, scores.mrr)
    return [*(f"{share:.3f}" for share in shares), f"{scores.p50_ms:.1f}", f"{scores.p95_ms:.1f}"]
