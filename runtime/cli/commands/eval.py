"""``agent-runtime eval``: figures for parts of the pipeline on a set of questions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from runtime.cli.evaluation import memory, strategy
from runtime.cli.invocation import Invocation, json_option, keep_events_off_the_screen, run
from runtime.cli.output import print_json, status_line


@click.group()
def command() -> None:
    """Measure parts of the pipeline on a test set."""


command.add_command(strategy)
command.add_command(memory)


@command.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--compare",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Compare with an earlier run: a file with its --json output.",
)
@json_option
@click.pass_obj
def retrieval(invocation: Invocation, path: Path, compare: Path | None, as_json: bool) -> None:
    """Measure retrieval on the set at PATH, with the current settings, in an index of its own.

    PATH is a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv), or a folder with questions.jsonl
    ({"question", "expected"}, one a line) and Markdown under docs/.
    """
    from grounding.evaluation.datasets import load
    from runtime.cli import evaluation as results
    from runtime.cli.evaluation import run_retrieval

    settings = invocation.settings()
    keep_events_off_the_screen(settings)
    earlier = results.read_earlier(compare) if compare else None
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as folder,
    ):
        questions = load(path)
        if earlier is not None:
            asked = {question.id for question in questions.questions}
            results.check_shared(max((len(asked & old.keys()) for old in earlier.values()), default=0), str(compare))
        evaluation = run(run_retrieval(settings, questions, Path(folder), status))
    result = results.Result.of(path.resolve().name, questions, evaluation)
    comparison = results.compare(result.figures, earlier, str(compare)) if earlier is not None else None
    if as_json:
        print_json(result.as_json() | ({"compared": comparison.as_json()} if comparison else {}))
    else:
        from runtime.cli.evaluation import print_comparison, print_result

        print_result(result)
        if comparison:
            print_comparison(comparison)
