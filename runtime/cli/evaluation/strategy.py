"""``agent-runtime eval strategy``: figures for the strategy on a set of labelled messages."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from config.settings import Settings
from runtime.cli.invocation import Invocation, json_option, keep_events_off_the_screen, run
from runtime.cli.output import StatusLine, count, line, print_json, status_line, table

if TYPE_CHECKING:
    from connectors.message import ConversationKey, Scope
    from grounding.cues.kinds import Cues
    from grounding.documents.vocabulary import Vocabulary
    from grounding.evaluate_strategy import Message, Share, StrategyScores
    from grounding.transcript.entry import Entry


@click.command("strategy")
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
@json_option
@click.pass_obj
def strategy(
    invocation: Invocation, path: Path, documents: Path | None, cues: Path | None, wrong: bool, as_json: bool
) -> None:
    """Measure the strategy on the messages at PATH.

    PATH holds JSON lines ({"text", "strategy"?, "reason"?, "needs_history"?, "needs_documents"?, "history"?}), or is a
    folder with queries.jsonl, labels in its metadata. Missing labels are not measured.
    """
    from grounding.evaluate_strategy import load_messages

    settings = invocation.settings()
    keep_events_off_the_screen(settings)
    with (
        status_line("reading the set …") as status,
        tempfile.TemporaryDirectory(prefix="agent-runtime-eval-", ignore_cleanup_errors=True) as folder,
    ):
        messages = load_messages(path)
        scores = run(_score(settings, messages, documents, _cues(cues), Path(folder), status))
    if as_json:
        print_json(asdict(scores) if wrong else {**asdict(scores), "wrong": len(scores.wrong)})
        return
    _show(scores)
    if wrong:
        _show_wrong(scores)


def _cues(file: Path | None) -> Cues:
    from grounding.cues.english import ENGLISH
    from grounding.cues.file import InvalidCues, cues_of

    if file is None:
        return ENGLISH
    try:
        return cues_of((file.read_text(encoding="utf-8-sig"),))
    except (InvalidCues, OSError, UnicodeDecodeError) as error:
        raise InvalidCues(f"{file}: {error}") from error


async def _score(
    settings: Settings,
    messages: tuple[Message, ...],
    documents: Path | None,
    cues: Cues,
    folder: Path,
    status: StatusLine,
) -> StrategyScores:
    from connectors.message import ConversationKey
    from grounding.deciding import Deciding
    from grounding.evaluate_strategy import evaluate_strategy

    key = ConversationKey("eval", "console", "default")

    def show(done: int, total: int) -> None:
        status.show(f"deciding {done}/{total} messages …")

    async with AsyncExitStack() as stack:
        # Nobody waits for a reply here, and a slow machine must not change the figures.
        patient = settings.qdrant_timeout_seconds + settings.embedding_timeout_seconds
        if documents is None:
            deciding = Deciding(_NothingSaid(), _NoDocuments(), patient, vocabulary=False)
        else:
            vocabulary = await _indexed(settings, documents, key.scope, folder, status, stack)
            deciding = Deciding(_NothingSaid(), vocabulary, patient)
        return await evaluate_strategy(messages, deciding, cues, key, show)


async def _indexed(
    settings: Settings, path: Path, scope: Scope, folder: Path, status: StatusLine, stack: AsyncExitStack
) -> Vocabulary:
    """What the documents at *path* speak of, through an index under *folder* that is closed with *stack*."""
    from grounding.documents.trial import fill, load_documents
    from grounding.documents.vocabulary import Vocabulary
    from grounding.tokens import load_tokens
    from runtime.cli.evaluation.running import embedder_of, trial_index

    documents = await asyncio.to_thread(load_documents, path)
    embedder = await embedder_of(settings)
    tokens = await asyncio.to_thread(load_tokens)
    index = await asyncio.to_thread(trial_index, settings, embedder, folder)
    stack.push_async_callback(index.close)
    await index.ensure()

    def show(done: int, total: int) -> None:
        status.show(f"indexing {done}/{total} documents …")

    await fill(index, scope, documents, embedder, tokens.count, show)
    return Vocabulary(index, embedder)


class _NothingSaid:
    """A conversation of which only the set knows."""

    async def tail(self, key: ConversationKey, max_entries: int, except_turn: str = "") -> list[Entry]:
        return []


class _NoDocuments:
    """A workspace of which nothing is known."""

    async def awake(self, scope: Scope) -> None:
        return

    async def best_match(self, scope: Scope, text: str) -> None:
        return None


def _show(scores: StrategyScores) -> None:
    line(count(scores.messages, "message"))
    if scores.accuracy is not None and scores.macro_f1 is not None:
        line(f"strategy: accuracy {scores.accuracy:.3f}, macro-F1 {scores.macro_f1:.3f}")
        headers = ["label", "messages", "precision", "recall", "F1", "as none", "as tail", "as qmd"]
        rows = [
            [label, str(share.count), *_figures(share), *(str(number) for number in scores.confusion[label].values())]
            for label, share in scores.labels.items()
        ]
        table(headers, rows, right=headers[1:])
    if scores.reason_accuracy is not None:
        line(f"reason: accuracy {scores.reason_accuracy:.3f}")
    needs = [("needs history", scores.needs_history), ("needs documents", scores.needs_documents)]
    for name, share in needs:
        if share is not None:
            precision, recall, f1 = _figures(share)
            line(f"{name}: precision {precision}, recall {recall}, F1 {f1} ({share.count} do)")
    line(f"decisions that differ from the label: {len(scores.wrong)}")


def _show_wrong(scores: StrategyScores) -> None:
    for one in scores.wrong:
        expected = ", ".join(f"{name} {value}" for name, value in one.expected.items())
        got = ", ".join(str(value) for value in one.got.values())
        line(f"{' '.join(one.text.split())!r}: expected {expected}; got {got}")


def _figures(share: Share) -> list[str]:
    return [f"{share.precision:.3f}", f"{share.recall:.3f}", f"{share.f1:.3f}"]
