"""``agent-runtime search``: what retrieval finds."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect, segment
from runtime.cli.indexing import ensure_indexed
from runtime.cli.invocation import Invocation, json_option, run, workspace_of, workspace_option
from runtime.cli.output import line, note, print_json, status_line

EXCERPT_CHARACTERS = 300


@click.command()
@click.argument("query")
@workspace_option
@click.option("--top-k", type=click.IntRange(1, 100), default=5, show_default=True, help="How many passages.")
@click.option("--explain", is_flag=True, help="Show each arm's rank and raw score.")
@json_option
@click.pass_obj
def command(
    invocation: Invocation, query: str, workspace: str | None, top_k: int, explain: bool, as_json: bool
) -> None:
    """Show the passages that retrieval finds for QUERY, the best first, with their fused scores."""
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
        line(f"nothing found in workspace {name}")
    for rank, result in enumerate(found["results"], start=1):
        _show(rank, result)


def _show(rank: int, result: dict[str, Any]) -> None:
    where = f"{result['source']} › {result['heading']}" if result["heading"] else str(result["source"])
    line(f"{rank}. {where}  {result['score']:.4f}", bold=True)
    for arm in ("dense", "sparse"):
        if figures := result.get(arm):
            line(f"   {arm}: rank {figures['rank']}, score {figures['score']:.4f}", dim=True)
    line("   " + excerpt(str(result["text"])))


def excerpt(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """The beginning of *text* on one line, at most *limit* characters. Pure."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"
