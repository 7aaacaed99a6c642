"""``agent-runtime explain``: what went into a turn, and why."""

from __future__ import annotations

from typing import Any

import click

from runtime.cli.client import Client, run_with_client
from runtime.cli.invocation import Invocation, json_option, only_workspace_option
from runtime.cli.output import emit, line
from runtime.cli.progress import status_line
from runtime.cli.turns import (
    LAST,
    find_turn,
    show_blocks,
    show_degraded,
    show_messages,
    show_outcome,
    show_prefix,
    show_rounds,
    show_sources,
    show_strategy,
    turn_path,
)


@click.command()
@click.argument("turn", default=LAST)
@only_workspace_option
@click.option("--prompt", is_flag=True, help="Also print the exact messages.")
@json_option
@click.pass_obj
def command(invocation: Invocation, turn: str, workspace: str | None, prompt: bool) -> None:
    """Show what went into TURN (a turn id; default: `last`), and why."""

    async def get(client: Client) -> tuple[str, dict[str, Any]]:
        name, turn_id = await find_turn(client, turn, workspace)
        return name, await client.get(turn_path(name, turn_id), prompt=True if prompt else None)

    with status_line("opening the stores …"):
        name, manifest = run_with_client(invocation, get)
    emit(invocation, manifest, lambda manifest: _show_turn(name, manifest))


def _show_turn(workspace: str, manifest: dict[str, Any]) -> None:
    context: dict[str, Any] = manifest.get("context") or {}
    outcome: dict[str, Any] = manifest.get("outcome") or {}
    line(f"turn      {manifest['turn_id']}", bold=True)
    line(f"when      {manifest['at']}")
    line(f"where     {workspace}, {manifest.get('context_id') or context.get('context_id', '')}")
    show_strategy(manifest["strategy"], manifest["reason"])
    if frame := context.get("frame"):
        cue = f", by {frame['cue']!r}" if frame["cue"] else ""
        line(f"frame     {frame['name']} ({frame['reason'].replace('_', ' ')}{cue})")
    if sigil := context.get("sigil"):
        line(f"sigil     {sigil['name']} ({', '.join(sigil['scopes']) or 'nothing'})")
    if any((marks := manifest.get("marks") or {}).values()):
        line(f"marked    good by {marks['good']}, bad by {marks['bad']}")
    show_degraded(outcome.get("degraded") or manifest.get("degraded") or ())
    show_blocks(manifest["blocks"], manifest["tokens_total"])
    show_prefix(manifest.get("prefix") or {})
    show_sources(outcome or manifest, context.get("passages") or manifest.get("passages") or ())
    show_rounds(outcome.get("rounds") or ())
    show_outcome(outcome)
    show_messages(manifest.get("messages") or ())
