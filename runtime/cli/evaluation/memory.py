"""``agent-runtime eval memory``: figures for what is recalled of long conversations."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.cli.invocation import Invocation, json_option, keep_events_off_the_screen, run
from runtime.cli.output import count, line, print_json, status_line, table

if TYPE_CHECKING:
    from grounding.evaluate_memory import MemoryResult, MemoryScores

HEADERS = ("category", "questions", "recall@5", "recall@10", "nDCG@10", "@1000tok")


@click.command("memory")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
@click.pass_obj
def memory(invocation: Invocation, folder: Path, as_json: bool) -> None:
    """Measure what is recalled of the long conversations in FOLDER, with the current settings.

    Read are corpus.jsonl (messages as they were said: _id, text, metadata with workspace, session, date, speaker),
    queries.jsonl (_id, text, metadata with workspace, category) and qrels/test.tsv (which messages are evidence).
    A workspace is one conversation. No model is called, and the data is deleted at the end.
    """
    from grounding.documents.conversation_set import load_conversations
    from grounding.evaluate_memory import score_memory
    from runtime.cli.evaluation.remembering import run_memory

    settings = invocation.settings()
    keep_events_off_the_screen(settings)
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as data_dir,
    ):
        conversations = load_conversations(folder)
        result = score_memory(conversations, run(run_memory(settings, conversations, Path(data_dir), status)))
    if as_json:
        print_json(asdict(result))
    else:
        _show(result)


def _show(result: MemoryResult) -> None:
    line(f"{count(result.conversations, 'conversation')}, {count(result.messages, 'message')}")
    rows = [("all", result.with_adversarial), *result.categories.items()]
    if result.scores != result.with_adversarial:
        rows.insert(0, ("not adversarial", result.scores))
    table(HEADERS, [[name, *_cells(scores)] for name, scores in rows], right=HEADERS[1:])
    line("@1000tok: evidence with 60 % of its content words in a prompt that may hold 1,000 tokens of earlier turns.")
    line(f"A prompt recalls {result.turns:.1f} turns in {result.tokens:.0f} tokens; asked in another conversation,")
    line(f"{result.elsewhere_turns:.1f} in {result.elsewhere_tokens:.0f}.")
    line(f"Grounding took {result.p50_ms:.1f} ms (p50), {result.p95_ms:.1f} ms (p95).")


def _cells(scores: MemoryScores) -> list[str]:
    shares = (scores.recall_at_5, scores.recall_at_10, scores.ndcg_at_10, scores.recall_at_1000_tokens)
    return [str(scores.questions), *(f"{share:.3f}" for share in shares)]
