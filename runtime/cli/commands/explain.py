"""``agent-runtime explain``: what went into a turn, and why."""

from __future__ import annotations

from typing import Any

import click

from config.settings import Settings
from runtime.cli.client import connect
from runtime.cli.invocation import Invocation, json_option, run
from runtime.cli.output import line, print_json, status_line
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
@click.option("-w", "--workspace", metavar="W", help="Only this workspace.")
@click.option("--prompt", is_flag=True, help="Also print the exact messages.")
@json_option
@click.pass_obj
def command(invocation: Invocation, turn: str, workspace: str | None, prompt: bool, as_json: bool) -> None:
    """Show what went into TURN (a turn id; default: `last`), and why."""
    run(_explain(invocation.settings(), turn, workspace, prompt=prompt, as_json=as_json))


async def _explain(settings: Settings, turn: str, workspace: str | None, *, prompt: bool, as_json: bool) -> None:
    with status_line("opening the stores …"):
        async with connect(settings) as client:
            name, turn_id = await find_turn(client, turn, workspace)
            manifest = await client.get(turn_path(name, turn_id), prompt=True if prompt else None)
    if as_json:
        print_json(manifest)
        return
    show_turn(name, manifest)


def show_turn(workspace: str, manifest: dict[str, Any]) -> None:
    """Print a turn's manifest for a person."""
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
    passages = context.get("passages") or manifest.get("passages") or ()
    show_sources(outcome or manifest, passages)
    show_rounds(outcome.get("rounds") or ())
    show_outcome(outcome)
    if messages := manifest.get("messages"):
        show_messages(messages)
