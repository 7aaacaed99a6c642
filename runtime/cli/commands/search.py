"""``agent-runtime search``: what retrieval finds."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import ensure_indexed, line, note, print_json, status_line

EXCERPT_CHARACTERS = 300
MAX_COLUMNS = 100


@click.command()
@click.argument("query")
@workspace_option
@click.option("--top-k", type=click.IntRange(1, 100), default=5, show_default=True, help="Number of passages.")
@click.option("--explain", is_flag=True, help="Show the rank and score in each part of the search.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation, query: str, workspace: str | None, top_k: int, explain: bool, as_json: bool
) -> None:
    """Show the passages that a search finds for QUERY, the best first.

    --explain adds the rank and score of each passage: by words (bm25), by meaning (dense), by the larger embedding
    model (deep), by all together (fused), and by the reranker if one is set.
    """
    run(_search(invocation.settings(), query, workspace, top_k=top_k, explain=explain, as_json=as_json))


async def _search(
    settings: Settings, query: str, workspace: str | None, *, top_k: int, explain: bool, as_json: bool
) -> None:
    name = workspace_of(settings, workspace)
    with status_line("opening the stores …") as status:
        async with connect(settings) as client:
            await ensure_indexed(client, name, status)
            path = f"/v1/workspaces/{segment(name)}/search"
            found = await client.get(path, q=query, top_k=top_k, explain=True if explain else None)
    if as_json:
        print_json(found)
        return
    for part in found.get("degraded") or ():
        note(f"searched without {part['block']}: {part['why']}")
    if not found["results"]:
        line(f"Nothing was found in workspace {name}.")
    for rank, result in enumerate(found["results"], start=1):
        _show(rank, result)


def _show(rank: int, result: dict[str, Any]) -> None:
    where = f"{result['source']} › {result['heading']}" if result["heading"] else str(result["source"])
    line(f"{rank}. {where}  {result['score']:.4f}", bold=True)
    if "dense" in result:
        for told in explained(rank, result):
            line("   " + told, dim=True)
    for part in folded(excerpt(str(result["text"]))):
        line("   " + part)


def explained(rank: int, result: dict[str, Any]) -> list[str]:
    """Where each arm of the search put *result*, and with which score of its own. Pure."""
    rows = [("bm25", "sparse", "BM25"), ("dense", "dense", "cosine")]
    told = [_arm(name, result.get(arm), what, "not among its candidates") for name, arm, what in rows]
    if "deep" in result:
        told.append(
            _arm("deep", result["deep"], "cosine", "not looked at: not among the best, or it has no deep vector yet")
        )
    fused = result.get("fused") or {"rank": rank, "score": result["score"]}
    told.append(_arm("fused", fused, "score", ""))
    if "rerank" in result:
        told.append(_arm("rerank", result["rerank"], "score", "not among its candidates"))
    return told


def _arm(name: str, figures: dict[str, Any] | None, what: str, otherwise: str) -> str:
    if figures is None:
        return f"{name:<7}{otherwise}"
    return f"{name:<7}rank {figures['rank']:<4} {what} {figures['score']:.4f}"


def folded(words: str) -> list[str]:
    """*words* in lines that fit below a heading on a terminal; in one where nobody looks, for programs that do."""
    if not sys.stdout.isatty():
        return [words]
    return textwrap.wrap(words, max(min(shutil.get_terminal_size().columns, MAX_COLUMNS) - 3, 20)) or [""]


def excerpt(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """The beginning of *text* on one line, at most *limit* characters. Pure."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"
