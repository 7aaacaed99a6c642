"""``agent-runtime search``: the passages that retrieval finds."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Any

import click

from runtime.cli.client import Client, api_path, run_with_client
from runtime.cli.invocation import Invocation, data_command, workspace_option
from runtime.cli.output import emit, line, note
from runtime.cli.progress import index_if_pending, status_line

EXCERPT_CHARACTERS = 300
MAX_COLUMNS = 100
UNTRANSLATED = {"block": "translation", "why": "no_model"}
NO_TRANSLATION = (
    "the question is in another language than the documents, so that its words are not found there. A language model "
    "translates it: set AGENT_RUNTIME_LLM_MODEL. Or set AGENT_RUNTIME_EMBEDDING_MODEL=bundled/multilingual"
)


@click.command()
@click.argument("query")
@workspace_option
@click.option("--top-k", type=click.IntRange(1, 100), default=5, show_default=True, help="Number of passages.")
@click.option("--explain", is_flag=True, help="Show the rank and score in each part of the search.")
@data_command
def command(invocation: Invocation, query: str, workspace: str, top_k: int, explain: bool) -> None:
    """Show the passages that a search finds for QUERY, the best first.

    --explain adds the rank and score of each passage: by words (bm25), by meaning (dense), by the larger embedding
    model (deep), by all together (fused), and by the reranker if one is set. The scores by words and by meaning are
    raw: fused is not their sum, because each is put on a common scale first. The score orders passages; whether a
    prompt shows one is decided by its relevance, which is shown, too: the log-odds that the passage answers.
    """
    with status_line("opening the stores …") as status:

        async def search(client: Client) -> dict[str, Any]:
            await index_if_pending(client, workspace, status)
            path = api_path("workspaces", workspace, "search")
            return await client.get(path, q=query, top_k=top_k, explain=True if explain else None)

        answer = run_with_client(invocation, search)

    def show(answer: dict[str, Any]) -> None:
        for part in answer.get("degraded") or ():
            note(NO_TRANSLATION if part == UNTRANSLATED else f"searched without {part['block']}: {part['why']}")
        if not answer["results"]:
            line(f"Nothing was found in workspace {workspace}.")
        for rank, result in enumerate(answer["results"], start=1):
            _show_result(rank, result)

    emit(invocation, answer, show)


def _show_result(rank: int, result: dict[str, Any]) -> None:
    place = f"{result['source']} › {result['heading']}" if result["heading"] else str(result["source"])
    line(f"{rank}. {place}  {result['score']:.4f}", bold=True)
    if "dense" in result:
        for text in explained(rank, result):
            line("   " + text, dim=True)
    for text in _fold(excerpt(str(result["text"]))):
        line("   " + text)


def explained(rank: int, result: dict[str, Any]) -> list[str]:
    """Return a line for each part of the search: the rank of *result* there, and the score. Pure."""
    result = {"fused": {"rank": rank, "score": result["score"]}, **result}  # without a reranker the last word
    relevance = result.get("relevance")
    judged = [] if relevance is None else [f"relevance {relevance:.2f}"]
    parts = {"bm25": "sparse", "dense": "dense", "deep": "deep", "fused": "fused", "rerank": "rerank"}
    return [*(f"{name:<7}{_place_in(result[part])}" for name, part in parts.items() if part in result), *judged]


def _place_in(found: dict[str, Any] | None) -> str:
    return f"rank {found['rank']:<4} score {found['score']:.4f}" if found else "not among its candidates"


def excerpt(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """Return the beginning of *text* on one line of at most *limit* characters. Pure."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def _fold(text: str) -> list[str]:
    """Return *text* in lines that fit the terminal below a heading, or as one line off a terminal."""
    if not sys.stdout.isatty():
        return [text]
    return textwrap.wrap(text, max(min(shutil.get_terminal_size().columns, MAX_COLUMNS) - 3, 20)) or [""]
